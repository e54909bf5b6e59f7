"""`manage.py add_administrator` opens the first account, and refuses what the pages would refuse."""

import io

import pytest
from django.contrib.auth import authenticate
from django.core.management import CommandError, call_command

from console.access import Right, access_of
from console.models import User
from fleet.models import AuditEntry

pytestmark = pytest.mark.django_db


def _add(name: str, typed: str) -> None:
    call_command("add_administrator", name, stdin=io.StringIO(typed), verbosity=0)


def test_the_first_administrator() -> None:
    _add("ada", "a long enough pass phrase\n")
    assert authenticate(None, username="ada", password="a long enough pass phrase")
    assert access_of(User.objects.get(username="ada")).may(Right.ADMINISTER)
    assert AuditEntry.objects.filter(actor="manage.py", object_key="ada").exists()


@pytest.mark.parametrize(
    ("name", "typed", "word"), [("ada", "short\n", "password"), ("a b", "a long enough pass phrase\n", "username"), ("ada", "", "password")]
)
def test_refused(name: str, typed: str, word: str) -> None:
    with pytest.raises(CommandError, match=word):
        _add(name, typed)
    assert not User.objects.exists()
