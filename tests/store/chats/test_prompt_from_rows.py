"""From committed rows to a request: the store, the prompt and a wire together."""

from __future__ import annotations

from uuid import uuid4

import msgspec

from rookery.domain.chat.messages import ChatId, NewMessage, Role, StepFigures
from rookery.domain.chat.model_prompt import PromptReasoning, PromptResult, PromptText
from rookery.domain.chat.parts import Reasoning, Text
from rookery.domain.chat.prompt import ModelIdentity, build_prompt
from rookery.domain.content.attachments import FileRules
from rookery.llm.anthropic.wire import AnthropicFormat
from rookery.llm.types import Call, Capabilities
from rookery.store import machine
from rookery.store.chats import messages
from tests.store.machine.machine_rig import Rig, call, calling, make_rig
from tests.wire.official_types import check_anthropic


async def test_committed_turn_with_a_closed_call_becomes_a_request_the_provider_takes(database_url: str) -> None:
    async with make_rig(database_url) as rig:
        chat_id = await rig.create()
        thought = Reasoning("hm", provider_meta={"signature": "sig", "wire": "anthropic"})
        answer = NewMessage(
            role=Role.ASSISTANT,
            content=(thought, Text("on it"), call("call-1", "execute")),
            model_config_id=rig.model,
            figures=StepFigures(input_tokens=7, finish_reason="tool_calls", prefix_fp=b"0123456789abcdef"),
        )
        await rig.update(chat_id, lambda tx: machine.commit_step(tx, [answer]))
        await rig.update(chat_id, machine.finish_turn)
        await rig.send(chat_id, "never mind")

        async with rig.pool.acquire() as conn:
            rows = await messages.list_prompt(conn, chat_id)
        identity = ModelIdentity(provider_id=uuid4(), model="claude-x", wire="anthropic", thinking_family="claude")
        prompt = build_prompt(
            rows,
            target=identity,
            writers={rig.model: identity},
            files={},
            rules=FileRules(accepts=lambda media_type: False, max_image_bytes=None),
        )

        assert (rows[1].figures.input_tokens, rows[1].figures.finish_reason) == (7, "tool_calls")
        told = [[type(part) for part in message.parts] for message in prompt.messages]
        assert [kind for kinds in told for kind in kinds][:2] == [PromptText, PromptReasoning]
        closing = [part for message in prompt.messages for part in message.parts if isinstance(part, PromptResult)]
        assert [result.is_error for result in closing] == [True]
        check_anthropic(AnthropicFormat("claude-x", Capabilities()).build(Call(prompt=prompt)).body)


async def test_same_rows_give_the_same_bytes_twice(database_url: str) -> None:
    async with make_rig(database_url) as rig:
        chat_id = await rig.create()
        await rig.update(chat_id, lambda tx: machine.commit_step(tx, [calling(call("call-1", "execute"))]))
        bodies = [await body_of(rig, chat_id) for _ in range(2)]

        assert bodies[0] == bodies[1]


async def body_of(rig: Rig, chat_id: ChatId) -> bytes:
    async with rig.pool.acquire() as conn:
        rows = await messages.list_prompt(conn, chat_id)
    identity = ModelIdentity(provider_id=uuid4(), model="m", wire="anthropic")
    prompt = build_prompt(
        rows,
        target=identity,
        writers={},
        files={},
        rules=FileRules(accepts=lambda media_type: False, max_image_bytes=None),
    )
    body = AnthropicFormat("m", Capabilities()).build(Call(prompt=prompt)).body
    return msgspec.json.encode(body)
