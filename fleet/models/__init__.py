from fleet.models.agent import AgentConnection, AgentIdentity, EnrolmentToken, KeyChangeRequest
from fleet.models.audit import AuditCheck, AuditEntry, AuditKind, AuditOutcome, AuditSeal, AuditStream
from fleet.models.command import Breaker, Command, CommandDecision, CommandTarget, Freeze
from fleet.models.gpu import Gpu, MigSlice, ProtectedPlacement, Workload
from fleet.models.health import (
    Finding,
    GpuHealth,
    HealthState,
    HealthTransition,
    MaintenanceWindow,
    NodeHealth,
    ObjectKind,
    ReportedCondition,
    SiteHealth,
    XidEvent,
)
from fleet.models.job import ImportRow, InventoryImport, Job, JobLogLine
from fleet.models.node import Node
from fleet.models.policy import DesiredDocument, ObservedControl, Policy, StaleDocument
from fleet.models.reading import GpuReading, LastKnownReading, ServiceReading, SliceReading
from fleet.models.reconcile import Disagreement, Source
from fleet.models.sender import DataQuality, Sender
from fleet.models.site import Area, Region, Site
from fleet.models.switch import LocalEvent, Switch, SwitchAnswer

__all__ = [
    "AgentConnection",
    "AgentIdentity",
    "Area",
    "AuditCheck",
    "AuditEntry",
    "AuditKind",
    "AuditOutcome",
    "AuditSeal",
    "AuditStream",
    "Breaker",
    "Command",
    "CommandDecision",
    "CommandTarget",
    "DataQuality",
    "DesiredDocument",
    "Disagreement",
    "EnrolmentToken",
    "Finding",
    "Freeze",
    "Gpu",
    "GpuHealth",
    "GpuReading",
    "HealthState",
    "HealthTransition",
    "ImportRow",
    "InventoryImport",
    "Job",
    "JobLogLine",
    "KeyChangeRequest",
    "LastKnownReading",
    "LocalEvent",
    "MaintenanceWindow",
    "MigSlice",
    "Node",
    "NodeHealth",
    "ObjectKind",
    "ObservedControl",
    "Policy",
    "ProtectedPlacement",
    "Region",
    "ReportedCondition",
    "Sender",
    "ServiceReading",
    "Site",
    "SiteHealth",
    "SliceReading",
    "Source",
    "StaleDocument",
    "Switch",
    "SwitchAnswer",
    "Workload",
    "XidEvent",
]
