from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from datetime import timedelta
from uuid import uuid4

import pytest
from msgspec import Raw

from rookery.demo.guide import guide
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptMessage, PromptPart, PromptResult, PromptText
from rookery.llm.scripted import (
    CallTool,
    Count,
    Fail,
    Pause,
    Say,
    Script,
    ScriptedModel,
    Scripts,
    Think,
    Truncate,
    Wait,
    When,
    echo,
)
from rookery.llm.types import (
    Call,
    ErrorKind,
    Finish,
    FinishReason,
    JsonFormat,
    ReasoningDelta,
    ResponseStarted,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    Tool,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    Usage,
    UsageUpdate,
)
from rookery.testing.clock import FakeClock

TOOLS = (
    *("execute", "read_file", "write_file", "edit_files", "attach_file", "ask_user_question", "propose_plan"),
    *("spawn_agent", "wait_agent", "list_templates", "create_workspace"),
)


def message(role: Role, *parts: PromptPart) -> PromptMessage:
    return PromptMessage(role=role, parts=parts)


BOUND = "<workspace-context>\nOperating system: linux\nWorking directory: /home/agent/project\n</workspace-context>"


def asking(text: str, *later: PromptMessage, tools: Sequence[str] = TOOLS, system: str = BOUND) -> Call:
    """Return a turn of a chat, which has a workspace if its system prompt mentions one."""
    user = message(Role.USER, PromptText(text))
    told = [message(Role.SYSTEM, PromptText(system))] if system else []
    return Call(
        prompt=Prompt((*told, user, *later)),
        tools=tuple(Tool(name=name, description=name, input_schema={"type": "object"}) for name in tools),
    )


def round_trip(calls: list[ToolCall], *answers: object, is_error: bool = False) -> list[PromptMessage]:
    """Return the rows after a step: its calls and their results."""
    parts = [PromptCall(call.id, call.name, Raw(call.input.encode())) for call in calls]
    results = [
        PromptResult(call.id, call.name, json.dumps(answer), is_error=is_error)
        for call, answer in zip(calls, answers, strict=True)
    ]
    return [message(Role.ASSISTANT, *parts), *(message(Role.TOOL, result) for result in results)]


async def play(script: Script, call: Call) -> list[StreamPart]:
    model = ScriptedModel("test", Scripts({"test": script}), provider_id=uuid4(), tokens_per_second=0)
    return [part async for part in model.stream(call)]


async def calls_of(call: Call) -> list[ToolCall]:
    return [part for part in await play(guide, call) if isinstance(part, ToolCall)]


async def text_of(call: Call) -> str:
    return "".join(part.text for part in await play(guide, call) if isinstance(part, TextDelta))


async def test_answer_streams_word_by_word_and_ends_with_one_terminal_part() -> None:
    parts = await play([Think("hm"), Say("two words")], asking("hi"))

    assert parts[0] == ResponseStarted("scripted-1", "test", None)
    assert [part.text for part in parts if isinstance(part, ReasoningDelta)] == ["hm"]
    assert parts[4:-1] == [
        TextStart("text-2"),
        TextDelta("text-2", "two"),
        TextDelta("text-2", " words"),
        TextEnd("text-2"),
    ]
    assert isinstance(parts[-1], Finish)
    assert parts[-1].reason is FinishReason.STOP


async def test_same_call_gives_the_same_parts() -> None:
    call = asking("run `uname -a`")

    assert await play(guide, call) == await play(guide, call)


async def test_parallel_calls_have_ids_of_their_own_also_across_steps() -> None:
    script = [CallTool("execute", {"command": "a"}), CallTool("execute", {"command": "b"})]
    first = [part for part in await play(script, asking("go")) if isinstance(part, ToolCall)]
    second = await play(script, asking("go", *round_trip(first, {}, {})))

    ids = [part.id for part in [*first, *second] if isinstance(part, ToolCall)]
    assert ids == ["call_1", "call_2", "call_3", "call_4"]
    inputs = [part for part in second if isinstance(part, ToolInputStart | ToolInputDelta | ToolInputEnd | ToolCall)]
    assert [type(part).__name__ for part in inputs[:4]] == [
        "ToolInputStart",
        "ToolInputDelta",
        "ToolInputEnd",
        "ToolCall",
    ]
    assert isinstance(second[-1], Finish)
    assert second[-1].reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("step", "kind", "retryable"),
    [
        (Fail(ErrorKind.RATE_LIMIT, retry_after=timedelta(seconds=7), status=429), ErrorKind.RATE_LIMIT, True),
        (Fail(ErrorKind.AUTH, retryable=False), ErrorKind.AUTH, False),
        (Truncate(), ErrorKind.TIMEOUT, True),
    ],
)
async def test_failures_are_errors_as_providers_report_them(
    step: Fail | Truncate, kind: ErrorKind, retryable: bool
) -> None:
    parts = await play([Say("par"), step, Say("never said")], asking("hi"))

    last = parts[-1]
    assert isinstance(last, StreamError)
    assert (last.error.kind, last.error.retryable) == (kind, retryable)
    if isinstance(step, Fail):
        assert (last.error.retry_after, last.error.status) == (step.retry_after, step.status)
    assert "never" not in "".join(part.text for part in parts if isinstance(part, TextDelta))


async def test_pause_and_given_usage_are_passed_on() -> None:
    usage = Usage(input=5, output=7)

    parts = await play([Count(usage), Pause()], asking("hi"))

    assert parts[1:] == [UsageUpdate(usage), Finish(FinishReason.PAUSE, usage)]


async def test_condition_looks_at_the_user_and_at_tool_results() -> None:
    script = [When((Say("yes"),), last_user="blue", tool_result="sky", otherwise=(Say("no"),))]
    call = asking("blue?")
    calls = [ToolCall("call_1", "execute", "{}")]

    without = await play(script, call)
    having = await play(script, asking("blue?", *round_trip(calls, {"output": "the sky"})))

    assert [part.text for part in without if isinstance(part, TextDelta)] == ["no"]
    assert [part.text for part in having if isinstance(part, TextDelta)] == ["yes"]


async def test_pace_and_waits_go_through_the_clock() -> None:
    clock = FakeClock()
    scripts = Scripts({"slow": [Wait(600), Say("a b")]})
    model = ScriptedModel("slow", scripts, provider_id=uuid4(), tokens_per_second=2, clock=clock)
    stream = model.stream(asking("hi"))
    parts = [await anext(stream)]

    async def rest() -> None:
        parts.extend([part async for part in stream])

    task = asyncio.create_task(rest())
    await clock.fire("scripted-wait")
    await clock.fire("scripted-token")
    await clock.fire("scripted-token")
    await task

    assert clock.monotonic() == 601
    assert model.calls == [asking("hi")]


async def test_unknown_script_is_an_error_that_names_the_known_ones() -> None:
    model = ScriptedModel("gpt-9", Scripts({"echo": echo}), provider_id=uuid4())

    (part,) = [part async for part in model.stream(asking("hi"))]

    assert isinstance(part, StreamError)
    assert "`echo`" in part.error.message
    assert not part.error.retryable


async def test_script_is_registered_for_a_while_and_never_twice() -> None:
    scripts = Scripts({"echo": echo})

    with scripts.registered("mine", [Say("x")]):
        assert scripts.find("mine") is not None
        with pytest.raises(ValueError), scripts.registered("echo", [Say("x")]):
            pass

    assert scripts.find("mine") is None


async def test_echo_repeats_the_user() -> None:
    parts = await play(echo, asking("say this back"))

    assert "".join(part.text for part in parts if isinstance(part, TextDelta)) == "say this back"


# The guide


@pytest.mark.parametrize(
    ("asked", "name", "args"),
    [
        ("run `ls -la /`", "execute", {"command": "ls -la /", "timeout": "30s"}),
        ("Please run uname -a.", "execute", {"command": "uname -a", "timeout": "30s"}),
        ("read /etc/hostname", "read_file", {"path": "/etc/hostname"}),
        ("show me the file `/tmp/a.txt`", "read_file", {"path": "/tmp/a.txt"}),
        ("write /tmp/a.md with Hello there", "write_file", {"path": "/tmp/a.md", "content": "Hello there\n"}),
        (
            'replace "Hello" with "Bye" in /tmp/a.md',
            "edit_files",
            {"files": [{"path": "/tmp/a.md", "edits": [{"old_text": "Hello", "new_text": "Bye"}]}]},
        ),
        ("attach /tmp/a.md", "attach_file", {"path": "/tmp/a.md"}),
    ],
)
async def test_guide_turns_plain_words_into_the_right_call(asked: str, name: str, args: dict[str, object]) -> None:
    (call,) = await calls_of(asking(asked))

    assert (call.name, json.loads(call.input)) == (name, args)


async def test_guide_runs_several_commands_side_by_side() -> None:
    calls = await calls_of(asking("run `date` and `uname`"))

    assert [json.loads(call.input)["command"] for call in calls] == ["date", "uname"]


async def test_guide_quotes_what_it_searches_for() -> None:
    (call,) = await calls_of(asking("search for $(reboot); x in /srv"))

    assert "-e '$(reboot); x' /srv" in json.loads(call.input)["command"]


async def test_guide_tells_what_a_command_printed_and_how_it_ended() -> None:
    call = asking("run `false`")
    first = await calls_of(call)

    said = await text_of(asking("run `false`", *round_trip(first, {"output": "oh no\n", "exit_code": 1})))

    assert "exit code 1" in said
    assert "oh no" in said


async def test_guide_makes_a_workspace_first_when_there_is_none_and_then_goes_on() -> None:
    """No call fails, so that the first result a new user sees is a success."""
    asked = "run `date`"
    rows: list[PromptMessage] = []
    first = await calls_of(asking(asked, system=""))
    rows += round_trip(first, {"templates": [{"id": "t-1"}, {"id": "t-2"}], "recommended_template_id": "t-2"})
    second = await calls_of(asking(asked, *rows, system=""))
    rows += round_trip(second, {"created": True})
    third = await calls_of(asking(asked, *rows))
    rows += round_trip(third, {"output": "Monday", "exit_code": 0})

    assert [call.name for call in [*first, *second, *third]] == ["list_templates", "create_workspace", "execute"]
    assert json.loads(second[0].input) == {"template_id": "t-2"}
    said = await text_of(asking(asked, *rows))
    assert "Monday" in said
    assert "t-2" not in said


async def test_guide_takes_a_template_that_needs_no_answers_when_none_is_recommended() -> None:
    rows = round_trip(await calls_of(asking("run `date`", system="")), {"templates": [{"id": "git"}, {"id": "blank"}]})

    (call,) = await calls_of(asking("run `date`", *rows, system=""))

    assert json.loads(call.input) == {"template_id": "blank"}


async def test_guide_starts_a_workspace_that_was_stopped() -> None:
    stopped = round_trip([ToolCall("c", "stop_workspace", "{}")], {"stopped": True})
    again = message(Role.USER, PromptText("run `date`"))
    tools = (*TOOLS, "start_workspace")

    first = await calls_of(asking("stop the workspace", *stopped, again, tools=tools))
    rows = [*stopped, again, *round_trip(first, {"started": True})]
    second = await calls_of(asking("stop the workspace", *rows, tools=tools))

    assert [call.name for call in [*first, *second]] == ["start_workspace", "execute"]


async def test_guide_starts_a_workspace_that_turns_out_to_be_down() -> None:
    asked, tools = "run `date`", (*TOOLS, "start_workspace")
    down = {"error": "The workspace w does not run. Use start_workspace to start it."}
    rows = round_trip(await calls_of(asking(asked, tools=tools)), down, is_error=True)

    first = await calls_of(asking(asked, *rows, tools=tools))
    rows += round_trip(first, {"started": True})
    second = await calls_of(asking(asked, *rows, tools=tools))
    rows += round_trip(second, {"output": "Monday", "exit_code": 0})

    assert [call.name for call in [*first, *second]] == ["start_workspace", "execute"]
    assert "Monday" in await text_of(asking(asked, *rows, tools=tools))


@pytest.mark.parametrize(
    ("answers", "said"),
    [
        ([{"templates": []}], "no template"),
        ([{"templates": [{"id": "t"}]}, {"error": "There is no sandbox here."}], "no sandbox here"),
        ([{"templates": [{"id": "t"}]}, {"created": True}, {"error": "no workspace"}], "Attach one"),
    ],
)
async def test_guide_says_politely_why_there_is_no_workspace(answers: list[object], said: str) -> None:
    asked = "run `date`"
    rows: list[PromptMessage] = []
    for answer in answers:
        calls = await calls_of(asking(asked, *rows, system=""))
        rows += round_trip(calls, answer, is_error="error" in str(answer))

    assert await calls_of(asking(asked, *rows, system="")) == []
    assert said in await text_of(asking(asked, *rows, system=""))


async def test_guide_writes_a_plan_where_the_overlay_says_and_proposes_it() -> None:
    system = f"Plan.\n<plan-file-path>/w/plan.md</plan-file-path>\n{BOUND}"
    for asked in ("make a plan to tidy up", "the whole house should be tidy"):
        first = await calls_of(asking(asked, system=system))
        second = await calls_of(asking(asked, *round_trip(first, {"ok": True}), system=system))

        assert [json.loads(call.input)["path"] for call in [*first, *second]] == ["/w/plan.md", "/w/plan.md"]
        assert second[0].name == "propose_plan"


async def test_guide_hands_work_to_an_agent_and_waits_for_that_one() -> None:
    asked = "ask an agent to count the files in /etc"
    first = await calls_of(asking(asked))
    rows = round_trip(first, {"chat_id": "c-7", "status": "running"})
    second = await calls_of(asking(asked, *rows))
    rows += round_trip(second, {"report": "There are 12."})

    assert [call.name for call in [*first, *second]] == ["spawn_agent", "wait_agent"]
    assert json.loads(second[0].input) == {"chat_id": "c-7"}
    assert "There are 12." in await text_of(asking(asked, *rows))


async def test_guide_asks_a_question_with_the_named_options() -> None:
    (call,) = await calls_of(asking("ask me which colour I like: red, green or blue"))

    (question,) = json.loads(call.input)["questions"]
    assert [option["label"] for option in question["options"]] == ["red", "green", "blue"]


async def test_tour_uses_one_tool_after_the_other_and_stops_at_the_first_that_fails() -> None:
    rows: list[PromptMessage] = []
    names = []
    while calls := await calls_of(asking("take the tour", *rows)):
        names += [call.name for call in calls]
        rows += round_trip(calls, {"ok": True, "output": "x", "exit_code": 0})
    failed = round_trip(await calls_of(asking("take the tour")), {"error": "disk full"}, is_error=True)

    assert names == ["write_file", "read_file", "edit_files", "execute"]
    assert "disk full" in await text_of(asking("take the tour", *failed))


async def test_guide_takes_the_tour_once_when_it_does_not_understand() -> None:
    asked = "what is the meaning of life?"
    tools = ["write_file", "read_file", "edit_files", "execute"]
    rows: list[PromptMessage] = []
    names = []
    while calls := await calls_of(asking(asked, *rows, tools=tools)):
        names += [call.name for call in calls]
        rows += round_trip(calls, {"ok": True, "output": "x", "exit_code": 0})

    assert names == tools
    assert "scripted model" in await text_of(asking(asked, *rows, tools=tools))
    later = [*rows, message(Role.USER, PromptText("and what else is there?"))]
    assert await calls_of(asking(asked, *later, tools=tools)) == []


@pytest.mark.parametrize("asked", ["hello", "", "rm everything"])
async def test_guide_says_what_it_is_and_how_to_add_a_real_model_when_it_does_not_understand(asked: str) -> None:
    said = await text_of(asking(asked))

    assert "scripted model" in said
    assert "ANTHROPIC_API_KEY" in said


async def test_guide_says_which_tool_is_missing() -> None:
    assert "execute" in await text_of(asking("run `ls`", tools=["read_file"]))


async def test_guide_fills_an_object_when_one_is_asked_for() -> None:
    schema = {"type": "object", "properties": {"title": {"type": "string"}, "ok": {"type": "boolean"}}}
    call = Call(prompt=asking("Please fix the failing login test today").prompt, format=JsonFormat("title", schema))

    assert json.loads(await text_of(call)) == {"title": "Please fix the failing login test today", "ok": False}
