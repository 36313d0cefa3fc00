"""The connector: the wire of a config, the address and headers of its provider, and its calls."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rookery.domain.chat.messages import Effort
from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.models.options import ProviderOptions
from rookery.llm.scripted import Say
from rookery.llm.types import (
    Call,
    Capabilities,
    ErrorKind,
    Finish,
    LanguageModel,
    ProviderError,
    StreamError,
    StreamPart,
    TextDelta,
    Wire,
)
from rookery.llm.wire_stats import ModelCounters
from rookery.models import connector as connect
from rookery.models.connector import Connector, Origin, choose_wire, identity_of, make_call
from rookery.testing import fake_anthropic, fake_completions
from rookery.testing.fake_anthropic import FakeAnthropic
from rookery.testing.fake_completions import FakeCompletions
from rookery.testing.fake_responses import FakeResponses, say
from rookery.testing.fake_server import FakeServer
from tests.models.connect_rig import KEY, PROVIDER_ID, ready_model
from tests.wire.difficult_prompts import READ, user

HELLO = Prompt((user("Hello."),))
ORIGIN = Origin(owner_id=UUID(int=1), chat_id=UUID(int=3), root_chat_id=UUID(int=2), workspace_id=UUID(int=4))


@pytest.fixture
async def connector() -> AsyncIterator[Connector]:
    connector = Connector(stats=ModelCounters(), tokens_per_second=0)
    yield connector
    await connector.close()


def usable(model: LanguageModel | ProviderError) -> LanguageModel:
    assert not isinstance(model, ProviderError), model
    return model


async def ask(model: LanguageModel, call: Call) -> list[StreamPart]:
    return [part async for part in model.stream(call)]


def text_of(parts: list[StreamPart]) -> str:
    assert isinstance(parts[-1], Finish), parts
    return "".join(part.text for part in parts if isinstance(part, TextDelta))


# Wires


@pytest.mark.parametrize(
    ("type_", "model", "use_responses_api", "wire"),
    [
        ("anthropic", "claude-opus-5-5", None, "anthropic"),
        ("openai", "gpt-6", None, "responses"),
        ("openai", "gpt-6", False, "completions"),
        ("openai", "gpt-4o-audio-preview", None, "completions"),
        ("azure_openai", "gpt-6", None, "responses"),
        ("azure_openai", "gpt-6", False, "completions"),
        ("openai_compat", "qwen", None, "completions"),
        ("openai_compat", "qwen", True, "responses"),
        ("openrouter", "openai/gpt-6", None, "completions"),
        ("openrouter", "openai/gpt-6", True, "responses"),
        ("google", "gemini-3-pro", None, "bridge"),
        ("bedrock", "anthropic.claude-opus-5-5", None, "bridge"),
        ("bridge", "groq:llama", None, "bridge"),
        ("scripted", "guide", None, "scripted"),
        ("a type of the future", "m", None, "bridge"),
    ],
)
def test_provider_type_and_config_decide_the_wire(
    type_: str, model: str, use_responses_api: bool | None, wire: Wire
) -> None:
    assert choose_wire(type_, model, use_responses_api=use_responses_api) == wire


def fake_of(wire: str) -> FakeServer | FakeCompletions:
    match wire:
        case "anthropic":
            anthropic = FakeAnthropic(api_key=KEY)
            anthropic.answer(fake_anthropic.Answer([fake_anthropic.Text("Hi.")]))
            return anthropic
        case "responses":
            responses = FakeResponses(api_key=KEY)
            responses.answer(say("Hi."))
            return responses
    completions = FakeCompletions(api_key=KEY)
    completions.enqueue(fake_completions.Answer(text="Hi."))
    return completions


@pytest.mark.parametrize(
    ("type_", "model", "options", "path", "header", "wire"),
    [
        ("anthropic", "claude-opus-5-5", {}, "/v1/messages", "x-api-key", "anthropic"),
        ("openai", "gpt-6", {}, "/v1/responses", "authorization", "responses"),
        ("openai", "gpt-6", {"use_responses_api": False}, "/v1/chat/completions", "authorization", "completions"),
        ("azure_openai", "gpt-6", {}, "/v1/responses", "api-key", "responses"),
        ("openai_compat", "qwen", {}, "/v1/chat/completions", "authorization", "completions"),
        ("openrouter", "z/glm", {"use_responses_api": True}, "/v1/responses", "authorization", "responses"),
    ],
)
async def test_each_type_is_asked_at_its_path_with_its_key_header_and_extra_headers(
    type_: str, model: str, options: dict[str, object], path: str, header: str, wire: Wire, connector: Connector
) -> None:
    fake = fake_of(wire)
    extra = ProviderOptions(headers={"X-Team": "birds"})

    async with fake.listening() as url:
        ready = ready_model(type_, model, base_url=f"{url}/v1", options=options, provider_options=extra)
        asked = usable(await connector.model(ready))
        parts = await ask(asked, make_call(ready, asked, prompt=HELLO))

    request = next(request for request in fake.requests if request.method == "POST")
    assert text_of(parts) == "Hi."
    assert (request.path, request.auth_header, request.api_key) == (path, header, KEY)
    assert request.headers["x-team"] == "birds"
    assert request.body["model"] == model
    assert (asked.wire, asked.provider_id, asked.provider_type, asked.model) == (wire, PROVIDER_ID, type_, model)


async def test_gateway_is_shown_the_key_and_the_version_as_its_options_say(connector: Connector) -> None:
    fake = fake_of("anthropic")
    options = ProviderOptions(auth_style="bearer", api_version="2024-01-31")

    async with fake.listening() as url:
        ready = ready_model(model="claude-nobody-knows", base_url=url, provider_options=options)
        asked = usable(await connector.model(ready))
        parts = await ask(asked, make_call(ready, asked, prompt=HELLO))

    assert text_of(parts) == "Hi."
    assert {request.method for request in fake.requests} == {"GET", "POST"}
    for request in fake.requests:
        assert (request.auth_header, request.api_key) == ("authorization", KEY)
        assert request.headers["anthropic-version"] == "2024-01-31"
        assert "x-api-key" not in request.headers


@pytest.mark.parametrize(
    ("type_", "model", "wire", "field"),
    [
        ("anthropic", "claude-opus-5-5", "anthropic", ("metadata", {"user_id": "abc123"})),
        ("openai", "gpt-6", "responses", ("safety_identifier", "abc123")),
        ("openai_compat", "qwen", "completions", ("user", "abc123")),
    ],
)
async def test_hash_of_the_user_goes_where_the_wire_has_a_field_for_it(
    type_: str, model: str, wire: Wire, field: tuple[str, object], connector: Connector
) -> None:
    async def body_sent(user_hash: str | None) -> Any:
        fake = fake_of(wire)
        async with fake.listening() as url:
            ready = ready_model(type_, model, base_url=f"{url}/v1", user_hash=user_hash)
            asked = usable(await connector.model(ready))
            await ask(asked, make_call(ready, asked, prompt=HELLO, origin=ORIGIN))
        return next(request.body for request in fake.requests if request.method == "POST")

    named, unnamed = await body_sent("abc123"), await body_sent(None)

    assert named[field[0]] == field[1]
    assert field[0] not in unnamed


async def test_organization_and_project_go_to_openai(connector: Connector) -> None:
    fake = fake_of("responses")

    async with fake.listening() as url:
        account = ProviderOptions(organization="org-1", project="proj-1")
        ready = ready_model("openai", "gpt-6", base_url=f"{url}/v1", provider_options=account)
        asked = usable(await connector.model(ready))
        await ask(asked, make_call(ready, asked, prompt=HELLO))

    headers = fake.requests[0].headers
    assert (headers["openai-organization"], headers["openai-project"]) == ("org-1", "proj-1")


async def test_server_at_home_is_asked_without_a_key(connector: Connector) -> None:
    fake = FakeCompletions(api_key=None)
    fake.enqueue(fake_completions.Answer(text="Hi."))

    async with fake.listening() as url:
        ready = ready_model("openai_compat", "qwen", base_url=f"{url}/v1", key=None)
        asked = usable(await connector.model(ready))
        parts = await ask(asked, make_call(ready, asked, prompt=HELLO))

    assert text_of(parts) == "Hi."
    assert fake.requests[0].auth_header is None


async def test_provider_without_an_address_is_a_config_error(connector: Connector) -> None:
    error = await connector.model(ready_model("azure_openai", "gpt-6"))

    assert isinstance(error, ProviderError)
    assert (error.kind, error.retryable) == (ErrorKind.CONFIG, False)
    assert error.message.startswith("Acme has no base URL. ")


async def test_bridged_provider_gets_a_bridge_model_without_loading_the_library(connector: Connector) -> None:
    model = usable(await connector.model(ready_model("google", "gemini-3-pro")))

    assert (model.wire, model.model, model.provider_type) == ("bridge", "gemini-3-pro", "google")
    assert model.caps.accepts("video/mp4")


async def test_models_of_a_closed_connector_end_with_an_error_a_person_understands() -> None:
    connector = Connector()
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(fake_completions.Answer(text="Hi."))
    async with fake.listening() as url:
        ready = ready_model("openai_compat", "qwen", base_url=f"{url}/v1")
        asked = usable(await connector.model(ready))
        await ask(asked, make_call(ready, asked, prompt=HELLO))

        await connector.close()
        (part,) = await ask(asked, make_call(ready, asked, prompt=HELLO))

    assert isinstance(part, StreamError)
    assert "shutting down" in (part.error.detail or "")


# The scripted provider


async def test_scripted_provider_speaks_without_a_network(connector: Connector) -> None:
    for model, words in (("guide", "scripted model"), ("echo", "Hello.")):
        asked = usable(await connector.model(ready_model("scripted", model, key=None)))
        assert words in text_of(await ask(asked, Call(prompt=HELLO)))


async def test_registered_script_is_found_by_the_models_name(connector: Connector) -> None:
    with connector.scripts.registered("mine", [Say("My own words.")]):
        asked = usable(await connector.model(ready_model("scripted", "mine", key=None)))
        assert text_of(await ask(asked, Call(prompt=HELLO))) == "My own words."

    (*_, last) = await ask(asked, Call(prompt=HELLO))
    assert isinstance(last, StreamError)
    assert last.error.kind is ErrorKind.CONFIG


# Calls


def model_with(caps: Capabilities, wire: Wire = "anthropic") -> LanguageModel:
    class Silent:
        provider_id = PROVIDER_ID
        provider_type = "anthropic"
        model = "m"

        def __init__(self) -> None:
            self.wire = wire
            self.caps = caps

        def stream(self, call: Call) -> Any:
            raise NotImplementedError

    return Silent()


@pytest.mark.parametrize(
    ("config", "own", "most", "sent"),
    [
        (None, None, None, 32_000),
        (None, None, 8_192, 8_192),
        (64_000, None, 128_000, 64_000),
        (200_000, None, 128_000, 128_000),
        (64_000, 256, 128_000, 256),
    ],
)
def test_output_is_limited_by_the_call_then_the_config_then_the_model(
    config: int | None, own: int | None, most: int | None, sent: int
) -> None:
    ready = ready_model(options={} if config is None else {"max_output_tokens": config})

    call = make_call(ready, model_with(Capabilities(max_output=most)), prompt=HELLO, max_output_tokens=own)

    assert call.max_output_tokens == sent


@pytest.mark.parametrize(
    ("config", "window", "sent"),
    [(None, None, 5_000), (64_000, None, 64_000), (32_000, None, 32_000), (None, 8_000, 2_000), (5_000, 8_000, 4_000)],
)
def test_output_is_limited_by_the_default_only_where_the_config_says_nothing(
    config: int | None, window: int | None, sent: int
) -> None:
    ready = ready_model(options={} if config is None else {"max_output_tokens": config})

    call = make_call(ready, model_with(Capabilities()), prompt=HELLO, window_tokens=window, default_output_tokens=5_000)

    assert call.max_output_tokens == sent


@pytest.mark.parametrize(
    ("effort_range", "requested", "sent"),
    [
        (None, Effort.HIGH, None),
        ({"default": "low", "max": "high"}, None, Effort.LOW),
        ({"default": "low", "max": "high"}, Effort.MAX, Effort.HIGH),
        ({"default": "low", "max": "high"}, Effort.NONE, Effort.NONE),
    ],
)
def test_effort_is_what_the_config_lets_the_chat_have(
    effort_range: dict[str, str] | None, requested: Effort | None, sent: Effort | None
) -> None:
    options = {} if effort_range is None else {"reasoning_effort": effort_range}

    call = make_call(ready_model(options=options), model_with(Capabilities()), prompt=HELLO, effort=requested)

    assert call.effort is sent


def test_call_carries_prompt_tools_options_and_origin() -> None:
    ready = ready_model(options={"temperature": 0.5, "cache_ttl": "1h", "web_search_enabled": True})

    call = make_call(ready, model_with(Capabilities()), prompt=HELLO, tools=(READ,), origin=ORIGIN)
    planning = make_call(ready, model_with(Capabilities()), prompt=HELLO, may_search=False)

    assert (call.prompt, call.tools, call.temperature) == (HELLO, (READ,), 0.5)
    assert call.options is not None
    assert msgspec.structs.asdict(call.options)["cache_ttl"] == "1h"
    assert (call.chat_id, call.cache_key) == (str(ORIGIN.chat_id), str(ORIGIN.root_chat_id))
    assert (call.web_search is not None, planning.web_search) == (True, None)
    assert (planning.chat_id, planning.cache_key) == (None, None)


def test_correlation_is_sent_only_where_the_provider_is_to_get_it() -> None:
    silent = make_call(ready_model(), model_with(Capabilities()), prompt=HELLO, origin=ORIGIN)
    told = make_call(ready_model(send_correlation=True), model_with(Capabilities()), prompt=HELLO, origin=ORIGIN)
    root = Origin(owner_id=UUID(int=1), chat_id=UUID(int=2), root_chat_id=UUID(int=2))

    assert silent.headers == {}
    assert told.headers == {
        "x-rookery-owner-id": str(UUID(int=1)),
        "x-rookery-chat-id": str(UUID(int=2)),
        "x-rookery-subchat-id": str(UUID(int=3)),
        "x-rookery-workspace-id": str(UUID(int=4)),
    }
    assert root.headers().keys() == {"x-rookery-owner-id", "x-rookery-chat-id"}


def test_identity_of_a_config_tells_wire_and_thinking_family() -> None:
    opus_5 = ready_model(model="claude-opus-5")
    bound = ready_model(model="claude-opus-5-5")
    gpt = ready_model("openai", "gpt-6", options={"use_responses_api": False})

    identities = [identity_of(each.provider, each.config) for each in (opus_5, bound, gpt)]

    assert [(each.wire, each.thinking_family) for each in identities] == [
        ("anthropic", "claude-5"),
        ("anthropic", None),
        ("completions", None),
    ]


# Reports of providers


async def test_report_of_the_provider_lies_over_the_table(connector: Connector) -> None:
    fake = FakeAnthropic(api_key=KEY)
    fake.offer(fake_anthropic.model_info("claude-opus-5-5", max_tokens=99_000, efforts=("low", "high")))

    async with fake.listening() as url:
        ready = ready_model(base_url=url)
        before = usable(await connector.model(ready))
        report = await connector.refresh(ready)
        after = usable(await connector.model(ready))

    assert before.caps.max_output == 128_000
    assert report is not None
    assert report.context_limit == 1_000_000
    assert (after.caps.max_output, after.caps.efforts) == (99_000, (Effort.LOW, Effort.HIGH))
    assert (after.caps.binds_thinking, after.caps.media_types) == (True, before.caps.media_types)


async def test_first_call_to_an_unknown_model_waits_for_the_providers_report(connector: Connector) -> None:
    fake = FakeAnthropic(api_key=KEY)
    fake.offer(fake_anthropic.model_info("claude-hoopoe-9", max_tokens=77_000))

    async with fake.listening() as url:
        model = usable(await connector.model(ready_model(model="claude-hoopoe-9", base_url=url)))

    assert (model.caps.max_output, model.caps.thinking.adaptive, model.caps.sampling) == (77_000, True, False)


async def test_silent_models_endpoint_delays_the_first_call_by_a_moment_only(
    connector: Connector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connect, "FIRST_REPORT_SECONDS", 0.01)

    async def deaf(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(deaf, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with asyncio.timeout(5):
            model = usable(await connector.model(ready_model(model="claude-hoopoe-9", base_url=url)))
        await connector.close()

    assert model.caps.thinking.adaptive is False


async def test_administrators_word_wins_over_the_report(connector: Connector) -> None:
    fake = FakeAnthropic(api_key=KEY)
    fake.offer(fake_anthropic.model_info("claude-opus-5-5", max_tokens=99_000))

    async with fake.listening() as url:
        ready = ready_model(base_url=url, options={"capabilities": {"max_output": 1_000}})
        await connector.refresh(ready)
        model = usable(await connector.model(ready))

    assert model.caps.max_output == 1_000
