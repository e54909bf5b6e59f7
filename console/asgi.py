"""ASGI entry of the web process: pages and API by Django, the live socket beside it."""

import os

from channels.routing import ProtocolTypeRouter
from django.core.asgi import get_asgi_application

from console.checks import refuse_unsafe_settings

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "console.settings")
refuse_unsafe_settings()
_django = get_asgi_application()

from console.consumers import live_socket  # noqa: E402  (needs Django set up)

application = ProtocolTypeRouter({"http": _django, "websocket": live_socket})
