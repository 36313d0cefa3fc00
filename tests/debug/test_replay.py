"""Replays: an unchanged one sends what was recorded, over all wires; edits, other models, time limits and bills."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from rookery.debug.redaction import Redactor
from rookery.debug.replay import ReplayChange, Replayer, edited
from rookery.domain.access.rights import Role
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.messages import Role as MessageRole
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import Count, Say, Script, Wait
from rookery.llm.types import Call, Usage, WebSearch
from rookery.runtime.secret_str import SecretStr
from rookery.store.authorized.debug import RecordedCall
from rookery.store.debug import record_reads
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from rookery.store.settings import settings as stored_settings
from rookery.testing import FakeAnthropic, FakeClock, FakeCompletions, FakeResponses, fake_anthropic, fake_completions
from rookery.testing.fake_responses import FunctionCall, Reasoning, say
from rookery.worker import short_texts
from tests.api.api_rig import ApiRig, open_house
from tests.api.chat_rig import CHATS, TOOL, text
from tests.api.debug_rig import DebugRecords, said
from tests.debug.test_secrets import reach

LOOKUP = str(TOOL["name"])
KEY = "sk-test-0123456789"

# The three wires


def anthropic() -> Any:
    fake = FakeAnthropic(api_key=KEY)
    fake.answer(
        fake_anthropic.Answer([fake_anthropic.Thinking("I look it up."), fake_anthropic.Call(LOOKUP, {"what": "x"})]),
        fake_anthropic.Answer([fake_anthropic.Text("It is there.")]),
        fake_anthropic.Answer([fake_anthropic.Text("It is here.")]),
    )
    return fake


def responses() -> Any:
    fake = FakeResponses(api_key=KEY, model="gpt-6")
    fake.answer(Reasoning(summaries=("I look it up.",)), FunctionCall(name=LOOKUP, arguments='{"what": "x"}'))
    fake.answer(say("It is there."))
    fake.answer(say("It is here."))
    return fake


def completions() -> Any:
    fake = FakeCompletions(api_key=KEY)
    fake.enqueue(
        fake_completions.Answer(
            reasoning="I look it up.", calls=(fake_completions.FakeCall(LOOKUP, '{"what": "x"}', "call_1"),)
        ),
        fake_completions.Answer(text="It is there."),
        fake_completions.Answer(text="It is here."),
    )
    return fake


WIRES = {
    "anthropic": (anthropic, ProviderType.ANTHROPIC, "claude-opus-5-5", ""),
    "responses": (responses, ProviderType.OPENAI, "gpt-6", "/v1"),
    "completions": (completions, ProviderType.OPENAI_COMPAT, "qwen", "/v1"),
}
# Members that name the chat, whose caches a replay does not use.
OF_THE_CHAT = ("prompt_cache_key", "store", "metadata", "user", "safety_identifier")


@pytest.mark.parametrize("wire", WIRES)
async def test_unchanged_replay_sends_the_recorded_request(wire: str, database_url: str, tmp_path: Path) -> None:
    make, type_, model, path = WIRES[wire]
    fake = make()
    async with (
        fake.listening() as url,
        open_house(database_url, tmp_path, takes_chats=True, overrides={"debug_force": "true"}) as rig,
    ):
        ada = await rig.add("ada", role=Role.ADMIN)
        async with rig.database.api.acquire() as conn:
            draft = ProviderDraft(type=type_, name="nest", base_url=url + path, api_key=SecretStr(KEY))
            provider = await providers.create_provider(conn, draft, ring=rig.replica.api.ring)
            config = ModelConfigDraft(provider_id=provider.id, model=model, context_limit=100_000)
            await model_configs.create_model_config(conn, config, by=None)
            await stored_settings.write_setting(conn, short_texts.SETTING, value={"generate_titles": False})
        rig.replica.directory.invalidate()
        made = await ada.http.post(CHATS, json={"content": text("Where is it?"), "dynamic_tools": [TOOL]})
        chat = str(made.json()["id"])
        await reach(ada, chat, "requires_action")
        messages = (await ada.http.get(f"{CHATS}/{chat}/messages")).json()["items"]
        (call,) = [part for message in messages for part in message["content"] if part["type"] == "tool-call"]
        results = {"results": [{"tool_call_id": call["tool_call_id"], "output": {"place": "there"}}]}
        await ada.http.post(f"{CHATS}/{chat}/tool-results", json=results)
        await reach(ada, chat, "waiting")
        await rig.replica.worker.wait_idle()
        await rig.replica.debug.writer.flush()
        run = (await ada.http.get(f"{CHATS}/{chat}/debug/runs")).json()["runs"][0]
        steps = (await ada.http.get(f"{CHATS}/{chat}/debug/runs/{run['id']}")).json()["steps"]
        replayed = await ada.http.post(f"{CHATS}/{chat}/debug/runs/{run['id']}/steps/{steps[1]['id']}/replay", json={})

    found = replayed.json()
    assert replayed.status_code == 200, replayed.text
    _, recorded, sent = [request for request in fake.requests if request.method == "POST"]
    assert {name: value for name, value in sent.body.items() if name not in OF_THE_CHAT} == {
        name: value for name, value in recorded.body.items() if name not in OF_THE_CHAT
    }
    assert found["warnings"] == []
    assert [part["text"] for part in found["recorded"]["content"] if part["type"] == "text"] == ["It is there."]
    assert [part["text"] for part in found["replayed"]["content"]] == ["It is here."]
    assert found["replayed"]["usage"]["output_tokens"] > 0


# The service


@pytest.fixture
async def house(database_url: str, tmp_path: Path) -> AsyncIterator[ApiRig]:
    async with open_house(database_url, tmp_path) as rig:
        yield rig


class Bench:
    """A recorded call of one chat, and a replayer with a fake clock."""

    def __init__(self, rig: ApiRig, owner: UUID, chat: ChatId, clock: FakeClock) -> None:
        self.rig = rig
        self.owner = owner
        self.chat = chat
        self.clock = clock
        replica = rig.replica
        self.replayer = Replayer(
            replica.directory, replica.connector, pool=rig.database.api, clock=clock, redactor=Redactor(), seconds=60
        )

    async def recorded(self, call: Call, model: UUID | None) -> RecordedCall:
        run_id, (step_id,) = await DebugRecords(self.rig.database.api).run(self.chat, [call], model_config_id=model)
        async with self.rig.database.api.acquire() as conn:
            run, step = (
                await record_reads.find_run(conn, self.chat, run_id),
                await record_reads.find_step(conn, run_id, step_id),
            )
            assert run is not None
            assert step is not None
            return RecordedCall(run, step, await record_reads.list_replay_forms(conn, run_id, last_number=1))

    async def billed(self) -> list[tuple[Any, ...]]:
        rows = await self.rig.database.api.fetch("SELECT purpose, status, output_tokens, owner_id FROM model_usage")
        return [tuple(row) for row in rows]


@pytest.fixture
async def bench(house: ApiRig) -> Bench:
    await house.add_model("echo")
    ada = await house.add("ada", role=Role.ADMIN)
    made = await ada.http.post(CHATS, json={"content": text("hello")})
    return Bench(house, ada.id, ChatId(UUID(made.json()["id"])), FakeClock())


async def test_call_that_takes_too_long_is_stopped_and_billed(bench: Bench) -> None:
    script: Script = [Count(Usage(input=7, output=3)), Say("Well"), Wait(1000), Say("never")]
    with bench.rig.replica.connector.scripts.registered("slow", script):
        model = await bench.rig.add_model("slow", name="slow")
        recorded = await bench.recorded(said("Hello."), model)
        replaying = asyncio.create_task(
            bench.replayer.replay(recorded, model, owner_id=bench.owner, change=ReplayChange())
        )
        await bench.clock.until_waiting("debug-replay")
        await bench.clock.advance(61)
        found = await replaying

    assert found.replayed.error is not None
    assert found.replayed.error.kind == "timeout"
    assert "within 60 s" in found.replayed.error.message
    assert [row[:2] for row in await bench.billed()] == [("replay", "failed")]


async def test_cancelled_replay_is_billed_as_interrupted(bench: Bench) -> None:
    with bench.rig.replica.connector.scripts.registered("slow", [Say("Well"), Wait(1000)]):
        model = await bench.rig.add_model("slow", name="slow")
        recorded = await bench.recorded(said("Hello."), model)
        replaying = asyncio.create_task(
            bench.replayer.replay(recorded, model, owner_id=bench.owner, change=ReplayChange())
        )
        await bench.clock.until_waiting("debug-replay")
        replaying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await replaying

    assert [row[:2] for row in await bench.billed()] == [("replay", "interrupted")]


async def test_owners_key_is_not_used_on_behalf_of_the_operator(bench: Bench) -> None:
    async with bench.rig.database.api.acquire() as conn:
        draft = ProviderDraft(type=ProviderType.ANTHROPIC, name="own", allow_user_key=True, central_key_enabled=False)
        provider = await providers.create_provider(conn, draft, ring=bench.rig.replica.api.ring)
        config = ModelConfigDraft(provider_id=provider.id, model="claude-opus-5-5", context_limit=100_000)
        made = await model_configs.create_model_config(conn, config, by=None)
    bench.rig.replica.directory.invalidate()
    recorded = await bench.recorded(said("Hello."), made.id)

    found = await bench.replayer.replay(
        recorded, made.id, owner_id=bench.owner, change=ReplayChange(), uses_own_key=False
    )

    assert found.replayed.error is not None
    assert found.replayed.error.kind == "missing_key"
    assert await bench.billed() == []


async def test_call_of_a_replay_has_no_tie_to_the_chat_and_no_search(bench: Bench) -> None:
    seen: list[Call] = []

    def script(call: Call) -> Sequence[Say]:
        seen.append(call)
        return [Say("Yes.")]

    call = Call(
        prompt=Prompt((message(PromptFile("image/png", b"1234", "nest.png")), message(PromptText("Hello.")))),
        web_search=WebSearch(),
        max_output_tokens=77,
    )
    with bench.rig.replica.connector.scripts.registered("spy", script):
        model = await bench.rig.add_model("spy", name="spying")
        recorded = await bench.recorded(call, model)
        found = await bench.replayer.replay(recorded, model, owner_id=bench.owner, change=ReplayChange())

    (sent,) = seen
    assert (sent.chat_id, sent.cache_key, sent.headers, sent.web_search) == (None, None, {}, None)
    assert (sent.purpose, sent.max_output_tokens) == ("replay", 77)
    assert found.warnings == (
        "Files are not part of the record. A note replaces each of them.",
        "The provider's web search is not part of a replay.",
    )


async def test_other_model_gets_a_history_without_reasoning(bench: Bench) -> None:
    seen: list[Call] = []

    def script(call: Call) -> Sequence[Say]:
        seen.append(call)
        return [Say("Yes.")]

    answer = message(PromptReasoning("Hm.", {"signature": "x"}), PromptText("Hi."), role=MessageRole.ASSISTANT)
    call = Call(prompt=Prompt((message(PromptText("Hello.")), answer, message(PromptText("Go on.")))))
    with bench.rig.replica.connector.scripts.registered("other", script):
        first = await bench.rig.add_model("guide", name="first")
        other = await bench.rig.add_model("other", name="other")
        recorded = await bench.recorded(call, first)
        found = await bench.replayer.replay(recorded, other, owner_id=bench.owner, change=ReplayChange())

    assert seen[0].plain_history
    assert [each.is_native for each in seen[0].prompt.messages] == [True, False, True]
    assert found.warnings == ("Another model wrote the answers in this prompt, so its reasoning is left out.",)


# Edits


def message(*parts: PromptPart, role: MessageRole = MessageRole.USER) -> PromptMessage:
    return PromptMessage(role=role, parts=parts)


FILE = PromptFile("image/png", b"1234", "nest.png")
CALL = PromptCall("c1", "look", Raw(b"{}"))
RESULT = PromptResult("c1", "look", "A nest.", is_error=True)


@pytest.mark.parametrize(
    ("parts", "wanted"),
    [
        ((PromptText("a"),), (PromptText("new"),)),
        ((PromptText("a", {"id": "m1"}), FILE, PromptText("b")), (PromptText("new"), FILE)),
        ((PromptReasoning("Hm."), PromptText("a"), CALL), (PromptReasoning("Hm."), PromptText("new"), CALL)),
        ((RESULT,), (PromptResult("c1", "look", "new", is_error=True),)),
    ],
)
def test_edit_replaces_the_text_of_a_message_and_nothing_else(
    parts: tuple[PromptPart, ...], wanted: tuple[PromptPart, ...]
) -> None:
    prompt = Prompt((message(PromptText("before")), message(*parts), message(PromptText("after"))))

    changed = edited(prompt, {1: "new"})

    assert changed.messages[1].parts == wanted
    assert (changed.messages[0], changed.messages[2]) == (prompt.messages[0], prompt.messages[2])


@pytest.mark.parametrize("parts", [(FILE,), (CALL,), (RESULT, RESULT), ()])
def test_message_without_a_text_cannot_be_edited(parts: tuple[PromptPart, ...]) -> None:
    with pytest.raises(InvalidInput) as refused:
        edited(Prompt((message(*parts),)), {0: "new"})

    assert refused.value.field == "edits[0].message"


def test_edit_of_a_message_that_does_not_exist_names_the_edit() -> None:
    with pytest.raises(InvalidInput) as refused:
        edited(Prompt((message(PromptText("a")),)), {0: "new", 1: "newer"})

    assert refused.value.field == "edits[1].message"
    assert json.dumps(str(refused.value)) == '"This prompt has 1 messages, from 0 on."'
