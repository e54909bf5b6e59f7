"""`/settings`: profile, tokens, users and roles, tenants, senders, agents. What each role sees and may do."""

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone
from pytest_django import Settings

from console.access import access_of
from console.models import ApiToken, RoleGrant, User
from console.tokens import find_token
from fleet.control import signing
from fleet.models import AgentIdentity, EnrolmentToken, KeyChangeRequest, Sender
from fleet.telemetry import senders
from tenants.models import Membership, NamespaceMapping, Tenant
from tests.builders import make_node, make_site, make_user
from tests.console.pages import Cast, a_site, signed_in, text_of

pytestmark = pytest.mark.django_db
ADMINISTRATORS_ONLY = ["/settings/users", "/settings/tenants", "/settings/senders"]


@pytest.fixture
def cast() -> Cast:
    return Cast()


def secret_in(answer: object) -> str:
    found = re.search(r"<code>([^<]+)</code>", answer.content.decode())  # type: ignore[attr-defined]
    assert found
    return found[1]


def test_the_profile_is_kept_and_shown(cast: Cast) -> None:
    client = cast.client("viewer")
    good = {"first_name": "Vera", "last_name": "V", "email": "", "time_zone": "Europe/Berlin", "theme": "light", "density": "compact"}
    assert client.post("/settings", good).status_code == 302
    page = text_of(client.get("/sites"))
    assert 'data-theme="light"' in page
    assert 'data-density="compact"' in page
    assert 'data-letter-keys="off"' in page
    assert "Vera V" in page
    bad = client.post("/settings", {**good, "time_zone": "Mars/Olympus", "theme": "pink", "email": "no"})
    assert bad.status_code == 422
    assert set(bad.context["form"].errors) == {"time_zone", "theme", "email"}
    assert User.objects.get(username="vera").theme == "light"


def test_times_are_in_the_persons_zone_with_its_name(cast: Cast) -> None:
    User.objects.filter(username="vera").update(time_zone="Asia/Tokyo")
    a_site("WEST-1", cast.west)
    assert "JST" in text_of(cast.client("viewer").get("/sites/WEST-1"))


def test_a_token_is_shown_once_and_works_until_revoked(cast: Cast) -> None:
    client = cast.client("viewer")
    made = client.post("/settings/tokens", {"name": "ci", "scopes": ["read:sites"], "regions": "west", "days": "30"})
    assert made.status_code == 201
    secret = secret_in(made)
    token = find_token(secret, now=timezone.now())
    assert token is not None
    assert (token.user, token.scopes, [region.slug for region in token.regions.all()]) == (cast.viewer, ["read:sites"], ["west"])
    assert secret not in text_of(client.get("/settings/tokens"))
    assert "no-store" in made.headers["Cache-Control"]
    rotated = secret_in(client.post(f"/settings/tokens/{token.prefix}/rotate"))
    assert find_token(secret, now=timezone.now()) is None
    newer = find_token(rotated, now=timezone.now())
    assert newer is not None
    assert (newer.name, newer.scopes) == ("ci", ["read:sites"])
    client.post(f"/settings/tokens/{newer.prefix}/revoke")
    assert find_token(rotated, now=timezone.now()) is None


def test_a_token_of_another_and_a_region_out_of_scope_do_not_exist(cast: Cast) -> None:
    cast.client("viewer").post("/settings/tokens", {"name": "ci", "scopes": ["read:sites"], "days": "30"})
    prefix = ApiToken.objects.get().prefix
    stranger = cast.client("stranger")
    assert stranger.post(f"/settings/tokens/{prefix}/revoke").status_code == 404
    assert stranger.post(f"/settings/tokens/{prefix}/rotate").status_code == 404
    answers = [stranger.post("/settings/tokens", {"name": "x", "scopes": ["read:sites"], "regions": name, "days": "30"}) for name in ("west", "nowhere")]
    assert [answer.status_code for answer in answers] == [422, 422]
    assert ApiToken.objects.filter(revoked_at__isnull=True).count() == 1


def test_wrong_tokens_name_their_fields(cast: Cast) -> None:
    for changes, field in (
        ({"days": "366"}, "days"),
        ({"days": "nan"}, "days"),
        ({"scopes": ["all"]}, "scopes"),
        ({"scopes": []}, "scopes"),
        ({"name": ""}, "name"),
    ):
        answer = cast.client("viewer").post("/settings/tokens", {"name": "x", "scopes": ["read:sites"], "days": "1", **changes})
        assert answer.status_code == 422
        assert set(answer.context["form"].errors) == {field}
    assert not ApiToken.objects.exists()


@pytest.mark.parametrize("path", ADMINISTRATORS_ONLY)
def test_administration_is_for_administrators(cast: Cast, path: str) -> None:
    assert cast.client("administrator").get(path).status_code == 200
    for name in ("operator", "stranger"):
        answer = cast.client(name).get(path)
        assert answer.status_code == 403
        assert "“administer”" in text_of(answer)
        assert path not in text_of(cast.client(name).get("/settings"))
    assert cast.client("tenant_user").get(path).status_code == 404
    assert Client().get(path).status_code == 302


def test_an_administrator_adds_a_user_with_a_role_on_a_region(cast: Cast) -> None:
    client = cast.client("administrator")
    made = client.post("/settings/users", {"username": "nora", "password": "correct horse battery"})
    user = User.objects.get(username="nora")
    assert made["Location"] == f"/settings/users/{user.pk}"
    assert not access_of(user).is_operator_side
    client.post(f"/settings/users/{user.pk}/roles", {"role": "operator", "regions": "west"})
    assert access_of(user).region_ranks == {cast.west.pk: 2}
    page = text_of(client.get(f"/settings/users/{user.pk}"))
    assert "Operator" in page
    assert "West" in page
    bad = client.post(f"/settings/users/{user.pk}/roles", {"role": "operator", "regions": "nowhere"})
    assert bad.status_code == 422
    grant = RoleGrant.objects.get(user=user)
    client.post(f"/settings/users/{user.pk}/roles/{grant.pk}/take")
    assert not RoleGrant.objects.filter(user=user).exists()


def test_locking_out_and_a_new_password_end_the_sessions(cast: Cast) -> None:
    client, viewer = cast.client("administrator"), cast.client("viewer")
    assert viewer.get("/sites").status_code == 200
    client.post(f"/settings/users/{cast.viewer.pk}/active", {"active": "no"})
    assert viewer.get("/sites").status_code == 302
    client.post(f"/settings/users/{cast.viewer.pk}/active", {"active": "yes"})
    again = signed_in(User.objects.get(pk=cast.viewer.pk))
    assert again.get("/sites").status_code == 200
    weak = client.post(f"/settings/users/{cast.viewer.pk}/password", {"password": "short"})
    assert weak.status_code == 422
    client.post(f"/settings/users/{cast.viewer.pk}/password", {"password": "correct horse battery"})
    assert again.get("/sites").status_code == 302


def test_the_last_administrator_stays(cast: Cast) -> None:
    client = cast.client("administrator")
    grant = RoleGrant.objects.get(user=cast.administrator)
    client.post(f"/settings/users/{cast.administrator.pk}/roles/{grant.pk}/take")
    client.post(f"/settings/users/{cast.administrator.pk}/active", {"active": "no"})
    assert client.get("/settings/users").status_code == 200
    assert access_of(User.objects.get(pk=cast.administrator.pk)).is_administrator


def test_users_are_found_and_paged(cast: Cast) -> None:
    User.objects.bulk_create([User(username=f"many{number:03d}") for number in range(60)])
    client = cast.client("administrator")
    first, second = client.get("/settings/users?q=many"), client.get("/settings/users?q=many&page=2")
    assert (len(first.context["users"]), len(second.context["users"])) == (50, 10)
    assert client.get("/settings/users?page=x&q=%00").status_code == 200


def test_a_tenant_with_members_and_namespaces(cast: Cast) -> None:
    client = cast.client("administrator")
    a_site("WEST-1", cast.west)
    client.post("/settings/tenants", {"key": "globex", "name": "Globex"})
    tenant = Tenant.objects.get(key="globex")
    user = make_user("gina")
    assert client.post("/settings/tenants/globex/members", {"username": "nobody", "role": "member"}).status_code == 422
    client.post("/settings/tenants/globex/members", {"username": "gina", "role": "admin"})
    assert access_of(user).tenant_keys == {"globex"}
    client.post("/settings/tenants/globex/namespaces", {"namespace": "globex-prod", "site": "WEST-1"})
    assert NamespaceMapping.objects.get().site is not None
    assert client.post("/settings/tenants/acme/namespaces", {"namespace": "globex-prod", "site": "WEST-1"}).status_code == 422
    client.post("/settings/tenants/globex/suspend", {"suspended": "yes"})
    assert access_of(user).tenant_keys == set()
    client.post(f"/settings/tenants/globex/members/{Membership.objects.get(user=user).pk}/remove")
    client.post(f"/settings/tenants/globex/namespaces/{NamespaceMapping.objects.get().pk}/remove")
    assert not NamespaceMapping.objects.exists()
    assert client.post("/settings/tenants", {"key": "globex", "name": "Again"}).status_code == 422
    assert Tenant.objects.filter(pk=tenant.pk).exists()


def test_a_sender_is_added_rotated_and_revoked(cast: Cast) -> None:
    client = cast.client("administrator")
    made = client.post("/settings/senders", {"name": "prom-west", "regions": "west", "may_write": "on"})
    first = secret_in(made)
    sender = Sender.objects.get()
    assert (sender.may_write, sender.may_discover, [region.slug for region in sender.regions.all()]) == (True, False, ["west"])
    second = secret_in(client.post("/settings/senders/prom-west/rotate"))
    now = timezone.now()
    assert senders.verify_token(first, now=now) == senders.verify_token(second, now=now) == sender
    assert first not in text_of(client.get("/settings/senders"))
    client.post("/settings/senders/prom-west/end-rotation")
    assert senders.verify_token(first, now=now) is None
    client.post("/settings/senders/prom-west/revoke")
    assert senders.verify_token(second, now=now) is None
    for changes, field in (({"name": "a b"}, "name"), ({"name": "prom-west"}, "name"), ({"regions": "nowhere"}, "regions"), ({"regions": ""}, "regions")):
        answer = client.post("/settings/senders", {"name": "other", "regions": "west", **changes})
        assert answer.status_code == 422
        assert set(answer.context["form"].errors) == {field}


@pytest.fixture
def key(tmp_path: object, settings: Settings) -> None:
    path = tmp_path / "signing.pem"  # type: ignore[operator]
    signing.create_key_file(path)
    settings.SIGNING_KEY_FILE = str(path)


def test_enrolment_in_bulk_for_nodes_in_scope(cast: Cast, key: None) -> None:
    for number in range(3):
        make_node(f"west-{number}", site=make_site(f"WEST-{number}", region=cast.west))
    enrolled = make_node("west-enrolled", site=make_site("WEST-9", region=cast.west))
    AgentIdentity.objects.create(node=enrolled, public_key=b"k" * 32, enrolled_at=timezone.now())
    make_node("east-1", site=make_site("EAST-1", region=cast.east))
    client = cast.client("operator")
    made = client.post("/settings/agents", {"sites": "WEST-0, WEST-1, WEST-9", "valid_days": "7"})
    assert made.status_code == 201
    assert [one.node.host_name for one in made.context["issued"]] == ["west-0", "west-1"]
    assert EnrolmentToken.objects.count() == 2
    foreign, missing = (client.post("/settings/agents", {"sites": name, "valid_days": "7"}) for name in ("EAST-1", "NOWHERE"))
    assert foreign.status_code == missing.status_code == 422
    assert str(foreign.context["form"].errors["sites"]).replace("EAST-1", "") == str(missing.context["form"].errors["sites"]).replace("NOWHERE", "")
    assert client.post("/settings/agents", {"sites": "WEST-2, EAST-1", "valid_days": "7"}).status_code == 422, "all or nothing"
    assert EnrolmentToken.objects.count() == 2
    assert client.post("/settings/agents", {"hosts": "west-enrolled", "valid_days": "7"}).status_code == 201
    assert client.post("/settings/agents", {"valid_days": "7"}).status_code == 422
    assert cast.client("viewer").post("/settings/agents", {"sites": "WEST-2", "valid_days": "7"}).status_code == 403
    assert cast.client("tenant_user").get("/settings/agents").status_code == 404


def test_a_key_change_is_decided_once_with_a_reason_by_who_may(cast: Cast) -> None:
    node = make_node("west-1", site=make_site("WEST-1", region=cast.west))
    AgentIdentity.objects.create(node=node, public_key=b"k" * 32, enrolled_at=timezone.now() - timedelta(days=1))
    asked = KeyChangeRequest.objects.create(node=node, public_key=b"n" * 32, requested_at=timezone.now())
    path = f"/settings/agents/key-changes/{asked.pk}"
    assert cast.client("stranger").post(path, {"decision": "approve", "reason": "x"}).status_code == 404
    assert cast.client("viewer").post(path, {"decision": "approve", "reason": "x"}).status_code == 403
    operator = cast.client("operator")
    assert "west-1" in text_of(operator.get("/settings/agents"))
    operator.post(path, {"decision": "approve", "reason": " "})
    operator.post(path, {"decision": "maybe", "reason": "x"})
    asked.refresh_from_db()
    assert asked.decided_at is None
    operator.post(path, {"decision": "approve", "reason": "reinstalled"})
    asked.refresh_from_db()
    assert (asked.approved, asked.decided_by) == (True, cast.operator)
    assert bytes(AgentIdentity.objects.get(node=node, revoked_at__isnull=True).public_key) == b"n" * 32


def test_a_nodes_key_can_be_taken_away(cast: Cast) -> None:
    node = make_node("west-1", site=make_site("WEST-1", region=cast.west))
    AgentIdentity.objects.create(node=node, public_key=b"k" * 32, enrolled_at=timezone.now())
    assert cast.client("viewer").post(f"/nodes/{node.pk}/agent/revoke", {"reason": "x"}).status_code == 403
    assert cast.client("stranger").post(f"/nodes/{node.pk}/agent/revoke", {"reason": "x"}).status_code == 404
    operator = cast.client("operator")
    operator.post(f"/nodes/{node.pk}/agent/revoke", {"reason": ""})
    assert AgentIdentity.objects.filter(node=node, revoked_at__isnull=True).exists()
    operator.post(f"/nodes/{node.pk}/agent/revoke", {"reason": "stolen"})
    assert not AgentIdentity.objects.filter(node=node, revoked_at__isnull=True).exists()


def test_a_tenants_user_sees_its_own_settings_and_no_fleet(cast: Cast) -> None:
    client = cast.client("tenant_user")
    page = text_of(client.get("/settings"))
    assert "My workloads" in page
    for path in ("/sites", "/nodes", "/gpus", "/regions", "/search", "/settings/agents"):
        assert f'href="{path}"' not in page
        assert client.get(path).status_code == 404
    assert client.get("/settings/sessions").status_code == client.get("/settings/tokens").status_code == 200
