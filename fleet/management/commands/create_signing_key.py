"""`manage.py create_signing_key PATH`: make the key that signs desired-state documents."""

from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from fleet.control import signing


class Command(BaseCommand):
    help = "Make the Ed25519 key that signs desired-state documents (mode 0600). Keep it where web and worker can read it and the gateway cannot."
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("path", type=Path)

    def handle(self, *args: Any, **options: Any) -> None:
        path: Path = options["path"]
        try:
            fingerprint = signing.create_key_file(path)
        except FileExistsError as error:
            raise CommandError(f"{path} exists already. A key in use is not replaced.") from error
        except OSError as error:
            raise CommandError(f"{path}: {error.strerror}") from error
        self.stdout.write(f"Wrote {path}. Fingerprint {fingerprint}")
