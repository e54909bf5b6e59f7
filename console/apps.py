from django.apps import AppConfig

from console.checks import check_settings

__all__ = ["ConsoleConfig", "check_settings"]  # importing the checks registers them


class ConsoleConfig(AppConfig):
    name = "console"
    default_auto_field = "django.db.models.BigAutoField"
