"""Console and agent know the same commands and judge their parameters alike; neither imports the other's table."""

from typing import Any

import pytest

from agent.commands import SchemaOf, discover_commands
from fleet.control.command_kinds import KINDS

RULES = ("type", "minimum", "maximum", "minLength", "maxLength", "pattern", "enum", "default")


def rules_of(schema: Any) -> dict[str, dict[str, Any]]:
    return {name: {rule: one[rule] for rule in RULES if rule in one} for name, one in schema["properties"].items()}


def test_each_kind_of_the_console_has_its_file_in_the_agent() -> None:
    assert set(KINDS) == set(discover_commands())


@pytest.mark.parametrize("name", sorted(KINDS))
def test_what_the_console_takes_the_agent_takes(name: str) -> None:
    console, agent = KINDS[name].schema, discover_commands()[name].schema
    assert rules_of(console) == {field: rules for field, rules in rules_of(agent).items() if field in console["properties"]}
    assert console["required"] == agent["required"]
    extra = set(agent["properties"]) - set(console["properties"])
    assert all("default" in agent["properties"][field] for field in extra), "what the console does not know the agent does not ask for"


@pytest.mark.parametrize("name", sorted(KINDS))
def test_defaults_are_parameters_that_the_agent_takes(name: str) -> None:
    if not KINDS[name].schema["required"]:
        assert SchemaOf(discover_commands()[name].schema).problem(KINDS[name].complete({})) == ""


def test_commands_that_could_happen_twice_carry_a_boot_id() -> None:
    for name, kind in discover_commands().items():
        if kind.needs_boot_id:
            assert "boot_id" in KINDS[name].checks, name
