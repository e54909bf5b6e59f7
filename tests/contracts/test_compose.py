"""`docker-compose.yml` follows the compose schema, has no default secret, pins every image, and starts commands that exist."""

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.core.management import get_commands

CHECKOUT = Path(__file__).resolve().parent.parent.parent
TEXT = (CHECKOUT / "docker-compose.yml").read_text()
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load(TEXT)["services"]
OURS = {name: service for name, service in SERVICES.items() if "build" in service}
ONE_SHOT = {"setup", "prometheus-config"}


def test_it_follows_the_compose_schema() -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_it_runs_every_process() -> None:
    assert {"web", "gateway", "telemetry", "worker", "beat", "postgres", "redis", "prometheus", "setup"} <= set(SERVICES)


@pytest.mark.parametrize("name", sorted(OURS))
def test_each_command_exists(name: str) -> None:
    command = OURS[name]["command"]
    assert command[0] == "python"
    if command[1] == "manage.py":
        assert command[2] in get_commands()
        return
    assert command[1] == "-m"
    assert find_spec(command[2]), command[2]
    for argument in command[3:]:
        module, colon, attribute = argument.partition(":")
        if colon and not argument.startswith("-"):
            spec = find_spec(module)
            assert spec
            assert spec.origin
            assert re.search(rf"^{attribute}\b", Path(spec.origin).read_text(), re.MULTILINE), f"{module} has no {attribute}"
    if command[2] == "celery":
        assert find_spec(command[command.index("-A") + 1])


@pytest.mark.parametrize("name", sorted(set(SERVICES) - ONE_SHOT))
def test_each_service_that_stays_has_a_health_check(name: str) -> None:
    assert SERVICES[name]["healthcheck"]["test"]
    assert SERVICES[name]["restart"] == "unless-stopped"


@pytest.mark.parametrize("name", sorted(SERVICES))
def test_each_image_is_pinned(name: str) -> None:
    tag = SERVICES[name]["image"].rpartition(":")[2]
    assert re.fullmatch(r"v?\d+\.\d+(\.\d+)?[\w.-]*", tag), SERVICES[name]["image"]


def test_base_images_are_pinned() -> None:
    dockerfile = (CHECKOUT / "deploy" / "Dockerfile").read_text()
    for image in re.findall(r"^FROM (\S+)", dockerfile, re.MULTILINE):
        assert re.search(r":\d+\.\d+\.\d+", image), image


def test_no_secret_has_a_default() -> None:
    for name, rest in re.findall(r"\$\{(\w+)([^}]*)\}", TEXT):
        if re.search(r"SECRET|PASSWORD|TOKEN|KEY", name):
            assert rest.startswith(":?"), f"{name} needs a message for when it is missing, and no default"
    for name, service in SERVICES.items():
        for variable, value in dict(service.get("environment", {})).items():
            if re.search(r"SECRET|PASSWORD|TOKEN", variable):
                assert "${" in value, f"{name}: {variable} is written out"


def test_the_gateway_cannot_sign() -> None:
    assert "MASTHEAD_SIGNING_KEY_FILE" not in SERVICES["gateway"]["environment"]
    assert not SERVICES["gateway"].get("secrets")
    assert {name for name, service in SERVICES.items() if "signing_key" in service.get("secrets", [])} == {"web", "worker"}


def test_only_the_proxy_is_reached_from_outside() -> None:
    assert {name for name, service in SERVICES.items() if service.get("ports")} == {"proxy"}


def test_every_file_that_is_mounted_exists() -> None:
    for service in SERVICES.values():
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            if source.startswith("./"):
                assert (CHECKOUT / source).exists(), source
