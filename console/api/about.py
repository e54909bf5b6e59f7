"""`/api/v1/about`: version and links; who the caller is and what it may do."""

from typing import Any

from django.conf import settings
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.base import ApiView
from console.models import ApiToken, User
from fleet.models import Region


class AboutView(ApiView):
    scope_area = "about"

    @extend_schema(responses=OpenApiTypes.OBJECT)
    def get(self, request: Request) -> Response:
        """Version of the console; the caller's name, roles by region, tenants, and the token's scopes."""
        access = self.access
        names = dict(Region.objects.filter(pk__in=access.region_ranks).values_list("pk", "slug"))
        user: Any = request.user
        token = request.auth if isinstance(request.auth, ApiToken) else None
        return Response(
            {
                "name": "Masthead",
                "version": settings.VERSION,
                "schema": request.build_absolute_uri("/api/schema/"),
                "caller": {
                    "user": user.get_username() if isinstance(user, User) else None,
                    "fleet_rank": access.fleet_rank,
                    "region_ranks": {names[pk]: rank for pk, rank in access.region_ranks.items()},
                    "tenants": sorted(access.tenant_keys),
                    "token": token and {"prefix": token.prefix, "scopes": token.scopes, "expires_at": token.expires_at},
                },
            }
        )
