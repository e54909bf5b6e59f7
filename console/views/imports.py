"""Import of inventory, step by step: upload, map columns, errors and difference, apply all or chosen rows, result file, undo."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, StreamingHttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import path
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy as lazy
from django.views.decorators.http import require_POST

from console.access import Access, Right
from console.downloads import download
from console.guards import MissingRight, operator_page
from fleet.inventory.importing import pipeline
from fleet.inventory.importing.check import check_columns
from fleet.inventory.importing.columns import KINDS
from fleet.inventory.importing.read import MAX_BYTES, UnreadableFile
from fleet.jobs import NotPossible
from fleet.models import ImportRow, InventoryImport, Job

PAGE_SIZE = 50
_FORM_OVERHEAD = 1024 * 1024


class UploadForm(forms.Form):
    kind = forms.ChoiceField(label=lazy("What the file lists"), choices=[(kind.name, kind.title) for kind in KINDS.values()])
    file = forms.FileField(
        label=lazy("File"), help_text=lazy("CSV, XLSX, YAML or JSON, at most 32 MiB and 200,000 rows. The first row of a table names its columns.")
    )
    on_duplicate = forms.ChoiceField(
        label=lazy("What is in the inventory already"),
        choices=[("update", lazy("is updated")), ("skip", lazy("is left as it is")), ("fail", lazy("is an error"))],
        widget=forms.RadioSelect,
        initial="update",
    )


class ReasonForm(forms.Form):
    reason = forms.CharField(label=lazy("Reason"), max_length=300, help_text=lazy("Stands in the history of every object that changes."))
    skip_errors = forms.BooleanField(label=lazy("Apply the rows that are right, and leave out those with errors"), required=False)


def import_page(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponse]:
    """For NOC people who may import somewhere."""

    def guarded(request: HttpRequest, access: Access, *args: Any, **kwargs: Any) -> HttpResponse:
        if not access.may_anywhere(Right.IMPORT):
            raise MissingRight(Right.IMPORT)
        return view(request, access, *args, **kwargs)

    return operator_page(guarded)  # type: ignore[return-value]


@import_page
def upload(request: HttpRequest, access: Access) -> HttpResponse:
    form = UploadForm(initial={"kind": request.GET.get("kind", "sites"), "on_duplicate": "update"})
    if request.method == "POST":
        form = UploadForm(request.POST, request.FILES)
        if _too_large(request):
            form.add_error("file", _("The file has more than 32 MiB."))
        if form.is_valid():
            held = _start(request, access, form)
            if held is not None:
                return redirect("import_map" if held.job.phase == pipeline.MAP else "job", pk=held.pk)
    context = {"nav": "jobs", "form": form, "kinds": KINDS.values()}
    return render(request, "imports/upload.html", context, status=422 if form.is_bound else 200)


def _too_large(request: HttpRequest) -> bool:
    length = request.META.get("CONTENT_LENGTH") or "0"
    return not length.isdecimal() or int(length) > MAX_BYTES + _FORM_OVERHEAD


def _start(request: HttpRequest, access: Access, form: UploadForm) -> InventoryImport | None:
    values = form.cleaned_data
    try:
        return pipeline.start_import(
            owner=request.user,
            kind=values["kind"],
            file_name=values["file"].name,
            content=values["file"].read(),
            on_duplicate=values["on_duplicate"],
            region_ids=access.region_ids_with(Right.IMPORT),
        )
    except pipeline.Refused as refused:
        for name, text in refused.errors.items():
            form.add_error(name if name in form.fields else None, text)
        return None


@import_page
def map_columns(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    """Which column of the file is which field. Unknown columns are left out only when a person says so."""
    held = _held(access, pk)
    kind = KINDS[held.kind]
    columns = pipeline.file_columns(held)
    chosen, errors = dict(held.column_map), {error["field"]: error["message"] for error in check_columns(kind, columns, held.column_map)}
    if request.method == "POST":
        answers = {column: request.POST.get(f"column-{number}", "?") for number, column in enumerate(columns)}
        chosen = {column: field for column, field in answers.items() if field != "?"}
        try:
            pipeline.map_columns(held, chosen, timezone.now())
            return redirect("job", pk=pk)
        except pipeline.Refused as refused:
            errors = refused.errors
        except (NotPossible, UnreadableFile) as error:
            messages.error(request, str(error))
            return redirect("job", pk=pk)
    rows = [{"number": number, "name": column, "chosen": chosen.get(column, "?"), "error": errors.get(column, "")} for number, column in enumerate(columns)]
    others = {field: text for field, text in errors.items() if field not in columns}
    context = {"nav": "jobs", "import": held, "kind": kind, "rows": rows, "errors": others}
    return render(request, "imports/map.html", context, status=422 if request.method == "POST" else 200)


@operator_page
def review(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    """Every row with its errors or its difference, by outcome; what is applied, or was."""
    return _review(request, access, _held(access, pk))


def _review(request: HttpRequest, access: Access, held: InventoryImport, form: ReasonForm | None = None) -> HttpResponse:
    outcome = request.GET.get("outcome", "")
    if outcome not in ImportRow.Outcome.values:
        outcome = next((each for each in ("error", "conflict", "changed", "new", "same") if held.counts.get(each)), "new")
    shown = Paginator(held.rows.filter(outcome=outcome).order_by("number"), PAGE_SIZE).get_page(request.GET.get("page"))
    waits = held.job.state == Job.State.WAITING and held.job.phase == pipeline.DECIDE
    context = {
        "nav": "jobs",
        "import": held,
        "kind": KINDS[held.kind],
        "tabs": [{"outcome": value, "label": label, "count": held.counts.get(value, 0)} for value, label in ImportRow.Outcome.choices],
        "outcome": outcome,
        "page": shown,
        "rows": [{"row": row, "changes": pipeline.changes_of(row), "values": _told(row)} for row in shown.object_list],
        "selected": held.rows.filter(selected=True).count(),
        "errors": held.counts.get("error", 0),
        "decides": waits and access.may_anywhere(Right.IMPORT),
        "choosable": waits and outcome in ("new", "changed", "conflict") and access.may_anywhere(Right.IMPORT),
        "undoable": held.applied_at is not None and held.undone_at is None and access.may_anywhere(Right.IMPORT),
        "form": form or ReasonForm(),
        "now": timezone.now(),
    }
    return render(request, "imports/review.html", context, status=422 if form is not None else 200)


def _told(row: ImportRow) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in row.values.items() if value not in (None, "")][:6]


@require_POST
@import_page
def select_rows(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    """Keep which of the shown rows are chosen, or choose all (or none) of an outcome."""
    held = _held(access, pk)
    outcome = request.POST.get("outcome", "")
    try:
        if request.POST.get("all") in ("yes", "no"):
            changed = pipeline.select_outcome(held, outcome, selected=request.POST["all"] == "yes")
        else:
            shown, chosen = _numbers(request, "shown"), _numbers(request, "chosen")
            changed = pipeline.select_rows(held, shown & chosen, selected=True) + pipeline.select_rows(held, shown - chosen, selected=False)
        messages.success(request, _("%(n)d rows changed their choice.") % {"n": changed})
    except NotPossible as error:
        messages.error(request, str(error))
    answer = redirect("import", pk=pk)
    page = request.POST.get("page", "")
    answer["Location"] += f"?outcome={outcome if outcome in ImportRow.Outcome.values else ''}&page={page if page.isdecimal() else ''}"
    return answer


def _numbers(request: HttpRequest, name: str) -> set[int]:
    return {int(text) for text in request.POST.getlist(name)[:PAGE_SIZE] if text.isascii() and text.isdecimal() and len(text) < 10}


@require_POST
@import_page
def apply_import(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    held = _held(access, pk)
    form = ReasonForm(request.POST)

    def act(values: dict[str, Any]) -> Job:
        regions = access.region_ids_with(Right.IMPORT)
        pipeline.queue_apply(held, user=request.user, region_ids=regions, now=timezone.now(), **values)
        return held.job

    return _decide(request, access, held, form, act)


@require_POST
@import_page
def undo_import(request: HttpRequest, access: Access, pk: uuid.UUID) -> HttpResponse:
    held = _held(access, pk)
    form = ReasonForm(request.POST)

    def act(values: dict[str, Any]) -> Job:
        return pipeline.queue_undo(held, user=request.user, reason=values["reason"], region_ids=access.region_ids_with(Right.IMPORT))

    return _decide(request, access, held, form, act)


def _decide(request: HttpRequest, access: Access, held: InventoryImport, form: ReasonForm, act: Callable[[dict[str, Any]], Job]) -> HttpResponse:
    """To the job that does it, or back to the page with what is wrong."""
    if form.is_valid():
        try:
            return redirect("job", pk=act(form.cleaned_data).pk)
        except pipeline.Refused as refused:
            for name, text in refused.errors.items():
                form.add_error(name if name in form.fields else None, text)
        except NotPossible as error:
            form.add_error(None, str(error))
    return _review(request, access, held, form)


@operator_page
def result(request: HttpRequest, access: Access, pk: uuid.UUID) -> StreamingHttpResponse:
    held = _held(access, pk)
    return download(request, pipeline.result_file(held), content_type="text/csv; charset=utf-8", file_name=f"import-{held.pk}.csv")


def _held(access: Access, pk: uuid.UUID) -> InventoryImport:
    return get_object_or_404(access.imports(), pk=pk)


urlpatterns = [
    path("imports/new", upload, name="import_new"),
    path("imports/<uuid:pk>", review, name="import"),
    path("imports/<uuid:pk>/columns", map_columns, name="import_map"),
    path("imports/<uuid:pk>/select", select_rows, name="import_select"),
    path("imports/<uuid:pk>/apply", apply_import, name="import_apply"),
    path("imports/<uuid:pk>/undo", undo_import, name="import_undo"),
    path("imports/<uuid:pk>/result", result, name="import_result"),
]
