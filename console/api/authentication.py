"""Who calls the API: a bearer token of a user or service account, or the browser's session."""

from typing import Any

import pghistory
import structlog
from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from drf_spectacular.plumbing import build_bearer_security_scheme_object
from rest_framework.authentication import BaseAuthentication, get_authorization_header
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from console.models import ApiToken, User
from console.tokens import find_token


class BearerAuthentication(BaseAuthentication):
    """`Authorization: Bearer mh_…`. A token in an URL is never looked at."""

    def authenticate(self, request: Request) -> tuple[User, ApiToken] | None:
        words = get_authorization_header(request).decode("latin-1").split()
        if not words or words[0].lower() != "bearer":
            return None
        if len(words) != 2:
            raise AuthenticationFailed("The Authorization header must be 'Bearer' and one token.")
        token = find_token(words[1], now=timezone.now())
        if token is None:
            raise AuthenticationFailed("The token is unknown, expired or revoked.")
        structlog.contextvars.bind_contextvars(token=token.prefix)
        pghistory.context(token=token.prefix)
        return token.user, token

    def authenticate_header(self, request: Request) -> str:
        return 'Bearer realm="masthead"'


class BearerScheme(OpenApiAuthenticationExtension):
    target_class = BearerAuthentication
    name = "bearer"

    def get_security_definition(self, auto_schema: Any) -> Any:
        return build_bearer_security_scheme_object("Authorization", "Bearer")
