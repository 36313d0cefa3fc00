"""Streams in the forms that providers document and local servers use, and the parts that they must give.

Each `.sse` file below `transcripts/<wire>/` begins with comments that describe it; the `.json` file beside it is the
list of parts. Comments may contain `request-id`, the `options` of the wire as JSON, and `unofficial`, the field in
which this server differs from the official type. To write the lists of new transcripts, run the following command, and
review them:

    .venv/bin/python -m tests.wire.test_documented_streams
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from anthropic.types import ErrorResponse, RawMessageStreamEvent
from openai.types.chat import ChatCompletionChunk
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter, ValidationError

from rookery.domain.chat.model_prompt import Prompt
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.completions.wire import CompletionsFormat, CompletionsOptions
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.sse import DONE, SseDecoder
from rookery.llm.types import (
    Call,
    Capabilities,
    Finish,
    FinishReason,
    ReasoningDelta,
    ReasoningEnd,
    ReasoningStart,
    StreamError,
    StreamPart,
    TextDelta,
    TextEnd,
    TextStart,
    ToolCall,
    ToolResult,
    UsageUpdate,
)
from rookery.llm.wire import Event, WireFormat
from tests.wire.difficult_prompts import user

FOLDER = Path(__file__).parent / "transcripts"
CAPS = Capabilities()
FORMATS: dict[str, WireFormat] = {
    "anthropic": AnthropicFormat("m", CAPS, provider="The provider"),
    "responses": ResponsesFormat("m", CAPS, provider="The provider"),
    "completions": CompletionsFormat("m", CAPS, provider="The provider"),
}
HEADER = re.compile(r"^: ([a-z-]+): (.+)$", re.MULTILINE)
ANTHROPIC: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
RESPONSES: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)


@dataclass(frozen=True)
class Transcript:
    path: Path

    @property
    def wire(self) -> str:
        return self.path.parent.name

    @property
    def golden(self) -> Path:
        return self.path.with_suffix(".json")

    @property
    def data(self) -> bytes:
        return self.path.read_bytes()

    @property
    def header(self) -> dict[str, str]:
        comments, _, _ = self.path.read_text().partition("\n\n")
        return dict(HEADER.findall(comments))

    def read(self, chunks: Iterable[bytes]) -> list[StreamPart]:
        """Return the parts of an answer that arrives in these pieces.

        Stop where the client would close the connection.
        """
        options = self.header.get("options")
        call = Call(
            prompt=Prompt((user("Hello."),)),
            options=msgspec.json.decode(options, type=CompletionsOptions) if options else None,
        )
        fold, decoder = FORMATS[self.wire].fold(call), SseDecoder()
        fold.start(self.header.get("request-id"))
        parts: list[StreamPart] = []
        for event in _events(decoder, chunks):
            parts += fold.feed(event)
            if parts and isinstance(parts[-1], Finish | StreamError):
                return parts
        return [*parts, *fold.end()]

    def blocks(self) -> list[bytes]:
        return [block + b"\n\n" for block in self.data.split(b"\n\n") if block]


def _events(decoder: SseDecoder, chunks: Iterable[bytes]) -> Iterator[Event]:
    for chunk in chunks:
        yield from decoder.feed(chunk)
    yield from decoder.end()


TRANSCRIPTS = [Transcript(path) for path in sorted(FOLDER.glob("*/*.sse"))]
every_transcript = pytest.mark.parametrize(
    "transcript", TRANSCRIPTS, ids=[f"{each.wire}-{each.path.stem}" for each in TRANSCRIPTS]
)


def shown(parts: Sequence[StreamPart]) -> list[object]:
    """Return parts as JSON: the name of each part and its fields with a value."""
    return [
        {"part": type(part).__name__, **{k: v for k, v in msgspec.to_builtins(part).items() if v not in (None, False)}}
        for part in map(_plain, parts)
    ]


def _plain(part: StreamPart) -> StreamPart:
    """Return the decoded output of a tool, whose bytes are JSON."""
    if isinstance(part, ToolResult):
        return msgspec.structs.replace(part, output=msgspec.json.decode(part.output))
    return part


def written(parts: Sequence[StreamPart]) -> str:
    """Return one part per line, so that a change is one line of a diff."""
    lines = ",\n".join(f"  {msgspec.json.encode(part).decode()}" for part in shown(parts))
    return f"[\n{lines}\n]\n"


def test_there_are_transcripts_of_every_wire_and_no_list_is_left_over() -> None:
    assert {each.wire for each in TRANSCRIPTS} == set(FORMATS)
    assert sorted(FOLDER.glob("*/*.json")) == sorted(each.golden for each in TRANSCRIPTS)


@every_transcript
def test_stream_folds_to_the_parts_beside_it(transcript: Transcript) -> None:
    assert shown(transcript.read([transcript.data])) == msgspec.json.decode(transcript.golden.read_bytes())


@every_transcript
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"], ids=["LF", "CRLF", "CR"])
def test_pieces_and_line_ends_change_nothing(transcript: Transcript, line_end: bytes) -> None:
    data = transcript.data.replace(b"\n", line_end)

    byte_by_byte = transcript.read(data[at : at + 1] for at in range(len(data)))

    assert byte_by_byte == transcript.read([transcript.data])


@every_transcript
def test_stream_keeps_the_contract_of_parts(transcript: Transcript) -> None:
    parts = transcript.read([transcript.data])

    assert [isinstance(part, Finish | StreamError) for part in parts].index(True) == len(parts) - 1
    if isinstance(parts[-1], Finish):
        for begin, end in ((TextStart, TextEnd), (ReasoningStart, ReasoningEnd)):
            opened = [part.id for part in parts if isinstance(part, begin)]
            assert sorted(opened) == sorted(part.id for part in parts if isinstance(part, end))
            assert len(set(opened)) == len(opened)


@every_transcript
def test_stream_cut_at_any_event_is_an_error_to_retry_or_the_whole_answer(transcript: Transcript) -> None:
    blocks = transcript.blocks()
    whole = transcript.read(blocks)

    for count in range(len(blocks)):
        parts = transcript.read(blocks[:count])
        assert [isinstance(part, Finish | StreamError) for part in parts].index(True) == len(parts) - 1
        last = parts[-1]
        if isinstance(last, StreamError):
            assert last.error.retryable, (count, last)
        elif finish(parts).reason is FinishReason.TOOL_CALLS and transcript.wire == "completions":
            # Servers that send no finish reason. Complete calls count as the step.
            made = calls(parts)
            assert made
            assert made == calls(whole)[: len(made)], count
        else:
            assert (said(parts), calls(parts)) == (said(whole), calls(whole)), count


@every_transcript
def test_stream_cut_inside_an_event_loses_that_event_only(transcript: Transcript) -> None:
    blocks = transcript.blocks()

    for count, block in enumerate(blocks):
        parts = transcript.read([*blocks[:count], block[: len(block) // 2]])
        assert parts == transcript.read(blocks[:count]), count


@every_transcript
def test_every_event_is_of_the_official_type(transcript: Transcript) -> None:
    foreign = {transcript.header["unofficial"]} if "unofficial" in transcript.header else set()

    assert problems(transcript) == foreign


def problems(transcript: Transcript) -> set[str]:
    """Return the fields of this transcript that the official types do not allow, by their official names."""
    found: set[str] = set()
    for event in SseDecoder().feed(transcript.data):
        try:
            check(transcript.wire, event)
        except ValidationError as error:
            found |= {str(one["loc"][-1]) for one in error.errors()}
    return found


def check(wire: str, event: Event) -> None:
    if event.data == DONE or event.name == "ping":
        return
    document = msgspec.json.decode(event.data)
    match wire:
        case "anthropic" if event.name == "error":
            ErrorResponse.model_validate(document)
        case "anthropic":
            assert ANTHROPIC.validate_python(document).type == event.name
        case "responses":
            assert RESPONSES.validate_python(document).type == event.name
        case "completions" if "choices" in document:
            ChatCompletionChunk.model_validate(document)
        case _:
            assert "error" in document


def said(parts: Sequence[StreamPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextDelta | ReasoningDelta))


def calls(parts: Sequence[StreamPart]) -> list[ToolCall]:
    return [part for part in parts if isinstance(part, ToolCall)]


# Facts that are more important than the comparison with a list


def folded(wire: str, name: str) -> list[StreamPart]:
    transcript = Transcript(FOLDER / wire / f"{name}.sse")
    return transcript.read([transcript.data])


def finish(parts: Sequence[StreamPart]) -> Finish:
    assert isinstance(parts[-1], Finish), parts[-1]
    return parts[-1]


def test_window_is_what_one_pass_read_and_the_bill_is_for_all_of_them() -> None:
    usage = finish(folded("anthropic", "several_passes")).usage

    assert (usage.context_tokens, usage.input, usage.cache_read, usage.cache_write) == (147728, 4, 287682, 15556)
    assert finish(folded("anthropic", "web_search")).usage.context_tokens == 8003


def test_paused_and_half_done_searches_ask_to_go_on() -> None:
    assert finish(folded("anthropic", "pause_turn")).reason is FinishReason.PAUSE
    assert finish(folded("anthropic", "open_server_call")).reason is FinishReason.TOOL_CALLS


def test_encrypted_reasoning_is_that_of_the_finished_item() -> None:
    (end,) = [part for part in folded("responses", "encrypted_reasoning") if isinstance(part, ReasoningEnd)]

    assert end.meta is not None
    assert end.meta["encrypted_content"] == "gAAAAABo-final-encrypted"


@pytest.mark.parametrize(
    ("wire", "name"),
    [("responses", "max_output_tokens"), ("completions", "openai_length")],
    ids=["responses", "openai"],
)
def test_call_cut_off_by_the_limit_is_not_run(wire: str, name: str) -> None:
    parts = folded(wire, name)

    assert calls(parts) == []
    assert finish(parts).reason is FinishReason.LENGTH


def test_call_before_the_one_that_was_cut_off_is_run() -> None:
    parts = folded("anthropic", "max_tokens_in_call")

    assert [call.id for call in calls(parts)] == ["toolu_whole"]
    assert finish(parts).reason is FinishReason.TOOL_CALLS
    assert finish(parts).meta == {"stop_reason": "max_tokens"}


def test_calls_that_all_have_index_0_stay_apart() -> None:
    assert [(call.id, call.input) for call in calls(folded("completions", "ollama_tools"))] == [
        ("call_fc7x0q2p", '{"path":"a"}'),
        ("call_m1zk8w3d", '{"path":"b"}'),
    ]


@pytest.mark.parametrize("name", ["openai_text", "deepseek_reasoning", "groq", "llama_cpp", "gemini_signature"])
def test_usage_is_found_wherever_a_server_puts_it(name: str) -> None:
    parts = folded("completions", name)

    assert finish(parts).usage.total
    assert any(isinstance(part, UsageUpdate) for part in parts)


if __name__ == "__main__":
    for each in TRANSCRIPTS:
        if not each.golden.exists():
            each.golden.write_text(written(each.read([each.data])))
            print(f"wrote {each.golden.name}; now read it")
