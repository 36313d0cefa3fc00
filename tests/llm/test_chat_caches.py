"""Cached prompts and requests: the result is always the same as without the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import parts, prompt
from rookery.domain.chat.messages import Role, StepFigures
from rookery.domain.chat.model_prompt import Prompt, PromptCall, sum_sizes
from rookery.domain.chat.parts import File, Part, Reasoning, Text
from rookery.domain.chat.prompt import PromptBuilder, PromptRow
from rookery.domain.content.attachments import FileRules, ImageTooLarge, StoredFile
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.chat_caches import EncodedRequest, EncodedRequests
from rookery.llm.completions.wire import CompletionsFormat, CompletionsOptions
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.types import Call, Capabilities, Thinking, Tool
from rookery.llm.wire import PromptInvalid, Request, WireFormat
from tests.domain.chat.prompt_rows import CLAUDE, CLAUDE_NEXT, GPT, WRITERS, call, hook, result, row, system, user

FILE = UUID(int=5)
CAPS = Capabilities(
    thinking=Thinking(adaptive=True, disabled=True), binds_thinking=True, reasoning_model=True, media_types=("image/*",)
)
RULES = FileRules(accepts=CAPS.accepts, max_image_bytes=50)
WIRES: dict[str, WireFormat] = {
    "anthropic": AnthropicFormat("m", CAPS),
    "responses": ResponsesFormat("m", CAPS),
    "completions": CompletionsFormat("m", CAPS, provider_type="openai_compat"),
    "google": CompletionsFormat("m", CAPS, provider_type="google"),
}
LOOK = Tool(name="look", description="Look.", input_schema={"type": "object"})
PROOF = {"signature": "s", "encrypted_content": "e", "item_id": "rs", "reasoning_field": "reasoning", "summary": []}

IDS = st.sampled_from(["a", "b", "c"])
SERVER_IDS = st.sampled_from(["x", "y"])
TEXTS = st.sampled_from(["one", "two", " ", "three\nlines"])


def server_call(call_id: str) -> parts.ToolCall:
    raw = {"type": "server_tool_use", "id": call_id, "name": "web_search", "input": {}}
    return parts.ToolCall(call_id, "web_search", args=Raw(b"{}"), provider_executed=True, provider_meta={"raw": raw})


def server_result(call_id: str) -> parts.ToolResult:
    raw = {"type": "web_search_tool_result", "tool_use_id": call_id, "content": []}
    return parts.ToolResult(
        call_id, "web_search", result=Raw(b'[{"text":"found"}]'), provider_executed=True, provider_meta={"raw": raw}
    )


def media_result(call_id: str) -> parts.ToolResult:
    shown = parts.json_raw({"data": "QUJD", "mime_type": "image/png", "text": "seen"})
    return parts.ToolResult(call_id, "read_file", result=shown, is_media=True)


ANSWER_PARTS = st.one_of(
    st.builds(lambda text: Text(text, provider_meta={"item_id": "msg"}), TEXTS),
    st.builds(Text, TEXTS),
    st.builds(lambda text: Reasoning(text, provider_meta=PROOF), TEXTS),
    st.builds(call, IDS),
    st.builds(server_call, SERVER_IDS),
    st.builds(server_result, SERVER_IDS),
)
RESULTS = st.one_of(st.builds(result, IDS), st.builds(media_result, IDS), st.builds(server_result, SERVER_IDS))


class Answer(msgspec.Struct, frozen=True):
    """A future answer. `fp` is 0 for none, 1 for a wrong one, else the hash of the last request of one of the wires."""

    content: tuple[Part, ...]
    config: UUID | None
    finish_reason: str | None
    fp: int


class Step(msgspec.Struct, frozen=True):
    """The change between two requests. `cut` rows at the end are deleted first."""

    cut: int
    rows: tuple[tuple[str, Any], ...]
    target: UUID
    blocks: tuple[str, ...]
    notice: str | None
    image: bytes | None
    plain: bool
    drop: bool
    tools: tuple[Tool, ...]
    replay: Any


ANSWERS = st.builds(
    Answer,
    st.lists(ANSWER_PARTS, max_size=4).map(tuple),
    st.sampled_from([CLAUDE, CLAUDE, CLAUDE, CLAUDE_NEXT, GPT, None]),
    st.sampled_from([None, None, "tool_calls", "pause", "interrupted"]),
    st.integers(0, 5),
)
ROWS = st.one_of(
    st.tuples(st.just("user"), TEXTS),
    st.tuples(st.just("answer"), ANSWERS),
    st.tuples(st.just("answer"), ANSWERS),
    st.tuples(st.just("tool"), st.lists(RESULTS, min_size=1, max_size=3)),
    st.tuples(st.just("tool"), st.lists(RESULTS, min_size=1, max_size=3)),
    st.tuples(st.sampled_from(["image", "hook", "system"]), TEXTS),
)
STEPS = st.builds(
    Step,
    st.sampled_from([0, 0, 0, 0, 1, 2, 5]),
    st.lists(ROWS, max_size=5).map(tuple),
    st.sampled_from([CLAUDE, CLAUDE, CLAUDE, CLAUDE, GPT]),
    st.sampled_from([(), (), (), ("Be brief.",)]),
    st.sampled_from([None, None, None, "Nearly done."]),
    st.sampled_from([b"small", b"small", b"small", b"x" * 60, None]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([False, False, False, True]),
    st.sampled_from([(), (), (), (LOOK,)]),
    st.sampled_from(["auto", "auto", "auto", "always"]),
)


def made(kind: str, content: Any, number: int, fps: Sequence[bytes | None]) -> PromptRow:
    match kind:
        case "user":
            return user(number, content)
        case "image":
            return user(number, content, File("image/png", file_id=FILE))
        case "hook":
            return hook(number, content)
        case "system":
            return system(number, content)
        case "tool":
            return row(number, Role.TOOL, content)
        case _:
            figures = StepFigures(finish_reason=content.finish_reason, prefix_fp=fps[content.fp])
            return row(number, Role.ASSISTANT, content.content, config=content.config, figures=figures)


def ask(prompt_: Prompt, step: Step, name: str) -> Call:
    options = CompletionsOptions(replay_reasoning=step.replay) if name in ("completions", "google") else None
    return Call(
        prompt=prompt_, tools=step.tools, options=options, plain_history=step.plain, drop_stale_thinking=step.drop
    )


def seen(wire: WireFormat, asked: Call, previous: EncodedRequest | None) -> tuple[Any, ...]:
    """Return everything of a request that is visible, or the error if there is none."""
    try:
        request: Request = wire.build(asked, previous)
    except PromptInvalid as error:
        return (str(error),)
    return (
        msgspec.json.encode(request.body),
        request.headers,
        request.warnings,
        request.prefix_fp,
        request.broken_prefix,
        request.drops_stale_thinking,
    )


@settings(max_examples=200, deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=8))
def test_continued_request_equals_a_newly_built_one(steps: list[Step]) -> None:
    rows: list[PromptRow] = [user(1, "Hello.")]
    number = 1
    builder: PromptBuilder | None = None
    encoded_requests = {name: EncodedRequest() for name in WIRES}
    fps: list[bytes | None] = [None, b"?" * 16, None, None, None, None]
    for step in steps:
        del rows[max(1, len(rows) - step.cut) :]
        for kind, content in step.rows:
            number += 1
            rows.append(made(kind, content, number, fps))
        files = {} if step.image is None else {FILE: StoredFile(media_type="image/png", data=step.image)}
        fixed: dict[str, Any] = {"writers": WRITERS, "files": files}
        target = WRITERS[step.target]

        try:
            fresh = prompt.build_prompt(rows, target=target, rules=RULES, step_blocks=step.blocks, **fixed)
        except ImageTooLarge:
            fresh = None
        if builder is None or not builder.can_continue(rows, target=target, rules=RULES, **fixed):
            builder = PromptBuilder(target, RULES)
        try:
            builder.add(rows, **fixed)
        except ImageTooLarge:
            assert fresh is None
            builder = None
            continue
        grown = builder.prompt(step.blocks)

        assert fresh is not None
        assert grown == fresh
        check_figures(grown)
        if step.notice is not None:
            grown = prompt.with_notice(grown, step.notice)
            check_figures(grown)
        for place, (name, wire) in enumerate(WIRES.items()):
            asked = ask(grown, step, name)
            kept = seen(wire, asked, encoded_requests[name])
            assert kept == seen(wire, asked, None), name
            if len(kept) == 1:
                # The driver does the same: a request that could not be built leaves nothing in the cache.
                encoded_requests[name] = EncodedRequest()
            else:
                fps[2 + place] = kept[3]


def check_figures(grown: Prompt) -> None:
    calls = {part.id for message in grown.messages for part in message.parts if isinstance(part, PromptCall)}
    assert grown.size_bytes == sum_sizes(grown.messages)
    assert grown.call_ids == calls


def chat(turns: int) -> list[PromptRow]:
    rows = [user(1, "Hello.")]
    for turn in range(turns):
        first = 2 + 3 * turn
        asked = call(f"call_{turn}")
        rows += [
            row(first, Role.ASSISTANT, (Text("I look.", provider_meta={"item_id": f"m{turn}"}), asked)),
            row(first + 1, Role.TOOL, (result(f"call_{turn}"),)),
            user(first + 2, f"And {turn}?"),
        ]
    return rows


@pytest.mark.parametrize("name", WIRES)
def test_next_request_of_a_long_chat_is_new_only_at_its_end(name: str) -> None:
    rows, previous = chat(100), EncodedRequest()
    builder = PromptBuilder(WRITERS[CLAUDE], RULES)

    told = [grown(builder, rows[:-3]), grown(builder, rows)]
    sent = [history_in(WIRES[name].build(Call(prompt=each), previous)) for each in told]

    assert same_objects(told[0].messages, told[1].messages) > 290
    assert same_objects(*sent) > 190
    assert history_in(WIRES[name].build(Call(prompt=told[1]))) == sent[1]


def history_in(request: Request) -> Sequence[Any]:
    found: Sequence[Any] = request.body.get("messages") or request.body["input"]
    return found


def same_objects(one: Sequence[Any], other: Sequence[Any]) -> int:
    return sum(first is second for first, second in zip(one, other, strict=False))


def grown(builder: PromptBuilder, rows: Sequence[PromptRow]) -> Prompt:
    builder.add(rows, writers=WRITERS, files={})
    return builder.prompt()


def test_pasts_that_were_used_last_are_kept_within_their_room() -> None:
    encoded_requests = EncodedRequests(max_bytes=250_000)
    keys = [(f"chat {number}", UUID(int=number), "m") for number in range(5)]
    asked = Call(prompt=grown(PromptBuilder(WRITERS[CLAUDE], RULES), chat(100)))

    for key in keys:
        previous = encoded_requests.take(key)
        WIRES["completions"].build(asked, previous)
        encoded_requests.keep(key, previous)

    assert 0 < encoded_requests.size_bytes <= 250_000
    assert 0 < len(encoded_requests) < 5
    assert encoded_requests.take(keys[0]).written == {}
    assert encoded_requests.take(keys[-1]).written
    assert encoded_requests.take(keys[-1]).written == {}


def test_past_that_is_larger_than_all_room_is_not_kept() -> None:
    encoded_requests = EncodedRequests(max_bytes=1000)
    key = ("chat", UUID(int=1), "m")
    previous = encoded_requests.take(key)

    WIRES["anthropic"].build(Call(prompt=grown(PromptBuilder(WRITERS[CLAUDE], RULES), chat(100))), previous)
    encoded_requests.keep(key, previous)

    assert (len(encoded_requests), encoded_requests.size_bytes) == (0, 0)
