"""The simulator's configuration: errors name the field, and the made-up fleet is the same for the same seed."""

import copy
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agent.simulator.__main__ import main
from agent.simulator.config import dump_config, load_config, load_timeline, parse_config
from agent.simulator.fields import ConfigError
from agent.simulator.fleet_plan import TENANT_NAMESPACES, plan_fleet
from tests.agent.simulated_fleet import CONFIG


def as_json() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(json.dumps(dump_config(CONFIG)))
    return data


def test_a_configuration_survives_writing_and_reading() -> None:
    assert parse_config(as_json()) == CONFIG


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["seed"], -1, "seed: expected a whole number"),
        (["seed"], True, "seed: expected a whole number"),
        (["step_seconds"], 0, "step_seconds: expected a number"),
        (["control_address"], "0.0.0.0:9460", "control_address: expected a loopback address"),
        (["control_address"], "127.0.0.1", "control_address: expected a loopback address"),
        (["act_log"], "", "act_log: must not be empty"),
        (["ports", "dcgm"], 0, "ports.dcgm: expected a whole number"),
        (["ports", "dcgm"], 9100, "ports: two exporters share a port"),
        (["agents", "processes"], 0, "agents.processes: expected"),
        (["nodes"], {}, "nodes: expected a list"),
        (["nodes", 1], 5, r"nodes\[1\]: expected an object"),
        (["nodes", 1, "colour"], "red", r"nodes\[1\].colour: unknown field"),
        (["nodes", 1, "role"], "boss", r"nodes\[1\].role: 'boss' is none of du, cu, inference"),
        (["nodes", 1, "address"], "10.0.0.1", r"nodes\[1\].address: expected an address in 127.0.0.0/8"),
        (["nodes", 1, "address"], "127.91.0.1", r"nodes\[1\].address: '127.91.0.1' is already used by nodes\[0\].address"),
        (["nodes", 1, "host_name"], "gpu-ams-07", r"nodes\[1\].host_name: 'gpu-ams-07' is already used by nodes\[0\].host_name"),
        (["nodes", 1, "time_zone"], "Mars/Olympus", r"nodes\[1\].time_zone: unknown time zone"),
        (["nodes", 1, "time_zone"], "../../etc/passwd", r"nodes\[1\].time_zone: unknown time zone"),
        (["nodes", 1, "latitude"], 91, r"nodes\[1\].latitude: expected a number -90..90"),
        (["nodes", 1, "exporters"], ["dcgm", "smi"], r"nodes\[1\].exporters\[1\]: 'smi' is none of"),
        (["nodes", 0, "gpus", 1, "uuid"], "MIG-1", r"nodes\[0\].gpus\[1\].uuid: must start with GPU-"),
        (["nodes", 0, "gpus", 1, "mig"], [], r"nodes\[0\].gpus\[1\].workload: in MIG mode workloads are on slices"),
        (["nodes", 0, "gpus", 0, "mig", 2, "start"], 8, r"nodes\[0\].gpus\[0\].mig\[2\].start: expected a whole number 0..7"),
        (["nodes", 0, "gpus", 0, "mig", 2, "workload"], {"pod": "x"}, r"nodes\[0\].gpus\[0\].mig\[2\].workload.namespace: missing"),
        (["timeline"], [{"name": "ecc"}], r"timeline\[0\]: name exactly one of site, node, gpu"),
        (["timeline"], [{"name": "ecc", "gpu": "GPU-1", "every_seconds": 5}], r"timeline\[0\].every_seconds: must be longer"),
    ],
)
def test_a_wrong_field_is_named(path: list[str | int], value: object, message: str) -> None:
    data: Any = copy.deepcopy(as_json())
    place = data
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(ConfigError, match=f"^{message}"):
        parse_config(data)


def test_a_missing_field_is_named() -> None:
    data = as_json()
    del data["nodes"][2]["gpus"][0]["sku"]
    with pytest.raises(ConfigError, match=r"^nodes\[2\].gpus\[0\].sku: missing$"):
        parse_config(data)


@pytest.mark.parametrize("data", [None, [], 3, "x"])
def test_what_is_no_object_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match="expected an object"):
        parse_config(data)


def test_relative_paths_start_at_the_files_folder(tmp_path: Path) -> None:
    path = tmp_path / "simulator.json"
    path.write_text(json.dumps(as_json()))
    config = load_config(path)
    assert config.act_log == str(tmp_path / "acts.jsonl")
    assert config.agents.state_directory == str(tmp_path / "agents")


def test_a_timeline_may_be_yaml(tmp_path: Path) -> None:
    path = tmp_path / "drill.yaml"
    path.write_text("- {name: link_cut, site: AMS-07, at_seconds: 10, duration_seconds: 30}\n")
    assert load_timeline(path)[0].site == "AMS-07"
    path.write_text("- {name: link_cut, site: AMS-07, when: now}\n")
    with pytest.raises(ConfigError, match=r"^timeline\[0\].when: unknown field"):
        load_timeline(path)


def test_the_same_arguments_give_the_same_fleet() -> None:
    assert plan_fleet(2, 2, 10, seed=3) == plan_fleet(2, 2, 10, seed=3)
    uuids = {gpu.uuid for plan in (plan_fleet(1, 1, 10, seed=3), plan_fleet(1, 1, 10, seed=4)) for node in plan.nodes for gpu in node.gpus}
    assert len(uuids) == sum(len(node.gpus) for seed in (3, 4) for node in plan_fleet(1, 1, 10, seed=seed).nodes)


def test_the_demo_fleet_is_what_the_issue_asks_for() -> None:
    plan = plan_fleet()
    assert (len(plan.areas), len(plan.regions), len(plan.sites)) == (2, 6, 300)
    for things in ([site.code for site in plan.sites], [site.name for site in plan.sites], [node.address for node in plan.nodes]):
        assert len(set(things)) == 300
    roles = Counter(node.role for node in plan.nodes)
    assert 0.6 < roles["du"] / 300 < 0.7
    for node in plan.nodes:
        assert (node.role == "du") == any(gpu.carries_phy for gpu in node.gpus)
        for gpu in node.gpus:
            if gpu.carries_phy:
                assert [(part.profile, part.start, part.purpose) for part in gpu.mig or ()] == [
                    ("1g.10gb", start, "phy" if start < 3 else "ai") for start in range(7)
                ]
    assert {gpu.sku for node in plan.nodes for gpu in node.gpus} == {"h100-sxm-80gb", "h100-pcie-80gb", "l40s-48gb"}
    assert all(gpu.mig is None for node in plan.nodes for gpu in node.gpus if gpu.sku == "l40s-48gb")
    namespaces = {part.workload.namespace for node in plan.nodes for gpu in node.gpus for part in gpu.mig or () if part.workload and part.purpose == "ai"}
    assert namespaces == set(TENANT_NAMESPACES)
    config = plan.simulator_config(control_address="127.0.0.1:9460", act_log="acts.jsonl", bundles={plan.nodes[0].host_name: "text"})
    assert parse_config(json.loads(json.dumps(dump_config(config)))) == config
    assert config.nodes[0].bundle == "text"


def test_a_fleet_larger_than_the_list_of_cities_has_unique_codes() -> None:
    plan = plan_fleet(10, 12, 3)
    assert len({site.code for site in plan.sites}) == 360
    assert len({region.slug for region in plan.regions}) == 120
    assert len({area.slug for area in plan.areas}) == 10


def test_the_command_line_prints_a_plan_and_a_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--areas", "1", "--regions", "1", "--sites", "3"]) == 0
    path = tmp_path / "simulator.json"
    path.write_text(capsys.readouterr().out)
    assert main(["text", "--config", str(path), "--node", "gpu-ams-002"]) == 0
    assert capsys.readouterr().out.startswith("# HELP DCGM_FI_DEV_SM_CLOCK")
    assert main(["text", "--config", str(path), "--node", "nobody"]) == 1
    assert capsys.readouterr().err == "simulator: nodes: there is no node 'nobody'\n"
