"""Figures: values in, plotly figure out. Colours are roles ("line", "limit", "event"); the page gives them the theme's tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from typing import Any

import plotly.graph_objects as go
from django.utils.translation import gettext as _

from fleet.telemetry.panels import PanelData


@dataclass(frozen=True)
class Event:
    """Something that happened, drawn on top of a line."""

    at: datetime
    label: str


@dataclass(frozen=True)
class Limit:
    """A horizontal line with its word, e.g. the slowdown temperature. `value` in the panel's unit."""

    value: float
    label: str


def draw_panel(data: PanelData, *, zone: tzinfo, limits: Sequence[Limit] = (), events: Sequence[Event] = ()) -> dict[str, Any]:
    """The figure of one panel as plotly JSON. Times are shown in `zone`; a gap is a gap."""
    times = [datetime.fromtimestamp(time, UTC).astimezone(zone).replace(tzinfo=None) for time in data.times]
    figure = go.Figure()
    figure.add_trace(
        go.Scatter(
            x=times,
            y=list(data.values),
            mode="lines",
            name=data.panel.title,
            connectgaps=False,
            meta="line",
            hovertemplate=f"%{{y:.1f}} {data.panel.unit}<br>%{{x|%H:%M:%S}}<extra></extra>",
        )
    )
    for limit in limits:
        figure.add_hline(y=limit.value, line={"dash": "dash", "width": 1}, annotation={"text": limit.label, "showarrow": False}, name="limit")
    for event in events:
        at = event.at.astimezone(zone).replace(tzinfo=None)
        figure.add_shape(
            type="line",
            x0=at,
            x1=at,
            y0=0,
            y1=1,
            yref="paper",
            line={"width": 1, "dash": "dot"},
            name="event",
            label={"text": event.label, "textangle": -90, "textposition": "end"},
        )
    figure.update_layout(
        margin={"l": 40, "r": 8, "t": 8, "b": 24},
        showlegend=False,
        hovermode="x",
        xaxis={"range": [times[0], times[-1]] if times else None, "fixedrange": False},
        yaxis={"rangemode": "tozero" if data.panel.unit in {"W", "%"} else "normal", "fixedrange": True},
        template=None,
    )
    drawn: dict[str, Any] = figure.to_plotly_json()
    return drawn


def summarise(data: PanelData, *, now: datetime) -> str:
    """One sentence that says what the line shows; for screen readers, and for people in a hurry."""
    known = [value for value in data.values if value is not None]
    if not known or data.newest is None:
        return _("%(title)s: not reported in this range.") % {"title": data.panel.title}
    time, value = data.newest
    parts = {
        "title": data.panel.title,
        "unit": data.panel.unit,
        "value": _number(value),
        "low": _number(min(known)),
        "high": _number(max(known)),
        "mean": _number(sum(known) / len(known)),
        "age": max(0, round(now.timestamp() - time)),
        "gaps": data.gaps,
    }
    text = _("%(title)s %(value)s %(unit)s %(age)d s ago; between %(low)s and %(high)s, mean %(mean)s %(unit)s.") % parts
    return text + (" " + _("%(gaps)d gaps without data.") % parts if data.gaps else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.1f}"
