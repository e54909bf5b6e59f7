"""What an agent does on its own, as its signed document says it. Every number is a setting with its default here."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from agent.protocol.wire import ProtocolError, Reader

GIB = 1 << 30
HIGHEST_PRIORITY = 10
MAX_WORKLOADS, MAX_FRONT_ENDS, MAX_GRANTS = 500, 200, 1000
_NO_CREDENTIAL = hashlib.sha256(b"").hexdigest()
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class WorkloadRule:
    """Pods of a namespace (and, where `service_account` is not "", of it alone): whose they are and what is theirs.

    `priority` 0..10 decides who gives way; `slices` is the claim on AI placements of the node (0: none); `memory_bytes` is the
    reservation of each pod on its placement (None: none), to be exceeded no longer than `grace_seconds`; `models` are those that the pods serve.
    """

    namespace: str
    tenant: str
    service_account: str = ""
    priority: int = 0
    slices: int = 0
    memory_bytes: int | None = None
    grace_seconds: float = 60.0
    models: tuple[str, ...] = ()

    @classmethod
    def parse(cls, reader: Reader) -> WorkloadRule:
        found = cls(
            namespace=reader.text("namespace", longest=63),
            tenant=reader.text("tenant", longest=80),
            service_account=reader.text("service_account", longest=253, empty=True),
            priority=reader.integer("priority", high=HIGHEST_PRIORITY),
            slices=reader.integer("slices", high=512),
            memory_bytes=reader.optional("memory_bytes", lambda name: reader.integer(name, low=1, high=1 << 50)),
            grace_seconds=reader.number("grace_seconds", low=0, high=86_400),
            models=reader.texts("models", most=100, longest=200),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class PowerSchedule:
    """Upper bounds of the SM clock by the site's hour and load. Hours are local, [from, to); loads are ratios 0..1.

    `phy_gpus`: GPUs that carry PHY and may be scheduled all the same.
    """

    enabled: bool = False
    floor_mhz: int = 210
    eco_mhz: int = 1100
    base_mhz: int = 1410
    boost_mhz: int = 1980
    night_from: int = 2
    night_to: int = 6
    night_below_ratio: float = 0.40
    day_from: int = 8
    day_to: int = 22
    day_above_ratio: float = 0.70
    phy_gpus: tuple[str, ...] = ()

    @classmethod
    def parse(cls, reader: Reader) -> PowerSchedule:
        found = cls(
            enabled=reader.boolean("enabled"),
            floor_mhz=reader.integer("floor_mhz", high=10_000),
            eco_mhz=reader.integer("eco_mhz", low=100, high=10_000),
            base_mhz=reader.integer("base_mhz", low=100, high=10_000),
            boost_mhz=reader.integer("boost_mhz", low=100, high=10_000),
            night_from=reader.integer("night_from", high=23),
            night_to=reader.integer("night_to", low=1, high=24),
            night_below_ratio=reader.number("night_below_ratio", low=0, high=1),
            day_from=reader.integer("day_from", high=23),
            day_to=reader.integer("day_to", low=1, high=24),
            day_above_ratio=reader.number("day_above_ratio", low=0, high=1),
            phy_gpus=reader.texts("phy_gpus", most=64, longest=64),
        )
        reader.done()
        if not found.floor_mhz <= found.eco_mhz <= found.base_mhz <= found.boost_mhz:
            raise ProtocolError(reader.at("eco_mhz"), "the clocks do not rise from floor over eco and base to boost")
        if not (found.night_from < found.night_to <= found.day_from < found.day_to):
            raise ProtocolError(reader.at("night_from"), "night and day are not two spans, one after the other")
        return found


@dataclass(frozen=True)
class FrontEnd:
    """A program that asks the admission door: `digest` is the SHA-256 of its credential, hex; `tenant` is whose requests it brings."""

    digest: str
    tenant: str

    @classmethod
    def parse(cls, reader: Reader) -> FrontEnd:
        found = cls(digest=reader.text("digest", longest=64), tenant=reader.text("tenant", longest=80))
        reader.done()
        if not _DIGEST.fullmatch(found.digest):
            raise ProtocolError(reader.at("digest"), "is not a SHA-256 in hex")
        if found.digest == _NO_CREDENTIAL:
            raise ProtocolError(reader.at("digest"), "is that of an empty credential")
        return found


@dataclass(frozen=True)
class Grant:
    """The highest priority that counts for a tenant's requests to a model, and whether they may be URLLC. Without one: priority 0, no URLLC."""

    tenant: str
    model: str
    priority: int = 0
    urllc: bool = False

    @classmethod
    def parse(cls, reader: Reader) -> Grant:
        found = cls(
            tenant=reader.text("tenant", longest=80),
            model=reader.text("model", longest=200),
            priority=reader.integer("priority", high=HIGHEST_PRIORITY),
            urllc=reader.boolean("urllc"),
        )
        reader.done()
        return found


@dataclass(frozen=True)
class AdmissionRules:
    """Depths are requests that wait for a model. Priorities below `low_below` are low."""

    capacity: int = 1000
    low_refused_from: int = 800
    low_below: int = 5
    retry_after_seconds: int = 5
    front_ends: tuple[FrontEnd, ...] = ()
    grants: tuple[Grant, ...] = ()

    @classmethod
    def parse(cls, reader: Reader) -> AdmissionRules:
        found = cls(
            capacity=reader.integer("capacity", low=1, high=10_000_000),
            low_refused_from=reader.integer("low_refused_from", low=0, high=10_000_000),
            low_below=reader.integer("low_below", high=HIGHEST_PRIORITY + 1),
            retry_after_seconds=reader.integer("retry_after_seconds", low=1, high=3600),
            front_ends=reader.items("front_ends", FrontEnd.parse, most=MAX_FRONT_ENDS),
            grants=reader.items("grants", Grant.parse, most=MAX_GRANTS),
        )
        reader.done()
        if found.low_refused_from > found.capacity:
            raise ProtocolError(reader.at("low_refused_from"), f"is more than the capacity {found.capacity}")
        _refuse_twice(reader, "front_ends", (front_end.digest for front_end in found.front_ends))
        _refuse_twice(reader, "grants", ((grant.tenant, grant.model) for grant in found.grants))
        return found


@dataclass(frozen=True)
class LocalRules:
    """`operator_namespaces` and `operator_service_accounts` ("namespace/name") belong to the operator: pods of them are PHY and never touched."""

    operator_namespaces: tuple[str, ...] = ()
    operator_service_accounts: tuple[str, ...] = ()
    workloads: tuple[WorkloadRule, ...] = ()
    margin_bytes: int = 2 * GIB
    over_ratio: float = 1.10
    evicts_above: int = 7
    evictions_per_hour: int = 3
    power: PowerSchedule = field(default_factory=PowerSchedule)
    admission: AdmissionRules = field(default_factory=AdmissionRules)

    @classmethod
    def parse(cls, reader: Reader) -> LocalRules:
        found = cls(
            operator_namespaces=reader.texts("operator_namespaces", most=100, longest=63),
            operator_service_accounts=reader.texts("operator_service_accounts", most=200, longest=320),
            workloads=reader.items("workloads", WorkloadRule.parse, most=MAX_WORKLOADS),
            margin_bytes=reader.integer("margin_bytes", high=1 << 40),
            over_ratio=reader.number("over_ratio", low=1, high=10),
            evicts_above=reader.integer("evicts_above", high=HIGHEST_PRIORITY),
            evictions_per_hour=reader.integer("evictions_per_hour", high=1000),
            power=PowerSchedule.parse(reader.child("power")),
            admission=AdmissionRules.parse(reader.child("admission")),
        )
        reader.done()
        for number, account in enumerate(found.operator_service_accounts):
            if account.count("/") != 1 or account.startswith("/") or account.endswith("/"):
                raise ProtocolError(reader.at(f"operator_service_accounts[{number}]"), "is not namespace/name")
        for number, rule in enumerate(found.workloads):
            if rule.namespace in found.operator_namespaces:
                raise ProtocolError(reader.at(f"workloads[{number}].namespace"), "is the operator's")
        _refuse_twice(reader, "workloads", ((rule.namespace, rule.service_account) for rule in found.workloads))
        return found

    def is_operators(self, namespace: str, service_account: str) -> bool:
        return namespace in self.operator_namespaces or f"{namespace}/{service_account}" in self.operator_service_accounts

    def workload_rule(self, namespace: str, service_account: str) -> WorkloadRule | None:
        """The rule of the service account, or else that of the whole namespace."""
        found = [rule for rule in self.workloads if rule.namespace == namespace and rule.service_account in ("", service_account)]
        return max(found, key=lambda rule: bool(rule.service_account), default=None)


def _refuse_twice(reader: Reader, name: str, keys: Iterable[object]) -> None:
    seen: set[object] = set()
    for number, key in enumerate(keys):
        if key in seen:
            raise ProtocolError(reader.at(f"{name}[{number}]"), "is there twice")
        seen.add(key)
