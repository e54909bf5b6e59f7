"""`manage.py issue_bundles`: enrolment bundles in bulk, one file a node."""

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils import timezone

from fleet.agents import enrolment
from fleet.control import signing
from fleet.models import Node


class Command(BaseCommand):
    help = "Write an enrolment bundle for every node of a region or site that has no key yet, one file each (mode 0600)."

    def add_arguments(self, parser: CommandParser) -> None:
        scope = parser.add_mutually_exclusive_group(required=True)
        scope.add_argument("--region", help="slug of a region")
        scope.add_argument("--site", help="code of a site")
        parser.add_argument("--user", required=True, help="in whose name they are issued; it stands in the audit")
        parser.add_argument("--out", type=Path, required=True, help="a new or empty folder")
        parser.add_argument("--days", type=int, default=enrolment.VALID_FOR.days, help="how long they are valid (default %(default)s)")
        parser.add_argument("--enrolled-too", action="store_true", help="also nodes that have a key: their new key will wait for an operator")

    def handle(self, *args: Any, **options: Any) -> None:
        nodes = Node.objects.filter(retired_at__isnull=True).select_related("site").order_by("site__code", "host_name")
        nodes = nodes.filter(site__region__slug=options["region"]) if options["region"] else nodes.filter(site__code=options["site"])
        if not options["enrolled_too"]:
            nodes = nodes.exclude(agent_identities__revoked_at__isnull=True, agent_identities__isnull=False)
        if not nodes.exists():
            raise CommandError("No such node: check --region or --site (nodes that have a key are left out unless --enrolled-too).")
        user = get_user_model().objects.filter(username=options["user"], is_active=True).first()
        if user is None:
            raise CommandError(f"--user: there is no active user {options['user']!r}.")
        out: Path = options["out"]
        try:
            out.mkdir(mode=0o700, parents=True, exist_ok=True)
            if any(out.iterdir()):
                raise CommandError(f"--out: {out} is not empty.")
            issued = enrolment.issue_bundles(nodes=nodes, user=user, now=timezone.now(), valid_for=timedelta(days=options["days"]))
            for bundle in issued:
                path = out / f"{bundle.node.site.code}-{bundle.node.host_name}.bundle"
                with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(bundle.text + "\n")
        except (OSError, ValueError, signing.SigningUnavailable) as error:
            raise CommandError(str(error)) from error
        self.stdout.write(f"Wrote {len(issued)} bundles to {out}, valid until {issued[0].expires_at:%Y-%m-%d %H:%M} UTC.")
