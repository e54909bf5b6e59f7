"""An operator's word that a finding is over: the only end of a sticky fault beside a reboot and a replacement."""

from datetime import datetime

from django.db import transaction

from fleet.control import audit
from fleet.models import Finding

CLEARED_BY = "Cleared by "


class ClearingRefused(Exception):
    """`errors` maps the field to what is wrong with it."""

    def __init__(self, **errors: str) -> None:
        super().__init__("; ".join(f"{field}: {text}" for field, text in errors.items()))
        self.errors = errors


def clear_finding(*, finding: Finding, reason: str, actor: str, now: datetime, request_id: str = "") -> Finding:
    """End an open finding; one that is over already stays as it is. The telemetry process takes it up within seconds.

    Raises `ClearingRefused` without a reason.
    """
    text = reason.strip()
    if not text or "\0" in text or len(text) > 300:
        raise ClearingRefused(reason="At most 300 printable characters." if text else "Say why.")
    with transaction.atomic():
        current = Finding.objects.select_for_update().get(pk=finding.pk)
        if current.until is None:
            current.until, current.ended_because = max(now, current.since), f"{CLEARED_BY}{actor}: {text}"[:120]
            current.save(update_fields=["until", "ended_because"])
            audit.record(
                now=now,
                actor=actor,
                action="finding.clear",
                kind=current.kind,
                key=current.object_key,
                reason=text,
                detail={"finding": current.pk, "code": current.code, "summary": current.summary},
                request_id=request_id,
            )
    return current
