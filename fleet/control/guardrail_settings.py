"""The numbers of the guard rails as this installation has them."""

from django.conf import settings

from fleet.control.guardrails import Limits


def limits_of_settings() -> Limits:
    """`MASTHEAD_GUARDRAILS`: a JSON object of fields of `Limits`, checked at start (`console.checks`)."""
    return Limits(**settings.GUARDRAILS)
