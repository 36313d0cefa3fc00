"""The rows of a step that was stopped during its text, reasoning, arguments, or a running tool."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import interrupted_step, parts
from rookery.domain.chat.interrupted_step import MAX_OUTPUT_BYTES, NOTE, NOTE_WITH_OUTPUT, LivePart
from rookery.domain.chat.messages import NewMessage, Role, StepFigures
from rookery.domain.chat.model_prompt import PromptCall, PromptReasoning, PromptResult
from rookery.domain.chat.open_tool_calls import CallRow, OpenCall, open_calls
from rookery.domain.chat.parts import File, HookNotice, Part, Reasoning, Source, Text, ToolCall, ToolResult
from tests.domain.chat.prompt_rows import prompt_of, row

CONFIG = UUID(int=11)
AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
EARLIER = datetime(2030, 1, 2, 3, 4, 0, tzinfo=UTC)
FIGURES = StepFigures(input_tokens=10, runtime_ms=1500)


def said(*content: Part) -> list[LivePart]:
    return [LivePart(Role.ASSISTANT, part) for part in content]


def ran(*content: Part) -> list[LivePart]:
    return [LivePart(Role.TOOL, part) for part in content]


def args(call_id: str, delta: str, name: str = "look") -> ToolCall:
    return ToolCall(call_id, name, args_delta=delta)


def whole(call_id: str, args: bytes = b"{}", *, provider_executed: bool = False) -> ToolCall:
    return ToolCall(call_id, "look", args=Raw(args), provider_executed=provider_executed)


def done(call_id: str, output: bytes = b'{"output":"x"}', *, provider_executed: bool = False) -> ToolResult:
    return ToolResult(call_id, "look", result=Raw(output), provider_executed=provider_executed)


def rows(live: Sequence[LivePart], *committed: OpenCall) -> tuple[NewMessage, ...]:
    return interrupted_step.rows(live, at=AT, model_config_id=CONFIG, figures=FIGURES, committed=committed)


def content(live: Sequence[LivePart]) -> tuple[Part, ...]:
    first, *_ = rows(live)
    assert first.role is Role.ASSISTANT
    return first.content


def closed(call_id: str, *, output: str = "") -> ToolResult:
    fields = {"error": NOTE_WITH_OUTPUT, "reason": "interrupted", "output": output}
    error = parts.json_raw(fields if output else {"error": NOTE, "reason": "interrupted"})
    return ToolResult(call_id, "look", result=error, is_error=True, created_at=AT)


def test_nothing_streamed_leaves_nothing() -> None:
    assert rows([]) == ()
    assert rows(said(Text(""), Reasoning(""))) == ()


def test_half_an_answer_is_one_text_with_the_figures_of_its_step() -> None:
    (message,) = rows(said(Text("It "), Text("wor")))

    assert message.content == (Text("It wor"),)
    assert message.role is Role.ASSISTANT
    assert message.model_config_id == CONFIG
    assert message.figures == StepFigures(input_tokens=10, runtime_ms=1500, finish_reason="interrupted")


def test_text_on_both_sides_of_something_else_stays_apart() -> None:
    source = Source("https://x")

    assert content(said(Text("a"), Text("b"), source, Text("c"))) == (Text("ab"), source, Text("c"))


def test_half_a_thought_gets_the_time_of_the_interruption() -> None:
    assert content(said(Reasoning("h"), Reasoning("m"))) == (Reasoning("hm", created_at=AT, completed_at=AT),)


def test_a_thought_keeps_the_times_it_has_and_loses_its_proof() -> None:
    live = said(
        Reasoning("h", created_at=EARLIER, provider_meta={"signature": "half"}),
        Reasoning("m", completed_at=EARLIER),
        Text("so"),
    )

    assert content(live) == (Reasoning("hm", created_at=EARLIER, completed_at=EARLIER), Text("so"))


def test_a_whole_call_is_kept_and_answered() -> None:
    assistant, result = rows(said(Text("look:"), args("a", '{"p"'), whole("a", b'{"p":1}'), args("a", "late")))

    assert assistant.content == (Text("look:"), whole("a", b'{"p":1}'))
    assert (result.role, result.content) == (Role.TOOL, (closed("a"),))


def test_arguments_that_add_up_to_an_object_are_a_call() -> None:
    assistant, result = rows(said(args("a", '{"p":'), args("a", ' "x"}')))

    assert assistant.content == (whole("a", b'{"p": "x"}'),)
    assert result.content == (closed("a"),)


@pytest.mark.parametrize("pieces", [["{"], ['{"p": "x"'], [""], ["1"], ["null"], []])
def test_arguments_that_do_not_are_dropped_with_their_call(pieces: list[str]) -> None:
    live = said(Text("look:"), ToolCall("a", "look"), *(args("a", piece) for piece in pieces))

    (message,) = rows(live)

    assert message.content == (Text("look:"),)


def test_the_second_whole_call_wins() -> None:
    assert content(said(whole("a", b'{"n":1}'), whole("a", b'{"n":2}'))) == (whole("a", b'{"n":2}'),)


def test_a_call_stands_where_it_appeared_first() -> None:
    live = said(args("a", "{"), args("b", "{}"), args("a", "}"), Text("and"))

    assert content(live) == (whole("a"), whole("b"), Text("and"))


def test_calls_are_answered_in_their_order_with_what_finished() -> None:
    file = File("image/png", name="chart.png")
    live = [*said(whole("a"), whole("b"), whole("c")), *ran(done("c"), file), *ran(done("b"))]

    _, *results = rows(live)

    assert [each.content for each in results] == [(closed("a"),), (done("b"),), (done("c"), file)]


def test_output_of_a_running_tool_is_part_of_its_closure() -> None:
    shown = [ToolResult("a", "look", result_delta=text) for text in ("line 1\n", "line 2\n")]
    live = [*said(whole("a"), whole("b")), *ran(*shown, ToolResult("a", "look"))]

    _, stopped, silent = rows(live)

    assert stopped.content == (closed("a", output="line 1\nline 2\n"),)
    assert silent.content == (closed("b"),)


def test_output_that_a_tool_has_reset_is_not_kept_and_a_long_one_is_cut() -> None:
    shown = [ToolResult("a", "look", result_delta="draft"), ToolResult("a", "look", result_delta="", result_reset=True)]
    long = ToolResult("a", "look", result_delta="x" * 100_000 + "the end")

    (result,) = (part for part in rows(ran(*shown, long), OpenCall(7, "a", "look"))[0].content)

    assert isinstance(result, ToolResult)
    assert isinstance(result.result, Raw)
    output = parts.json_value(result.result)["output"]
    assert "draft" not in output
    assert len(output) <= MAX_OUTPUT_BYTES
    assert output.endswith("the end")


def test_a_result_is_kept_once() -> None:
    live = [*said(whole("a")), *ran(done("a", b'{"output":"first"}'), done("a", b'{"output":"second"}'))]

    assert [each.content for each in rows(live)[1:]] == [(done("a", b'{"output":"first"}'),)]


def test_a_result_without_a_kept_call_is_dropped_with_its_files() -> None:
    live = [*said(args("a", "{"), Text("x")), *ran(done("a"), done("z"), File("image/png"))]

    assert [each.content for each in rows(live)] == [(Text("x"),)]


def test_a_call_of_the_provider_is_kept_without_a_result() -> None:
    (message,) = rows(said(whole("ws", provider_executed=True), Text("x")))

    assert message.content == (whole("ws", provider_executed=True), Text("x"))


def test_results_of_the_provider_stay_in_the_answer_once_and_only_with_their_call() -> None:
    found = done("ws", provider_executed=True)
    live = [*said(whole("ws", provider_executed=True)), *ran(found, found, done("zz", provider_executed=True))]

    (message,) = rows([*live, *said(Text("x"))])

    assert message.content == (whole("ws", provider_executed=True), found, Text("x"))


def test_tools_of_the_step_before_keep_what_finished() -> None:
    results = rows(ran(done("b")), OpenCall(7, "a", "look"), OpenCall(7, "b", "look"))

    assert [(each.role, each.content) for each in results] == [(Role.TOOL, (closed("a"),)), (Role.TOOL, (done("b"),))]


def test_files_alone_are_no_run_time_of_the_model() -> None:
    (message,) = rows(said(File("image/png")))

    assert message.figures is not None
    assert message.figures.runtime_ms is None


def test_parts_that_no_model_sends_are_skipped() -> None:
    live = [*said(HookNotice("x"), Text("a")), LivePart(Role.USER, Text("b")), *ran(Text("c"))]

    assert content(live) == (Text("a"),)


def test_the_next_prompt_says_only_what_can_be_said_again() -> None:
    live = said(Reasoning("hm"), Text("loo"), whole("a"), args("b", '{"p'))
    kept = [
        row(number, message.role, message.content, figures=message.figures)
        for number, message in enumerate(rows(live), start=1)
    ]

    said_again = [part for message in prompt_of(kept).messages for part in message.parts]

    assert not any(isinstance(part, PromptReasoning) for part in said_again)
    assert [part.id for part in said_again if isinstance(part, PromptCall)] == ["a"]
    assert [part.id for part in said_again if isinstance(part, PromptResult)] == ["a"]


IDS = st.sampled_from(["a", "b"])
LIVE = st.one_of(
    st.builds(Text, st.sampled_from(["x", ""])),
    st.builds(Reasoning, st.sampled_from(["x", ""])),
    st.builds(args, IDS, st.sampled_from(["{", "}", '"x":1', ""])),
    st.builds(whole, IDS, provider_executed=st.booleans()),
    st.builds(done, IDS, provider_executed=st.booleans()),
    st.builds(ToolResult, IDS, st.just("look"), result_delta=st.just("x")),
    st.just(File("image/png")),
)


@given(st.lists(st.builds(LivePart, st.sampled_from(list(Role)), LIVE), max_size=12), st.lists(IDS, unique=True))
def test_no_call_stays_open_for_any_streamed_parts(live: list[LivePart], committed: list[str]) -> None:
    before = CallRow(0, Role.ASSISTANT, parts.encode([whole(call_id) for call_id in committed]), parts.CONTENT_VERSION)

    kept = rows(live, *(OpenCall(0, call_id, "look") for call_id in committed))

    after = (
        CallRow(number, message.role, parts.encode(message.content), parts.CONTENT_VERSION)
        for number, message in enumerate(kept, start=1)
    )
    assert open_calls([before, *after]) == ()
