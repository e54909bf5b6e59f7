"""PHY's share of the GPUs on DU nodes: kept from the moment a GPU is known, by a default until an import states other placements.

Nothing but an import takes it away. Every writer of placements, and whoever moves a GPU that has some, calls `placements_changed`.
"""

from collections.abc import Collection, Iterable, Mapping

from django.db.models import Exists, F, OuterRef, Q

from fleet.bulk import update_rows
from fleet.catalogue import SKUS
from fleet.inventory.mig import WHOLE, Span, default_protection
from fleet.models import Gpu, MigSlice, Node, ProtectedPlacement, Source, StaleDocument

PLACEMENTS = "protected_placements"  # in Gpu.sources: who stated them; absent while they are the default
_SWEEP = 1000


# As an annotation of GPUs. Those that another transaction is about to protect are treated as PHY's until then.
LACKS_PHY = (
    Q(node__role=Node.Role.DU)
    & ~Exists(ProtectedPlacement.objects.filter(gpu_id=OuterRef("pk")))
    & ~Q(presence=Gpu.Presence.RETIRED)
    & ~Q(sources__has_key=PLACEMENTS)
)


def lacks_phy(gpu: Gpu) -> bool:
    """Whether nobody said yet what of this GPU on a DU node is PHY's: all of it may be. Uses the prefetched `protected_placements`."""
    return gpu.node.role == Node.Role.DU and not released(gpu) and not gpu.protected_placements.all()


def released(gpu: Gpu) -> bool:
    """Whether an import said that nothing of this GPU is PHY's, though it stands on a DU node. Counts only where it has no placements."""
    return PLACEMENTS in gpu.sources


def protect(
    gpu_ids: Iterable[int], *, elsewhere: Collection[int] = (), named: Collection[int] = (), placed: Mapping[str, Iterable[Span]] | None = None
) -> list[str]:
    """Keep PHY's share of these GPUs, as far as they stand on a DU node and nobody stated it; returns the UUIDs of those that had none.

    A default is widened to the whole GPU where instances do not fit it, and never made smaller, except for `named` ones, whose model
    was not known before. `elsewhere` came to their DU node just now (or it became one): that they need no protection was said of
    another place. `placed` are instances by UUID that a complete list names; for the others those that are held count.
    """
    rows = Gpu.objects.select_for_update(of=("self",)).filter(pk__in=set(gpu_ids), node__role=Node.Role.DU).exclude(presence=Gpu.Presence.RETIRED)
    gpus = list(rows.prefetch_related("protected_placements").order_by("pk"))
    back = [gpu for gpu in gpus if gpu.pk in elsewhere and released(gpu) and not gpu.protected_placements.all()]
    for gpu in back:
        del gpu.sources[PLACEMENTS]
    update_rows(Gpu, ["sources"], back)
    unstated = [gpu for gpu in gpus if PLACEMENTS not in gpu.sources]
    held = _instances([gpu.pk for gpu in unstated])
    wanted: dict[int, list[Span]] = {}
    bare: list[str] = []
    for gpu in unstated:
        before = [Span(each.start, each.size) for each in gpu.protected_placements.all()]
        if gpu.pk in named and before == [WHOLE]:
            before = []
        instances = held.get(gpu.pk, [])
        spans = list(placed[gpu.uuid]) if placed is not None and gpu.uuid in placed else [span for span, _ in instances]
        after = default_protection(SKUS.get(gpu.sku), spans)
        if not before and (told := [span for span, purpose in instances if purpose == MigSlice.Purpose.PHY]) and gpu.pk not in named:
            after = told
        if not gpu.protected_placements.all():
            bare.append(gpu.uuid)
        if not before or (after == [WHOLE] and before != [WHOLE]):
            wanted[gpu.pk] = after
    write_placements(wanted)
    return bare


def protect_bare() -> int:
    """Keep PHY's share of every GPU on a DU node that has none and was not released: what no other door saw. Returns how many those were."""
    found = list(Gpu.objects.filter(LACKS_PHY).order_by("pk").values_list("pk", flat=True)[:_SWEEP])
    return len(protect(found)) if found else 0


def take_back(uuids: Iterable[str]) -> None:
    """Take the default placements away again from GPUs that came to a DU node by an import which is undone. Those that stand on one keep them."""
    rows = Gpu.objects.select_for_update(of=("self",)).filter(uuid__in=list(uuids)).exclude(node__role=Node.Role.DU).exclude(sources__has_key=PLACEMENTS)
    gpu_ids = list(rows.order_by("pk").values_list("pk", flat=True))
    ProtectedPlacement.objects.filter(gpu_id__in=gpu_ids).delete()
    placements_changed(gpu_ids)


def placements_changed(gpu_ids: Iterable[int]) -> None:
    """After placements of these GPUs were written: their live slices are PHY's or not by them, and their nodes' documents are made anew."""
    ids = list(gpu_ids)
    on_it = ProtectedPlacement.objects.filter(
        gpu_id=OuterRef("gpu_id"), start__lt=OuterRef("start") + OuterRef("size"), start__gt=OuterRef("start") - F("size")
    )
    live = MigSlice.objects.filter(gpu_id__in=ids, ended_at__isnull=True, start__isnull=False)
    live.filter(Exists(on_it)).exclude(purpose=MigSlice.Purpose.PHY).update(purpose=MigSlice.Purpose.PHY)
    live.exclude(Exists(on_it)).exclude(purpose=MigSlice.Purpose.AI).update(purpose=MigSlice.Purpose.AI)
    documents_stale(Gpu.objects.filter(pk__in=ids).values_list("node_id", flat=True).distinct())


def documents_stale(node_ids: Iterable[int]) -> None:
    """What the signed documents of these nodes say of their GPUs is no longer so. A process without the signing key leaves them to the worker."""
    StaleDocument.objects.bulk_create([StaleDocument(node_id=node_id) for node_id in sorted(set(node_ids))], batch_size=5000)


def note_stated(gpu: Gpu, spans: Collection[Span]) -> None:
    """Remember in `gpu.sources` (not saved) that an import stated these placements; none: nothing of the GPU is PHY's."""
    if spans or gpu.node.role == Node.Role.DU:
        gpu.sources[PLACEMENTS] = Source.IMPORT
    else:
        gpu.sources.pop(PLACEMENTS, None)  # said of another role, it does not hold on a DU


def write_placements(wanted: Mapping[int, Collection[Span]]) -> None:
    """Let these GPUs (by database id) have exactly these placements."""
    if not wanted:
        return
    ProtectedPlacement.objects.filter(gpu_id__in=wanted).delete()
    ProtectedPlacement.objects.bulk_create(
        [ProtectedPlacement(gpu_id=pk, start=span.start, size=span.size) for pk, spans in wanted.items() for span in spans],
        batch_size=5000,
        ignore_conflicts=True,
    )
    placements_changed(wanted)


def _instances(gpu_ids: list[int]) -> dict[int, list[tuple[Span, str]]]:
    """Live instances with a known place, by GPU: where they stand and what for."""
    found: dict[int, list[tuple[Span, str]]] = {}
    rows = MigSlice.objects.filter(gpu_id__in=gpu_ids, ended_at__isnull=True, start__isnull=False, size__isnull=False).order_by("start")
    for gpu_id, start, size, purpose in rows.values_list("gpu_id", "start", "size", "purpose"):
        if start is not None and size is not None:
            found.setdefault(gpu_id, []).append((Span(start, size), purpose))
    return found
