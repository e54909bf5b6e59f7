"""The audit: who did what, on what, why, when; its seals, what the last verification found, and how far it was streamed."""

from django.contrib.postgres.fields import ArrayField
from django.db import models
from django.db.models import BigIntegerField, F, Func, Q, TextField
from django.db.models.functions import Cast


class AuditKind(models.TextChoices):
    """What an act was on: every `ObjectKind`, and what stands above objects. "" is the console itself: people, tenants, tokens."""

    FLEET = "fleet", "Fleet"
    AREA = "area", "Area"
    REGION = "region", "Region"
    SITE = "site", "Site"
    NODE = "node", "Node"
    GPU = "gpu", "GPU"
    SLICE = "slice", "MIG slice"
    SENDER = "sender", "Sender"
    COMMAND = "command", "Command"
    POLICY = "policy", "Policy"
    SWITCH = "switch", "Switch"


class AuditOutcome(models.TextChoices):
    DONE = "done", "Done"
    ASKED = "asked", "Asked"
    REFUSED = "refused", "Refused"
    FAILED = "failed", "Failed"


def _own_transaction() -> Cast:
    return Cast(Cast(Func(function="pg_current_xact_id", output_field=TextField()), TextField()), BigIntegerField())


class AuditEntry(models.Model):
    """One act. Append-only: the application role has neither UPDATE nor DELETE here. Written by `fleet.control.audit.record` alone."""

    at = models.DateTimeField()
    actor = models.CharField(max_length=150, help_text="The person (user name), agent:<node id>, or the part of the console that acted by itself.")
    through = models.CharField(max_length=80, blank=True, help_text="What the actor used: token:<prefix>, or agent:<node id>; empty for a sign-in.")
    action = models.CharField(max_length=60)
    kind = models.CharField(max_length=8, choices=AuditKind, blank=True)
    object_key = models.CharField(max_length=80, blank=True)
    reason = models.CharField(max_length=300, blank=True)
    outcome = models.CharField(max_length=12, choices=AuditOutcome, default=AuditOutcome.DONE)
    detail = models.JSONField(default=dict, help_text="Facts of the act; `before` and `after` hold what it changed.")
    request_id = models.CharField(max_length=64, blank=True)
    source_address = models.GenericIPAddressField(null=True, help_text="Where the request came from; empty for what no request asked for.")
    transaction = models.BigIntegerField(
        db_default=_own_transaction(), editable=False, help_text="PostgreSQL's number of the transaction that wrote it: what the sealer goes by."
    )

    class Meta:
        indexes = [
            models.Index(fields=["kind", "object_key", "-at"], name="audit_object_idx"),
            models.Index(fields=["-at"], name="audit_at_idx"),
            models.Index(fields=["actor", "-at"], name="audit_actor_idx"),
            models.Index(fields=["transaction", "id"], name="audit_transaction_idx"),
        ]


class AuditSeal(models.Model):
    """A closed batch of entries, chained by hash to the one before. Append-only as the entries are. Made by `fleet.control.audit_seal` alone.

    It holds the entries with `after_id < id` and `from_transaction <= transaction < until_transaction`, so that each entry lies in one seal or in none
    yet. A seal with `until_id` and no `until_transaction` closes an era: what a database brought along that was restored where transactions are
    counted anew (docs/decisions/004). Seals of an era hold no entry beyond its `until_id`.
    """

    number = models.BigIntegerField(primary_key=True, help_text="1, 2, 3, … without gaps.")
    sealed_at = models.DateTimeField()
    after_id = models.BigIntegerField()
    from_transaction = models.BigIntegerField()
    until_transaction = models.BigIntegerField(null=True)
    until_id = models.BigIntegerField(null=True)
    entry_ids = ArrayField(models.BigIntegerField(), help_text="Which entries it holds, ascending.")
    fingerprints = models.BinaryField(help_text="16 bytes of SHA-256 of each entry, to name the one that was changed.")
    previous = models.BinaryField(max_length=32)
    digest = models.BinaryField(max_length=32, help_text="SHA-256 over the previous digest, this seal's bounds, and its entries.")

    @property
    def hex(self) -> str:
        return bytes(self.digest).hex()

    class Meta:
        constraints = [
            models.CheckConstraint(condition=Q(number__gte=1), name="audit_seal_number"),
            models.CheckConstraint(condition=Q(until_transaction__isnull=True) | Q(until_transaction__gt=F("from_transaction")), name="audit_seal_has_room"),
        ]
        indexes = [models.Index(fields=["-from_transaction"], name="audit_seal_begin_idx")]


class AuditCheck(models.Model):
    """How far the chain was verified, and what broke it. One row; written by `fleet.control.audit_verify` alone."""

    checked_at = models.DateTimeField(help_text="When the last verification ended.")
    head_number = models.BigIntegerField(default=0, help_text="The newest seal that was verified.")
    head_digest = models.BinaryField(max_length=32, default=bytes)
    round_number = models.BigIntegerField(default=0, help_text="How far the present round over all older seals has come.")
    round_ended_at = models.DateTimeField(null=True, help_text="When every seal had last been verified.")
    asked_at = models.DateTimeField(null=True, help_text="Somebody asked for a verification of the whole; empty once it is done.")
    broken_at = models.DateTimeField(null=True)
    broken_seal = models.BigIntegerField(null=True)
    broken_entry = models.BigIntegerField(null=True)
    broken_why = models.CharField(max_length=300, blank=True)


class AuditStream(models.Model):
    """How far a receiver of syslog has the audit. One row an address."""

    address = models.CharField(max_length=200, primary_key=True)
    seal_number = models.BigIntegerField(default=0, help_text="The last seal that was handed over whole.")
    sent_at = models.DateTimeField(null=True)
    failing_since = models.DateTimeField(null=True)
    failure = models.CharField(max_length=300, blank=True)
    claimed_until = models.DateTimeField(null=True, help_text="One sender at a time: whoever holds this has until then.")
