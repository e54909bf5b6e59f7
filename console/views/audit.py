"""`/audit`: who did what, on what, why, from where; and whether the chain of its seals holds."""

from __future__ import annotations

import json

from django.contrib import messages
from django.db.models import Min
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest, HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path, re_path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST, require_safe

from console.access import Access, Right
from console.audit import may_read_audit, visible_entries
from console.audit_list import AUDIT, facts, subject
from console.downloads import download
from console.guards import MissingRight, operator_page, require
from console.lists import read_list
from fleet.control.audit_chain import rows_of
from fleet.control.audit_export import json_lines
from fleet.control.audit_seal import newest_seal, seal_of, unsealed
from fleet.control.audit_verify import ask_for_verification, last_check
from fleet.models import AuditStream


def _require_reader(access: Access) -> None:
    if not may_read_audit(access):
        raise MissingRight(Right.APPROVE)


@require_safe
@operator_page
def audit(request: HttpRequest, access: Access) -> HttpResponse:
    _require_reader(access)
    now, seal = timezone.now(), newest_seal()
    context = {
        "nav": "audit",
        "list": read_list(request, AUDIT, visible_entries(access, request.user.get_username())),
        "now": now,
        "seal": seal,
        "waiting_since": unsealed(seal).entries().aggregate(oldest=Min("at"))["oldest"],
        "check": last_check(),
        "streams": list(AuditStream.objects.order_by("address")) if access.may(Right.APPROVE) else [],
        "may_verify": access.may(Right.ADMINISTER),
    }
    return render(request, "audit/page.html", context)


@require_safe
@operator_page
def audit_entry(request: HttpRequest, access: Access, pk: int) -> HttpResponse:
    _require_reader(access)
    entry = get_object_or_404(visible_entries(access, request.user.get_username()), pk=pk)
    context = {
        "nav": "audit",
        "entry": entry,
        "subject": subject(entry),
        "facts": list(facts(entry)),
        "raw": json.dumps(entry.detail, indent=2, ensure_ascii=False, sort_keys=True) if entry.detail else "",
        "seal": seal_of(entry),
        "now": timezone.now(),
    }
    return render(request, "audit/entry.html", context)


@require_safe
@operator_page
def export(request: HttpRequest, access: Access, kind: str) -> HttpResponseBase:
    """`?format=jsonl` beside the list's own filters, oldest first. Wrong ones are named, and nothing is sent."""
    _require_reader(access)
    params = request.GET.copy()
    file_format = params.pop("format", ["jsonl"])[-1]
    for unused in ("page", "page_size", "ordering"):
        params.pop(unused, None)
    if file_format not in AUDIT.export_formats:
        return HttpResponseBadRequest(f"format: one of {', '.join(AUDIT.export_formats)}.", content_type="text/plain; charset=utf-8")
    found = AUDIT.filter_class(params, visible_entries(access, request.user.get_username()))
    if not found.form.is_valid():
        problems = [f"{name}: {text}" for name, texts in found.form.errors.items() for text in texts]
        return HttpResponseBadRequest("\n".join(problems), content_type="text/plain; charset=utf-8")
    file_name = f"masthead-audit-{timezone.now():%Y%m%dT%H%M%SZ}.jsonl"
    return download(request, json_lines(rows_of(found.qs)), content_type="application/jsonl", file_name=file_name)


@require_POST
@operator_page
def verify(request: HttpRequest, access: Access) -> HttpResponse:
    require(access, Right.ADMINISTER)
    ask_for_verification(now=timezone.now())
    messages.success(request, _("The whole audit is being verified. The result stands here within a minute, later where there is much of it."))
    return redirect("audit")


urlpatterns = [
    path("audit", audit, name="audit"),
    path("audit/verify", verify, name="audit_verify"),
    re_path(r"^audit/(?P<pk>[0-9]{1,18})$", audit_entry, name="audit_entry"),
    re_path(r"^exports/(?P<kind>audit)$", export, name="export"),
]
