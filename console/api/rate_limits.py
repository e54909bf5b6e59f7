"""Rate limits per token (or per user without one), in Redis; answers carry `RateLimit-Policy` and `RateLimit`. Redis away: no limit."""

from typing import Any

import structlog
from django.conf import settings
from redis.exceptions import RedisError
from rest_framework.request import Request
from rest_framework.throttling import SimpleRateThrottle

log = structlog.get_logger(__name__)


class TokenRate(SimpleRateThrottle):
    """`settings.API_RATE` requests a minute for each token or user; reads and writes count alike."""

    scope = "token"
    num_requests: int
    duration: int

    def get_rate(self) -> str:
        return f"{settings.API_REQUESTS_PER_MINUTE}/min"

    def get_cache_key(self, request: Request, view: Any) -> str | None:
        if request.auth is not None and hasattr(request.auth, "prefix"):
            return f"rate:token:{request.auth.prefix}"
        return f"rate:user:{request.user.pk}" if request.user.is_authenticated else f"rate:address:{self.get_ident(request)}"

    def allow_request(self, request: Request, view: Any) -> bool:
        try:
            allowed = bool(super().allow_request(request, view))
        except RedisError as error:
            log.warning("rate_limit_skipped", error=str(error))
            return True
        used = len(self.history)
        request.rate_headers = {  # type: ignore[attr-defined]
            "RateLimit-Policy": f'"default";q={self.num_requests};w={self.duration}',
            "RateLimit": f'"default";r={max(0, self.num_requests - used)};t={int(self.wait() or self.duration) if not allowed else self.duration}',
        }
        return allowed
