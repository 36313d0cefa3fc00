"""Deferred tools: found by words, activated, and callable by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from rookery.domain.mcp import tool_search
from rookery.domain.mcp.tool_search import FIND_TOOLS, ToolSearch
from rookery.llm.scripted import CallTool, Say
from rookery.llm.types import Call
from rookery.loop.tool import ToolSet, ToolSource
from rookery.tools import find_tools
from rookery.tools.mcp_stats import SearchStats
from tests import scripted_tools
from tests.scripted_tools import ScriptedTool
from tests.worker.worker_rig import in_turn, open_house

ALWAYS = {"tool_search": "always"}


def server_tools(*names: str, padding: int = 10) -> list[ScriptedTool]:
    schema = {"type": "object", "properties": {"text": {"type": "string", "description": "x" * padding}}}
    return [scripted_tools.echo(name, source=ToolSource.MCP, input_schema=schema) for name in names]


def sent(call: Call) -> list[str]:
    return [tool.name for tool in call.tools]


TOOLS = ("git__create_issue", "git__list_branches", "mail__send")


async def test_a_search_activates_tools_for_the_next_step(database_url: str) -> None:
    script = in_turn((CallTool(FIND_TOOLS, {"queries": ["create issue"]}),), (CallTool(TOOLS[0]),), (Say("done"),))
    tools = [scripted_tools.echo("read"), *server_tools(*TOOLS)]
    async with open_house(database_url, script=script, tools=tools) as rig:
        await rig.set("mcp", ALWAYS)
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        assert [sent(call) for call in rig.calls] == [
            ["read", FIND_TOOLS],
            ["read", FIND_TOOLS, TOOLS[0]],
            ["read", FIND_TOOLS, TOOLS[0]],
        ]
        (found, *_) = await rig.results(chat_id)
        assert found["activated"] == [TOOLS[0]]
        assert found["total_deferred"] == 3
        assert "- mail__send - The tool mail__send." in rig.calls[0].tools[1].description


async def test_a_listed_tool_can_be_called_directly_and_is_then_sent(database_url: str) -> None:
    tools = server_tools(*TOOLS)
    async with open_house(
        database_url, script=in_turn((CallTool(TOOLS[2], {"text": "hi"}),), (Say("done"),)), tools=tools
    ) as rig:
        await rig.set("mcp", ALWAYS)
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        assert await rig.results(chat_id) == [{"text": "hi"}]
        assert [sent(call) for call in rig.calls] == [[FIND_TOOLS], [FIND_TOOLS, TOOLS[2]]]


async def test_few_tools_are_all_sent(database_url: str) -> None:
    async with open_house(database_url, script=in_turn((Say("done"),)), tools=server_tools(*TOOLS)) as rig:
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        assert sent(rig.calls[0]) == list(TOOLS)


async def test_an_empty_search_and_one_without_words_are_told_apart(database_url: str) -> None:
    script = in_turn((CallTool(FIND_TOOLS, {"queries": ["zebra"]}),), (CallTool(FIND_TOOLS, {}),), (Say("done"),))
    async with open_house(database_url, script=script, tools=server_tools(*TOOLS)) as rig:
        await rig.set("mcp", ALWAYS)
        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        empty, wrong = await rig.results(chat_id)
        assert empty == {"matches": [], "activated": [], "total_deferred": 3}
        assert "at least one query" in wrong["error"]


def deferred(tools: Sequence[Any], context_limit: int, setting: ToolSearch = ToolSearch.AUTO) -> ToolSet:
    given = ToolSet(tools, active={tool.spec.name for tool in tools})
    return find_tools.defer(given, (), setting=setting, context_limit=context_limit, stats=SearchStats())


def test_five_hundred_tools_cost_at_most_a_tenth_of_the_window() -> None:
    tools = server_tools(*(f"s{n % 9}__tool_{n}" for n in range(500)), padding=600)
    for limit in (16_000, 64_000, 200_000):
        found = deferred(tools, limit)

        (search,) = found.definitions()
        size = len(search.description) + len(msgspec.json.encode(search.input_schema))
        assert search.name == FIND_TOOLS
        # The text around the catalog is the same for every window.
        assert size - len(find_tools.DESCRIPTION) - 1000 <= limit / 10 * tool_search.BYTES_PER_TOKEN


def test_nothing_is_deferred_without_tools_of_servers_or_with_a_tool_of_that_name() -> None:
    builtin = [scripted_tools.echo("read")]
    own = [*server_tools(*TOOLS), scripted_tools.echo(FIND_TOOLS)]

    assert deferred(builtin, 100, ToolSearch.ALWAYS).active == {"read"}
    assert deferred(own, 100, ToolSearch.ALWAYS).active == {*TOOLS, FIND_TOOLS}
    assert deferred(server_tools(*TOOLS), 100, ToolSearch.NEVER).active == set(TOOLS)


def test_a_deferred_tool_keeps_its_place_and_its_runner() -> None:
    tools = deferred([scripted_tools.echo("read"), *server_tools(*TOOLS)], 100, ToolSearch.ALWAYS)

    assert [spec.name for spec in tools.specs()] == ["read", FIND_TOOLS, *TOOLS]
    assert tools.find_problem(TOOLS[1]) is None
    assert tools.find_problem("mail__other") == "There is no tool mail__other."
