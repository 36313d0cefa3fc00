"""A batch of tool calls: order, concurrency, published parts and results."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import Part
from rookery.loop.config import LoopConfig
from rookery.loop.tool import (
    Attachment,
    CancelReason,
    Services,
    ToolCall,
    ToolContext,
    ToolOutput,
    ToolSet,
    ToolSource,
    ToolSpec,
)
from rookery.runtime.nudge import Nudge
from rookery.testing import FakeClock
from tests import scripted_tools
from tests.loop.loop_rig import BatchRig, Shown, call, value
from tests.scripted_tools import ScriptedTool


async def test_results_come_in_call_order_however_they_finish() -> None:
    rig = BatchRig([scripted_tools.slow(5, "late"), scripted_tools.slow(1, "early"), scripted_tools.echo()])
    task = rig.start(call("late"), call("early"), call("echo", '{"a":1}'))

    await rig.clock.advance(5)
    done = await task

    assert [each.result.tool_name for each in done] == ["late", "early", "echo"]
    assert [part.tool_name for part in rig.shown.results()] == ["echo", "early", "late"]


async def test_each_result_has_its_own_time_of_completion() -> None:
    rig = BatchRig([scripted_tools.slow(5, "late"), scripted_tools.slow(1, "early")])
    begun = rig.clock.now()
    task = rig.start(call("late"), call("early"))

    await rig.clock.advance(5)
    late, early = await task

    assert late.result.created_at is not None
    assert early.result.created_at is not None
    assert (late.result.created_at - begun).total_seconds() == 5
    assert (early.result.created_at - begun).total_seconds() == 1


async def test_calls_run_at_the_same_time() -> None:
    meeting = asyncio.Barrier(3)

    async def meet(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        await meeting.wait()
        return ToolOutput("met")

    rig = BatchRig([ScriptedTool("meet", meet)])
    done = await rig.run(*(call("meet", call_id=f"c{n}") for n in range(3)))

    assert [value(each) for each in done] == [{"output": "met"}] * 3


async def test_no_more_run_at_once_than_allowed() -> None:
    running, most = 0, 0

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return ToolOutput()

    rig = BatchRig([ScriptedTool("work", behave)])
    done = await rig.run(*(call("work", call_id=f"c{n}") for n in range(40)))

    assert len(done) == 40
    assert most == LoopConfig().tool_batch_concurrency == 16


async def test_one_that_raises_and_one_that_is_unknown_leave_the_others_alone() -> None:
    rig = BatchRig([scripted_tools.echo(), scripted_tools.failing(ValueError("bad luck"))])

    done = await rig.run(call("echo", '{"a":1}'), call("fail"), call("nobody"), call("echo", '{"b":2}', "c4"))

    assert [value(each) for each in done] == [
        {"a": 1},
        {"error": "tool failed: ValueError: bad luck"},
        {"error": "There is no tool nobody."},
        {"b": 2},
    ]
    assert [each.is_error for each in done] == [False, True, True, False]
    assert len(rig.shown.results()) == 4


class Stop(BaseException):
    """A `BaseException` that is neither an error nor an exit."""


@pytest.mark.parametrize(
    "error", [Stop("enough"), GeneratorExit(), RuntimeError(), ExceptionGroup("many", [OSError()])]
)
async def test_every_exception_of_a_tool_becomes_its_result(error: BaseException) -> None:
    rig = BatchRig([scripted_tools.failing(error), scripted_tools.echo()])

    failed, fine = await rig.run(call("fail"), call("echo"))

    assert value(failed)["error"].startswith(f"tool failed: {type(error).__name__}:")
    assert not fine.is_error


async def test_an_error_that_has_no_text_is_still_told() -> None:
    class Mute(Exception):
        def __str__(self) -> str:
            raise ZeroDivisionError

    rig = BatchRig([scripted_tools.failing(Mute())])

    (failed,) = await rig.run(call("fail"))

    assert value(failed) == {"error": "tool failed: Mute: (no text)"}


async def test_a_tool_that_fails_before_its_first_await_fails_alone() -> None:
    class Hasty:
        spec = scripted_tools.echo("hasty").spec

        def run(self, ctx: ToolContext, made: ToolCall) -> Any:
            raise TypeError("no coroutine")

    rig = BatchRig([])
    (failed,) = await rig.run(call("hasty"), toolset=ToolSet([Hasty()], active={"hasty"}))

    assert value(failed) == {"error": "tool failed: TypeError: no coroutine"}


@pytest.mark.parametrize("nonsense", [None, {"a": 1}, ToolOutput({"a": object()})])
async def test_a_tool_that_returns_nonsense_gets_an_error(nonsense: Any) -> None:
    rig = BatchRig([scripted_tools.giving(nonsense)])

    (failed,) = await rig.run(call("give"))

    assert failed.is_error
    assert "cannot be used" in value(failed)["error"]


async def test_a_result_that_cannot_be_shaped_fails_its_own_call_alone() -> None:
    class Odd(dict[str, Any]):
        def items(self) -> Any:
            raise RuntimeError("not today")

    rig = BatchRig([scripted_tools.giving(ToolOutput(Odd(a=1))), scripted_tools.echo()])

    odd, fine = await rig.run(call("give"), call("echo"))

    assert (odd.is_error, fine.is_error) == (True, False)
    assert "cannot be used" in value(odd)["error"]


# Serial and exclusive


async def test_serial_tools_run_last_one_by_one_and_know_how_the_others_ended() -> None:
    order: list[str] = []
    seen: list[tuple[tuple[str, ...], dict[str, bool]]] = []

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        seen.append((ctx.batch.names, dict(ctx.batch.errors)))
        order.append(f"{made.id} begins")
        await asyncio.sleep(0)
        order.append(f"{made.id} ends")
        return ToolOutput()

    async def note(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        order.append("note")
        return ToolOutput()

    rig = BatchRig(
        [ScriptedTool("serial", behave, serial=True), ScriptedTool("note", note), scripted_tools.failing(ValueError())]
    )
    done = await rig.run(call("serial", call_id="s1"), call("fail"), call("serial", call_id="s2"), call("note"))

    assert order == ["note", "s1 begins", "s1 ends", "s2 begins", "s2 ends"]
    assert [each.result.tool_call_id for each in done] == ["s1", "call_fail", "s2", "call_note"]
    assert seen[0] == (("serial", "fail", "serial", "note"), {"call_fail": True, "call_note": False})
    assert seen[1][1] == {"call_fail": True, "call_note": False, "s1": False}


async def test_calls_rejected_before_they_ran_count_as_errors_for_observers() -> None:
    seen: list[dict[str, bool]] = []

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        seen.append(dict(ctx.batch.errors))
        return ToolOutput()

    rig = BatchRig([ScriptedTool("serial", behave, serial=True)])
    await rig.run(call("serial"), call("nobody"))

    assert seen == [{"call_nobody": True}]


async def test_an_exclusive_call_beside_another_means_that_nothing_runs() -> None:
    advisor, read = scripted_tools.echo("advisor", exclusive=True), scripted_tools.echo("read_file")
    rig = BatchRig([advisor, read])

    done = await rig.run(call("advisor"), call("read_file"), call("a_client_tool"))

    assert advisor.runs == read.runs == []
    assert [each.is_error for each in done] == [True] * 3
    assert "only runs by itself" in value(done[0])["error"]
    assert "advisor" in value(done[1])["error"]
    assert "advisor" in value(done[2])["error"]
    assert len(rig.shown.results()) == 3


async def test_an_exclusive_call_alone_runs() -> None:
    rig = BatchRig([scripted_tools.echo("advisor", exclusive=True)])

    (done,) = await rig.run(call("advisor", '{"q":1}'))

    assert value(done) == {"q": 1}


# Calls that may run


def declared(name: str) -> ToolSpec:
    return ToolSpec(name=name, description="", input_schema={}, source=ToolSource.DYNAMIC)


async def test_inactive_tools_run_only_where_they_are_allowed_to() -> None:
    tools = [
        scripted_tools.echo("active"),
        scripted_tools.echo("hidden"),
        scripted_tools.echo("deferred", source=ToolSource.MCP),
        scripted_tools.echo("computer", source=ToolSource.PROVIDER),
    ]
    toolset = ToolSet(tools, active={"active"}, allow_inactive={"deferred"}, declared=[declared("theirs")])
    rig = BatchRig(tools)

    done = await rig.run(*(call(name) for name in ("active", "hidden", "deferred", "computer")), toolset=toolset)

    assert [each.is_error for each in done] == [False, True, False, False]
    assert value(done[1]) == {"error": "hidden is not active in this turn."}


async def test_no_active_names_means_no_tools() -> None:
    rig = BatchRig([scripted_tools.echo()])
    toolset = ToolSet(rig.tools, active=())

    (done,) = await rig.run(call("echo"), toolset=toolset)

    assert value(done) == {"error": "echo is not active in this turn."}
    assert list(toolset.definitions()) == []


async def test_an_alias_runs_the_tool_of_today_and_answers_the_name_of_then() -> None:
    names: list[str] = []

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        names.append(made.name)
        return ToolOutput()

    tool = ScriptedTool("interrupt_agent", behave)
    toolset = ToolSet([tool], active={"interrupt_agent"}, aliases={"close_agent": "interrupt_agent"})

    (done,) = await BatchRig([tool]).run(call("close_agent"), toolset=toolset)

    assert names == ["interrupt_agent"]
    assert (done.result.tool_name, done.is_error) == ("close_agent", False)


# Arguments


async def test_blank_arguments_run_as_an_empty_object() -> None:
    tool = scripted_tools.echo()
    blank = call("echo")

    (done,) = await BatchRig([tool]).run(blank)

    assert (tool.inputs, value(done)) == ([{}], {})


@pytest.mark.parametrize("stored", ['"{\\"a\\": "', "[1]", "null"])
async def test_arguments_that_are_no_object_are_answered_and_the_turn_goes_on(stored: str) -> None:
    tool = scripted_tools.echo()

    bad, good = await BatchRig([tool]).run(call("echo", stored), call("echo", '{"b":1}', "c2"))

    assert "well-formed JSON object" in value(bad)["error"]
    assert (tool.inputs, value(good)) == ([{"b": 1}], {"b": 1})


async def test_a_string_that_holds_an_object_runs_with_that_object() -> None:
    tool = scripted_tools.echo()

    await BatchRig([tool]).run(call("echo", '"{\\"a\\": 1}"'))

    assert tool.inputs == [{"a": 1}]


# Output


async def test_five_megabytes_are_stored_within_budget() -> None:
    rig = BatchRig([scripted_tools.huge(5_000_000)])

    (done,) = await rig.run(call("huge"), context_limit=32_000)

    text = value(done)["output"]
    assert done.is_truncated
    assert len(text) <= 32_000
    assert "bytes of this result were removed" in text


async def test_fifty_megabytes_do_not_stop_the_event_loop() -> None:
    rig = BatchRig([scripted_tools.huge(50_000_000), scripted_tools.echo()])

    done = await rig.run(call("huge"), call("echo"))

    assert done[0].is_truncated
    # The small result is published before the large one.
    assert rig.shown.results()[0].tool_name == "echo"


async def test_bytes_that_are_no_text_can_be_stored() -> None:
    (done,) = await BatchRig([scripted_tools.garbled()]).run(call("garbled"))

    assert value(done) == {"output": "good \ufffd\ufffd\ufffd bad \ufffd"}
    assert "\\u0000" not in parts.encode((done.result,))


async def test_a_batch_together_leaves_room_for_an_answer() -> None:
    rig = BatchRig([scripted_tools.huge(200_000), scripted_tools.echo()])

    done = await rig.run(*(call("huge", call_id=f"c{n}") for n in range(8)), call("echo"), context_limit=64_000)

    sizes = [len(bytes(each.result.result)) for each in done if isinstance(each.result.result, Raw)]
    assert sum(sizes) <= 64_000 * 3 * 60 // 100
    assert value(done[-1]) == {}


async def test_result_cut_by_the_batch_limit_names_the_file_with_the_full_text() -> None:
    kept: dict[str, ToolOutput] = {}

    async def keep(call_id: str, token: UUID, output: ToolOutput) -> str:
        assert call_id not in kept
        kept[call_id] = output
        return f"/results/{call_id}"

    text, table = "x" * 50_000, {"rows": [f"row {number} {'y' * 90}" for number in range(500)]}
    listed = ToolOutput(str(list(range(15_000))))
    tools = [
        scripted_tools.giving(ToolOutput(text), "text"),
        scripted_tools.giving(ToolOutput(table), "table"),
        scripted_tools.giving(listed, "list"),
        scripted_tools.huge(100_000),
        scripted_tools.echo(),
    ]

    # All but one are within their own limits.
    done = await BatchRig(tools).run(*(call(tool.spec.name) for tool in tools), context_limit=90_000, keep_result=keep)

    sizes = [len(bytes(each.result.result)) for each in done if isinstance(each.result.result, Raw)]
    assert sum(sizes) <= 90_000 * 3 * 60 // 100
    assert [each.is_truncated for each in done] == [True, True, True, True, False]
    for each in done[:4]:
        assert f"/results/{each.result.tool_call_id}" in str(value(each))
    assert value(done[1])["truncated"] == {"file": "/results/call_table"}
    assert [kept[f"call_{name}"].value for name in ("text", "table")] == [{"output": text}, table]
    assert kept["call_huge"].value == "x" * 100_000
    assert "call_echo" not in kept


async def test_attachments_are_published_behind_their_result() -> None:
    file = parts.File("text/plain", name="a.txt", file_id=UUID(int=4))
    output = ToolOutput("made it", attachments=(Attachment(UUID(int=4), "text/plain", "a.txt"),))
    rig = BatchRig([scripted_tools.giving(output)])

    (done,) = await rig.run(call("give"))

    assert done.files == (file,)
    assert rig.shown.of(Role.TOOL) == [done.result, file]


async def test_live_output_is_shown_while_the_tool_runs_and_not_after() -> None:
    kept: list[ToolContext] = []

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        kept.append(ctx)
        ctx.publish("half\0")
        ctx.publish("all", reset=True)
        return ToolOutput("all")

    rig = BatchRig([ScriptedTool("talk", behave)])
    (done,) = await rig.run(call("talk"))
    kept[0].publish("too late")

    deltas = [part for part in rig.shown.of(Role.TOOL) if isinstance(part, parts.ToolResult) and part.result_delta]
    assert [(part.result_delta, part.result_reset) for part in deltas] == [("half\ufffd", False), ("all", True)]
    assert value(done) == {"output": "all"}


async def test_a_preview_that_cannot_be_shown_costs_no_result() -> None:
    def publish(role: Role, part: Part) -> None:
        raise RuntimeError("the buffer is closed")

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        ctx.publish("half")
        return ToolOutput("whole")

    (done,) = await BatchRig([ScriptedTool("talk", behave)]).run(call("talk"), publish=publish)

    assert value(done) == {"output": "whole"}


async def test_a_tool_gets_what_it_needs_with_its_call() -> None:
    seen: list[ToolContext] = []

    async def behave(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        seen.append(ctx)
        return ToolOutput("served" if ctx.services.get(Shown) is shown else "")

    shown = Shown()
    rig = BatchRig([ScriptedTool("look", behave, deadline_seconds=30)])
    (done,) = await rig.run(
        call("look", call_id="c1"),
        services=Services(shown),
        owner_id=UUID(int=1),
        turn_id=5,
        context_limit=1000,
    )

    (ctx,) = seen
    assert value(done) == {"output": "served"}
    assert (ctx.call_id, ctx.owner_id, ctx.turn_id, ctx.context_limit) == ("c1", UUID(int=1), 5, 1000)
    assert (ctx.deadline, ctx.cancel_reason) == (30, None)
    with pytest.raises(LookupError, match="FakeClock"):
        ctx.services.get(FakeClock)


class Counted:
    def __init__(self) -> None:
        self.events: list[tuple[str, Any]] = []

    def tool_finished(self, tool: str, *, is_error: bool, seconds: float, result_bytes: int) -> None:
        self.events.append((tool, (is_error, seconds)))

    def result_truncated(self, tool: str) -> None:
        self.events.append((tool, "truncated"))

    def tool_abandoned(self, tool: str) -> None:
        self.events.append((tool, "abandoned"))


async def test_metrics_name_builtin_tools_only() -> None:
    stats = Counted()
    tools = [scripted_tools.echo(), scripted_tools.huge(100_000, "docs__all", source=ToolSource.MCP)]

    await BatchRig(tools).run(call("echo"), call("docs__all"), call("made_up"), stats=stats)

    assert sorted(stats.events, key=str) == [
        ("echo", (False, 0.0)),
        ("mcp", "truncated"),
        ("mcp", (False, 0.0)),
        ("unknown", (True, 0.0)),
    ]


async def test_a_batch_of_nothing_gives_nothing() -> None:
    assert await BatchRig([]).run() == ()


async def test_nudge_stops_the_running_calls_with_their_output_so_far() -> None:
    async def hang(ctx: ToolContext, made: ToolCall) -> ToolOutput:
        ctx.publish("half of it")
        try:
            await asyncio.Event().wait()
        finally:
            reasons.append(ctx.cancel_reason)
        return ToolOutput()

    reasons: list[CancelReason | None] = []
    nudge = Nudge()
    rig = BatchRig([ScriptedTool("hang", hang), scripted_tools.echo()])
    task = rig.start(call("hang"), call("echo", '{"a":1}'), nudge=nudge)
    await rig.clock.advance(43)

    nudge.send()
    stopped, echoed = await task

    assert stopped.is_error
    assert value(stopped)["error"].startswith("hang was stopped by the user after 43 s")
    assert value(stopped)["error"].endswith("Output so far:\nhalf of it")
    assert value(stopped)["reason"] == "nudged"
    assert not echoed.is_error
    assert reasons == [CancelReason.USER]
