"""Signed orders for tests of agents, and an executor that is killed and started again on the same journal."""

from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.backends.base import Backend
from agent.backends.cluster import Cluster
from agent.commands import CommandKind
from agent.executor import Executor, Pass
from agent.journal import Journal
from agent.phy import Phy
from agent.protocol import (
    CancelBody,
    CommandBody,
    CommandUpdate,
    LocalRules,
    Preconditions,
    ProtectedSpan,
    SignedCancel,
    SignedCommand,
    sign_cancel,
    sign_command,
)
from tests.agent.documents import CONSOLE, CONSOLE_KEY, NODE, T0

NO_PHY = Phy()


def phy(*spans: ProtectedSpan, namespaces: tuple[str, ...] = (), accounts: tuple[str, ...] = ()) -> Phy:
    return Phy(spans=spans, rules=LocalRules(operator_namespaces=namespaces, operator_service_accounts=accounts))


def order(
    target: int,
    kind: str = "drain",
    *,
    gpu_uuid: str = "",
    parameters: dict[str, int | float | str | bool | None] | None = None,
    issued_at: float = T0,
    not_after: float = T0 + 3600,
    sequence: int = 0,
    boot_id: str = "",
    mig_layout: str = "",
    node: int = NODE,
    key: Ed25519PrivateKey = CONSOLE,
    reaches_phy: bool = False,
) -> SignedCommand:
    """`sequence` 0 is the target's number."""
    body = CommandBody(
        id=str(UUID(int=target)),
        target=target,
        kind=kind,
        node=node,
        gpu_uuid=gpu_uuid,
        parameters=parameters or {},
        issued_at=issued_at,
        not_after=not_after,
        sequence=sequence or target,
        preconditions=Preconditions(boot_id, mig_layout),
        reaches_phy=reaches_phy,
    )
    return sign_command(body, key)


def cancel_of(target: int, *, node: int = NODE, key: Ed25519PrivateKey = CONSOLE) -> SignedCancel:
    return sign_cancel(CancelBody(id=str(UUID(int=target)), target=target, node=node, issued_at=T0), key)


@dataclass
class Node:
    """An agent's commands on its hardware and cluster. `latest` is the newest update of each target, as the console would hold it."""

    folder: Path
    backend: Backend
    cluster: Cluster | None
    kinds: dict[str, CommandKind] | None = None
    phy: Phy = NO_PHY
    now: float = T0
    latest: dict[int, CommandUpdate] = field(default_factory=dict)
    due_at: float = T0

    def __post_init__(self) -> None:
        self.start()

    def start(self) -> None:
        self.journal = Journal(self.folder / "journal.sqlite3")
        self.executor = Executor(backend=self.backend, cluster=self.cluster, journal=self.journal, node_id=NODE, trusted_keys=(CONSOLE_KEY,), kinds=self.kinds)

    def restart(self) -> None:
        """What was in memory is gone."""
        self.journal.close()
        self.start()

    def give(self, *messages: SignedCommand | SignedCancel) -> None:
        for message in messages:
            self.executor.take(message, self.now)
        self.work()

    def work(self) -> Pass:
        outcome = self.executor.work(self.phy, self.now)
        self.due_at = outcome.due_at
        self.hear(outcome.updates)
        return outcome

    def hear(self, updates: tuple[CommandUpdate, ...]) -> None:
        for update in updates:
            known = self.latest.get(update.target)
            if known is None or update.sequence >= known.sequence:
                assert known is None or not known.state.final or known == update, "a final state changed"
                self.latest[update.target] = update

    def until(self, now: float) -> None:
        """Work whenever something is due, up to `now`."""
        while self.due_at <= now:
            self.now = max(self.now, self.due_at)
            self.work()
        self.now = now
        self.work()

    def outcome(self, target: int) -> tuple[str, str]:
        return self.latest[target].state.value, self.latest[target].code
