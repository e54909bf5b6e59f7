"""`manage.py export_audit`: the audit, or a span of it, as JSON lines or as messages of syslog, on standard output."""

from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.utils.dateparse import parse_datetime

from fleet.control.audit_chain import rows_of
from fleet.control.audit_export import entry_message, json_lines
from fleet.models import AuditEntry


class Command(BaseCommand):
    help = "Write entries of the audit to standard output, oldest first, one a line."

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("--since", help="the first time that counts, ISO 8601 with its zone; without it from the beginning")
        parser.add_argument("--until", help="the first time that no longer counts; without it to the end")
        parser.add_argument("--format", choices=["jsonl", "syslog"], default="jsonl", help="default %(default)s")

    def handle(self, *args: Any, **options: Any) -> None:
        since, until = _time(options["since"], "--since"), _time(options["until"], "--until")
        if since and until and since >= until:
            raise CommandError("--until: must lie after --since.")
        entries = AuditEntry.objects.all()
        entries = entries.filter(at__gte=since) if since else entries
        rows = rows_of(entries.filter(at__lt=until) if until else entries)
        if options["format"] == "syslog":
            for row in rows:
                self.stdout.write(entry_message(row).with_priority())
            return
        for chunk in json_lines(rows):
            self.stdout.write(chunk.decode(), ending="")


def _time(text: str | None, name: str) -> datetime | None:
    if text is None:
        return None
    try:
        found = parse_datetime(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise CommandError(f"{name}: a time as in ISO 8601, with its zone: 2026-11-30T14:00:00Z.")
    return found
