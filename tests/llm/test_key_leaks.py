"""The key is in one header of a request and nowhere else, whatever a provider answers and whatever is printed."""

from __future__ import annotations

import asyncio
import logging
import pickle
import traceback
from collections.abc import AsyncIterator, Callable
from typing import Any

import asyncpg
import msgspec
import pytest

from rookery.domain.chat.model_prompt import Prompt
from rookery.domain.models.options import ProviderOptions
from rookery.llm import complete_answers
from rookery.llm.errors import CallFailed
from rookery.llm.types import Finish, LanguageModel, ProviderError, StreamError, StreamPart
from rookery.llm.wire_model import Auth, WireModel
from rookery.llm.wire_stats import ModelCounters
from rookery.models.connector import Connector, make_call
from rookery.models.directory import Directory, ReadyModel
from rookery.models.reported_models import Source
from rookery.runtime.secret_str import SecretStr
from rookery.store.models import user_keys
from rookery.telemetry.redaction import SecretRegistry
from rookery.testing.clock import FakeClock
from tests.llm.raw_server import Connection, Handler, RawRequest, answer, chunk, serving, stream_head
from tests.models.connect_rig import PROVIDER_ID, ready_model
from tests.otlp_collector import exporting, otlp_collector
from tests.store.models.provider_rows import KEY as CENTRAL_KEY
from tests.store.models.provider_rows import RING, open_nest
from tests.wire.difficult_prompts import user

# The key matches no pattern, so only its value can be hidden.
KEY = "aviary.9f8e7d6c5b4a/+x=very~private"
# Errors are cut to 500 characters. This one would be cut inside the key.
LONG = "x" * (500 - len(KEY) // 2) + KEY

KINDS = {
    "anthropic": ("anthropic", "claude-opus-5-5", "x-api-key", ""),
    "responses": ("openai", "gpt-6", "authorization", "Bearer "),
    "completions": ("openai_compat", "qwen", "authorization", "Bearer "),
    "azure": ("azure_openai", "gpt-6", "api-key", ""),
}


def error(message: str, **more: object) -> bytes:
    return msgspec.json.encode(
        {"type": "error", "error": {"type": "invalid_request_error", "message": message, **more}}
    )


def json_error(status: str, message: str, **more: object) -> bytes:
    return answer(
        error(message, **more), status=status, content_type="application/json", extra=f"request-id: {KEY}\r\n"
    )


def events(*data: bytes) -> bytes:
    return answer(b"".join(b"data: %b\n\n" % each for each in data), extra=f"x-request-id: {KEY}\r\n")


HELLO = Prompt((user("Hello."),))
K = KEY.encode()
WHOLE = {
    "anthropic": [
        b'{"type":"message_start","message":{"id":"m","usage":{"input_tokens":1}}}',
        b'{"type":"content_block_start","index":0,"content_block":{"type":"text","text":"Hi"}}',
        b'{"type":"content_block_stop","index":0}',
        b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":1}}',
        b'{"type":"message_stop"}',
    ],
    "responses": [
        b'{"type":"response.created","response":{"id":"r"}}',
        b'{"type":"response.completed","response":{"id":"r","status":"completed","output":[]}}',
    ],
    "completions": [b'{"id":"c","choices":[{"index":0,"delta":{"content":"Hi"},"finish_reason":"stop"}]}', b"[DONE]"],
}
ANSWERS: dict[str, bytes] = {
    "key refused, and quoted": json_error("401 Unauthorized", f"Incorrect API key provided: {KEY}.", code=KEY),
    "key refused in plain text": answer(K, status="401 Unauthorized", content_type="text/plain"),
    "key refused where the text is cut": json_error("401 Unauthorized", LONG),
    "page with the key": answer(b"<html>" + K, status="502 Bad Gateway", content_type="text/html"),
    "page with status 200": answer(b"<html>" + K, content_type="text/html"),
    "text with status 200": answer(b"x" * 190 + K, content_type="text/plain"),
    "redirect": answer(b"", status="302 Found", extra=f"location: https://other.example/{KEY}?key={KEY}\r\n"),
    "error body with status 200": answer(error(LONG), content_type="application/json"),
    "no JSON with status 200": answer(b'{"a": ' + K, content_type="application/json"),
    "strange JSON with status 200": answer(b'["%b"]' % K, content_type="application/json"),
    "error in the stream": events(error(LONG, code=KEY)),
    "malformed event": events(b'{"type": "' + K),
    "event of another form": events(b'{"type":"message_start","message":"%b"}' % K, b'{"choices":"%b"}' % K),
    "unknown events": events(b'{"type":"%b","object":"%b"}' % (K, K)),
    "cut stream": stream_head() + chunk(b"data: " + K),
    "not HTTP": K + b"\r\n\r\n",
    "history refused": json_error("400 Bad Request", f"thinking is bound to a different conversation {KEY}"),
    "nothing": b"",
}


class Watch:
    """Records everything that was printed during a test."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.DEBUG)
        self._caplog = caplog
        self.texts: list[str] = []

    def see(self, *things: object) -> None:
        for thing in things:
            self.texts += shown(thing)

    def all(self) -> str:
        records = [str(record.__dict__) + record.getMessage() for record in self._caplog.records]
        return "\n".join([*self.texts, *records, self._caplog.text])


def shown(thing: object) -> list[str]:
    """Return all forms in which a value is printed, stored or sent."""
    texts = [repr(thing), str(thing), f"{thing}"]
    if hasattr(thing, "__dict__"):
        texts.append(repr(vars(thing)))
    if isinstance(thing, BaseException):
        texts += [repr(thing.args), "".join(traceback.format_exception(thing))]
    for encode in (msgspec.json.encode, msgspec.msgpack.encode, pickle.dumps):
        texts += _encoded(encode, thing)
    return texts


def _encoded(encode: Callable[[Any], object], thing: object) -> list[str]:
    try:
        made = encode(thing)
    except Exception as failure:
        return [repr(failure), str(failure)]
    return [made.decode("latin-1") if isinstance(made, bytes) else repr(made)]


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture) -> Watch:
    return Watch(caplog)


@pytest.fixture
async def connector() -> AsyncIterator[Connector]:
    connector = Connector(stats=ModelCounters(), tokens_per_second=0)
    yield connector
    await connector.close()


def recorder(seen: list[RawRequest], reply: bytes) -> Handler:
    async def handle(connection: Connection) -> None:
        while True:
            seen.append(await connection.read_request())
            await connection.send(reply)
            if not reply.startswith(b"HTTP/1.1") or b"chunked" in reply:
                return

    return handle


def check_requests(seen: list[RawRequest], header: str, prefix: str) -> None:
    """Check that the key is in its header and in no other byte of any request."""
    assert seen
    for request in seen:
        assert request.headers[header] == prefix + KEY
        rest = {name: value for name, value in request.headers.items() if name != header}
        assert KEY not in request.line + str(rest) + request.body.decode()


async def drained(model: LanguageModel, ready: ReadyModel) -> list[StreamPart]:
    call = make_call(ready, model, prompt=HELLO)
    parts = [part async for part in model.stream(call)]
    assert [type(part) in (Finish, StreamError) for part in parts] == [False] * (len(parts) - 1) + [True]
    return parts


async def failure_of(model: LanguageModel, ready: ReadyModel) -> CallFailed | None:
    try:
        await complete_answers.generate(model, make_call(ready, model, prompt=HELLO))
    except CallFailed as failed:
        return failed
    return None


async def usable(connector: Connector, ready: ReadyModel) -> WireModel:
    model = await connector.model(ready)
    assert isinstance(model, WireModel)
    return model


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", [*ANSWERS, "success"])
async def test_key_is_in_its_header_and_nowhere_else(kind: str, name: str, connector: Connector, watch: Watch) -> None:
    type_, model_id, header, prefix = KINDS[kind]
    wire = "responses" if kind == "azure" else kind
    reply = events(*WHOLE[wire]) if name == "success" else ANSWERS[name]
    seen: list[RawRequest] = []

    async with serving(recorder(seen, reply)) as server:
        ready = ready_model(type_, model_id, base_url=f"{server.url}/v1", key=f" {KEY}\n")
        model = await usable(connector, ready)
        parts = await drained(model, ready)
        failed = await failure_of(model, ready)
        report = await connector.refresh(ready)

    check_requests(seen, header, prefix)
    assert isinstance(parts[-1], Finish) is (name == "success")
    watch.see(*parts, parts, model, ready, ready.key, failed, report, connector, connector._stats, counts(connector))
    assert KEY[:12] not in watch.all()


def counts(connector: Connector) -> object:
    assert isinstance(connector._stats, ModelCounters)
    return connector._stats.counts()


@pytest.mark.parametrize("kind", KINDS)
async def test_key_is_not_in_errors_of_refused_connections_and_wrong_addresses(
    kind: str, connector: Connector, watch: Watch
) -> None:
    type_, model_id, *_ = KINDS[kind]
    async with serving(recorder([], b"")) as server:
        gone = server.url

    for base_url in (gone, "http://", "http://256.0.0.1:1", f"http://{KEY}@127.0.0.1:9", f"{gone}/?k={KEY}"):
        ready = ready_model(type_, model_id, base_url=base_url, key=KEY)
        model = await usable(connector, ready)
        parts = await drained(model, ready)
        assert isinstance(parts[-1], StreamError)
        watch.see(*parts, repr(model), await failure_of(model, ready))

    assert KEY[:12] not in watch.all()


@pytest.mark.parametrize("kind", KINDS)
async def test_key_that_is_no_header_value_is_not_quoted(kind: str, connector: Connector, watch: Watch) -> None:
    type_, model_id, *_ = KINDS[kind]
    seen: list[RawRequest] = []

    async with serving(recorder(seen, b"")) as server:
        ready = ready_model(type_, model_id, base_url=server.url, key=f"{KEY}\r\nx-evil: 1\r\n\r\n")
        model = await usable(connector, ready)
        parts = await drained(model, ready)

    assert seen == []
    assert isinstance(parts[-1], StreamError)
    assert "its key" in parts[-1].error.message
    watch.see(*parts, model)
    assert KEY[:12] not in watch.all()


@pytest.mark.parametrize("kind", KINDS)
async def test_cancelled_call_shows_no_key(kind: str, connector: Connector, watch: Watch) -> None:
    type_, model_id, *_ = KINDS[kind]
    arrived = asyncio.Event()

    async def silent(connection: Connection) -> None:
        await connection.read_request()
        arrived.set()
        await connection.wait_until_lost()

    async with serving(silent) as server:
        ready = ready_model(type_, model_id, base_url=server.url, key=KEY)
        model = await usable(connector, ready)
        task = asyncio.create_task(drained(model, ready))
        await arrived.wait()
        watch.see(task, task.get_stack())
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        watch.see(caught.value)

    assert KEY[:12] not in watch.all()


async def test_secret_extra_header_is_hidden_like_the_key(connector: Connector, watch: Watch) -> None:
    token = "gateway-token-0123456789"
    options = ProviderOptions(headers={"X-Gateway-Token": token})
    reply = json_error("403 Forbidden", f"The token {token} may not do this.")
    seen: list[RawRequest] = []

    async with serving(recorder(seen, reply)) as server:
        ready = ready_model(base_url=server.url, key=KEY, provider_options=options)
        parts = await drained(await usable(connector, ready), ready)

    assert seen[-1].headers["x-gateway-token"] == token
    watch.see(*parts)
    assert token not in watch.all()


async def test_scripted_model_never_sees_a_key(connector: Connector, watch: Watch) -> None:
    ready = ready_model("scripted", "echo", key=KEY)
    model = await connector.model(ready)
    assert not isinstance(model, ProviderError)

    parts = await drained(model, ready)

    watch.see(*parts, model, vars(model), ready)
    assert KEY[:12] not in watch.all()


def test_objects_with_a_key_are_printed_without_it_and_cannot_be_encoded() -> None:
    secret = SecretStr(KEY)
    auth = Auth("x-api-key", secret)
    source = Source(
        provider_id=PROVIDER_ID, provider_type="anthropic", base_url="http://a", model="m", auth=auth, headers={}
    )

    for thing in (secret, auth, source, ready_model(key=KEY), [auth], {"a": secret}):
        assert KEY[:12] not in "\n".join(shown(thing))
        for encode in (msgspec.json.encode, pickle.dumps):
            with pytest.raises(TypeError):
                encode(thing)


async def test_directory_gives_keys_to_calls_only(database_url: str, watch: Watch) -> None:
    own_key = "own-private-key-0123456789"
    registry = SecretRegistry()
    async with open_nest(database_url) as nest, asyncpg.create_pool(database_url, min_size=1, max_size=2) as pool:
        provider = await nest.provider(allow_user_key=True)
        config = await nest.config(provider)
        owner, other = await nest.user(), await nest.user()
        await user_keys.put_user_key(nest.conn, owner, provider_id=provider.id, api_key=SecretStr(own_key), ring=RING)
        directory = Directory(pool, ring=RING, environ={}, clock=FakeClock(), registry=registry)
        for user in (owner, other):
            ready = await directory.for_generation(config.id, owner_id=user)
            watch.see(ready, await directory.models(user), await directory.unavailable(provider.id, user_id=user))
        watch.see(directory, await directory.snapshot(), provider, config, registry.hide(f"{own_key} {CENTRAL_KEY}"))
        await directory.close()

    assert own_key not in watch.all()
    assert CENTRAL_KEY not in watch.all()


@pytest.mark.parametrize("kind", KINDS)
async def test_key_is_in_no_span(kind: str, connector: Connector) -> None:
    type_, model_id, *_ = KINDS[kind]
    replies = [*ANSWERS.values(), events(*WHOLE["responses" if kind == "azure" else kind])]
    with otlp_collector() as collector:
        async with exporting(collector):
            for reply in replies:
                async with serving(recorder([], reply)) as server:
                    ready = ready_model(type_, model_id, base_url=f"{server.url}/v1", key=KEY)
                    await failure_of(await usable(connector, ready), ready)
            for base_url in ("http://", f"http://{KEY}@127.0.0.1:9", f"http://127.0.0.1:9/?k={KEY}"):
                ready = ready_model(type_, model_id, base_url=base_url, key=KEY)
                await failure_of(await usable(connector, ready), ready)

    calls = collector.named("chat ")
    assert len(calls) == len(replies) + 3
    assert [call.has_failed for call in calls] == [True] * len(ANSWERS) + [False] + [True] * 3
    assert len(collector.named("POST ")) >= len(calls)
    assert KEY[:12].encode() not in b"".join(collector.bodies)


@pytest.mark.parametrize("sends", [True, False])
async def test_trace_is_sent_only_to_providers_that_are_to_get_it(sends: bool, connector: Connector) -> None:
    seen: list[RawRequest] = []
    with otlp_collector() as collector:
        async with exporting(collector), serving(recorder(seen, events(*WHOLE["anthropic"]))) as server:
            ready = ready_model(base_url=server.url, key=KEY, send_correlation=sends)
            await failure_of(await usable(connector, ready), ready)

    exchange = collector.one("POST /v1/messages")
    assert seen[0].headers.get("traceparent") == (f"00-{exchange.trace_id}-{exchange.span_id}-01" if sends else None)


async def test_cancelled_call_ends_its_spans(connector: Connector) -> None:
    arrived = asyncio.Event()

    async def silent(connection: Connection) -> None:
        await connection.read_request()
        arrived.set()
        await connection.wait_until_lost()

    with otlp_collector() as collector:
        async with exporting(collector), serving(silent) as server:
            ready = ready_model(base_url=server.url, key=KEY)
            model = await usable(connector, ready)
            task = asyncio.create_task(failure_of(model, ready))
            await arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    assert [(span.has_failed, span.attributes["error.type"]) for span in collector.spans] == [(True, "cancelled")] * 2
