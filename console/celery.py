"""The Celery application: worker and beat."""

import os
from typing import Any

from celery import Celery
from celery.signals import celeryd_init
from django.core.exceptions import ImproperlyConfigured

from console.checks import refuse_unsafe_settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
app = Celery("masthead")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["fleet", "tenants", "slo", "console"])


@celeryd_init.connect
def _check_settings(**kwargs: Any) -> None:
    """At the worker's start: Django checks nothing here by itself, and Celery only logs what a handler raises, except an exit."""
    try:
        refuse_unsafe_settings()
    except ImproperlyConfigured as error:
        raise SystemExit(str(error)) from error
