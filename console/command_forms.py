"""Forms of the command pages, made from the JSON Schema of a kind: one table of parameters for page, API and agent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django import forms
from django.http import QueryDict
from django.utils.translation import gettext_lazy as lazy

from console.maintenance import LocalTimeField
from fleet.control.command_kinds import CommandKind
from fleet.models import Switch


def parameter_form(kind: CommandKind, data: QueryDict | None) -> forms.Form:
    """One field a parameter. An empty optional field takes the parameter's default."""
    fields = {name: _field(one) for name, one in kind.schema["properties"].items()}
    made: type[forms.Form] = type("ParameterForm", (forms.Form,), fields)
    return made(data)


def parameters_of(form: forms.Form, kind: CommandKind) -> dict[str, Any]:
    """The cleaned values without what was left empty; the kind fills in defaults and checks the rest."""
    return {name: value for name, value in form.cleaned_data.items() if value not in (None, "") and name in kind.schema["properties"]}


def _field(schema: Mapping[str, Any]) -> forms.Field:
    common: dict[str, Any] = {
        "label": schema["title"],
        "help_text": schema["description"],
        "required": "default" not in schema,
        "initial": schema.get("default"),
    }
    if schema["type"] == "boolean":
        return forms.BooleanField(**{**common, "required": False})
    if schema["type"] == "integer":
        return forms.IntegerField(min_value=schema["minimum"], max_value=schema["maximum"], **common)
    return forms.CharField(max_length=schema["maxLength"], widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"}), **common)


def selection_of(query: QueryDict) -> dict[str, Any]:
    """What a page's address says of the targets, in the shape that `console.command_targets.resolve` takes. Nothing is checked here but whole numbers."""
    if "retry_of" in query:
        return {"retry_of": str(query["retry_of"])}
    if "list" in query:
        expected = query.get("expected", "")
        return {"list": query["list"], "query": query.get("query", ""), "expected": int(expected) if expected.isascii() and expected.isdigit() else -1}
    for name in ("nodes", "gpus", "sites"):
        if name in query:
            keys = [key for key in str(query[name]).split(",") if key]
            return {name: [int(key) if key.isascii() and key.isdigit() else -1 for key in keys] if name == "nodes" else keys}
    return {}


def selection_fields(selection: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The other way: the selection as a page's address holds it."""
    return [(name, ",".join(str(key) for key in value) if isinstance(value, list) else str(value)) for name, value in selection.items()]


class SubmitForm(forms.Form):
    """What is added to a preview to make it a command."""

    preview_hash = forms.CharField(max_length=64, widget=forms.HiddenInput)
    parameters = forms.CharField(max_length=4000, widget=forms.HiddenInput)
    idempotency_key = forms.CharField(max_length=80, widget=forms.HiddenInput)
    reason = forms.CharField(
        label=lazy("Reason"), max_length=300, widget=forms.TextInput(attrs={"autocomplete": "off"}), help_text=lazy("It stands in the audit.")
    )
    confirm = forms.CharField(
        label=lazy("Type the phrase"), max_length=100, required=False, widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
    )

    def clean_parameters(self) -> Any:
        try:
            return json.loads(self.cleaned_data["parameters"])
        except ValueError as error:
            raise forms.ValidationError("Not JSON.") from error


class ReasonForm(forms.Form):
    reason = forms.CharField(label=lazy("Reason"), max_length=300, widget=forms.TextInput(attrs={"autocomplete": "off"}))


class SwitchForm(forms.Form):
    """Scope and reach of a switch; the reason is asked for when it is armed."""

    kind = forms.ChoiceField(label=lazy("Switch"), choices=Switch.Kind.choices)
    scope_kind = forms.ChoiceField(
        label=lazy("Scope"),
        choices=[("fleet", lazy("Fleet")), ("area", lazy("Area")), ("region", lazy("Region")), ("site", lazy("Site")), ("node", lazy("Node"))],
    )
    scope_key = forms.CharField(label=lazy("Which"), max_length=80, required=False, help_text=lazy("Slug, site code or node number; empty for the fleet."))
    tenant = forms.CharField(label=lazy("Only this tenant"), max_length=40, required=False)
    model = forms.CharField(label=lazy("Only this model"), max_length=200, required=False)
    ends_at = LocalTimeField(label=lazy("Ends at"), required=False, help_text=lazy("Empty: it holds until somebody releases it."))
    reason = forms.CharField(label=lazy("Reason"), max_length=300, widget=forms.TextInput(attrs={"autocomplete": "off"}))
