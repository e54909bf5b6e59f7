"""What the configuration says of the agent's own work, made ready to run."""

from __future__ import annotations

from concurrent.futures import Executor
from dataclasses import dataclass

from agent.backends.base import Backend
from agent.backends.cluster import Cluster
from agent.config import Config, ConfigError, Enrolment
from agent.depth import DepthReader
from agent.door import Door
from agent.local.control import LocalControl
from agent.local.usage import ExporterUsage
from agent.store import Store


@dataclass(frozen=True)
class Local:
    """`urgent` runs switches and kills; None: the pool of everything else."""

    control: LocalControl
    depths: DepthReader | None = None
    urgent: Executor | None = None


def open_local(config: Config, enrolment: Enrolment, *, backend: Backend, cluster: Cluster | None, urgent: Executor | None = None) -> Local:
    """Raises ConfigError for an address that cannot be one, JournalError for a file that cannot be opened."""
    found = config.local
    try:
        usage = ExporterUsage(found.usage_url) if found.usage_url else None
        depths = DepthReader(found.depth_urls) if found.depth_urls else None
    except ValueError as error:
        raise ConfigError(f"local: {error}") from error
    door = None
    if found.admission_port is not None or found.admission_socket is not None:
        door = Door(depth_of=depths.depths.of if depths else lambda model: None, port=found.admission_port, socket_path=found.admission_socket)
    control = LocalControl(
        store=Store(config.local_file),
        node_id=enrolment.node_id,
        trusted_keys=enrolment.console_keys,
        backend=backend,
        cluster=cluster,
        usage=usage,
        door=door,
        cycle_seconds=config.converge_seconds,
    )
    return Local(control=control, depths=depths, urgent=urgent)
