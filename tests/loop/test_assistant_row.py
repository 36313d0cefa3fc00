"""The assistant row: conversion of a stream to content, and its live parts."""

from __future__ import annotations

import base64
from uuid import UUID

import pytest
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptMessage, PromptResult, PromptText
from rookery.llm.types import (
    Call,
    Finish,
    FinishReason,
    GeneratedFile,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    Source,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolInputDelta,
    ToolInputEnd,
    ToolInputStart,
    ToolResult,
    Usage,
    UsageUpdate,
)
from rookery.loop.tool import ToolSet, ToolSource
from rookery.testing import FakeClock
from tests import scripted_tools
from tests.loop.loop_rig import DONE, HELLO, PROVIDER_ID, USAGE, Shown, generate, said

CALLS = Finish(FinishReason.TOOL_CALLS, USAGE)
STAMP = {"wire": "completions", "provider_id": str(PROVIDER_ID), "model": "played-1"}


def input_of(call_id: str, name: str, args: str) -> tuple[ToolInputStart, ToolInputDelta, ToolInputEnd, ToolCall]:
    return (
        ToolInputStart(call_id, name),
        ToolInputDelta(call_id, args),
        ToolInputEnd(call_id),
        ToolCall(call_id, name, args),
    )


async def test_deltas_are_shown_one_by_one_and_kept_as_one_part() -> None:
    shown = Shown()

    outcome = await generate(
        TextStart("a"), TextDelta("a", "Go"), TextDelta("a", "od"), TextEnd("a"), DONE, shown=shown
    )

    assert outcome.content == (parts.Text("Good"),)
    assert shown.of(Role.ASSISTANT) == [parts.Text("Go"), parts.Text("od")]


async def test_interleaved_blocks_stand_where_they_first_appeared() -> None:
    outcome = await generate(
        TextStart("a"),
        TextStart("b"),
        TextDelta("b", "second"),
        TextEnd("b"),
        TextDelta("a", "first"),
        TextEnd("a"),
        DONE,
    )

    assert outcome.content == (parts.Text("first"), parts.Text("second"))


async def test_a_delta_without_a_start_opens_its_block_and_an_open_block_is_flushed() -> None:
    outcome = await generate(TextDelta("a", "never "), TextDelta("a", "closed"), DONE)

    assert outcome.content == (parts.Text("never closed"),)


async def test_empty_blocks_are_dropped() -> None:
    outcome = await generate(
        TextStart("a"),
        TextEnd("a", {"item_id": "msg_1"}),
        ReasoningStart("r"),
        ReasoningEnd("r"),
        TextEnd("nobody"),
        DONE,
    )

    assert outcome.content == ()


async def test_an_id_that_is_used_again_makes_a_second_block() -> None:
    outcome = await generate(*said("one", "a"), *said("two", "a"), DONE)

    assert outcome.content == (parts.Text("one"), parts.Text("two"))


async def test_a_refusal_is_marked_on_its_text() -> None:
    shown = Shown()

    outcome = await generate(TextDelta("a", "No."), TextEnd("a", refusal=True), DONE, shown=shown)

    assert outcome.content == (parts.Text("No.", refusal=True),)
    assert shown.of(Role.ASSISTANT)[-1] == parts.Text("", refusal=True)


async def test_reasoning_has_its_times_and_keeps_its_proof_through_a_bare_end() -> None:
    clock, shown = FakeClock(), Shown()

    outcome = await generate(
        ReasoningStart("r", {"signature": "proof"}),
        ReasoningDelta("r", "hm"),
        ReasoningEnd("r"),
        DONE,
        clock=clock,
        shown=shown,
    )

    (thought,) = outcome.content
    assert thought == parts.Reasoning("hm", clock.now(), clock.now(), {**STAMP, "signature": "proof"})
    assert shown.of(Role.ASSISTANT) == [
        parts.Reasoning("hm", clock.now()),
        parts.Reasoning("", clock.now(), clock.now()),
    ]


async def test_the_proof_at_the_end_replaces_that_of_the_start() -> None:
    outcome = await generate(
        ReasoningStart("r", {"signature": "early"}), ReasoningEnd("r", {"signature": "late"}), DONE
    )

    (thought,) = outcome.content
    assert isinstance(thought, parts.Reasoning)
    assert thought.provider_meta == {**STAMP, "signature": "late"}


async def test_signed_reasoning_without_text_is_kept() -> None:
    outcome = await generate(ReasoningEnd("r", {"encrypted_content": "x"}), *said("Yes."), DONE)

    assert [type(part) for part in outcome.content] == [parts.Reasoning, parts.Text]


async def test_a_call_is_previewed_and_then_shown_whole() -> None:
    clock, shown = FakeClock(), Shown()

    outcome = await generate(*input_of("call_a", "read", '{"path": "x"}'), CALLS, clock=clock, shown=shown)

    whole = parts.ToolCall("call_a", "read", args=Raw(b'{"path": "x"}'), created_at=clock.now())
    assert outcome.content == (whole,)
    assert shown.of(Role.ASSISTANT) == [
        parts.ToolCall("call_a", "read", args_delta=""),
        parts.ToolCall("call_a", "read", args_delta='{"path": "x"}'),
        whole,
    ]


async def test_a_call_without_a_preview_counts() -> None:
    outcome = await generate(ToolCall("call_a", "read", ""), CALLS)

    (made,) = outcome.local_calls
    assert made.args == Raw(b"{}")


async def test_deltas_of_an_unknown_call_are_ignored() -> None:
    outcome = await generate(ToolInputDelta("nobody", "{}"), *said("fine"), DONE)

    assert outcome.content == (parts.Text("fine"),)


@pytest.mark.parametrize("call_id", ["", "x" * 65, "call 1", "appel_é"])
async def test_an_id_no_wire_accepts_is_replaced_also_in_the_preview(call_id: str) -> None:
    shown = Shown()

    outcome = await generate(*input_of(call_id, "read", "{}"), CALLS, shown=shown)

    (made,) = outcome.local_calls
    assert made.tool_call_id == f"call_{UUID(int=1).hex}"
    assert made.provider_meta == {**STAMP, "orig_id": call_id}
    assert {part.tool_call_id for part in shown.of(Role.ASSISTANT) if isinstance(part, parts.ToolCall)} == {
        made.tool_call_id
    }


async def test_an_id_that_the_chat_already_knows_is_replaced() -> None:
    known = PromptMessage(role=Role.ASSISTANT, parts=(PromptCall("call_0", "read", Raw(b"{}")),))
    answered = PromptMessage(role=Role.TOOL, parts=(PromptResult("call_0", "read", "text"),))
    asked = PromptMessage(role=Role.USER, parts=(PromptText("again"),))
    call = Call(prompt=Prompt((known, answered, asked)))

    outcome = await generate(ToolCall("call_0", "read", "{}"), CALLS, call=call)

    assert outcome.local_calls[0].tool_call_id != "call_0"


async def test_ids_repeated_within_a_step_become_two_calls_each_with_its_own_preview() -> None:
    shown = Shown()

    outcome = await generate(
        *input_of("call_0", "read", '{"path":"a"}'), *input_of("call_0", "read", '{"path":"b"}'), CALLS, shown=shown
    )

    first, second = outcome.local_calls
    assert first.tool_call_id == "call_0"
    assert second.tool_call_id != "call_0"
    assert (first.args, second.args) == (Raw(b'{"path":"a"}'), Raw(b'{"path":"b"}'))
    deltas = [
        (part.tool_call_id, part.args_delta)
        for part in shown.of(Role.ASSISTANT)
        if isinstance(part, parts.ToolCall) and part.args_delta
    ]
    assert deltas == [("call_0", '{"path":"a"}'), (second.tool_call_id, '{"path":"b"}')]


async def test_calls_of_one_id_written_side_by_side_are_told_apart_by_their_order() -> None:
    outcome = await generate(
        ToolInputStart("same", "first"),
        ToolInputStart("same", "second"),
        ToolCall("same", "first", '{"n":1}'),
        ToolCall("same", "second", '{"n":2}'),
        CALLS,
    )

    first, second = outcome.local_calls
    assert (first.tool_call_id, first.tool_name, first.args) == ("same", "first", Raw(b'{"n":1}'))
    assert (second.tool_name, second.args) == ("second", Raw(b'{"n":2}'))


async def test_provider_executed_calls_keep_their_id_and_have_their_result_inside() -> None:
    clock, shown = FakeClock(), Shown()

    outcome = await generate(
        ToolInputStart("srv 1", "web_search", True),
        ToolCall("srv 1", "web_search", '{"query":"x"}', True, {"raw": {"a": 1}}),
        ToolResult("srv 1", "web_search", Raw(b'{"results":[]}'), False, {"raw": {"b": 2}}),
        *said("Found nothing."),
        DONE,
        clock=clock,
        shown=shown,
    )

    called, result, _ = outcome.content
    assert isinstance(called, parts.ToolCall)
    assert isinstance(result, parts.ToolResult)
    assert (called.tool_call_id, called.provider_meta) == ("srv 1", {**STAMP, "raw": {"a": 1}})
    assert (result.provider_executed, result.provider_meta) == (True, {**STAMP, "raw": {"b": 2}})
    assert shown.of(Role.TOOL) == [result]
    assert outcome.local_calls == ()
    assert outcome.finish_reason is FinishReason.STOP


async def test_a_source_is_kept_once() -> None:
    outcome = await generate(
        Source("s1", "url", "https://a.example", "A"),
        Source("s2", "url", "https://a.example", "A again"),
        Source("s3", "document", "", "Paper"),
        *said("See there."),
        DONE,
    )

    assert [part.source_id for part in outcome.content if isinstance(part, parts.Source)] == ["s1", "s3"]


async def test_calls_carry_the_server_of_their_tool() -> None:
    server = UUID(int=77)
    tool = scripted_tools.echo("docs__find", source=ToolSource.MCP, server_id=server)

    outcome = await generate(
        ToolCall("call_a", "docs__find", "{}"), CALLS, tools=ToolSet([tool], active={"docs__find"})
    )

    assert outcome.local_calls[0].mcp_server_id == server


@pytest.mark.parametrize(
    ("args", "commands"),
    [
        ('{"command": "cd /src && git status"}', (("cd", "/src"), ("git", "status"))),
        ('{"command": "echo \'"}', None),
        ('{"command": 5}', None),
        ("[1]", None),
        ("{not json", None),
    ],
)
async def test_call_of_a_shell_names_its_programs(args: str, commands: object) -> None:
    tool = scripted_tools.echo("run", shell_argument="command")

    outcome = await generate(ToolCall("call_a", "run", args), CALLS, tools=ToolSet([tool], active={"run"}))

    assert outcome.local_calls[0].parsed_commands == commands


async def test_a_generated_file_is_stored_and_stands_in_its_place() -> None:
    shown, file_id = Shown(), UUID(int=5)

    async def store(file: GeneratedFile) -> UUID:
        assert file.data == b"png"
        return file_id

    outcome = await generate(
        *said("Here:"),
        GeneratedFile("f", "image/png", b"png"),
        *said("Nice?", "t2"),
        DONE,
        store_file=store,
        shown=shown,
    )

    stored = parts.File("image/png", file_id=file_id)
    assert outcome.content == (parts.Text("Here:"), stored, parts.Text("Nice?"))
    assert stored in shown.of(Role.ASSISTANT)


async def test_a_file_that_cannot_be_stored_stays_in_the_message() -> None:
    async def store(file: GeneratedFile) -> UUID:
        raise OSError("disk full")

    outcome = await generate(GeneratedFile("f", "image/png", b"png"), DONE, store_file=store)

    assert outcome.content == (parts.File("image/png", data=base64.b64encode(b"png").decode()),)


# Usage


async def test_the_last_report_of_usage_counts_and_an_empty_one_undoes_nothing() -> None:
    outcome = await generate(
        UsageUpdate(Usage(input=1)), UsageUpdate(Usage(input=20, output=3)), Finish(FinishReason.STOP, Usage(input=0))
    )

    assert outcome.usage == Usage(input=20, output=3)


async def test_counts_that_cannot_be_are_not_believed() -> None:
    lie = Usage(input=-5, output=2**80, total=7, context_tokens=True)

    outcome = await generate(*said("x"), Finish(FinishReason.STOP, lie))

    assert outcome.usage == Usage(total=7)


# The output limit


@pytest.mark.parametrize(
    "finish",
    [
        Finish(FinishReason.LENGTH, USAGE),
        Finish(FinishReason.TOOL_CALLS, USAGE, {"stop_reason": "max_tokens"}),
    ],
)
async def test_a_call_that_the_output_limit_cut_off_is_kept_as_cut(finish: Finish) -> None:
    outcome = await generate(
        *input_of("call_a", "read", '{"path":"a"}'), *input_of("call_b", "write", '{"text":"half'), finish
    )

    assert [call.tool_call_id for call in outcome.local_calls] == ["call_a", "call_b"]
    assert outcome.cut_calls == {"call_b"}
    assert outcome.local_calls[1].args == Raw(b'"{\\"text\\":\\"half"')


async def test_a_preview_whose_call_never_came_is_kept_as_cut_at_the_limit_and_dropped_otherwise() -> None:
    preview = (ToolInputStart("call_a", "write"), ToolInputDelta("call_a", '{"text":"ha'), ToolInputEnd("call_a"))

    at_limit = await generate(*preview, Finish(FinishReason.LENGTH, USAGE))
    otherwise = await generate(*said("Done."), *preview, DONE)

    assert at_limit.cut_calls == {"call_a"}
    assert at_limit.finish_reason is FinishReason.TOOL_CALLS
    assert otherwise.content == (parts.Text("Done."),)


async def test_malformed_arguments_without_a_limit_are_kept_for_people() -> None:
    outcome = await generate(ToolCall("call_a", "read", '{"path": '), CALLS, call=HELLO)

    assert outcome.cut_calls == frozenset()
    assert outcome.local_calls[0].args == Raw(b'"{\\"path\\": "')
