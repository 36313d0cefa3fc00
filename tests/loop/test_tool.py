"""The set of tools of a step, and its definitions for the model."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from rookery.loop.tool import ToolSet, ToolSource, ToolSpec, object_schema
from tests import scripted_tools


def test_definitions_are_the_active_functions_in_the_order_of_registration() -> None:
    tools = [
        scripted_tools.echo("zebra"),
        scripted_tools.echo("hidden"),
        scripted_tools.echo("apple"),
        scripted_tools.echo("computer", source=ToolSource.PROVIDER),
    ]
    theirs = ToolSpec(name="theirs", description="Of the client.", input_schema={}, source=ToolSource.DYNAMIC)

    found = ToolSet(tools, active={"apple", "zebra", "theirs", "computer"}, declared=[theirs]).definitions()

    assert [tool.name for tool in found] == ["zebra", "apple", "theirs"]
    assert found[2].description == "Of the client."
    assert found[2].input_schema == {"type": "object", "properties": {}}


def test_the_earlier_of_two_tools_with_one_name_wins() -> None:
    first, second = (
        scripted_tools.echo("read"),
        scripted_tools.echo("read", source=ToolSource.MCP, server_id=UUID(int=1)),
    )

    tools = ToolSet([first, second], active={"read"})

    assert tools.find("read") is first
    assert tools.server_id("read") is None
    assert len(tools.definitions()) == 1


def test_an_alias_is_known_and_never_advertised() -> None:
    tool = scripted_tools.echo("interrupt_agent", exclusive=True)
    tools = ToolSet([tool], active={"interrupt_agent"}, aliases={"close_agent": "interrupt_agent"})

    assert tools.find("close_agent") is tool
    assert tools.is_exclusive("close_agent")
    assert tools.find_problem("close_agent") is None
    assert [each.name for each in tools.definitions()] == ["interrupt_agent"]


def test_an_alias_does_not_hide_a_tool_of_its_name() -> None:
    old, new = scripted_tools.echo("old"), scripted_tools.echo("new")

    assert ToolSet([old, new], active={"old", "new"}, aliases={"old": "new"}).find("old") is old


def test_a_tool_of_the_client_is_not_run_here() -> None:
    theirs = ToolSpec(name="theirs", description="", input_schema={}, source=ToolSource.DYNAMIC)
    tools = ToolSet(active={"theirs"}, declared=[theirs])

    assert tools.find("theirs") is None
    assert tools.find_problem("theirs") == "theirs cannot be run by this server."
    assert tools.dynamic_names == {"theirs"}


def test_names_for_the_decision_are_at_hand() -> None:
    tools = ToolSet(
        [scripted_tools.echo("advisor", exclusive=True), scripted_tools.echo("propose_plan", stop_after=True)],
        active=(),
    )

    assert tools.exclusive_names == {"advisor"}
    assert tools.stop_after_names == {"propose_plan"}


@pytest.mark.parametrize(
    ("schema", "sent"),
    [
        ({}, {"type": "object", "properties": {}}),
        ({"type": "object", "properties": None, "required": []}, {"type": "object", "properties": {}}),
        (
            {"properties": {"a": {}}, "required": ["a"]},
            {"type": "object", "properties": {"a": {}}, "required": ["a"]},
        ),
    ],
)
def test_every_schema_is_sent_as_that_of_an_object(schema: dict[str, Any], sent: dict[str, Any]) -> None:
    assert object_schema(schema) == sent
