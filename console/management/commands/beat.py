"""`manage.py beat`: Celery's scheduler behind a lock in Redis."""

from typing import Any

from django.core.management.base import BaseCommand

from console.beat import run_beat


class Command(BaseCommand):
    help = "Schedule the periodic tasks. Any number may run; one is active."

    def handle(self, *args: Any, **options: Any) -> None:
        run_beat()
