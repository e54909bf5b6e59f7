"""`/commands`, `/commands/new`, `/commands/<id>` and `/approvals`: choose, preview, confirm, approve, watch."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Sequence
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path, reverse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.decorators.http import require_POST

from console.access import Access, Right
from console.command_context import context_of
from console.command_forms import ReasonForm, SubmitForm, parameter_form, parameters_of, selection_fields, selection_of
from console.command_targets import MissingRightOnTargets, Selection, counted, resolve, visible_commands
from console.errors import problem_id
from console.fresh_sign_in import StaleSignIn, require_fresh
from console.guards import operator_page, require
from fleet.control import commands
from fleet.control.command_kinds import KINDS
from fleet.control.commands import CommandRefused, KeyReused, Preview, PreviewDrifted
from fleet.control.signing import SigningUnavailable
from fleet.models import Command, CommandTarget

PAGE_SIZE = 50
STATES = [state.value for state in CommandTarget.State]


@operator_page
def command_list(request: HttpRequest, access: Access) -> HttpResponse:
    """Commands of the scope, the newest first; rows renew themselves while something runs."""
    wanted = visible_commands(access).select_related("created_by").order_by("-created_at", "-pk")
    state, kind = request.GET.get("state", ""), request.GET.get("kind", "")
    if state in Command.State.values:
        wanted = wanted.filter(state=state)
    if kind in KINDS:
        wanted = wanted.filter(kind=kind)
    page = Paginator(wanted, PAGE_SIZE).get_page(request.GET.get("page"))
    rows = list(page.object_list)
    progress = _progress_of(rows)
    for row in rows:
        row.progress = progress[row.pk]  # type: ignore[attr-defined]
    context = {
        "nav": "commands",
        "page": page,
        "rows": rows,
        "moving": any(row.state == Command.State.RUNNING for row in rows),
        "states": Command.State.choices,
        "kinds": KINDS.values(),
        "state": state,
        "kind": kind,
        "may_operate": access.may_anywhere(Right.OPERATE),
        "now": timezone.now(),
    }
    return render(request, "commands/_rows.html" if _is_renewal(request) else "commands/list.html", context)


def _progress_of(rows: Sequence[Command]) -> dict[uuid.UUID, dict[str, int]]:
    """Targets by state for each command, with `over` and `all`. One query."""
    found: dict[uuid.UUID, dict[str, int]] = {row.pk: dict.fromkeys(STATES, 0) for row in rows}
    counts = CommandTarget.objects.filter(command__in=[row.pk for row in rows]).order_by().values_list("command_id", "state").annotate(count=Count("pk"))
    for pk, state, count in counts:
        found[pk][state] = count
    for states in found.values():
        states["all"] = sum(states[state] for state in STATES)
        states["over"] = sum(states[state] for state in CommandTarget.TERMINAL)
    return found


@operator_page
def new_command(request: HttpRequest, access: Access) -> HttpResponse:
    """Choose a kind and its parameters for the targets in the address; see what it would do; submit exactly that."""
    selection = counted(access, selection_of(request.GET))
    kind = KINDS.get(request.GET.get("kind", ""))
    break_glass = request.GET.get("break_glass") == "yes"
    context: dict[str, Any] = {
        "nav": "commands",
        "kinds": [one for one in KINDS.values() if "gpus" not in selection or one.per_gpu or one.name == "diagnostics"],
        "kind": kind,
        "selection": selection,
        "selection_fields": selection_fields(selection),
        "break_glass": break_glass,
        "may_break": access.may(Right.APPROVE),
        "now": timezone.now(),
    }
    if kind is None or not selection:
        return render(request, "commands/new.html", context)
    if break_glass:
        require(access, Right.APPROVE)
    form = parameter_form(kind, request.GET if any(name in request.GET for name in kind.schema["properties"]) or not kind.schema["required"] else None)
    context["form"] = form
    try:
        chosen = resolve(access, kind.name, selection)
        if request.method == "POST":
            return _submit(request, kind.name, chosen, break_glass, context)
        if form.is_bound and form.is_valid():
            _show(
                context,
                commands.preview(
                    kind=kind.name,
                    parameters=parameters_of(form, kind),
                    wanted=chosen.wanted,
                    now=timezone.now(),
                    break_glass=break_glass,
                    context=context_of(chosen.wanted),
                ),
            )
    except CommandRefused as refused:
        context["errors"] = list(refused.errors.values())
        return render(request, "commands/new.html", context, status=400)
    except MissingRightOnTargets as missing:
        raise PermissionDenied(str(missing)) from missing
    return render(request, "commands/new.html", context)


def _show(context: dict[str, Any], seen: Preview, submit: SubmitForm | None = None) -> None:
    context["preview"] = seen.content
    context["preview_hash"] = seen.hash
    context["submit"] = submit or SubmitForm(
        initial={"preview_hash": seen.hash, "parameters": json.dumps(seen.content["parameters"]), "idempotency_key": str(uuid.uuid4())}
    )


def _submit(request: HttpRequest, kind: str, chosen: Selection, break_glass: bool, context: dict[str, Any]) -> HttpResponse:
    form = SubmitForm(request.POST)
    now = timezone.now()
    parameters = form.cleaned_data.get("parameters", {}) if form.is_valid() else json.loads(request.POST.get("parameters") or "{}")
    seen = commands.preview(kind=kind, parameters=parameters, wanted=chosen.wanted, now=now, break_glass=break_glass, context=context_of(chosen.wanted))
    if not form.is_valid():
        _show(context, seen, form)
        return render(request, "commands/new.html", context, status=400)
    try:
        require_fresh(request, risk=int(seen.risk))
        done = commands.submit(
            kind=kind,
            parameters=parameters,
            wanted=chosen.wanted,
            selection=chosen.stored,
            preview_hash=form.cleaned_data["preview_hash"],
            reason=form.cleaned_data["reason"],
            confirm=form.cleaned_data["confirm"],
            idempotency_key=form.cleaned_data["idempotency_key"],
            break_glass=break_glass,
            context=context_of(chosen.wanted),
            user=request.user,  # type: ignore[arg-type]
            now=now,
            request_id=problem_id(request),
        )
    except StaleSignIn:
        return HttpResponseRedirect(f"{reverse('account_reauthenticate')}?{urlencode({'next': request.get_full_path()})}")
    except PreviewDrifted as drifted:
        _show(context, drifted.preview)
        context["drifted"] = True
        return render(request, "commands/new.html", context, status=409)
    except (CommandRefused, KeyReused, SigningUnavailable) as refused:
        for field, why in (refused.errors if isinstance(refused, CommandRefused) else {"": str(refused)}).items():
            form.add_error(field if field in form.fields else None, why)
        _show(context, seen, form)
        return render(request, "commands/new.html", context, status=400)
    return redirect("command", pk=done.command.pk)


@operator_page
def command_page(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    command = get_object_or_404(visible_commands(access).select_related("created_by", "retry_of"), pk=pk)
    shown = request.GET.get("state", "")
    targets = command.targets.select_related("node__site").order_by("wave", "pk")
    if shown in STATES:
        targets = targets.filter(state=shown)
    page = Paginator(targets, PAGE_SIZE).get_page(request.GET.get("page"))
    progress = _progress_of([command])[command.pk]
    decisions = list(command.decisions.select_related("person").order_by("at"))
    may_act = _may(access, command, Right.OPERATE)
    context = {
        "nav": "commands",
        "command": command,
        "kind": KINDS.get(command.kind),
        "preview": command.preview,
        "progress": progress,
        "states": [(state, CommandTarget.State(state).label, progress[state]) for state in STATES if progress[state]],
        "state": shown,
        "page": page,
        "moving": command.state in Command.OPEN or progress["over"] < progress["all"],
        "decisions": decisions,
        "approved": sum(one.verdict == "approved" for one in decisions),
        "may_act": may_act and command.state in Command.OPEN,
        "may_retry": may_act and command.state not in Command.OPEN and any(progress[state] for state in ("failed", "unreachable", "expired", "cancelled")),
        "may_decide": _may_decide(access, command, request, decisions),
        "own": command.created_by_id == request.user.pk,
        "reason_form": ReasonForm(),
        "now": timezone.now(),
    }
    return render(request, "commands/_run.html" if _is_renewal(request) else "commands/page.html", context)


def _may(access: Access, command: Command, right: Right) -> bool:
    if access.may(right):
        return True
    regions = set(command.targets.values_list("node__site__region_id", flat=True))
    return all(access.may(right, region) for region in regions)


def _may_decide(access: Access, command: Command, request: HttpRequest, decisions: list[Any]) -> bool:
    if command.state != Command.State.AWAITING or command.created_by_id == request.user.pk or (command.approve_by and command.approve_by <= timezone.now()):
        return False
    return all(one.person_id != request.user.pk for one in decisions) and _may(access, command, Right.APPROVE)


@operator_page
def approvals(request: HttpRequest, access: Access) -> HttpResponse:
    """What waits for a second person. What has expired is not here any more: nothing can be done with it."""
    now = timezone.now()
    waiting = list(visible_commands(access).awaiting(now).select_related("created_by").prefetch_related("decisions__person").order_by("approve_by"))
    rows = [(command, _may_decide(access, command, request, list(command.decisions.all()))) for command in waiting]
    return render(request, "approvals/page.html", {"nav": "approvals", "rows": rows, "now": now})


@require_POST
@operator_page
def decide(request: HttpRequest, access: Access, pk: uuid.UUID, verdict: str) -> HttpResponse:
    command = get_object_or_404(visible_commands(access), pk=pk)
    if not _may(access, command, Right.APPROVE):
        require(access, Right.APPROVE)
    if verdict == "approve":
        try:
            require_fresh(request, risk=command.risk)
        except StaleSignIn:
            return HttpResponseRedirect(f"{reverse('account_reauthenticate')}?{urlencode({'next': reverse('command', args=[pk])})}")
    return _act(
        request,
        pk,
        lambda reason: commands.decide(
            command_id=pk,
            approve=verdict == "approve",
            reason=reason,
            user=request.user,  # type: ignore[arg-type]
            now=timezone.now(),
            request_id=problem_id(request),
        ),
        {"approve": _("Approved."), "deny": _("Denied. Nothing of it is done.")}[verdict],
    )


@require_POST
@operator_page
def change(request: HttpRequest, access: Access, pk: uuid.UUID, act: str) -> HttpResponse:
    command = get_object_or_404(visible_commands(access), pk=pk)
    if not _may(access, command, Right.OPERATE):
        require(access, Right.OPERATE)
    run = {"pause": commands.pause, "resume": commands.resume, "abort": commands.abort}[act]
    said = {"pause": _("Paused: nothing further begins."), "resume": _("It goes on."), "abort": _("Aborted. What is in flight is asked to stop.")}[act]
    return _act(
        request,
        pk,
        lambda reason: run(command_id=pk, reason=reason, user=request.user, now=timezone.now(), request_id=problem_id(request)),  # type: ignore[arg-type]
        said,
    )


def _act(request: HttpRequest, pk: uuid.UUID, act: Callable[[str], Command], said: str) -> HttpResponse:
    try:
        done = act(request.POST.get("reason", ""))
    except (CommandRefused, SigningUnavailable) as refused:
        messages.error(request, str(refused))
    else:
        if done.paused_because and done.state == Command.State.EXPIRED:
            messages.warning(request, done.paused_because)
        else:
            messages.success(request, said)
    return redirect("command", pk=pk)


def _is_renewal(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true" and not request.headers.get("HX-Boosted")


urlpatterns = [
    path("commands", command_list, name="commands"),
    path("commands/new", new_command, name="command_new"),
    path("commands/<uuid:pk>", command_page, name="command"),
    path("commands/<uuid:pk>/approve", decide, {"verdict": "approve"}, name="command_approve"),
    path("commands/<uuid:pk>/deny", decide, {"verdict": "deny"}, name="command_deny"),
    path("commands/<uuid:pk>/pause", change, {"act": "pause"}, name="command_pause"),
    path("commands/<uuid:pk>/resume", change, {"act": "resume"}, name="command_resume"),
    path("commands/<uuid:pk>/abort", change, {"act": "abort"}, name="command_abort"),
    path("approvals", approvals, name="approvals"),
]
