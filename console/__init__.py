"""Settings, and every outward face. Importing it makes `current_app` and `shared_task` mean our Celery application, in whatever process."""

from console.celery import app as celery_app

__all__ = ["celery_app"]
