"""CPU per streamed token, from the provider's socket to a part: ours, the floor, and alternatives.

The server runs in a separate process, so that only the reader's CPU counts. Paced: one packet per token, as real
providers send, with 100 tokens a second and several concurrent answers. This is the claim. Burst: as fast as possible.
The floor reads with aiohttp and decodes each event with one typed msgspec decoder.

    python benchmarks/token_decode.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

import aiohttp
import msgspec
import uvloop

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import _provider_process

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.completions.wire import CompletionsFormat
from rookery.llm.http import HttpClients
from rookery.llm.responses.wire import ResponsesFormat
from rookery.llm.types import Call, Capabilities, Finish, StreamError, TextDelta
from rookery.llm.wire import WireFormat
from rookery.llm.wire_model import Auth, WireModel
from rookery.runtime.secret_str import SecretStr

WIRES = ("anthropic", "responses", "completions")
PATHS = {"anthropic": "/v1/messages", "responses": "/v1/responses", "completions": "/v1/chat/completions"}
PACE = 100.0
PACED_BUDGET, BURST_BUDGET = 0.9, 2.0
MEMORY_BUDGET_MIB, IMPORT_BUDGET_MS = 8.0, 1000.0  # an estimate: a small part of the answer, and of a start
WORD = " token"

Reader = Callable[[str], Awaitable[int]]


# The server


def events(wire: str, tokens: int, word: str) -> Iterator[bytes]:
    """Return the packets of one answer."""
    match wire:
        case "anthropic":
            usage = {"input_tokens": 10, "output_tokens": 1}
            message = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": []}
            start = {**message, "stop_reason": None, "stop_sequence": None, "usage": usage}
            yield sse({"type": "message_start", "message": start})
            block = {"type": "text", "text": ""}
            yield sse({"type": "content_block_start", "index": 0, "content_block": block})
            delta = {"type": "text_delta", "text": word}
            yield from (sse({"type": "content_block_delta", "index": 0, "delta": delta}) for _ in range(tokens))
            yield sse({"type": "content_block_stop", "index": 0})
            end = {"stop_reason": "end_turn", "stop_sequence": None}
            yield sse({"type": "message_delta", "delta": end, "usage": {"output_tokens": tokens}})
            yield sse({"type": "message_stop"})
        case "responses":
            yield from responses_events(tokens, word)
        case _:
            chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
            for index in range(tokens):
                delta = {"content": word, **({"role": "assistant"} if index == 0 else {})}
                yield sse({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, named=False)
            yield sse({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, named=False)
            usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
            yield sse({**chunk, "choices": [], "usage": usage}, named=False)
            yield b"data: [DONE]\n\n"


def responses_events(tokens: int, word: str) -> Iterator[bytes]:
    shared: dict[str, Any] = {
        **{"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "output": [], "tools": []},
        **{"parallel_tool_calls": True, "tool_choice": "auto", "error": None, "incomplete_details": None},
        **{"instructions": None, "metadata": {}, "temperature": 1.0, "top_p": 1.0},
    }
    item = {"id": "msg_1", "type": "message", "role": "assistant", "content": []}
    where = {"item_id": "msg_1", "output_index": 0, "content_index": 0}
    text = word * tokens
    part = {"type": "output_text", "text": text, "annotations": []}
    usage = {"input_tokens": 10, "output_tokens": tokens, "total_tokens": 10 + tokens}
    details = {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    bodies: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**shared, "status": "in_progress"}},
        {"type": "response.output_item.added", "output_index": 0, "item": {**item, "status": "in_progress"}},
        {"type": "response.content_part.added", **where, "part": {**part, "text": ""}},
        *({"type": "response.output_text.delta", **where, "delta": word, "logprobs": []} for _ in range(tokens)),
        {"type": "response.output_text.done", **where, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **where, "part": part},
        {
            "type": "response.output_item.done",
            "output_index": 0,
            "item": {**item, "status": "completed", "content": [part]},
        },
        {
            "type": "response.completed",
            "response": {**shared, "status": "completed", "usage": {**usage, **details}},
        },
    ]
    for number, body in enumerate(bodies):
        yield sse({**body, "sequence_number": number})


def sse(body: dict[str, Any], *, named: bool = True) -> bytes:
    name = f"event: {body['type']}\n" if named else ""
    return f"{name}data: {json.dumps(body)}\n\n".encode()


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with HTTP/1.1 written by hand, so that each event is one packet.

    The query has the number and pace of tokens.
    """
    try:
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
            lines = head.split("\r\n")
            lengths = [int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:")]
            body = json.loads(await reader.readexactly(lengths[0] if lengths else 0) or b"{}")
            path = lines[0].split()[1]
            wire = next(name for name, known in PATHS.items() if path.endswith(known.removeprefix("/v1")))
            tokens, pace, *rest = (float(number) for number in str(body["model"]).split("@"))
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            await send(writer, list(events(wire, int(tokens), WORD * int(rest[0] if rest else 1))), pace)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


async def send(writer: asyncio.StreamWriter, packets: list[bytes], pace: float) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    for packet in packets:
        writer.write(b"%x\r\n%b\r\n" % (len(packet), packet))
        if pace:
            due += 1 / pace
            await asyncio.sleep(max(0.0, due - loop.time()))
        else:
            await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def serving() -> AbstractAsyncContextManager[str]:
    return _provider_process.serving(__file__, "--serve")


# The readers. Each gets a model id, `<tokens>@<pace>`, and returns the number of characters that it read.


class _AnthropicDelta(msgspec.Struct):
    text: str = ""


class _AnthropicEvent(msgspec.Struct):
    type: str
    delta: _AnthropicDelta | None = None


class _ResponsesEvent(msgspec.Struct):
    type: str
    delta: str = ""


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta


class _Chunk(msgspec.Struct):
    choices: list[_Choice]


# By wire: the type of its events, and the text of an event.
_KINDS: dict[str, tuple[type[Any], Callable[[Any], str]]] = {
    "anthropic": (_AnthropicEvent, lambda event: event.delta.text if event.type == "content_block_delta" else ""),
    "responses": (_ResponsesEvent, lambda event: event.delta if event.type == "response.output_text.delta" else ""),
    "completions": (_Chunk, lambda event: (event.choices[0].delta.content or "") if event.choices else ""),
}


class FloorReader:
    """Splits at blank lines and counts the characters of the text."""

    def __init__(self, wire: str) -> None:
        kind, self._text_of = _KINDS[wire]
        self._decode = msgspec.json.Decoder(kind).decode

    def feed(self, buffered: bytes) -> tuple[int, bytes]:
        """Return the number of characters in the complete events, and the remaining bytes."""
        decode, text_of, chars = self._decode, self._text_of, 0
        *blocks, rest = buffered.split(b"\n\n")
        for block in blocks:
            data = block[block.index(b"data: ") + 6 :]
            if data != b"[DONE]":
                chars += len(text_of(decode(data)))
        return chars, rest


def floor(wire: str, base: str, session: aiohttp.ClientSession) -> Reader:
    """Read with aiohttp, a split at blank lines, and one typed decode per event."""
    feed = FloorReader(wire).feed

    async def read(model: str) -> int:
        got, rest = 0, b""
        async with session.post(base + PATHS[wire].removeprefix("/v1"), data=json.dumps({"model": model})) as response:
            async for chunk in response.content.iter_any():
                chars, rest = feed(rest + chunk)
                got += chars
        return got

    return read


def ours(wire: str, base: str, clients: HttpClients) -> Reader:
    prompt = Prompt((PromptMessage(role=Role.USER, parts=(PromptText("hi"),)),))

    async def read(model: str) -> int:
        wire_model = WireModel(
            make_format(wire, base, model),
            clients.client(base),
            provider_id=uuid4(),
            provider_type="openai",
            provider_name="bench",
            model=model,
            caps=Capabilities(),
            base_url=base,
            auth=Auth("authorization", SecretStr("sk-bench-key"), "Bearer "),
        )
        got = 0
        async for part in wire_model.stream(Call(prompt=prompt)):
            if type(part) is TextDelta:
                got += len(part.text)
            elif type(part) is StreamError:
                raise RuntimeError(part.error)
            elif type(part) is Finish:
                assert part.usage.output
        return got

    return read


def make_format(wire: str, base: str, model: str) -> WireFormat:
    match wire:
        case "anthropic":
            return AnthropicFormat(model, Capabilities(), base_url=base)
        case "responses":
            return ResponsesFormat(model, Capabilities())
        case _:
            return CompletionsFormat(model, Capabilities())


def official(wire: str, base: str) -> Reader:
    import anthropic
    import openai

    claude = anthropic.AsyncAnthropic(base_url=base.removesuffix("/v1"), api_key="x", max_retries=0)
    gpt = openai.AsyncOpenAI(base_url=base, api_key="x", max_retries=0)

    async def read(model: str) -> int:
        got = 0
        match wire:
            case "anthropic":
                async with claude.messages.stream(
                    model=model, max_tokens=1000, messages=[{"role": "user", "content": "hi"}]
                ) as stream:
                    async for text in stream.text_stream:
                        got += len(text)
            case "responses":
                async for event in await gpt.responses.create(model=model, input="hi", stream=True):
                    if event.type == "response.output_text.delta":
                        got += len(event.delta)
            case _:
                async for chunk in await gpt.chat.completions.create(
                    model=model, messages=[{"role": "user", "content": "hi"}], stream=True
                ):
                    if chunk.choices:
                        got += len(chunk.choices[0].delta.content or "")
        return got

    return read


def pydantic_ai(wire: str, base: str) -> Reader:
    from pydantic_ai.direct import model_request_stream
    from pydantic_ai.messages import ModelRequest, PartDeltaEvent, PartStartEvent, TextPart, TextPartDelta
    from pydantic_ai.models import Model
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    def make(model: str) -> Model:
        if wire == "anthropic":
            provider = AnthropicProvider(api_key="x", base_url=base.removesuffix("/v1"))
            return AnthropicModel(model, provider=provider)
        kind = OpenAIResponsesModel if wire == "responses" else OpenAIChatModel
        return kind(model, provider=OpenAIProvider(api_key="x", base_url=base))

    async def read(model: str) -> int:
        got = 0
        async with model_request_stream(make(model), [ModelRequest.user_text_prompt("hi")]) as stream:
            async for event in stream:
                if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart):
                    got += len(event.part.content)
                elif isinstance(event, PartDeltaEvent) and isinstance(event.delta, TextPartDelta):
                    got += len(event.delta.content_delta)
        return got

    return read


# Measurements


async def cpu_per_token(read: Reader, *, tokens: int, pace: float, answers: int) -> float:
    """Return the microseconds of this process per token."""
    cpu = time.process_time()
    got = await asyncio.gather(*(read(f"{tokens}@{pace}") for _ in range(answers)))
    cpu = time.process_time() - cpu
    assert got == [tokens * len(WORD)] * answers, got
    return cpu / tokens / answers * 1e6


class Setting(msgspec.Struct, frozen=True):
    name: str
    tokens: int
    pace: float
    answers: int
    rounds: int
    budget: float


async def compare(readers: dict[str, Reader], setting: Setting) -> dict[str, list[float]]:
    """Return the rounds of each reader.

    Readers that are compared alternate, so that a busy machine affects both. The alternatives are only shown, so one
    round is enough.
    """
    found: dict[str, list[float]] = {name: [] for name in readers}
    for read in readers.values():
        await cpu_per_token(read, tokens=20, pace=0, answers=2)
    for number in range(setting.rounds):
        for name, read in readers.items():
            if number == 0 or name in ("floor", "ours"):
                cost = await cpu_per_token(read, tokens=setting.tokens, pace=setting.pace, answers=setting.answers)
                found[name].append(cost)
    return found


async def run(*, quick: bool) -> int:
    claims: dict[str, dict[str, object]] = {"import rookery.llm.wire_model, ms": claim(import_ms(), IMPORT_BUDGET_MS)}
    settings = (
        Setting("paced", 100 if quick else 500, PACE, 10, 5 if quick else 7, PACED_BUDGET),
        Setting("burst", 1000 if quick else 10_000, 0.0, 4, 5, BURST_BUDGET),
    )
    clients = HttpClients()
    async with serving() as base, aiohttp.ClientSession() as session:
        for setting in settings:
            costs = {
                wire: await compare(
                    {
                        "floor": floor(wire, base, session),
                        "ours": ours(wire, base, clients),
                        "official": official(wire, base),
                        "pydantic-ai": pydantic_ai(wire, base),
                    },
                    setting,
                )
                for wire in WIRES
            }
            print(f"\n{setting.name}: CPU us per token, {setting.answers} answers at once")
            print(f"  {'':14}" + "".join(f"{wire:>14}" for wire in WIRES))
            for name in costs[WIRES[0]]:
                print(f"  {name:14}" + "".join(f"{median(costs[wire][name]):14.1f}" for wire in WIRES))
            for wire in WIRES:
                # Compared by round, because neighbors in time have the same noise; the median, because some do not.
                pairs = zip(costs[wire]["ours"], costs[wire]["floor"], strict=True)
                ratio = median(own / least for own, least in pairs)
                claims[f"{wire}, {setting.name}: ours over floor"] = claim(ratio, setting.budget)
        claims["memory while folding 10 MB, MiB"] = claim(await memory(base, clients), MEMORY_BUDGET_MIB)
    await clients.close()
    print(f"\n{json.dumps(claims)}")
    return 0 if all(found["ok"] for found in claims.values()) else 1


async def memory(base: str, clients: HttpClients) -> float:
    """Return the growth of this process while an answer of 10 MB passes and is not kept."""
    read = ours("anthropic", base, clients)
    await read("1000@0")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    await read(f"{10_000_000 // len(WORD) // 100}@0@100")
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def import_ms() -> float:
    """Return the CPU time of a new Python process that imports the wires; the best of three."""
    code = "import time; t = time.process_time(); import {}; print((time.process_time() - t) * 1000)"
    wires = (
        "rookery.llm.wire_model, rookery.llm.anthropic.wire, rookery.llm.responses.wire, rookery.llm.completions.wire"
    )
    command = [sys.executable, "-c", code.format(wires)]
    runs = [subprocess.run(command, capture_output=True, text=True, check=True) for _ in range(3)]
    return min(float(run.stdout) for run in runs)


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def main() -> int:
    parser = argparse.ArgumentParser(description="CPU per streamed token, against the floor and the alternatives.")
    parser.add_argument("--quick", action="store_true", help="fewer tokens and rounds, about a minute")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        if arguments.serve:
            runner.run(_provider_process.serve(answer))
            return 0
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
