"""The committed schema is what the code says, and it is OpenAPI 3.1."""

from pathlib import Path

import pytest
import yaml
from django.core.management import call_command

SCHEMA = Path(__file__).parents[2] / "docs/openapi.yaml"


def test_the_committed_schema_is_current(tmp_path: Path) -> None:
    call_command("spectacular", file=str(tmp_path / "openapi.yaml"), fail_on_warn=True, validate=True)
    assert (tmp_path / "openapi.yaml").read_text() == SCHEMA.read_text(), "run: manage.py spectacular --file docs/openapi.yaml"


def test_version_and_security() -> None:
    schema = yaml.safe_load(SCHEMA.read_text())
    assert schema["openapi"].startswith("3.1")
    assert "bearer" in schema["components"]["securitySchemes"]


@pytest.mark.parametrize("kind", ["sites", "regions", "areas", "nodes", "gpus", "workloads", "findings", "controls"])
def test_each_list_says_its_pages(kind: str) -> None:
    operation = yaml.safe_load(SCHEMA.read_text())["paths"][f"/api/v1/{kind}/"]["get"]
    assert {"cursor", "page_size", "ordering"} <= {parameter["name"] for parameter in operation["parameters"]}
