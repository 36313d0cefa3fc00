"""Secrets in every place where one can be, over all wires, recorded: none is in the database, the log or a trace.

A whole server with a worker makes recorded calls to a fake provider. The key of the provider, the value of a configured
header, and a value under a secret name go through requests, answers, errors, tool calls and results. Then the whole
database is searched for them, except for the texts of the chat itself.
"""

from __future__ import annotations

import base64
import json
import logging
import zlib
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import UUID

import msgspec
import pytest

from rookery.debug.redaction import Redactor
from rookery.domain.access.rights import Role
from rookery.domain.models.options import ProviderType
from rookery.models.connector import Connector
from rookery.runtime.secret_str import SecretStr
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.settings import settings as stored_settings
from rookery.telemetry.redaction import SecretRegistry
from rookery.testing import FakeAnthropic, FakeCompletions, FakeResponses, fake_anthropic, fake_completions
from rookery.testing.fake_responses import FunctionCall, say
from rookery.testing.fake_server import Scenario
from rookery.worker import short_texts
from tests.api.api_rig import ApiRig, Person, open_house
from tests.api.chat_rig import CHATS, TOOL, text
from tests.debug.attempt_rig import CollectingStep, RecordedClients
from tests.eventually import until
from tests.llm import test_key_leaks
from tests.llm.raw_server import serving
from tests.models.connect_rig import ready_model
from tests.otlp_collector import otlp_collector

# These match no pattern, so only their value or their place can reveal them.
KEY = "aviary.9f8e7d6c5b4a/+x=very~private"
HEADER = "tenant-of-the-north-tower"
PLACED = "never-registered-anywhere"
SECRETS = (KEY, HEADER, PLACED)
LOOKUP = str(TOOL["name"])
KEY64 = base64.b64encode(f"user:{KEY}".encode()).decode()

SAID = f"My key is {KEY}, as base64 {KEY64}, in a link https://u:{quote(KEY, safe='')}@nest.example/?api_key={PLACED}"
ARGUMENTS = {"password": PLACED, "note": f"use {KEY}", "deep": {"access_token": [PLACED]}, "blob": KEY64}
RATE_LIMITS = {
    "anthropic-ratelimit-tokens-remaining": "117000",
    "x-ratelimit-remaining-tokens": "118000",
    "x-set-secret": HEADER,
    "x-request-id": f"req-{KEY}",
    "set-cookie": PLACED,
}
ERROR = {
    "type": "error",
    "error": {
        "type": "overloaded_error",
        "message": f"Key {KEY} at https://api.example/v1?token={PLACED}&key={KEY} is busy. Bearer {KEY}",
        "access_token": PLACED,
        KEY: "as a key",
    },
}
REFUSAL = Scenario(status=529, body=ERROR, headers=RATE_LIMITS)


def anthropic() -> Any:
    fake = FakeAnthropic(api_key=KEY)
    fake.enqueue(REFUSAL)
    fake.answer(
        fake_anthropic.Answer(
            [
                fake_anthropic.Thinking(f"The user told me {KEY}."),
                fake_anthropic.Text(SAID),
                fake_anthropic.Call(LOOKUP, ARGUMENTS),
            ]
        ),
        fake_anthropic.Answer([fake_anthropic.Text(f"It is {KEY} or {KEY64}.")]),
    )
    return fake


def responses() -> Any:
    fake = FakeResponses(api_key=KEY)
    fake.enqueue(REFUSAL)
    fake.answer(say(SAID), FunctionCall(name=LOOKUP, arguments=json.dumps(ARGUMENTS)), headers=RATE_LIMITS)
    fake.answer(say(f"It is {KEY} or {KEY64}."))
    return fake


def completions() -> Any:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(
        REFUSAL,
        fake_completions.Answer(
            reasoning=f"The user told me {KEY}.",
            text=SAID,
            calls=(fake_completions.FakeCall(LOOKUP, json.dumps(ARGUMENTS)),),
        ),
        fake_completions.Answer(text=f"It is {KEY} or {KEY64}."),
    )
    return fake


WIRES = {
    "anthropic": (anthropic, ProviderType.ANTHROPIC, "claude-opus-5-5", ""),
    "responses": (responses, ProviderType.OPENAI, "gpt-fake", "/v1"),
    "completions": (completions, ProviderType.OPENAI_COMPAT, "qwen", "/v1"),
}


@asynccontextmanager
async def recording_server(database_url: str, tmp_path: Path, **settings: str) -> AsyncIterator[ApiRig]:
    overrides = {"debug_force": "true", "worker.retry_delay": "10ms", **settings}
    async with open_house(database_url, tmp_path, takes_chats=True, overrides=overrides) as rig:
        await rig.add("root", role=Role.ADMIN)
        yield rig


async def add_model(rig: ApiRig, type_: ProviderType, model: str, base_url: str) -> UUID:
    async with rig.database.api.acquire() as conn:
        draft = ProviderDraft(
            type=type_,
            name="nest",
            base_url=base_url,
            api_key=SecretStr(KEY),
            options={"headers": {"X-Tenant": HEADER}},
        )
        provider = await providers.create_provider(conn, draft, ring=rig.replica.api.ring)
        config = ModelConfigDraft(provider_id=provider.id, model=model, context_limit=100_000)
        made = await model_configs.create_model_config(conn, config, by=None)
        await stored_settings.write_setting(conn, short_texts.SETTING, value={"generate_titles": False})
    rig.replica.directory.invalidate()
    return made.id


async def reach(person: Person, chat: str, status: str) -> None:
    async def is_there() -> bool:
        found = (await person.http.get(f"{CHATS}/{chat}")).json()
        assert found["status"] != "error", found["last_error"]
        return bool(found["status"] == status)

    await until(is_there)


async def converse(ada: Person) -> str:
    """Have a turn with a refused call, a tool call whose result has the secrets, and an answer."""
    made = await ada.http.post(
        CHATS, json={"content": text(SAID), "dynamic_tools": [TOOL], "system_prompt": f"Never say {KEY}."}
    )
    assert made.status_code == 201, made.text
    chat = str(made.json()["id"])
    await reach(ada, chat, "requires_action")
    messages = (await ada.http.get(f"{CHATS}/{chat}/messages")).json()["items"]
    (call,) = [part for message in messages for part in message["content"] if part["type"] == "tool-call"]
    output = {"token": PLACED, "text": f"found {KEY}", "raw": json.dumps({"secret": PLACED})}
    results = {"results": [{"tool_call_id": call["tool_call_id"], "output": output}]}
    done = await ada.http.post(f"{CHATS}/{chat}/tool-results", json=results)
    assert done.status_code < 300, done.text
    await reach(ada, chat, "waiting")
    return chat


# What the user, the model and the tool wrote belongs to the chat, and is not a record.
WRITTEN = frozenset({"chat_messages", "chat_message_search", "chats.title"})


async def everything_stored(rig: ApiRig) -> str:
    """Return every column of every table as text, also decompressed, without the texts of the chat."""
    await rig.replica.worker.wait_idle()
    await rig.replica.debug.writer.flush()
    pool = rig.database.api
    tables = await pool.fetch("SELECT tablename FROM pg_tables WHERE schemaname = current_schema() ORDER BY tablename")
    assert {"chat_debug_runs", "chat_debug_steps", "chat_debug_attempts"} <= {table for (table,) in tables}
    shown: list[str] = []
    for (table,) in tables:
        for row in await pool.fetch(f"SELECT * FROM {table}"):
            for name, value in row.items():
                if not {table, f"{table}.{name}"} & WRITTEN:
                    shown += [f"{table}.{name}: {text}" for text in _texts(value)]
    return "\n".join(shown)


def _texts(value: object) -> list[str]:
    if not isinstance(value, bytes):
        return [str(value)]
    found = [value.decode("latin-1")]
    with suppress(zlib.error):
        found.append(zlib.decompress(value).decode("utf-8", "replace"))
    return found


def forms(secret: str) -> list[str]:
    """Return the secret as it may appear: plain, in JSON, in a URL, and inside base64."""
    encoded = [base64.b64encode(b"." * offset + secret.encode()).decode()[4:-4] for offset in range(3)]
    return [secret, json.dumps(secret)[1:-1], quote(secret, safe=""), *encoded]


def assert_absent(shown: str) -> None:
    for secret in SECRETS:
        for form in forms(secret):
            assert form not in shown, f"{form} is in {shown[max(0, shown.index(form) - 200) :][:300]}"
    assert KEY[:20] not in shown


@pytest.mark.parametrize("wire", WIRES)
async def test_no_secret_is_in_the_database_the_log_or_a_trace(
    wire: str, database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="rookery")
    make, type_, model, path = WIRES[wire]
    fake = make()
    async with AsyncExitStack() as stack:
        collector = stack.enter_context(otlp_collector())
        traced = {"otel.endpoint": collector.url, "otel.capture_content": "true"}
        url = await stack.enter_async_context(fake.listening())
        rig = await stack.enter_async_context(recording_server(database_url, tmp_path, **traced))
        await add_model(rig, type_, model, url + path)
        ada = await rig.add("ada")
        chat = await converse(ada)
        shown = await everything_stored(rig)
        attempts = await rig.database.api.fetch("SELECT * FROM chat_debug_attempts ORDER BY started_at")
        steps = await rig.database.api.fetch("SELECT * FROM chat_debug_steps ORDER BY step_number")
        exported = (await ada.http.get(f"{CHATS}/{chat}/debug/export")).text

    assert_absent(shown)
    assert_absent(exported)
    assert_absent("\n".join(f"{span.name} {span.attributes} {span.events}" for span in collector.spans))
    assert_absent(b"".join(collector.bodies).decode("latin-1"))
    assert [span.attributes["gen_ai.usage.output_tokens"] > 0 for span in collector.named("chat ")[1:]] == [True, True]
    assert_absent("\n".join(f"{record.getMessage()} {record.__dict__}" for record in caplog.records))
    # The records are there, and tell the story without the secrets.
    assert [attempt["response_status"] for attempt in attempts] == [529, 200, 200]
    assert [step["status"] for step in steps] == ["completed", "completed"]
    assert all(json.loads(step["usage"])["output_tokens"] > 0 for step in steps)
    assert "tokens" in zlib.decompress(attempts[1]["response_body"]).decode()
    refused = json.loads(attempts[0]["response_headers"])
    assert refused["anthropic-ratelimit-tokens-remaining"] == "117000"
    assert refused["x-ratelimit-remaining-tokens"] == "118000"
    assert "[REDACTED:nest-key]" in shown
    assert json.loads(attempts[0]["request_headers"])["x-tenant"] == "[REDACTED]"
    assert '"password":"[REDACTED]"' in shown.replace(" ", "").replace("\\", "")


async def test_replay_sends_no_marker_of_a_secret_that_the_record_lacks_without_saying_so(
    database_url: str, tmp_path: Path
) -> None:
    make, type_, model, path = WIRES["completions"]
    fake = make()
    async with fake.listening() as url, recording_server(database_url, tmp_path) as rig:
        await add_model(rig, type_, model, url + path)
        ada = await rig.add("ada")
        chat = await converse(ada)
        await everything_stored(rig)
        run = (await ada.http.get(f"{CHATS}/{chat}/debug/runs", params={"kind": "chat_turn"})).json()["runs"][0]
        steps = (await ada.http.get(f"{CHATS}/{chat}/debug/runs/{run['id']}")).json()["steps"]
        fake.enqueue(fake_completions.Answer(text=f"Again {KEY}."))
        replayed = await ada.http.post(f"{CHATS}/{chat}/debug/runs/{run['id']}/steps/{steps[-1]['id']}/replay", json={})

    found = replayed.json()
    assert replayed.status_code == 200, replayed.text
    assert found["warnings"] == ["Secrets were removed from the record, so this request differs from the recorded one."]
    assert found["replayed"]["content"] == [
        {"type": "text", "text": "Again [REDACTED:nest-key].", "text_length": len(f"Again {KEY}.")}
    ]
    sent = fake.requests[-1]
    assert sent.api_key == KEY
    assert KEY not in sent.raw.decode()
    assert LOOKUP in [tool["function"]["name"] for tool in sent.body["tools"]]


@pytest.mark.parametrize("kind", test_key_leaks.KINDS)
@pytest.mark.parametrize("name", [*test_key_leaks.ANSWERS, "success"])
async def test_no_answer_of_a_provider_brings_the_key_into_the_record_of_its_exchange(kind: str, name: str) -> None:
    """Answers that quote the key: refusals, pages, redirects, broken events, and bodies that are not what they say."""
    type_, model_id, _, _ = test_key_leaks.KINDS[kind]
    wire = "responses" if kind == "azure" else kind
    reply = test_key_leaks.events(*test_key_leaks.WHOLE[wire]) if name == "success" else test_key_leaks.ANSWERS[name]
    secrets = SecretRegistry()
    secrets.add("nest key", test_key_leaks.KEY)
    step = CollectingStep()
    connector = Connector(clients=RecordedClients(lambda: step))
    try:
        async with serving(test_key_leaks.recorder([], reply)) as server:
            ready = ready_model(type_, model_id, base_url=server.url, key=test_key_leaks.KEY)
            await test_key_leaks.drained(await test_key_leaks.usable(connector, ready), ready)
    finally:
        await connector.close()

    attempts = step.attempts(Redactor(secrets))
    shown = msgspec.json.encode(attempts).decode()
    assert attempts
    assert test_key_leaks.KEY not in shown
    for attempt in attempts:
        for body in (attempt.request_body, attempt.response_body):
            assert body is None or test_key_leaks.KEY.encode() not in body.data
