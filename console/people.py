"""Users, their roles and their tenants: every change with an audit entry, and open sockets told to check again."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from django.contrib.auth.password_validation import validate_password
from django.contrib.auth.validators import UnicodeUsernameValidator
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction

from console.audit import note_act
from console.models import ApiToken, RoleGrant, User
from console.sessions import note_access_change, revoke_sessions
from console.tenancy import assign_namespaces
from fleet.models import Region
from tenants.models import Membership, NamespaceMapping, Tenant


class PeopleRefused(Exception):
    """Nothing changed. `errors` maps each field to what is wrong with it; "" stands for the act as a whole."""

    def __init__(self, errors: Mapping[str, str]) -> None:
        super().__init__("; ".join(f"{field}: {text}" if field else text for field, text in errors.items()))
        self.errors = dict(errors)


def create_user(
    *,
    username: str,
    password: str | None,
    actor: User,
    now: datetime,
    first_name: str = "",
    last_name: str = "",
    email: str = "",
    is_service_account: bool = False,
) -> User:
    """A person with a password, or a service account without one (it has tokens only). Raises PeopleRefused with all errors at once."""
    errors: dict[str, str] = {}
    name = User.normalize_username(username.strip())
    user = User(username=name, first_name=first_name, last_name=last_name, email=email, is_service_account=is_service_account)
    try:
        UnicodeUsernameValidator()(name)
    except ValidationError as error:
        errors["username"] = " ".join(error.messages)
    if not 1 <= len(name) <= 150:
        errors["username"] = "Must be 1 to 150 characters."
    elif User.objects.filter(username__iexact=name).exists():
        errors["username"] = "This name is taken."
    if is_service_account == bool(password):
        errors["password"] = "A service account has no password, only tokens." if is_service_account else "A person needs a password."
    elif password:
        errors |= _password_errors(password, user)
    if errors:
        raise PeopleRefused(errors)
    user.set_password(password or None)
    try:
        with transaction.atomic():
            user.save(force_insert=True)
            _audit(actor, "user.create", user.username, now, {"service_account": is_service_account})
    except IntegrityError as error:
        raise PeopleRefused({"username": "This name is taken."}) from error
    return user


def set_password(*, user: User, password: str, actor: User, now: datetime) -> None:
    """Give `user` a new password and end its sessions. Raises PeopleRefused."""
    if user.is_service_account:
        raise PeopleRefused({"password": "A service account has no password, only tokens."})
    if errors := _password_errors(password, user):
        raise PeopleRefused(errors)
    with transaction.atomic():
        user.set_password(password)
        user.save(update_fields=["password"])
        revoke_sessions(user, now=now)
        _audit(actor, "user.password", user.username, now, {})


def end_sessions(*, user: User, actor: User, now: datetime) -> int:
    """Sign `user` out everywhere; how many sessions ended."""
    with transaction.atomic():
        ended = revoke_sessions(user, now=now)
        if ended:
            _audit(actor, "user.sign_out", user.username, now, {"sessions": ended})
    return ended


def set_active(*, user: User, active: bool, actor: User, now: datetime) -> None:
    """Let a user in or lock it out. Locking out ends sessions, sockets and tokens. Raises PeopleRefused for oneself."""
    if user.pk == actor.pk and not active:
        raise PeopleRefused({"": "You cannot lock yourself out."})
    with transaction.atomic():
        changed = User.objects.filter(pk=user.pk).exclude(is_active=active).update(is_active=active)
        if not changed:
            return
        if not active:
            _refuse_last_administrator(without_user=user)
            revoke_sessions(user, now=now)
            ApiToken.objects.filter(user=user, revoked_at__isnull=True).update(revoked_at=now)
        note_access_change(user, now=now)
        _audit(actor, "user.activate" if active else "user.deactivate", user.username, now, {})
    user.is_active = active


def grant_role(*, user: User, role: str, region: Region | None, actor: User, now: datetime) -> RoleGrant:
    """Give a role on the whole fleet (`region` None) or one region. A grant that stands already is returned."""
    if role not in RoleGrant.Role.values:
        raise PeopleRefused({"role": f"One of {', '.join(RoleGrant.Role.values)}."})
    with transaction.atomic():
        grant, made = RoleGrant.objects.get_or_create(user=user, role=role, region=region)
        if made:
            note_access_change(user, now=now)
            _audit(actor, "role.grant", user.username, now, {"role": role, "region": region and region.slug})
    return grant


def revoke_role(*, grant: RoleGrant, actor: User, now: datetime) -> None:
    """Take a role away. Raises PeopleRefused when nobody would be left to administer the fleet."""
    with transaction.atomic():
        deleted, _ = RoleGrant.objects.filter(pk=grant.pk).delete()
        if deleted:
            _refuse_last_administrator()
            note_access_change(grant.user, now=now)
            _audit(actor, "role.revoke", grant.user.username, now, {"role": grant.role, "region": grant.region and grant.region.slug})


def create_tenant(*, key: str, name: str, actor: User, now: datetime) -> Tenant:
    """A tenant. Raises PeopleRefused for a key that is taken or malformed."""
    tenant = Tenant(key=key.strip(), name=name.strip())
    try:
        tenant.full_clean()
    except ValidationError as error:
        raise PeopleRefused({field: " ".join(texts) for field, texts in error.message_dict.items()}) from error
    try:
        with transaction.atomic():
            tenant.save(force_insert=True)
            _audit(actor, "tenant.create", tenant.key, now, {"name": tenant.name})
    except IntegrityError as error:
        raise PeopleRefused({"key": "This key is taken."}) from error
    return tenant


def suspend_tenant(*, tenant: Tenant, suspended: bool, actor: User, now: datetime) -> None:
    """A suspended tenant's people see nothing of it, in open sockets too."""
    with transaction.atomic():
        changed = Tenant.objects.filter(pk=tenant.pk, suspended_at__isnull=suspended).update(suspended_at=now if suspended else None)
        if changed:
            for user in User.objects.filter(memberships__tenant=tenant):
                note_access_change(user, now=now)
            _audit(actor, "tenant.suspend" if suspended else "tenant.resume", tenant.key, now, {})
    tenant.refresh_from_db()


def add_member(*, tenant: Tenant, user: User, role: str, actor: User, now: datetime) -> Membership:
    """Put `user` into a tenant, or change its role there."""
    if role not in Membership.Role.values:
        raise PeopleRefused({"role": f"One of {', '.join(Membership.Role.values)}."})
    with transaction.atomic():
        membership, made = Membership.objects.select_for_update().get_or_create(tenant=tenant, user=user, defaults={"role": role})
        if made or membership.role != role:
            Membership.objects.filter(pk=membership.pk).update(role=role)
            membership.role = role
            note_access_change(user, now=now)
            _audit(actor, "member.add", tenant.key, now, {"user": user.username, "role": role})
    return membership


def remove_member(*, membership: Membership, actor: User, now: datetime) -> None:
    with transaction.atomic():
        deleted, _ = Membership.objects.filter(pk=membership.pk).delete()
        if deleted:
            note_access_change(membership.user, now=now)
            _audit(actor, "member.remove", membership.tenant.key, now, {"user": membership.user.username})


def map_namespace(*, tenant: Tenant, namespace: str, site: object, actor: User, now: datetime) -> NamespaceMapping:
    """Say that a namespace (at one site, or everywhere with `site` None) is this tenant's. Raises PeopleRefused when it is another's."""
    mapping = NamespaceMapping(tenant=tenant, namespace=namespace.strip(), site=site)  # type: ignore[misc]
    try:
        mapping.full_clean(validate_constraints=False)
    except ValidationError as error:
        raise PeopleRefused({field: " ".join(texts) for field, texts in error.message_dict.items()}) from error
    try:
        with transaction.atomic():
            mapping.save(force_insert=True)
            assign_namespaces([mapping.namespace])
            _audit(actor, "namespace.map", tenant.key, now, {"namespace": mapping.namespace, "site": str(site or "")})
    except IntegrityError as error:
        raise PeopleRefused({"namespace": "It is mapped there already."}) from error
    return mapping


def unmap_namespace(*, mapping: NamespaceMapping, actor: User, now: datetime) -> None:
    with transaction.atomic():
        mapping.delete()
        assign_namespaces([mapping.namespace])
        _audit(actor, "namespace.unmap", mapping.tenant.key, now, {"namespace": mapping.namespace, "site": str(mapping.site or "")})


def _password_errors(password: str, user: User) -> dict[str, str]:
    try:
        validate_password(password, user)
    except ValidationError as error:
        return {"password": " ".join(error.messages)}
    return {}


def _refuse_last_administrator(*, without_user: User | None = None) -> None:
    """Raise PeopleRefused (undoing the transaction) unless an active person still administers the whole fleet."""
    left = RoleGrant.objects.filter(role=RoleGrant.Role.ADMINISTRATOR, region__isnull=True, user__is_active=True, user__is_service_account=False)
    if without_user is not None:
        left = left.exclude(user=without_user)
    if not left.exists():
        raise PeopleRefused({"": "Nobody would be left to administer the fleet."})


def _audit(actor: User, action: str, subject: str, now: datetime, detail: dict[str, object]) -> None:
    note_act(actor=actor.get_username(), action=action, subject=subject, now=now, detail=detail)
