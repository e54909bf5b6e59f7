"""What a control asks for, in words: for pages and events."""

from __future__ import annotations

from django.utils.translation import gettext as _

from fleet.control.limits import CLOCK_RANGE, fields_of, limits_of
from fleet.models import Policy


def asked_for(policy: Policy, *, sku: str) -> str:
    """As in "Clock range 900–1100 MHz" or "Power cap 400 W"; a control that we do not know reads as its own name."""
    parameters = policy.parameters
    if policy.control == CLOCK_RANGE:
        return _("Clock range %(min)s–%(max)s MHz") % {"min": parameters.get("min_mhz"), "max": parameters.get("max_mhz")}
    try:
        fields = fields_of(policy.control, limits_of(sku))
    except KeyError:
        fields = ()
    given = [(field, parameters[field.name]) for field in fields if parameters.get(field.name) is not None]
    words = [f"{_(field.title)} {_yes_no(value)} {field.unit}".rstrip() for field, value in given]
    return "; ".join(words) or policy.control.replace("_", " ").capitalize()


def _yes_no(value: object) -> object:
    return (_("yes") if value else _("no")) if isinstance(value, bool) else value
