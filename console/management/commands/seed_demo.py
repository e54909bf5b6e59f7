"""`manage.py seed_demo`: fill a database with the demo's inventory, people and tokens."""

import json
import os
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandParser
from django.utils import timezone

from console import demo


class Command(BaseCommand):
    help = "Fill the database of a demo. Running it again changes only what differs."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--inventory", type=Path, required=True, help="JSON: {rows: {sites, nodes, gpus}, names: {areas, regions}}")
        parser.add_argument("--accounts", type=Path, required=True, help="JSON: {user name: password}")
        parser.add_argument("--sender-token", type=Path, required=True, help="file of the sender's token; made when it is not there")
        parser.add_argument("--bundles", type=Path, required=True, help="file for the enrolment bundle of each node")

    def handle(self, *args: Any, **options: Any) -> None:
        now = timezone.now()
        demo.seed_people(json.loads(options["accounts"].read_text()))
        inventory = json.loads(options["inventory"].read_text())
        demo.seed_inventory(inventory["rows"], inventory["names"], now=now)
        token: Path = options["sender_token"]
        _write_private(token, demo.sender_token(_text(token), now=now))
        bundles: Path = options["bundles"]
        _write_private(bundles, demo.bundles_for(_text(bundles), now=now))
        self.stdout.write("The demo is seeded.")


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def _write_private(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.unlink(missing_ok=True)
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    part.replace(path)
