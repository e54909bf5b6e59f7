"""Evictions that the agent decides by itself: through the Eviction API, within the limit of the signed document, each one told."""

from __future__ import annotations

from agent.backends.cluster import Cluster, ClusterError, EvictionOutcome, Pod
from agent.local.notices import Notices
from agent.spool import Detail, Spool
from agent.store import Store

WINDOW_SECONDS = 3600.0
_SCHEMA = "CREATE TABLE IF NOT EXISTS eviction (uid TEXT PRIMARY KEY, at REAL NOT NULL);"


class Evictions:
    """Kills are no evictions and do not count here."""

    def __init__(self, *, store: Store, spool: Spool, notices: Notices) -> None:
        self._store = store
        self._spool = spool
        self._notices = notices
        store.create(_SCHEMA)

    def within_hour(self, now: float) -> int:
        return int(self._store.value("SELECT count(*) FROM eviction WHERE at > ? AND at <= ?", (now - WINDOW_SECONDS, now)))

    def evict(self, cluster: Cluster, pod: Pod, reason: Detail, *, limit: int, allowed: bool, now: float) -> bool:
        """Whether the pod was told to go. Not `allowed` (automation is off), or beyond `limit` per hour: a warning instead.

        Raises ClusterError only when there is no API server.
        """
        subject = f"{pod.namespace}/{pod.name}"
        if not allowed:
            self._notices.warn("eviction_not_allowed", subject, {**reason, "why": "automation is off"}, now)
            return False
        self._store.write("DELETE FROM eviction WHERE at <= ?", (now - WINDOW_SECONDS,))
        if self.within_hour(now) >= limit:
            self._notices.warn("eviction_limit", subject, {**reason, "limit_per_hour": limit}, now)
            return False
        # Counted before the act: an agent that dies in between must not evict beyond the limit.
        self._store.write("INSERT OR REPLACE INTO eviction VALUES (?, ?)", (pod.uid, now))
        try:
            found = cluster.evict(pod)
        except ClusterError as error:
            self._store.write("DELETE FROM eviction WHERE uid = ?", (pod.uid,))
            self._notices.warn("eviction_failed", subject, {**reason, "error": str(error)[:200]}, now)
            return False
        if found.outcome is EvictionOutcome.EVICTED:
            self._spool.add("evicted", now, subject, {**reason, "pod_uid": pod.uid})
            return True
        self._store.write("DELETE FROM eviction WHERE uid = ?", (pod.uid,))
        if found.outcome is not EvictionOutcome.GONE:
            self._notices.warn("eviction_refused", subject, {**reason, "outcome": found.outcome.value, "detail": found.detail[:200]}, now)
        return False
