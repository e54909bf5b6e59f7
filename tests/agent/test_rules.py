"""Rules and switches as documents: every bad field is named, what contradicts itself is refused, and nothing unsigned is believed."""

import hashlib
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.protocol import (
    AdmissionRules,
    DesiredState,
    DocumentError,
    FrontEnd,
    Grant,
    LocalRules,
    PowerSchedule,
    ProtocolError,
    ScopeKind,
    Switch,
    SwitchKind,
    WorkloadRule,
    verify_switch,
)
from tests.agent.documents import CONSOLE_KEY, document, signed_switch, switch
from tests.agent.test_protocol import json_values, paths_of

RULES = LocalRules(
    operator_namespaces=("ran-phy",),
    operator_service_accounts=("shared/ran",),
    workloads=(WorkloadRule("tenant-a", "a", priority=8, slices=2, memory_bytes=1 << 33, models=("llm",)), WorkloadRule("tenant-a", "a", "batch")),
    power=PowerSchedule(enabled=True, phy_gpus=("GPU-1",)),
    admission=AdmissionRules(front_ends=(FrontEnd("0" * 64, "a"),), grants=(Grant("a", "llm", 9, True),)),
)


def body_with(path: str, value: Any) -> bytes:
    values = json.loads(document(1, rules=RULES).body)
    *way, last = path.split("/")
    spot = values
    for step in way:
        spot = spot[int(step) if step.isdigit() else step]
    spot[last] = value
    return json.dumps(values).encode()


def test_rules_and_place_are_read_as_written() -> None:
    signed = document(1, rules=RULES)
    state = DesiredState.from_bytes(signed.body)
    assert state.rules == RULES
    assert state.to_bytes() == signed.body
    assert state.place.within("fleet", "")
    assert state.place.within("region", "west-1")
    assert state.place.within("node", "7")
    assert not state.place.within("site", "W2")
    assert not state.place.within("planet", "")


@pytest.mark.parametrize(
    ("path", "value", "field"),
    [
        ("format", 1, "format"),
        ("place/node", "8", "place.node"),
        ("place/time_zone", "", "place.time_zone"),
        ("place/country", "NL", "place.country"),
        ("rules/over_ratio", "1.1", "rules.over_ratio"),
        ("rules/over_ratio", float("nan"), ""),
        ("rules/over_ratio", 0.5, "rules.over_ratio"),
        ("rules/margin_bytes", 1e9, "rules.margin_bytes"),
        ("rules/evictions_per_hour", -1, "rules.evictions_per_hour"),
        ("rules/workloads/0/priority", 11, "rules.workloads[0].priority"),
        ("rules/workloads/0/memory_bytes", 0, "rules.workloads[0].memory_bytes"),
        ("rules/workloads/0/grace_seconds", 1e9, "rules.workloads[0].grace_seconds"),
        ("rules/workloads/0/namespace", "ran-phy", "rules.workloads[0].namespace"),
        ("rules/workloads/1/service_account", "", "rules.workloads[1]"),
        ("rules/operator_service_accounts", ["ran"], "rules.operator_service_accounts[0]"),
        ("rules/power/eco_mhz", 1500, "rules.power.eco_mhz"),
        ("rules/power/night_from", 7, "rules.power.night_from"),
        ("rules/power/day_above_ratio", 70, "rules.power.day_above_ratio"),
        ("rules/power/turbo_mhz", 1, "rules.power.turbo_mhz"),
        ("rules/admission/low_refused_from", 1001, "rules.admission.low_refused_from"),
        ("rules/admission/front_ends/0/digest", "A" * 64, "rules.admission.front_ends[0].digest"),
        ("rules/admission/front_ends/0/digest", hashlib.sha256(b"").hexdigest(), "rules.admission.front_ends[0].digest"),
        ("rules/admission/grants", [{"tenant": "a", "model": "m", "priority": 1, "urllc": False}] * 2, "rules.admission.grants[1]"),
        ("rules/admission/grants/0/urllc", 1, "rules.admission.grants[0].urllc"),
    ],
)
def test_a_bad_rule_is_named(path: str, value: Any, field: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        DesiredState.from_bytes(body_with(path, value))
    assert refused.value.field == field


def test_the_rule_of_a_service_account_wins_over_that_of_its_namespace() -> None:
    found = RULES.workload_rule("tenant-a", "batch")
    assert found is not None
    assert found.priority == 0
    found = RULES.workload_rule("tenant-a", "other")
    assert found is not None
    assert found.priority == 8
    assert RULES.workload_rule("tenant-b", "batch") is None
    assert RULES.is_operators("ran-phy", "anything")
    assert RULES.is_operators("shared", "ran")
    assert not RULES.is_operators("tenant-a", "ran")


@given(data=st.data(), value=json_values)
@settings(max_examples=300, deadline=None)
def test_rules_with_anything_in_any_place_are_read_or_refused(data: st.DataObject, value: Any) -> None:
    values = json.loads(document(1, rules=RULES).body)
    path = data.draw(st.sampled_from(paths_of(values)))
    spot = values
    for step in path[:-1]:
        spot = spot[step]
    spot[path[-1]] = value
    try:
        state = DesiredState.from_bytes(json.dumps(values).encode())
    except ProtocolError:
        return
    assert DesiredState.from_bytes(state.to_bytes()) == state


def test_a_switch_is_believed_only_as_signed() -> None:
    armed = switch(3, tenant="a", model="llm")
    assert verify_switch(signed_switch(armed), trusted_keys=(CONSOLE_KEY,)) == armed
    with pytest.raises(DocumentError, match="not pinned"):
        verify_switch(signed_switch(armed), trusted_keys=())
    with pytest.raises(DocumentError, match="signature"):
        verify_switch(replace(signed_switch(armed), body=switch(4).to_bytes()), trusted_keys=(CONSOLE_KEY,))
    with pytest.raises(DocumentError, match="another switch or version"):
        verify_switch(replace(signed_switch(armed), version=4), trusted_keys=(CONSOLE_KEY,))
    as_document = document(1)
    with pytest.raises(DocumentError, match="signature"):
        verify_switch(replace(signed_switch(armed), body=as_document.body, signature=as_document.signature), trusted_keys=(CONSOLE_KEY,))


@pytest.mark.parametrize(
    ("found", "field"),
    [
        (replace(switch(), scope_key="x"), "scope_key"),
        (replace(switch(), scope_kind=ScopeKind.SITE), "scope_key"),
        (replace(switch(), kind=SwitchKind.AUTOMATION_OFF, tenant="a"), "tenant"),
        (replace(switch(), switch="1"), "switch"),
        (replace(switch(), version=0), "version"),
        (replace(switch(), ends_at=-1.0), "ends_at"),
    ],
)
def test_a_switch_that_contradicts_itself_is_refused(found: Switch, field: str) -> None:
    with pytest.raises(ProtocolError) as refused:
        Switch.from_bytes(found.to_bytes())
    assert refused.value.field == field


@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value, allow_nan=True).encode()))
@settings(max_examples=200, deadline=None)
def test_what_is_no_switch_is_refused(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Switch.from_bytes(data)
