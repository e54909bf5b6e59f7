"""If-Match against a change that commits while a request waits for its lock."""

import threading
from typing import Any

import pytest
from django.db import connections, transaction

from fleet.models import Site
from tests.builders import make_region, make_site, make_user
from tests.console.api_support import call

pytestmark = pytest.mark.django_db(transaction=True)


def test_a_change_that_commits_while_we_wait_for_the_lock_is_not_overwritten() -> None:
    lena = make_user("lena", role="lead")
    site = make_site("A", region=make_region("north"), name="old")
    tag = call(lena, "GET", "sites/A/")["ETag"]
    answers: list[Any] = []

    def patch() -> None:
        try:
            answers.append(call(lena, "PATCH", "sites/A/", {"name": "mine"}, **{"If-Match": tag}).status_code)
        finally:
            connections.close_all()

    thread = threading.Thread(target=patch)
    with transaction.atomic():
        Site.objects.select_for_update().get(pk=site.pk)
        thread.start()
        thread.join(1)
        assert answers == [], "it waits for the lock"
        Site.objects.filter(pk=site.pk).update(name="theirs")
    thread.join(10)
    assert (answers, Site.objects.get().name) == ([412], "theirs")
