"""What the OpenAPI document says beside our own views: service discovery, which is a plain view so that it answers whatever else is wrong."""

from typing import Any

from fleet.inventory.service_discovery import JOBS

SERVICE_DISCOVERY_PATH = "/api/v1/sd/{job}"

_PROBLEM = {"content": {"application/problem+json": {"schema": {"type": "object"}}}}
_SERVICE_DISCOVERY = {
    "get": {
        "operationId": "service_discovery",
        "description": "Targets of the fleet's exporters for Prometheus' `http_sd_configs`, with a sender's token. 200 only with the complete list; "
        "503 when the inventory cannot be read, upon which Prometheus keeps the targets that it has.",
        "parameters": [
            {"in": "path", "name": "job", "required": True, "schema": {"type": "string", "enum": sorted(JOBS)}},
            {"in": "query", "name": "region", "schema": {"type": "string"}, "description": "Slug, to share the fleet among several Prometheus."},
        ],
        "tags": ["sd"],
        "security": [{"bearer": []}],
        "responses": {
            "200": {
                "content": {
                    "application/json": {
                        "schema": {
                            "type": "array",
                            "items": {
                                "type": "object",
                                "required": ["targets", "labels"],
                                "properties": {
                                    "targets": {"type": "array", "items": {"type": "string"}},
                                    "labels": {"type": "object", "additionalProperties": {"type": "string"}},
                                },
                            },
                        }
                    }
                },
                "description": "The complete list; `[]` when there is truly nothing.",
            },
            "401": {"description": "No sender's token that may discover.", **_PROBLEM},
            "404": {"description": "No such job or region, or the region is not the sender's.", **_PROBLEM},
            "503": {"description": "The inventory cannot be read now.", **_PROBLEM},
        },
    }
}


def add_service_discovery(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """Hook of drf-spectacular after the document is made."""
    result["paths"] = dict(sorted({**result["paths"], SERVICE_DISCOVERY_PATH: _SERVICE_DISCOVERY}.items()))
    return result
