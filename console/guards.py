"""What stands before a page: signed in, on the right side of the console, with the right that an act needs."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import BadRequest, PermissionDenied
from django.http import Http404, HttpRequest, HttpResponseBase, JsonResponse
from django.utils.http import url_has_allowed_host_and_scheme
from django.utils.translation import gettext as _

from console.access import ROLE_FOR, Access, Right, access_of
from console.wall_session import device_token

View = Callable[..., HttpResponseBase]
# What a page fetches by itself, again and again, carries this header: nobody acted.
AUTOMATIC_HEADER = "X-Automatic"


class MissingRight(PermissionDenied):
    """A visible thing, but not this act on it. Answered with 403 that names the right and who has it."""

    def __init__(self, right: Right) -> None:
        self.right = right
        super().__init__(_("This needs the right “%(right)s”, which the role %(role)s has.") % {"right": right.value, "role": ROLE_FOR[right]})


def request_access(request: HttpRequest) -> Access:
    """The scope of the signed-in user, read once a request."""
    found: Access | None = getattr(request, "_masthead_access", None)
    if found is None:
        found = access_of(request.user, device_token(request))
        request._masthead_access = found  # type: ignore[attr-defined]
    return found


def require(access: Access, right: Right, region_id: int | None = None) -> None:
    """Raise `MissingRight` unless `right` is held on this region (without one: on the whole fleet)."""
    if not access.may(right, region_id):
        raise MissingRight(right)


def require_anywhere(access: Access, right: Right) -> None:
    """Raise `MissingRight` unless `right` is held on some region at least."""
    if not access.may_anywhere(right):
        raise MissingRight(right)


def _sign_in_first(request: HttpRequest) -> HttpResponseBase:
    """The sign-in page, then back; a script gets 401 and says so on the page that it belongs to."""
    headers = request.headers
    if "HX-Request" in headers or AUTOMATIC_HEADER in headers or headers.get("Accept", "").startswith("application/json"):
        return JsonResponse({"detail": "Not signed in."}, status=401)
    if request.method in ("GET", "HEAD"):
        return redirect_to_login(request.get_full_path())
    page = headers.get("Referer", "")  # where the form stood: an act is never repeated by itself
    return redirect_to_login(page if url_has_allowed_host_and_scheme(page, {request.get_host()}, require_https=request.is_secure()) else "/")


def _refuse_nul(request: HttpRequest, named: dict[str, Any]) -> None:
    """No text of ours holds a NUL, and PostgreSQL refuses to look for one: in an address it finds nothing, in a form it is refused."""
    if any("\x00" in str(value) for value in named.values()):
        raise Http404
    if request.method == "POST" and any("\x00" in text for _name, texts in request.POST.lists() for text in texts):
        raise BadRequest


def signed_in_page(view: View) -> View:
    """For everybody who is signed in; passes the `Access` as the second argument."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return _sign_in_first(request)
        _refuse_nul(request, kwargs)
        return view(request, request_access(request), *args, **kwargs)

    return guarded


def operator_page(view: View) -> View:
    """For NOC people of any role. For tenants' users and for people without a role the page does not exist."""

    @wraps(view)
    def guarded(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        if not request.user.is_authenticated:
            return _sign_in_first(request)
        access = request_access(request)
        if not access.is_operator_side:
            raise Http404
        _refuse_nul(request, kwargs)
        return view(request, access, *args, **kwargs)

    return guarded


def administrator_page(view: View) -> View:
    """For administrators of the whole fleet. NOC people see why not; for others the page does not exist."""

    @operator_page
    @wraps(view)
    def guarded(request: HttpRequest, access: Access, *args: Any, **kwargs: Any) -> HttpResponseBase:
        require(access, Right.ADMINISTER)
        return view(request, access, *args, **kwargs)

    return guarded
