"""Senders' tokens: issued once, two valid while rotating, ended by revocation and expiry; the directory in memory says the same."""

from datetime import timedelta

import pytest

from fleet.models import Sender
from fleet.telemetry.senders import SenderDirectory, SenderError, create_sender, digest_token, end_previous_token, revoke_sender, rotate_token, verify_token
from tests.builders import T0, make_region

pytestmark = pytest.mark.django_db


def test_the_token_is_shown_once_and_only_its_digest_kept() -> None:
    region = make_region()
    sender, token = create_sender(name="north", regions=[region])
    assert token not in str(Sender.objects.filter(pk=sender.pk).values())
    assert sender.token_hash == digest_token(token)
    assert list(sender.regions.all()) == [region]
    assert verify_token(token, now=T0) == sender
    assert verify_token(token + "x", now=T0) is None
    with pytest.raises(SenderError, match=r"name: .*'north'"):
        create_sender(name="north", regions=[])


def test_two_tokens_are_valid_while_rotating() -> None:
    sender, first = create_sender(name="north", regions=[make_region()])
    second = rotate_token(sender, now=T0, overlap=timedelta(hours=1))
    assert verify_token(first, now=T0 + timedelta(minutes=59)) == verify_token(second, now=T0) == sender
    assert verify_token(first, now=T0 + timedelta(hours=1)) is None
    third = rotate_token(sender, now=T0 + timedelta(minutes=1))
    assert verify_token(first, now=T0 + timedelta(minutes=2)) is None
    assert verify_token(second, now=T0 + timedelta(minutes=2)) == sender
    end_previous_token(sender)
    assert verify_token(second, now=T0 + timedelta(minutes=2)) is None
    assert verify_token(third, now=T0 + timedelta(minutes=2)) == sender


def test_revoked_and_expired_senders_are_nobody() -> None:
    sender, token = create_sender(name="north", regions=[make_region()])
    assert revoke_sender(sender, now=T0)
    assert not revoke_sender(sender, now=T0)
    assert verify_token(token, now=T0) is None
    with pytest.raises(SenderError, match="revoked"):
        rotate_token(sender, now=T0)
    _, short = create_sender(name="short", regions=[], expires_at=T0 + timedelta(days=1))
    assert verify_token(short, now=T0) is not None
    assert verify_token(short, now=T0 + timedelta(days=1)) is None


def test_use_is_recorded_once_a_minute() -> None:
    sender, token = create_sender(name="north", regions=[])
    for seconds, recorded in ((0, 0), (30, 0), (61, 61)):
        verify_token(token, now=T0 + timedelta(seconds=seconds))
        sender.refresh_from_db()
        assert sender.last_used_at == T0 + timedelta(seconds=recorded)


def test_the_directory_answers_without_the_database() -> None:
    region = make_region()
    sender, first = create_sender(name="north", regions=[region], honor_labels=True)
    second = rotate_token(sender, now=T0, overlap=timedelta(hours=1))
    directory = SenderDirectory()
    assert directory.refresh(now=T0) == set()
    for token in (first, second):
        found = directory.find(token, now=T0)
        assert found is not None
        scope, may_write = found
        assert (scope.id, scope.region_ids, scope.honor_labels, may_write) == (sender.pk, frozenset({region.pk}), True, True)
    assert directory.find(first, now=T0 + timedelta(hours=1)) is None
    assert directory.find("mhs_other", now=T0) is None


def test_the_directory_says_whose_rights_changed() -> None:
    sender, token = create_sender(name="north", regions=[make_region()])
    other, _ = create_sender(name="south", regions=[])
    directory = SenderDirectory()
    directory.refresh(now=T0)
    sender.regions.add(make_region())
    assert directory.refresh(now=T0) == {sender.pk}
    assert directory.refresh(now=T0) == set()
    revoke_sender(other, now=T0)
    assert directory.refresh(now=T0) == {other.pk}
    rotate_token(sender, now=T0)
    assert directory.refresh(now=T0) == set()
    assert directory.find(token, now=T0) is not None
