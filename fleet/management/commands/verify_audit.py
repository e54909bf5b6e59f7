"""`manage.py verify_audit`: the whole chain of seals against the entries. Status 0: it holds; 1: it is broken."""

from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone

from fleet.control.audit_verify import verify_whole
from fleet.models import AuditSeal


class Command(BaseCommand):
    help = "Verify that no entry of the audit was changed, deleted or put in after it was sealed. Ends with status 1 and names the first that was."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument(
            "--seal", metavar="NUMBER:DIGEST", help="A seal as it was noted elsewhere (the output of this command, or a line of syslog): it must still stand."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        known = _known(options["seal"])
        found = verify_whole(now=timezone.now())
        if found.broken is not None:
            raise CommandError(f"The audit is broken: {found.broken}")
        if known is not None:
            digest = AuditSeal.objects.filter(number=known[0]).values_list("digest", flat=True).first()
            if digest is None or bytes(digest) != known[1]:
                raise CommandError(f"The audit is broken: seal {known[0]} {'is gone' if digest is None else 'is another one than was noted'}.")
        newest = f" The newest is {found.number}:{found.digest.hex()}" if found.number else ""
        self.stdout.write(f"The audit holds: {found.entries} entries in {found.seals} seals.{newest}")


def _known(text: str | None) -> tuple[int, bytes] | None:
    if text is None:
        return None
    number, _, digest = text.partition(":")
    try:
        known = int(number), bytes.fromhex(digest)
    except ValueError as error:
        raise CommandError("--seal: a number, a colon and 64 hex digits.") from error
    if known[0] < 1 or len(known[1]) != 32:
        raise CommandError("--seal: a number, a colon and 64 hex digits.")
    return known
