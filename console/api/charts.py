"""Points of a chart of a GPU or a site, from Prometheus, with gaps as null."""

from typing import Any

from django.utils import timezone
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.exceptions import ValidationError
from rest_framework.request import Request
from rest_framework.response import Response

from console.api.problems import SourceUnavailable
from console.panel_charts import chart
from fleet.models import Gpu
from fleet.telemetry.panels import PANELS, RANGES

CHART_PATH = r"charts/(?P<panel>[a-z_]+)"
chart_schema = extend_schema(
    parameters=[
        OpenApiParameter("panel", OpenApiTypes.STR, OpenApiParameter.PATH, enum=sorted(PANELS)),
        OpenApiParameter("range", OpenApiTypes.STR, enum=list(RANGES), default="3h"),
    ],
    responses=OpenApiTypes.OBJECT,
)


def chart_answer(request: Request, panel: str, labels: dict[str, str], *, gpu: Gpu | None = None, site_code: str = "") -> Response:
    """Unit, points, gaps, age and one sentence. 503 when Prometheus does not answer."""
    word = request.query_params.get("range", "3h")
    if panel not in PANELS:
        raise ValidationError({"panel": f"One of {', '.join(sorted(PANELS))}."})
    if word not in RANGES:
        raise ValidationError({"range": f"One of {', '.join(RANGES)}."})
    status, body = chart(PANELS[panel], labels, word, zone_name="UTC", now=timezone.now(), gpu=gpu, site_code=site_code)
    if status != 200:
        raise SourceUnavailable(body["reason"])
    shown: dict[str, Any] = {key: value for key, value in body.items() if key != "figure"}
    return Response(shown)
