"""A report of an agent that cannot be taken in is seen by people: a finding on the node, over when a report of the kind is taken again."""

import pytest

from agent.protocol.health import HealthReport
from console.summary import CAUSE_WORDS
from fleet.agents.store import LOST_CODES, take_report
from fleet.models import AgentConnection, Finding
from tests.builders import T0, make_node

pytestmark = pytest.mark.django_db
FINE = HealthReport(at=T0.timestamp(), gpus=())


@pytest.mark.parametrize(
    "report",
    [HealthReport(at=T0.timestamp(), gpus=(), driver_error="a\x00b"), HealthReport(at=float("nan"), gpus=())],
    ids=["cannot be stored", "cannot be read"],
)
def test_a_lost_report_is_a_finding_until_one_is_taken(report: HealthReport) -> None:
    node, other = make_node(), make_node()
    take_report(node.pk, report, now=T0)
    take_report(node.pk, report, now=T0)
    take_report(other.pk, FINE, now=T0)
    finding = Finding.objects.get()
    assert (finding.kind, finding.object_key, finding.site_id, finding.code) == ("node", str(node.pk), node.site_id, "health_report_lost")
    assert (finding.until, finding.count) == (None, 2)
    assert finding.evidence["error"]
    take_report(node.pk, FINE, now=T0)
    finding.refresh_from_db()
    assert finding.until is not None
    assert AgentConnection.objects.filter(node=node, report__has_key="health").exists()


def test_a_report_of_a_node_that_is_gone_leaves_nothing() -> None:
    take_report(999_999, HealthReport(at=float("nan"), gpus=()), now=T0)
    assert not Finding.objects.exists()


def test_the_codes_have_words() -> None:
    assert set(LOST_CODES.values()) <= set(CAUSE_WORDS)
