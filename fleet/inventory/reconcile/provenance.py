"""Who said what: a value is filled or changed by the source that holds it; what another source says differently is a disagreement.

An observation that agrees takes the value over from a weaker source (import, then telemetry, then agent), so that hardware which
really changes later is followed. Nothing that is held is overwritten by another source: the disagreement is shown until both say the same.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fleet.models import Disagreement, Gpu, Node, ObjectKind, Source

_RANK = {Source.IMPORT: 0, Source.PERSON: 0, Source.TELEMETRY: 1, Source.AGENT: 2}


@dataclass(frozen=True)
class _Claim:
    site_id: int | None
    held_source: Source
    held_value: str
    seen_value: str
    at: datetime


def in_words(value: Any) -> str:
    """A value as the disagreement shows it."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)[:300]


class Ledger:
    """Collects agreements and disagreements of one source over many objects; `save` writes them. The caller holds the transaction."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._disagree: dict[tuple[ObjectKind, str, str], _Claim] = {}
        self._settled: dict[tuple[ObjectKind, str, str], str] = {}

    def settle(
        self,
        row: Gpu | Node,
        field: str,
        seen: Any,
        *,
        key: str,
        site_id: int | None,
        at: datetime,
        same: bool | None = None,
        words: tuple[str, str] | None = None,
    ) -> bool:
        """Bring `row.field` together with what this source sees; True when the row (or who holds it) changed.

        None and "" are "did not say" and change nothing. `same` overrules the comparison; `words` are held and seen as shown to people.
        `field` is an attribute of the row, foreign keys by their `_id`.
        """
        if seen is None or seen == "":
            return False
        kind = ObjectKind.GPU if isinstance(row, Gpu) else ObjectKind.NODE
        held = getattr(row, field)
        held_words, seen_words = words or (in_words(held), in_words(seen))
        holder = self.holder(row, field)
        if held is None or held == "":
            return self._take(row, field, seen, kind, key, seen_words)
        if held == seen if same is None else same:
            self._settled[(kind, key, field)] = held_words
            if _RANK[self.source] > _RANK[holder]:
                row.sources[field] = self.source
                return True
            return False
        if holder == self.source:
            return self._take(row, field, seen, kind, key, seen_words)
        self.dispute(kind, key, field, site_id=site_id, held_source=holder, held=held_words, seen=seen_words, at=at)
        return False

    @staticmethod
    def holder(row: Gpu | Node, field: str) -> Source:
        """Who said what is held; rows made without a word about it count as imported."""
        return Source(row.sources.get(field, Source.IMPORT))

    def dispute(self, kind: ObjectKind, key: str, field: str, *, site_id: int | None, held_source: Source, held: str, seen: str, at: datetime) -> None:
        """Record that this source says `seen` where `held_source` holds `held`."""
        self._disagree[(kind, key, field)] = _Claim(site_id, held_source, held, seen, at)
        self._settled.pop((kind, key, field), None)

    def _take(self, row: Gpu | Node, field: str, seen: Any, kind: ObjectKind, key: str, words: str) -> bool:
        setattr(row, field, seen)
        row.sources[field] = self.source
        self._settled[(kind, key, field)] = words
        return True

    def save(self, now: datetime) -> int:
        """Open new disagreements, refresh known ones, close those that ended; returns how many were opened."""
        touched = {*self._disagree, *self._settled}
        if not touched:
            return 0
        opened = 0
        rows = Disagreement.objects.filter(until__isnull=True, kind__in={kind for kind, _, _ in touched}, object_key__in={key for _, key, _ in touched})
        held: dict[tuple[ObjectKind, str, str, Source], Disagreement] = {}
        for each in rows:
            held[(ObjectKind(each.kind), each.object_key, each.field, Source(each.seen_source))] = each
        changed: list[Disagreement] = []
        for place, words in self._settled.items():
            for source in Source:
                row = held.get((*place, source))
                if row is None:
                    continue
                # This source agrees now; another one agrees when what it last said is what is held now.
                if source == self.source or row.seen_value == words:
                    row.until = now
                else:
                    row.held_value, row.held_source = words, self.source
                changed.append(row)
        new: list[Disagreement] = []
        for place, claim in self._disagree.items():
            row = held.get((*place, self.source))
            if row is not None:
                row.held_source, row.held_value, row.seen_value, row.last_at = claim.held_source, claim.held_value, claim.seen_value, max(row.last_at, claim.at)
                changed.append(row)
                continue
            kind, key, field = place
            new.append(
                Disagreement(
                    kind=kind,
                    object_key=key,
                    site_id=claim.site_id,
                    field=field,
                    held_source=claim.held_source,
                    held_value=claim.held_value,
                    seen_source=self.source,
                    seen_value=claim.seen_value,
                    since=claim.at,
                    last_at=claim.at,
                )
            )
            opened += 1
        Disagreement.objects.bulk_update(changed, ["held_source", "held_value", "seen_value", "last_at", "until"], batch_size=1000)
        Disagreement.objects.bulk_create(new, batch_size=1000)
        return opened


def close_disagreements(kind: ObjectKind, keys: list[str], now: datetime, *, fields: list[str] | None = None) -> int:
    """End the open disagreements about these objects, e.g. since they are retired or a person decided."""
    rows = Disagreement.objects.filter(until__isnull=True, kind=kind, object_key__in=keys)
    return (rows if fields is None else rows.filter(field__in=fields)).update(until=now)
