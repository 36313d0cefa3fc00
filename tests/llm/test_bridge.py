"""The bridge as a whole: import of the library, closing of streams, and redaction of keys."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

import anyio.to_thread
import pytest
from pydantic_ai.models.function import FunctionModel

from rookery.llm import errors
from rookery.llm.bridge import factory
from rookery.llm.bridge.factory import Target
from rookery.llm.bridge.model import CannotBuild
from rookery.llm.complete_answers import generate
from rookery.llm.types import (
    Call,
    ErrorKind,
    FinishReason,
    StreamPart,
    TextDelta,
    Tool,
)
from rookery.runtime.secret_str import SecretStr
from tests.llm.bridge_rig import (
    ID,
    KEY,
    PlayedModel,
    Waiting,
    asking,
    bridged,
    drain,
    error_of,
    finish_of,
    model_at,
    text,
)

LOOK = Tool(name="look", description="Look.", input_schema={"type": "object", "properties": {}})


# Import


def run(code: str) -> str:
    """Run code in a new process, because the imports of this one prove nothing."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_library_is_not_imported_before_it_is_used() -> None:
    shown = run(
        """
        import sys
        import rookery.cli.main, rookery.llm.bridge, rookery.llm.bridge.factory, rookery.llm.bridge.model
        print([name for name in sys.modules if name.partition(".")[0] in ("pydantic_ai", "openai")])
        """
    )

    assert shown == "[]"


def test_missing_library_is_told_with_the_extra_to_install() -> None:
    shown = run(
        """
        import asyncio, sys
        from uuid import UUID
        sys.modules["pydantic_ai"] = None  # as if it were not installed
        from rookery.llm.bridge.factory import bridge_model
        from rookery.llm.types import Call, Capabilities
        from rookery.domain.chat.model_prompt import Prompt
        model = bridge_model(provider_id=UUID(int=1), provider_type="google", provider_name="Gemini", model="gemini-3",
                             caps=Capabilities(), key=None)
        async def main():
            (part,) = [part async for part in model.stream(Call(prompt=Prompt(())))]
            print(part.error.kind, part.error.retryable, part.error.message)
        asyncio.run(main())
        """
    )

    assert shown == (
        "config False Gemini needs the package pydantic-ai, which is not installed. Install rookery[bridge]."
    )


def test_missing_package_of_a_provider_is_told() -> None:
    shown = run(
        """
        import asyncio, sys
        from uuid import UUID
        sys.modules["openai"] = None
        from rookery.llm.bridge.factory import bridge_model
        from rookery.llm.types import Call, Capabilities
        from rookery.domain.chat.model_prompt import Prompt
        model = bridge_model(provider_id=UUID(int=1), provider_type="bridge", provider_name="Deep", model="deepseek:x",
                             caps=Capabilities(), key=None)
        async def main():
            (part,) = [part async for part in model.stream(Call(prompt=Prompt(())))]
            print(part.error.kind, part.error.message)
        asyncio.run(main())
        """
    )

    assert shown.startswith("config Deep needs a package that is not installed. Install rookery[bridge]")


@pytest.mark.parametrize(
    ("model", "key", "kind", "words"),
    [
        ("llama-3.3", SecretStr(KEY), ErrorKind.CONFIG, "provider:model"),
        (":x", SecretStr(KEY), ErrorKind.CONFIG, "provider:model"),
        ("{rooks}:x", SecretStr(KEY), ErrorKind.CONFIG, "'{rooks}'"),
        ("deepseek:x", None, ErrorKind.MISSING_KEY, "no API key"),
    ],
)
async def test_model_that_cannot_be_built_says_why(
    monkeypatch: pytest.MonkeyPatch, model: str, key: SecretStr | None, kind: ErrorKind, words: str
) -> None:
    monkeypatch.delenv("DEEPSEEK_API_KEY", raising=False)

    error = error_of(await drain(model_at(None, model=model, key=key)))

    assert (error.kind, error.retryable) == (kind, False)
    assert words in error.message


@pytest.mark.parametrize(
    ("key", "environment", "provider"),
    [
        (SecretStr(KEY), {}, "the Google provider"),
        (None, {"GEMINI_API_KEY": KEY}, "the Google provider"),
        (None, {}, "the Google Cloud provider"),
    ],
)
async def test_google_without_a_key_uses_the_credentials_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, key: SecretStr | None, environment: dict[str, str], provider: str
) -> None:
    """Its package is hidden, so that the error shows which of the two would have been used."""
    for name in ("GOOGLE_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(sys.modules, "google.genai", None)

    error = error_of(await drain(model_at(None, provider_type="google", model="gemini-3-pro", key=key)))

    assert error.kind is ErrorKind.CONFIG
    assert provider in str(error.detail)


async def answer_here(messages: Any, info: Any) -> AsyncIterator[str]:
    yield "Here."


async def test_model_is_built_once_for_calls_at_the_same_time() -> None:
    built: list[FunctionModel] = []

    def build() -> FunctionModel:
        built.append(FunctionModel(stream_function=answer_here))
        return built[-1]

    model = bridged(build)
    both = await asyncio.gather(generate(model, asking()), generate(model, asking()))

    assert [response.text for response in both] == ["Here.", "Here."]
    assert len(built) == 1


async def test_failure_to_build_is_not_remembered() -> None:
    failures = [CannotBuild(errors.unreadable("Fake", "not yet"))]

    def build() -> FunctionModel:
        if failures:
            raise failures.pop()
        return FunctionModel(stream_function=answer_here)

    model = bridged(build)

    assert error_of(await drain(model)).detail == "not yet"
    assert (await generate(model, asking())).text == "Here."


def test_bedrock_is_given_the_time_to_connect_that_was_set() -> None:
    target = Target(
        kind="bedrock", key=None, base_url=None, region="eu-central-1", read_seconds=600.0, connect_seconds=2.5
    )

    assert factory._bedrock_options(target)["aws_connect_timeout"] == 2.5


async def test_streams_of_bedrock_do_not_use_up_the_threads() -> None:
    """Each stream holds a thread while it waits, as the Bedrock package does.

    One more than the default must still work.
    """
    count = int(anyio.to_thread.current_default_thread_limiter().total_tokens) + 1
    all_wait = threading.Barrier(count)

    def reading() -> Waiting:
        return Waiting(lambda: anyio.to_thread.run_sync(lambda: all_wait.wait(timeout=20)))

    answers = [[reading(), text("Yes.")] for _ in range(count)]
    model = bridged(PlayedModel(*answers, system="bedrock"))
    drained = await asyncio.gather(*(drain(model) for _ in range(count)))

    assert all(finish_of(parts).reason is FinishReason.STOP for parts in drained)


# Closing


async def test_closing_closes_the_stream_of_the_library() -> None:
    never = asyncio.Event()
    model = PlayedModel([text("Half"), Waiting(never.wait), text("never")])

    async with aclosing(bridged(model).stream(asking())) as parts:
        async for part in parts:
            if isinstance(part, TextDelta):
                break

    assert model.closed == ["stream", "context"]


async def test_cancelling_closes_the_stream_of_the_library() -> None:
    waiting, never = asyncio.Event(), asyncio.Event()

    async def wait() -> None:
        waiting.set()
        await never.wait()

    model = PlayedModel([text("Half"), Waiting(wait)])
    task = asyncio.create_task(drain(bridged(model)))
    await waiting.wait()
    task.cancel()

    with pytest.raises(asyncio.CancelledError):
        await task
    assert model.closed == ["stream", "context"]


class Stubborn(PlayedModel):
    """A model whose stream does not close."""

    async def __aexit__(self, *args: object) -> None:
        await asyncio.Event().wait()


async def test_library_that_hangs_on_the_way_out_is_left_behind() -> None:
    started = time.monotonic()

    parts = await drain(bridged(Stubborn([text("Done.")])))

    assert finish_of(parts).reason is FinishReason.STOP
    assert time.monotonic() - started < 2


async def test_whole_answer_is_not_cancelled() -> None:
    model = PlayedModel([text("Done.")])

    await drain(bridged(model))

    assert model.closed == ["context"]


def test_key_is_in_no_repr() -> None:
    model = model_at("http://127.0.0.1:9")

    assert KEY not in repr(model)
    assert KEY not in repr(vars(model)["_build"])


async def test_model_is_a_language_model() -> None:
    async def read(parts: Any) -> list[StreamPart]:
        return [part async for part in parts]

    model = bridged(PlayedModel([text("Yes.")]))
    parts = await read(model.stream(Call(prompt=asking().prompt)))

    assert (model.wire, model.provider_type, model.model, model.provider_id) == (
        "bridge",
        "bridge",
        "played:played-1",
        ID,
    )
    assert finish_of(parts).reason is FinishReason.STOP
