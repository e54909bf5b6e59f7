"""`manage.py add_administrator NAME`: somebody has to be the first who may give others their roles."""

import sys
from getpass import getpass
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import transaction
from django.utils import timezone

from console import people
from console.models import RoleGrant, User


class Command(BaseCommand):
    stealth_options = ("stdin",)
    help = "Open an account with the role of administrator on the whole fleet. The password is asked for, or read from standard input."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("username")

    def handle(self, *args: Any, **options: Any) -> None:
        source = options.get("stdin") or sys.stdin
        password = getpass("Password: ") if source.isatty() else source.readline().rstrip("\n")
        if source.isatty() and getpass("Again: ") != password:
            raise CommandError("The two passwords differ.")
        now, actor = timezone.now(), User(username="manage.py")
        try:
            with transaction.atomic():
                user = people.create_user(username=options["username"], password=password, actor=actor, now=now)
                people.grant_role(user=user, role=RoleGrant.Role.ADMINISTRATOR, region=None, actor=actor, now=now)
        except people.PeopleRefused as refused:
            raise CommandError(str(refused)) from refused
        self.stdout.write(f"{user.username} is an administrator of the whole fleet.")
