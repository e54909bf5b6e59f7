"""The cache, in Redis, which may be lost at any time: a cache that cannot be reached is an empty one, not a fault of the page that asked."""

from typing import Any

import structlog
from django.core.cache.backends.redis import RedisCache
from redis.exceptions import RedisError

log = structlog.get_logger(__name__)


class ForgivingRedisCache(RedisCache):
    """Django's Redis cache, with misses instead of errors. Limits that are counted in it are lifted while Redis is away."""

    def get(self, key: Any, default: Any = None, version: int | None = None) -> Any:
        return self._or(default, super().get, key, default=default, version=version)

    def get_many(self, keys: Any, version: int | None = None) -> Any:
        return self._or({}, super().get_many, keys, version=version)

    def add(self, key: Any, value: Any, timeout: Any = None, version: int | None = None) -> Any:
        return self._or(True, super().add, key, value, timeout=timeout, version=version)

    def set(self, key: Any, value: Any, timeout: Any = None, version: int | None = None) -> Any:
        return self._or(None, super().set, key, value, timeout=timeout, version=version)

    def set_many(self, data: Any, timeout: Any = None, version: int | None = None) -> Any:
        return self._or([], super().set_many, data, timeout=timeout, version=version)

    def delete(self, key: Any, version: int | None = None) -> Any:
        return self._or(False, super().delete, key, version=version)

    @staticmethod
    def _or(fallback: Any, act: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return act(*args, **kwargs)
        except RedisError as error:
            log.warning("cache_unreachable", error=str(error))
            return fallback
