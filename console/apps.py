from importlib import import_module

from django.apps import AppConfig


class ConsoleConfig(AppConfig):
    name = "console"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        import_module("console.checks")  # registers them; it may only be imported once the apps are loaded
