"""Cordon by desired state: only ours is ours to take away, and what people undo is respected (C20)."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.actions.cordon import OWNER
from agent.backends.cluster import ClusterError, ClusterErrorCode
from agent.converge import Converger
from agent.journal import Journal
from agent.protocol import Observation, ObservedState
from tests.agent.documents import CONSOLE_KEY, NODE, T0, A, control, document, setting
from tests.agent.hardware import Hardware
from tests.agent.node_cluster import NodeCluster

CASES = Path(__file__).parent.parent / "cases"
SCENARIOS = {scenario["id"]: scenario["events"] for scenario in json.loads((CASES / "C20-cordon-ownership" / "scenarios.json").read_text())}
AWAY = ClusterError(ClusterErrorCode.UNAVAILABLE, "the API server cannot be reached")
EXPECT = json.loads((CASES / "C20-cordon-ownership" / "expect.json").read_text())


@pytest.fixture
def cluster() -> NodeCluster:
    return NodeCluster()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    journal = Journal(tmp_path / "journal.sqlite3")
    yield journal
    journal.close()


def converger(cluster: NodeCluster | None, journal: Journal) -> Converger:
    return Converger(backend=Hardware([A]), cluster=cluster, journal=journal, node_id=NODE, trusted_keys=(CONSOLE_KEY,))


def wants(version: int, *, cordoned: bool = True, ends_at: float | None = None) -> Any:
    return document(version, control(setting(cordoned=cordoned, ends_at=ends_at), name="cordon", gpu_uuid=""))


def shown(agent: Converger) -> Observation:
    (found,) = agent.observations()
    return found


@pytest.mark.parametrize("scenario", ["admin-first", "console-first", "admin-uncordons-midway"])
def test_c20_ownership(cluster: NodeCluster, journal: Journal, scenario: str) -> None:
    """The case's events, the console's cordon held by the document from start to finish."""
    agent = converger(cluster, journal)
    version = 0
    for event in SCENARIOS[scenario]:
        now = T0 + event["t"]
        if event["actor"] == "admin":
            cluster.unschedulable = event["set_unschedulable"]
        else:
            version += 1
            agent.accept(wants(version) if "start" in event["command"] else document(version), now)
        for pause in (0, 10, 20, 60):
            agent.converge(now + pause)
        if scenario == "admin-uncordons-midway" and event["actor"] == "admin":
            assert (shown(agent).state, shown(agent).observed["uncordoned_by_others"]) == (ObservedState.DRIFTED, True)
            assert "respected, not cordoned again" in shown(agent).detail
        elif version == 1 and cluster.unschedulable:
            assert shown(agent).state is ObservedState.APPLIED
            assert shown(agent).observed["owner"] == ("" if scenario == "admin-first" else OWNER)
    assert cluster.unschedulable is EXPECT["final_unschedulable"][scenario]
    assert shown(agent).state is ObservedState.ENDED
    assert cluster.acts == ([] if scenario == "admin-first" else [("cordon", OWNER)] + [("uncordon", OWNER)] * (scenario == "console-first"))


def test_what_an_admin_undid_stays_undone_over_restarts_until_people_set_it_anew(cluster: NodeCluster, journal: Journal) -> None:
    agent = converger(cluster, journal)
    agent.accept(wants(1), T0)
    agent.converge(T0)
    cluster.admin_uncordons()
    again = converger(cluster, journal)
    for seconds in (10, 100, 1000, 10_000):
        again.converge(T0 + seconds)
    assert cluster.acts == [("cordon", OWNER)]
    again.accept(document(2), T0)
    again.converge(T0 + 20_000)
    again.accept(wants(3), T0)
    again.converge(T0 + 20_001)
    assert (shown(again).state, cluster.unschedulable) == (ObservedState.APPLIED, True)


def test_an_agent_that_lost_its_journal_does_not_cordon_again_either(cluster: NodeCluster, journal: Journal, tmp_path: Path) -> None:
    agent = converger(cluster, journal)
    agent.accept(wants(1), T0)
    agent.converge(T0)
    cluster.admin_uncordons()
    fresh = Journal(tmp_path / "fresh.sqlite3")
    again = converger(cluster, fresh)
    again.accept(wants(1), T0)
    for seconds in (10, 100, 1000):
        again.converge(T0 + seconds)
    assert (shown(again).state, cluster.acts) == (ObservedState.DRIFTED, [("cordon", OWNER)])
    fresh.close()


def test_ends_by_itself_out_of_contact(cluster: NodeCluster, journal: Journal) -> None:
    agent = converger(cluster, journal)
    agent.accept(wants(1, ends_at=T0 + 600), T0)
    agent.converge(T0)
    assert cluster.unschedulable
    converger(cluster, journal).converge(T0 + 600)
    assert not cluster.unschedulable


def test_a_narrower_policy_may_say_that_the_node_is_not_cordoned(cluster: NodeCluster, journal: Journal) -> None:
    agent = converger(cluster, journal)
    agent.accept(wants(1), T0)
    agent.converge(T0)
    agent.accept(wants(2, cordoned=False), T0)
    agent.converge(T0 + 10)
    assert (shown(agent).state, cluster.unschedulable) == (ObservedState.APPLIED, False)
    cluster.unschedulable = True
    agent.converge(T0 + 100)
    assert cluster.unschedulable, "somebody else's cordon is theirs"
    assert "Still cordoned, by somebody else." in shown(agent).detail


def test_the_end_of_a_commands_cordon_is_no_word_of_an_admin(cluster: NodeCluster, journal: Journal) -> None:
    cluster.set_cordon("masthead/command-1")
    agent = converger(cluster, journal)
    agent.accept(wants(1), T0)
    agent.converge(T0)
    assert shown(agent).detail == "Cordoned by masthead/command-1: it stays theirs when ours ends."
    cluster.clear_cordon("masthead/command-1")
    agent.converge(T0 + 100)
    assert shown(agent).state is ObservedState.DRIFTED
    agent.converge(T0 + 120)
    assert (shown(agent).state, cluster.mark) == (ObservedState.APPLIED, OWNER)


def test_an_api_server_that_is_away_is_said_and_tried_again(cluster: NodeCluster, journal: Journal) -> None:
    agent = converger(cluster, journal)
    cluster.error = AWAY
    agent.accept(wants(1), T0)
    agent.converge(T0)
    assert (shown(agent).state, shown(agent).observed["error"]) == (ObservedState.FAILED, "unavailable")
    cluster.error = None
    agent.converge(T0 + 10)
    assert (shown(agent).state, cluster.unschedulable) == (ObservedState.APPLIED, True)
    agent.accept(document(2), T0)
    cluster.error = AWAY
    agent.converge(T0 + 20)
    assert shown(agent).state is ObservedState.FAILED
    cluster.error = None
    agent.converge(T0 + 30)
    assert (shown(agent).state, cluster.unschedulable) == (ObservedState.ENDED, False)


def test_refused_without_a_cluster_on_a_gpu_and_with_bad_parameters(cluster: NodeCluster, journal: Journal, tmp_path: Path) -> None:
    alone = converger(None, journal)
    alone.accept(wants(1), T0)
    alone.converge(T0)
    assert (shown(alone).state, shown(alone).detail) == (ObservedState.REFUSED, "This agent is in no cluster: there is no node to cordon.")
    other = Journal(tmp_path / "other.sqlite3")
    agent = converger(cluster, other)
    agent.accept(
        document(
            1,
            control(setting(cordoned=True), name="cordon"),
            control(setting(cordoned="yes"), name="cordon", gpu_uuid=""),
            control(setting(watts=300), name="power_cap", gpu_uuid=""),
        ),
        T0,
    )
    agent.converge(T0)
    assert {(found.control, found.gpu_uuid): found.detail for found in agent.observations()} == {
        ("cordon", A): "cordon is a control of the node.",
        ("cordon", ""): "cordon takes cordoned, true or false",
        ("power_cap", ""): "power_cap is a control of one GPU.",
    }
    assert cluster.acts == []
    other.close()
