"""Exporter text made cheaply: the page of a node is one format string and one list of positions in the fleet's flat columns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from agent.simulator.load import Floats


@dataclass(frozen=True)
class Page:
    """`template % values`, with the values gathered from `places` of a flat array."""

    template: str
    places: npt.NDArray[np.int64]

    def render(self, flat: Floats) -> str:
        return self.template % tuple(flat[self.places].tolist())


@dataclass
class PageBuilder:
    lines: list[str] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    def family(self, name: str, help_text: str, kind: str) -> None:
        self.lines += [f"# HELP {name} {help_text}".replace("%", "%%"), f"# TYPE {name} {kind}"]

    def series(self, name: str, labels: str, number_format: str, place: int) -> None:
        """One line; `labels` is the finished text between the braces ("" for none), `number_format` such as `%d`."""
        braces = f"{{{labels}}}".replace("%", "%%") if labels else ""
        self.lines.append(f"{name}{braces} {number_format}")
        self.places.append(place)

    def constant(self, name: str, labels: str, value: str) -> None:
        self.lines.append(f"{name}{{{labels}}} {value}".replace("%", "%%"))

    def page(self) -> Page:
        return Page("\n".join(self.lines) + "\n" if self.lines else "", np.array(self.places, dtype=np.int64))


def labels_text(pairs: dict[str, str]) -> str:
    """`a="1",b="2"` in the given order, values escaped as the format asks; pairs with an empty value are left out."""
    return ",".join(f'{name}="{_escape(value)}"' for name, value in pairs.items() if value)


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
