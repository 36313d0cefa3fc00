"""Invalid inputs are refused with the name of the field, and never with an error of the database driver."""

from __future__ import annotations

import json
from uuid import uuid4

import pytest

from rookery.domain.chat.errors import ChatError, InvalidInput, MessageNotFound, QueueChanged, QueuedMessageNotFound
from rookery.domain.chat.messages import (
    MAX_CLIENT_ID_CHARS,
    MAX_ID,
    ChatId,
    MessageId,
    NewMessage,
    NewQueuedMessage,
    QueuedMessageId,
    Role,
)
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import Rig, assistant, text

rig = shared_rig.rig

NOT_STORABLE = {"a NUL": "a\0b", "half a pair": "a\ud800b", "the other half": "\udfff"}
NO_IDS = (0, -1, MAX_ID + 1, 2**64, -(2**63) - 1, 10**30)


async def refused(rig: Rig, field: str, **fields: object) -> InvalidInput:
    """Check that the creation is refused and stores nothing."""
    before = await rig.value("SELECT count(*) FROM chats")
    rig.published.clear()
    with pytest.raises(InvalidInput) as refusal:
        await rig.create(**fields)
    assert refusal.value.field == field
    assert str(refusal.value).endswith(".")
    assert await rig.value("SELECT count(*) FROM chats") == before
    assert rig.published.hints == []
    return refusal.value


# A chat to create


async def test_labels_of_a_new_chat_follow_the_rules_of_labels(rig: Rig) -> None:
    await refused(rig, "labels.not a key", labels={"not a key": "x"})
    await refused(rig, "labels.team", labels={"team": ""})
    await refused(rig, "labels.team", labels={"team": "a\0b"})
    await refused(rig, "labels.team", labels={"team": 1})
    await refused(rig, "labels", labels={f"key{index}": "x" for index in range(51)})


@pytest.mark.parametrize("name", NOT_STORABLE)
async def test_title_that_cannot_be_stored_is_repaired(rig: Rig, name: str) -> None:
    chat_id = await rig.create(title=f"Plans {NOT_STORABLE[name]} for today")

    title = await rig.value("SELECT title FROM chats WHERE id = $1", chat_id)

    assert isinstance(title, str)
    assert title.startswith("Plans ")
    assert title.endswith(" for today")
    assert "\ufffd" in title


@pytest.mark.parametrize("field", ["mode", "client_type"])
@pytest.mark.parametrize("name", NOT_STORABLE)
async def test_word_that_cannot_be_stored_is_refused(rig: Rig, field: str, name: str) -> None:
    await refused(rig, field, **{field: NOT_STORABLE[name]})


@pytest.mark.parametrize(
    "tools",
    [
        "",
        "[",
        "null",
        "{}",
        '{"name": "pick"}',
        '["pick"]',
        "[null]",
        '[{"description": "nameless"}]',
        '[{"name": ""}]',
        '[{"name": null}]',
        '[{"name": 1}]',
        '[{"name": "pick"}, {}]',
        '[{"name": "pick"}] []',
        '[{"name": "a\\u0000b"}]',
        '[{"name": "pick", "description": "\\u0000"}]',
        '[{"name": "pick", "description": "\\\\\\u0000"}]',
        '[{"name": "pick", "description": "\\ud800"}]',
        '[{"name": "pick", "description": "\ud800"}]',
        '[{"name": "pick", "description": "\0"}]',
        '[{"name": "pick", "limit": 1e999999}]',
        '[{"name": "pick", "deep": ' + "[" * 5000 + "]" * 5000 + "}]",
        "[" * 100_000,
    ],
    ids=lambda tools: ascii(tools[:40]),
)
async def test_declaration_of_tools_that_is_none_is_refused(rig: Rig, tools: str) -> None:
    await refused(rig, "dynamic_tools", dynamic_tools=tools)


async def test_declaration_of_tools_is_stored_as_it_is_given(rig: Rig) -> None:
    declared = '[{"name": "pick", "pattern": "[^\\\\u0000]", "limit": 1.50}]'

    chat_id = await rig.create(dynamic_tools=declared)

    stored = await rig.value("SELECT dynamic_tools FROM chats WHERE id = $1", chat_id)
    assert isinstance(stored, str)
    assert json.loads(stored) == json.loads(declared)


async def test_row_a_new_chat_refers_to_has_to_exist(rig: Rig) -> None:
    await refused(rig, "model_config_id", model_config_id=uuid4())
    await refused(rig, "workspace_id", workspace_id=uuid4())
    await refused(rig, "owner_id", owner_id=uuid4())
    message = NewMessage(role=Role.USER, content=text("hello"), model_config_id=uuid4())
    with pytest.raises(InvalidInput) as refusal:
        await rig.create(message)
    assert refusal.value.field == "model_config_id"


# Models that do not exist


async def unknown_model(rig: Rig, chat_id: ChatId, name: str) -> None:
    """Run an action with the id of a model that does not exist."""
    model, message = uuid4(), rig.message("go on")
    match name:
        case "send":
            await rig.send(chat_id, "go on", model_config_id=model)
        case "edit":
            first = (await rig.history(chat_id))[0].id
            await rig.run(
                chat_id,
                machine.edit_message,
                first,
                content=message.content,
                edited_by=rig.user,
                model_config_id=model,
            )
        case "edit queued":
            (queued, *_) = await rig.queue(chat_id)
            await rig.run(
                chat_id, machine.edit_queued_message, queued.id, content=message.content, model_config_id=model
            )
        case "complete":
            results = [SubmittedResult("call-1", "1")]
            await rig.run(
                chat_id, machine.complete_requires_action, results, submitted_by=rig.user, model_config_id=model
            )
        case "commit":
            await rig.commit(chat_id, assistant("done", model_config_id=model))


@pytest.mark.parametrize(
    ("state", "name"),
    [
        (State.W, "send"),
        (State.E1, "send"),
        (State.R0, "send"),
        (State.W, "edit"),
        (State.R1, "edit"),
        (State.R1, "edit queued"),
        (State.A0, "complete"),
        (State.R0, "commit"),
        (State.R1, "commit"),
    ],
)
async def test_model_that_does_not_exist_is_refused_and_changes_nothing(rig: Rig, state: State, name: str) -> None:
    chat_id = await rig.chat(state)
    before = await rig.trace(chat_id)

    with pytest.raises(InvalidInput) as refusal:
        await unknown_model(rig, chat_id, name)

    assert refusal.value.field == "model_config_id"
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


# Client ids


@pytest.mark.parametrize("client_id", ["", "x" * (MAX_CLIENT_ID_CHARS + 1), *NOT_STORABLE.values()], ids=ascii)
def test_client_id_that_cannot_be_kept_is_refused(client_id: str) -> None:
    for make in (
        lambda: NewMessage(role=Role.USER, content=text("hello"), client_id=client_id),
        lambda: NewQueuedMessage(content=text("hello"), created_by=uuid4(), client_id=client_id),
    ):
        with pytest.raises(InvalidInput) as refusal:
            make()
        assert refusal.value.field == "client_id"


@pytest.mark.parametrize("client_id", ["x", "x" * MAX_CLIENT_ID_CHARS, "\U0001f426" * MAX_CLIENT_ID_CHARS], ids=ascii)
async def test_client_id_of_any_allowed_length_is_kept(rig: Rig, client_id: str) -> None:
    chat_id = await rig.chat(State.W)

    await rig.send(chat_id, "now", client_id=client_id)
    await rig.send(chat_id, "later", client_id=client_id[:-1] + "y")

    assert (await rig.history(chat_id))[-1].client_id == client_id
    assert [row.client_id for row in await rig.queue(chat_id)] == [client_id[:-1] + "y"]


# Numbers no row can have


@pytest.mark.parametrize("number", NO_IDS)
async def test_message_by_a_number_no_row_can_have_is_not_found(rig: Rig, number: int) -> None:
    chat_id = await rig.chat(State.R1)
    before = await rig.trace(chat_id)

    with pytest.raises(MessageNotFound):
        await rig.run(chat_id, machine.edit_message, MessageId(number), content=text("again"), edited_by=rig.user)

    assert await rig.trace(chat_id) == before


@pytest.mark.parametrize("state", [State.R1, State.E1])
@pytest.mark.parametrize("number", NO_IDS)
async def test_queued_message_by_a_number_no_row_can_have_is_not_found(rig: Rig, state: State, number: int) -> None:
    chat_id, queued_id = await rig.chat(state), QueuedMessageId(number)
    before = await rig.trace(chat_id)
    attempts = (
        lambda tx: machine.delete_queued_message(tx, queued_id),
        lambda tx: machine.edit_queued_message(tx, queued_id, content=text("again")),
        lambda tx: machine.promote_queued_message(tx, queued_id),
        lambda tx: machine.reorder_queue(tx, [queued_id]),
    )

    found: list[type[ChatError]] = []
    for attempt in attempts:
        with pytest.raises(ChatError) as refusal:
            await rig.update(chat_id, attempt)
        found.append(type(refusal.value))

    assert found == [QueuedMessageNotFound] * 3 + [QueueChanged]
    assert await rig.trace(chat_id) == before


async def test_refused_input_inside_a_bundle_undoes_what_came_before(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    async def send_twice(tx: machine.Tx) -> None:
        await machine.send_message(tx, rig.message("first"), BusyBehavior.QUEUE)
        await machine.send_message(tx, rig.message("second", model_config_id=uuid4()), BusyBehavior.QUEUE)

    with pytest.raises(InvalidInput):
        await rig.update(chat_id, send_twice)

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []
