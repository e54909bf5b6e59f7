"""Power cap: inclusive limits as the GPU tells them, whole milliwatts, read back (C24); gone with the driver, seen and applied again (C25)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.actions import ParameterError, Target
from agent.actions.power_cap import ACTION, wanted_milliwatts
from agent.backends.base import BackendError, ErrorCode, PowerReading
from agent.converge import Converger, retry_after
from agent.journal import Journal
from agent.protocol import ObservedState, ProtectedSpan
from tests.agent.documents import CONSOLE_KEY, NODE, T0, A, B, control, document, setting
from tests.agent.hardware import Hardware
from tests.agent.nvml.node import Node, library

__all__ = ["library"]

CASES = Path(__file__).parent.parent / "cases"


def case(name: str, file: str) -> Any:
    return json.loads((CASES / name / file).read_text())


C24 = "C24-power-cap-bounds"
GPU, REQUESTS, EXPECT24 = case(C24, "gpu.json"), case(C24, "requests.json"), case(C24, "expect.json")
C25, EXPECT25 = case("C25-cap-reverts", "events.json"), case("C25-cap-reverts", "expect.json")
LIMITS = PowerReading(limit_mw=700_000, min_mw=200_000, max_mw=700_000, default_mw=700_000, persistence_mode=True)


@pytest.fixture
def hardware() -> Hardware:
    return Hardware([A, B])


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite3")
    yield journal
    journal.close()


def converger(hardware: Hardware, journal: Journal) -> Converger:
    return Converger(backend=hardware, journal=journal, node_id=NODE, trusted_keys=(CONSOLE_KEY,))


def test_c24_limits_are_inclusive_and_refused_before_anything_is_set(library: Path, tmp_path: Path) -> None:
    """The case's requests through NVIDIA's own binding."""
    node = Node(library, tmp_path)
    low, high = GPU["nvml"]["PowerManagementLimitConstraints_mW"]
    default = GPU["nvml"]["PowerManagementDefaultLimit_mW"]
    node.hardware(f"gpu 0 uuid {GPU['gpu_uuid']}", f"gpu 0 min {low}", f"gpu 0 max {high}", f"gpu 0 default {default}", f"gpu 0 limit {default}")
    accepted: dict[str, int] = {}
    refused: list[str] = []
    for request in REQUESTS:
        parameters = {name: value for name, value in request.items() if name != "id"}
        answer = node.ask("apply", control="power_cap", gpu=GPU["gpu_uuid"], parameters=parameters)
        if "error" in answer:
            assert answer["error"] == "invalid_argument"
            assert "{}..{} W".format(*EXPECT24["message_contains_range_w"]) in answer["message"]
            refused.append(request["id"])
        else:
            reading = node.ask("look", control="power_cap", gpu=GPU["gpu_uuid"], parameters=parameters)
            assert reading["holds"] is True
            accepted[request["id"]] = round(reading["observed"]["limit_watts"] * 1000)
    assert accepted == EXPECT24["accepted_mw"]
    assert refused == EXPECT24["refused"]
    assert [int(act.split()[2]) for act in node.acts()] == list(EXPECT24["accepted_mw"].values())
    assert len(node.acts()) == EXPECT24["nvml_set_calls"]
    node.stop()


def test_the_end_brings_the_boards_default_back(library: Path, tmp_path: Path) -> None:
    node = Node(library, tmp_path)
    node.hardware(f"gpu 0 uuid {A}", "gpu 0 default 650000", "gpu 0 limit 700000", "gpu 0 persistence 0")
    node.ask("apply", control="power_cap", gpu=A, parameters={"watts": 450})
    reading = node.ask("look", control="power_cap", gpu=A, parameters={"watts": 450})
    assert (reading["holds"], reading["detail"]) == (True, "Persistence mode is off, will not last.")
    assert node.ask("undo", control="power_cap", gpu=A) is None
    assert node.ask("look", control="power_cap", gpu=A, parameters=None)["observed"] == {
        "limit_watts": 650,
        "min_watts": 200,
        "max_watts": 700,
        "default_watts": 650,
        "persistence_mode": False,
    }
    assert node.ask("undo", control="power_cap", gpu=A) is None
    assert node.acts() == [f"power {A} 450000 0", f"power {A} 650000 0"]
    node.stop()


@pytest.mark.parametrize(
    ("line", "code"),
    [("error 0 nvmlDeviceSetPowerManagementLimit 4", "not_permitted"), ("error 0 nvmlDeviceGetPowerManagementLimitConstraints 3", "not_supported")],
)
def test_what_the_driver_refuses_is_said(library: Path, tmp_path: Path, line: str, code: str) -> None:
    node = Node(library, tmp_path)
    node.hardware(f"gpu 0 uuid {A}", line)
    assert node.ask("apply", control="power_cap", gpu=A, parameters={"watts": 450})["error"] == code
    node.stop()


@given(tenths=st.integers(2000, 7000))
def test_steps_of_a_tenth_of_a_watt_are_exact_milliwatts(tenths: int) -> None:
    assert wanted_milliwatts({"watts": tenths / 10}, LIMITS) == tenths * 100


@given(
    low=st.integers(50_000, 400_000),
    room=st.integers(0, 600_000),
    parameters=st.one_of(
        st.fixed_dictionaries({"watts": st.floats(-1e6, 1e6) | st.integers(-1000, 1_000_000)}),
        st.fixed_dictionaries({"percent_of_default": st.floats(-200, 400)}),
        st.fixed_dictionaries({"percent_of_maximum": st.floats(-200, 400)}),
    ),
)
def test_what_is_refused_never_reaches_the_hardware(low: int, room: int, parameters: dict[str, float]) -> None:
    hardware = Hardware([A], limits_mw=(low, low + room, low + room // 2))
    limits = hardware.read_power(A)
    wanted = wanted_milliwatts(parameters, limits)
    if limits.min_mw <= wanted <= limits.max_mw:
        ACTION.apply(Target(hardware, A), parameters)
        assert hardware.caps == {A: wanted}
        assert ACTION.read(Target(hardware, A), parameters).holds is True
    else:
        with pytest.raises(BackendError) as refusal:
            ACTION.apply(Target(hardware, A), parameters)
        assert refusal.value.code is ErrorCode.INVALID
        assert next(iter(parameters)) in str(refusal.value)
        assert hardware.acts == []


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"watts": True},
        {"watts": "450"},
        {"watts": float("nan")},
        {"watts": float("inf")},
        {"watts": None},
        {"watts": 450, "percent_of_default": 50},
        {"milliwatts": 450_000},
        {"percent_of_maximum": float("-inf")},
    ],
)
def test_what_is_no_number_of_a_known_unit_is_refused_by_name(parameters: dict[str, Any]) -> None:
    with pytest.raises(ParameterError, match=r"watts|percent_of_maximum|percent_of_default"):
        ACTION.check(parameters)


def test_c25_a_cap_that_the_driver_let_go_is_shown_as_drifted_and_applied_again_as_a_step(hardware: Hardware, journal: Journal) -> None:
    watts, (low, high) = C25["desired"]["power_w"], C25["desired"]["clock_lock_mhz"]
    agent = converger(hardware, journal)
    hardware.persistence_mode = False
    controls = (control(setting(watts=watts), name="power_cap"), control(setting(min_mhz=low, max_mhz=high)))
    agent.accept(document(1, *controls), T0)

    def shown(seconds: float) -> dict[str, tuple[str, Any]]:
        agent.converge(T0 + seconds)
        return {found.control: (found.state.value, found.observed.get("limit_watts")) for found in agent.observations()}

    assert shown(0) == {"power_cap": ("applied", 450), "clock_range": ("applied", None)}
    assert {found.detail for found in agent.observations()} == {"Persistence mode is off, will not last."}
    assert EXPECT25["state"]["0"] == "applied_with_warning"
    assert shown(300) == {"power_cap": (EXPECT25["state"]["300"], EXPECT25["shown_power_limit_w"]["300"]), "clock_range": ("applied", None)}
    for lost, again in ((960, 1), (2060, 2)):
        hardware.caps.clear()
        hardware.locks.clear()
        acts = len(hardware.acts)
        state = EXPECT25["state"][str(lost)]
        assert shown(lost) == {"power_cap": (state, EXPECT25["shown_power_limit_w"][str(lost)]), "clock_range": (state, None)}
        assert len(hardware.acts) == acts, "the drift is shown before anything is done"
        pause = retry_after(again)
        assert shown(lost + pause)["power_cap"] == ("applied", 450)
        assert len(hardware.acts) == acts + 2
        assert shown(lost + pause + 10)["power_cap"] == ("applied", 450)
        assert len(hardware.acts) == acts + 2


def test_a_cap_comes_back_after_a_reboot_and_ends_by_itself(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(setting(watts=450), name="power_cap")), T0)
    agent.converge(T0)
    hardware.reboot()
    again = converger(hardware, journal)
    again.converge(T0 + 60)
    assert [found.state for found in again.observations()] == [ObservedState.DRIFTED]
    again.converge(T0 + 80)
    assert hardware.caps == {A: 450_000}
    again.converge(T0 + 3600)
    assert hardware.caps == {}
    assert [found.state for found in again.observations()] == [ObservedState.ENDED]


def test_out_of_range_is_refused_with_the_range_and_a_gpu_with_phy_is_left_alone(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    caps = (control(setting(watts=199), name="power_cap"), control(setting(watts=300), name="power_cap", gpu_uuid=B))
    agent.accept(document(1, *caps, protected=(ProtectedSpan(B, 0, 1),)), T0)
    agent.converge(T0)
    found = {observation.gpu_uuid: observation for observation in agent.observations()}
    assert {observation.state for observation in found.values()} == {ObservedState.REFUSED}
    assert found[A].detail == "watts: 199 W is not within 200..700 W, the limits of this GPU"
    assert "carries PHY" in found[B].detail
    assert hardware.acts == []


def test_a_refused_change_leaves_the_cap_before_and_its_end_still_takes_it_off(hardware: Hardware, journal: Journal) -> None:
    agent = converger(hardware, journal)
    agent.accept(document(1, control(setting(watts=450), name="power_cap")), T0)
    agent.converge(T0)
    agent.accept(document(2, control(setting(watts=9000), name="power_cap")), T0)
    agent.converge(T0 + 1)
    assert [found.state for found in agent.observations()] == [ObservedState.REFUSED]
    assert hardware.caps == {A: 450_000}
    agent.accept(document(3), T0)
    agent.converge(T0 + 2)
    assert hardware.caps == {}
