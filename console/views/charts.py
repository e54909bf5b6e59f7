"""Charts of a GPU or a site as JSON for their pages."""

from django.http import Http404, HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.utils import timezone
from django.utils.translation import gettext as _
from django.views.decorators.http import require_GET

from console.access import Access
from console.guards import signed_in_page
from console.panel_charts import chart
from fleet.models import Gpu
from fleet.telemetry.panels import PANELS, RANGES


@require_GET
@signed_in_page
def gpu_chart(request: HttpRequest, access: Access, uuid: str, panel: str) -> JsonResponse:
    gpu = get_object_or_404(access.gpus().select_related("node__site"), uuid=uuid)
    return _answer(request, panel, {"UUID": gpu.uuid}, gpu=gpu)


@require_GET
@signed_in_page
def site_chart(request: HttpRequest, access: Access, code: str, panel: str) -> JsonResponse:
    site = get_object_or_404(access.sites(), code=code)
    return _answer(request, panel, {"site": site.code}, site_code=site.code)


def _answer(request: HttpRequest, key: str, labels: dict[str, str], *, gpu: Gpu | None = None, site_code: str = "") -> JsonResponse:
    panel = PANELS.get(key)
    if panel is None:
        raise Http404
    word = request.GET.get("range", "3h")
    if word not in RANGES:
        return JsonResponse({"reason": _("range: choose one of %(ranges)s.") % {"ranges": ", ".join(RANGES)}}, status=400)
    status, body = chart(panel, labels, word, gpu=gpu, site_code=site_code, zone_name=getattr(request.user, "time_zone", "UTC"), now=timezone.now())
    return JsonResponse(body, status=status)
