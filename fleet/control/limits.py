"""What may be asked of each control on a GPU, before anything is signed: its fields with units and bounds, and every refusal with field and range.

Bounds come from the SKU catalogue, or from what the GPU's agent read of the board itself, which goes first; what neither knows is left to
the GPU, which refuses what it cannot do. Pure: no Django.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from agent.protocol.layout import OFF, Instance, LayoutError, format_layout, parse_layout
from fleet import catalogue
from fleet.catalogue import Sku
from fleet.inventory.mig import Placement, Purpose, Span, check_change, check_layout

CLOCK_RANGE, POWER_CAP, MIG_LAYOUT, CORDON = "clock_range", "power_cap", "mig_layout", "cordon"
CONTROLS = (CLOCK_RANGE, POWER_CAP, MIG_LAYOUT, CORDON)
# Of the node itself; the others are of one GPU.
NODE_WIDE = frozenset({CORDON})
# They act on all slices of a GPU alike, so they reach PHY where it has a protected placement.
GPU_WIDE = frozenset({CLOCK_RANGE, POWER_CAP})
# They may be set on a GPU that carries PHY: the agent keeps the radio's placements as they are.
BESIDE_PHY = frozenset({MIG_LAYOUT})
# Where the catalogue knows no clock of a board.
LOWEST_MHZ, HIGHEST_MHZ = 100, 5000


@dataclass(frozen=True)
class Range:
    """Both ends are allowed."""

    low: float
    high: float
    unit: str

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    def __str__(self) -> str:
        return f"{self.low:g}..{self.high:g} {self.unit}"


@dataclass(frozen=True)
class Field:
    """One field of a control's form. `kind`: integer, number, text or boolean. Of the fields with the same `one_of` exactly one is given."""

    name: str
    title: str
    unit: str
    kind: str
    bounds: Range | None = None
    step: float | None = None
    one_of: str = ""


@dataclass(frozen=True)
class GpuLimits:
    """`power_watts` and `default_watts` None: not known, the GPU itself judges."""

    sku: Sku | None
    clock_mhz: Range
    power_watts: Range | None
    default_watts: float | None


def limits_of(sku_key: str, observed_power: Mapping[str, object] | None = None) -> GpuLimits:
    """The bounds of a board. `observed_power` is what its agent last observed of `power_cap`: `min_watts`, `max_watts`, `default_watts`."""
    try:
        sku = catalogue.sku(sku_key)
    except catalogue.UnknownSku:
        sku = None
    low = (sku.sm_clock_min_mhz if sku else None) or LOWEST_MHZ
    high = (sku.sm_clock_max_mhz if sku else None) or HIGHEST_MHZ
    read = {name: _finite((observed_power or {}).get(f"{name}_watts")) for name in ("min", "max", "default")}
    least = read["min"] if read["min"] is not None else (sku.power_min_watts if sku else None)
    most = read["max"] if read["max"] is not None else (sku.power_max_watts if sku else None)
    power = Range(least, most, "W") if least is not None and most is not None and least <= most else None
    return GpuLimits(sku=sku, clock_mhz=Range(low, high, "MHz"), power_watts=power, default_watts=read["default"])


def fields_of(control: str, limits: GpuLimits) -> tuple[Field, ...]:
    """The fields of a control with the bounds that hold on this GPU. Raises KeyError for an unknown control."""
    if control == CLOCK_RANGE:
        return (
            Field("min_mhz", "Lowest SM clock", "MHz", "integer", limits.clock_mhz, 1),
            Field("max_mhz", "Highest SM clock", "MHz", "integer", limits.clock_mhz, 1),
        )
    if control == POWER_CAP:
        return (
            Field("watts", "Power cap", "W", "number", limits.power_watts, 0.1, one_of="cap"),
            Field("percent_of_default", "Power cap, of the board's default", "%", "number", _percent(limits, limits.default_watts), one_of="cap"),
            Field("percent_of_maximum", "Power cap, of the board's maximum", "%", "number", _percent(limits, _highest(limits)), one_of="cap"),
        )
    if control == MIG_LAYOUT:
        return (Field("layout", "MIG layout", "", "text"),)
    if control == CORDON:
        return (Field("cordoned", "Takes no new pods", "", "boolean"),)
    raise KeyError(control)


def check_parameters(
    control: str, parameters: object, limits: GpuLimits, *, layout: Sequence[Placement] = (), protected: Sequence[Span] = ()
) -> dict[str, str]:
    """Every bad field with what is wrong and what would be right; empty when all is well.

    `layout` is what stands on the GPU now and `protected` the radio's spans: a MIG layout is checked against both.
    """
    if control not in CONTROLS:
        return {"control": f"{control!r} is none of {', '.join(CONTROLS)}."}
    if not isinstance(parameters, dict):
        return {"parameters": "Must be an object."}
    fields = {field.name: field for field in fields_of(control, limits)}
    errors = {str(name): f"{control} has no such field; it takes {', '.join(fields)}." for name in parameters if name not in fields}
    if control in GPU_WIDE and protected:
        errors[""] = f"The GPU carries PHY: {control} would act on the radio too."
    groups: dict[str, list[str]] = {}
    for name, field in fields.items():
        groups.setdefault(field.one_of or name, []).append(name)
    for names in groups.values():
        given = [name for name in names if name in parameters]
        if not given:
            errors.setdefault(names[0], f"Missing: give exactly one of {', '.join(names)}." if len(names) > 1 else "Missing.")
        for extra in given[1:]:
            errors[extra] = f"Only one of {', '.join(names)} may be given."
    for name, field in fields.items():
        if name in parameters and name not in errors and (reason := _wrong(parameters[name], field)):
            errors[name] = reason
    if errors:
        return errors
    if control == CLOCK_RANGE and parameters["min_mhz"] > parameters["max_mhz"]:
        return {"min_mhz": f"{parameters['min_mhz']} MHz is above max_mhz, {parameters['max_mhz']} MHz."}
    if control == MIG_LAYOUT and (reason := layout_refusal(parameters["layout"], limits.sku, layout=layout, protected=protected)):
        return {"layout": reason}
    return {}


def _wrong(value: object, field: Field) -> str:
    """What is wrong with one value, "" when nothing is."""
    if field.kind == "boolean":
        return "" if isinstance(value, bool) else "Must be true or false."
    if field.kind == "text":
        return "" if isinstance(value, str) else "Must be a text."
    kind = "whole number" if field.kind == "integer" else "number"
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or (field.kind == "integer" and not isinstance(value, int)):
        return f"Must be a {kind} of {field.unit}."
    if field.bounds is not None and value not in field.bounds:
        return f"{value:g} {field.unit} is not within {field.bounds}."
    if field.bounds is None and value <= 0:
        return f"Must be above 0 {field.unit}."
    return ""


def layout_refusal(text: str, sku: Sku | None, *, layout: Sequence[Placement], protected: Sequence[Span]) -> str:
    """Why a GPU with `layout` may not get the layout `text`; "" when it may."""
    try:
        wanted = parse_layout(text)
    except LayoutError as error:
        return f"{str(error).capitalize()}."
    if sku is not None and not sku.mig_capable:
        return "" if wanted is None else f"{sku.name} has no MIG: it is one whole GPU."
    if wanted is None:
        return f"The GPU carries PHY: {OFF} would take the mode of the whole GPU." if protected else ""
    if sku is None:
        return ""
    placements = [_placement(instance, sku, protected) for instance in wanted]
    return " ".join(refusal.reason for refusal in check_change(sku, layout, placements, protected))


def _placement(instance: Instance, sku: Sku, protected: Sequence[Span]) -> Placement:
    """PHY where it lies wholly on the radio's positions: a layout's text does not say whose an instance is, the spans do."""
    profile = sku.profile(instance.profile)
    reserved = {position for span in protected for position in range(span.start, span.stop)}
    phy = profile is not None and set(range(instance.start, instance.start + profile.size)) <= reserved
    return Placement(instance.start, instance.profile, Purpose.PHY if phy else Purpose.AI)


def allowed_layouts(sku: Sku, *, layout: Sequence[Placement] = (), protected: Sequence[Span] = ()) -> tuple[str, ...]:
    """Every full layout (nothing more fits) that a GPU may get, as text, the largest instances first. What stands on protected spans is in each of them."""
    if not sku.mig_capable:
        return ()
    kept = [placement for placement in layout if _overlaps(placement, sku, protected)]
    return _full_layouts(sku, tuple(sorted(kept)), tuple(sorted(protected)))


def _overlaps(placement: Placement, sku: Sku, protected: Sequence[Span]) -> bool:
    profile = sku.profile(placement.profile)
    return profile is not None and any(Span(placement.start, profile.size).overlaps(span) for span in protected)


@lru_cache(maxsize=64)
def _full_layouts(sku: Sku, kept: tuple[Placement, ...], protected: tuple[Span, ...]) -> tuple[str, ...]:
    profiles = [profile for profile in sku.profiles if not profile.has_media_extensions]
    candidates = [Placement(start, profile.name) for profile in profiles for start in profile.placements]
    reserved = {position for span in protected for position in range(span.start, span.stop)}
    sizes = {profile.name: profile.size for profile in sku.profiles}
    candidates = [one for one in candidates if not reserved & set(range(one.start, one.start + sizes[one.profile]))]
    found: set[tuple[Placement, ...]] = set()

    def fits(chosen: tuple[Placement, ...]) -> bool:
        return not check_layout(sku, [*kept, *chosen], protected)

    def extend(chosen: tuple[Placement, ...]) -> None:
        after = chosen[-1].start + sizes[chosen[-1].profile] if chosen else 0
        longer = [(*chosen, one) for one in candidates if one.start >= after and fits((*chosen, one))]
        for more in longer:
            extend(more)
        if chosen and not longer and not any(fits((*chosen, one)) for one in candidates):
            found.add(chosen)

    extend(())
    layouts = [tuple(Instance(one.start, one.profile) for one in sorted([*kept, *chosen])) for chosen in found]
    layouts.sort(key=lambda instances: (len(instances), [-sizes[instance.profile] for instance in instances], instances))
    return tuple(format_layout(instances) for instances in layouts)


def _highest(limits: GpuLimits) -> float | None:
    return limits.power_watts.high if limits.power_watts else None


def _percent(limits: GpuLimits, whole: float | None) -> Range | None:
    if limits.power_watts is None or not whole:
        return None
    return Range(limits.power_watts.low / whole * 100, limits.power_watts.high / whole * 100, "%")


def _finite(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0 else None
