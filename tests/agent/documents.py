"""Signed documents for tests of agents."""

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from agent.protocol import (
    Control,
    DesiredState,
    Layer,
    LocalRules,
    Place,
    ProtectedSpan,
    ScopeKind,
    SignedDocument,
    SignedSwitch,
    Switch,
    SwitchKind,
    sign_document,
    sign_switch,
)

T0 = 1_800_000_000.0
NODE = 7
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000001", "GPU-bbbbbbbb-0000-0000-0000-000000000002"
CONSOLE = Ed25519PrivateKey.generate()
SWITCH_ID = "0c1f7a3e-7d3c-4f0e-9c55-1f6f2f1f0a01"
CONSOLE_KEY = CONSOLE.public_key().public_bytes_raw()


def layer(low: int = 1200, high: int = 1400, *, starts_at: float = T0, ends_at: float | None = T0 + 3600, policy: int = 1, scope: str = "gpu") -> Layer:
    return Layer(parameters={"min_mhz": low, "max_mhz": high}, starts_at=starts_at, ends_at=ends_at, policy=policy, scope=scope)


def setting(*, ends_at: float | None = T0 + 3600, starts_at: float = T0, policy: int = 1, **parameters: int | float | str | bool | None) -> Layer:
    """A layer of any control."""
    return Layer(parameters=parameters, starts_at=starts_at, ends_at=ends_at, policy=policy, scope="gpu")


def control(*layers: Layer, gpu_uuid: str = A, name: str = "clock_range") -> Control:
    return Control(control=name, gpu_uuid=gpu_uuid, layers=layers)


def document(
    version: int,
    *controls: Control,
    node_id: int = NODE,
    key: Ed25519PrivateKey = CONSOLE,
    not_after: float | None = None,
    protected: tuple[ProtectedSpan, ...] = (),
    issued_at: float = T0,
    rules: LocalRules | None = None,
) -> SignedDocument:
    state = DesiredState(
        target_kind="node",
        target_key=str(node_id),
        version=version,
        issued_at=issued_at,
        not_after=not_after,
        controls=controls,
        protected=protected,
        place=Place(area="west", region="west-1", site="W1", node=str(node_id), time_zone="Europe/Berlin"),
        rules=rules or LocalRules(),
    )
    return sign_document(state, key)


def switch(
    version: int = 1,
    *,
    kind: SwitchKind = SwitchKind.KILL,
    scope: tuple[ScopeKind, str] = (ScopeKind.FLEET, ""),
    armed: bool = True,
    ends_at: float | None = None,
    tenant: str = "",
    model: str = "",
    switch_id: str = SWITCH_ID,
) -> Switch:
    return Switch(
        switch=switch_id,
        version=version,
        kind=kind,
        scope_kind=scope[0],
        scope_key=scope[1],
        armed=armed,
        issued_at=T0,
        ends_at=ends_at,
        tenant=tenant,
        model=model,
    )


def signed_switch(found: Switch | None = None, *, key: Ed25519PrivateKey = CONSOLE) -> SignedSwitch:
    return sign_switch(found or switch(), key)
