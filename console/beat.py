"""Celery's scheduler, one active at a time: whoever holds the lock in Redis. Others stand by and take over when it lapses."""

import os
import signal
import threading
import uuid

import redis
import structlog
from django.conf import settings

from console.celery import app
from console.checks import refuse_unsafe_settings

LOCK_KEY = "beat:lock"
LOCK_SECONDS = 10
log = structlog.get_logger(__name__)

# Extend the lock only while it is still ours; a key that Redis lost (it may be emptied at any time) is taken again.
_RENEW = """
local holder = redis.call('GET', KEYS[1])
if holder == ARGV[1] or not holder then
  redis.call('SET', KEYS[1], ARGV[1], 'EX', ARGV[2])
  return 1
end
return 0
"""


class BeatLock:
    """`acquire` waits for the lock; `renew` says whether it is still ours."""

    def __init__(self, client: "redis.Redis", *, seconds: int = LOCK_SECONDS) -> None:
        self._client = client
        self._seconds = seconds
        self._token = uuid.uuid4().hex
        self._renew = client.register_script(_RENEW)

    def acquire(self, *, stop: threading.Event) -> bool:
        """Wait until the lock is ours (True) or `stop` is set (False). Redis being away is waited out."""
        while not stop.is_set():
            try:
                if self.renew():
                    return True
            except redis.RedisError as error:
                log.warning("beat.redis_unreachable", error=str(error))
            stop.wait(self._seconds / 5)
        return False

    def renew(self) -> bool:
        return bool(self._renew(keys=[LOCK_KEY], args=[self._token, self._seconds]))

    def release(self) -> None:
        """Let a stand-by take over at once."""
        if self._client.get(LOCK_KEY) == self._token.encode():
            self._client.delete(LOCK_KEY)


def _keep(lock: BeatLock, stop: threading.Event) -> None:
    """Renew until `stop`; end the process when another beat holds the lock, so that never two schedule."""
    while not stop.wait(lock._seconds / 3):
        try:
            if not lock.renew():
                log.error("beat.lock_lost")
                os.kill(os.getpid(), signal.SIGTERM)
                return
        except redis.RedisError as error:
            log.warning("beat.redis_unreachable", error=str(error))


def run_beat() -> None:
    """Wait for the lock, then schedule until told to stop."""
    refuse_unsafe_settings()
    lock = BeatLock(redis.Redis.from_url(settings.REDIS_URL, socket_timeout=5))
    stop = threading.Event()
    if not lock.acquire(stop=stop):
        return
    log.info("beat.active")
    threading.Thread(target=_keep, args=(lock, stop), daemon=True, name="beat-lock").start()
    try:
        app.Beat(loglevel="INFO", scheduler="celery.beat:Scheduler", quiet=True, redirect_stdouts=False).run()
    finally:
        stop.set()
        try:
            lock.release()
        except redis.RedisError as error:
            log.warning("beat.redis_unreachable", error=str(error))
