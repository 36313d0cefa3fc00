"""Synthetic results: the calls that each transition answers, and the calls that count as open."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from uuid import uuid4

import msgspec
import pytest

from rookery.domain.chat import open_tool_calls
from rookery.domain.chat.chat import LastError
from rookery.domain.chat.messages import ChatId, Message, NewMessage, Role, Visibility
from rookery.domain.chat.open_tool_calls import CallRow, CloseReason
from rookery.domain.chat.parts import CONTENT_VERSION, ToolResult
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import Tx
from tests.store.machine.machine_rig import (
    CLIENT_TOOL,
    FAILED,
    Rig,
    assistant,
    call,
    calling,
    closure_of,
    result,
    text,
    told,
    words,
)

# Every chat below has these open: one of the client's and one of the server's. The provider's own is never answered.
CALLS = calling(
    call("client", CLIENT_TOOL), call("provider", "web_search", provider_executed=True), call("server", "run")
)
ALL = ["client", "server"]
DYNAMIC = ["client"]


async def with_open_calls(rig: Rig, state: State) -> ChatId:
    chat_id = await rig.create()
    await rig.commit(chat_id, CALLS)
    if state in (State.A0, State.A1):
        await rig.run(chat_id, machine.enter_requires_action, timeout_seconds=0)
    if state.has_queue:
        await rig.send(chat_id, "queued 0")
    if state is State.W:
        await rig.update(chat_id, machine.finish_turn)
    if state in (State.E0, State.E1):
        await rig.run(chat_id, machine.finish_error, FAILED)
    if state in (State.I0, State.I1):
        await rig.update(chat_id, machine.interrupt)
    assert await rig.state(chat_id) is state
    return chat_id


Occasion = Callable[[Tx, Rig], Awaitable[Sequence[Message]]]


def _send(busy: BusyBehavior) -> Occasion:
    async def send(tx: Tx, rig: Rig) -> Sequence[Message]:
        return (await machine.send_message(tx, rig.message("go on"), busy)).inserted

    return send


async def _promote(tx: Tx, rig: Rig) -> Sequence[Message]:
    return (await machine.promote_queued_message(tx, (await machine.queue_rows.list_queue(tx))[0].id)).inserted


async def _finish_turn(tx: Tx, rig: Rig) -> Sequence[Message]:
    finished = await machine.finish_turn(tx)
    assert finished.promoted is not None
    return [*finished.closures, finished.promoted]


async def _interrupt(tx: Tx, rig: Rig) -> Sequence[Message]:
    return (await machine.interrupt(tx)).inserted


async def _finish_interruption(tx: Tx, rig: Rig) -> Sequence[Message]:
    return (await machine.finish_interruption(tx)).inserted


async def _cancel(tx: Tx, rig: Rig) -> Sequence[Message]:
    return await machine.cancel_requires_action(tx)


# (from, what happens, reason, which calls, whether a user row follows)
OCCASIONS: list[tuple[State, Occasion, CloseReason, list[str], bool]] = [
    (State.W, _send(BusyBehavior.QUEUE), CloseReason.NEW_USER_MESSAGE, ALL, True),
    (State.W, _send(BusyBehavior.INTERRUPT), CloseReason.NEW_USER_MESSAGE, ALL, True),
    (State.E0, _send(BusyBehavior.QUEUE), CloseReason.NEW_USER_MESSAGE, ALL, True),
    (State.E0, _send(BusyBehavior.STEER), CloseReason.NEW_USER_MESSAGE, ALL, True),
    (State.E1, _send(BusyBehavior.QUEUE), CloseReason.QUEUED_MESSAGE, ALL, True),
    (State.E1, _send(BusyBehavior.INTERRUPT), CloseReason.NEW_USER_MESSAGE, ALL, True),
    (State.E1, _promote, CloseReason.QUEUED_MESSAGE, ALL, True),
    (State.A1, _promote, CloseReason.QUEUED_MESSAGE, ALL, True),
    (State.R1, _finish_turn, CloseReason.QUEUED_MESSAGE, ALL, True),
    (State.A0, _interrupt, CloseReason.INTERRUPTED_BY_USER, ALL, False),
    (State.A1, _interrupt, CloseReason.INTERRUPTED_BY_USER, ALL, True),
    (State.A0, _send(BusyBehavior.INTERRUPT), CloseReason.INTERRUPTED_BY_MESSAGE, ALL, True),
    (State.A1, _send(BusyBehavior.INTERRUPT), CloseReason.INTERRUPTED_BY_MESSAGE, ALL, True),
    (State.I0, _finish_interruption, CloseReason.INTERRUPTED, ALL, False),
    (State.I1, _finish_interruption, CloseReason.INTERRUPTED, ALL, True),
    (State.A0, _cancel, CloseReason.ACTION_TIMED_OUT, DYNAMIC, False),
    (State.A1, _cancel, CloseReason.ACTION_TIMED_OUT, DYNAMIC, False),
]


async def test_each_occasion_answers_its_calls_with_its_reason_before_the_user_row(rig: Rig) -> None:
    for state, occasion, reason, closed, user_row in OCCASIONS:
        chat_id = await with_open_calls(rig, state)
        known = await rig.last_id(chat_id)

        returned = await rig.run(chat_id, occasion, rig)

        added = [message for message in await rig.history(chat_id) if message.id > known]
        case = (state, reason)
        assert told(returned) == told(added), case
        assert [closure_of(message) for message in added[: len(closed)]] == [(each, reason) for each in closed], case
        assert [message.role for message in added[len(closed) :]] == ["user"] * user_row, case
        left = [each.tool_call_id for each in await rig.update(chat_id, machine.open_calls.turn_calls)]
        assert left == [each for each in ALL if each not in closed], case


async def test_edit_answers_what_is_left_open_before_the_message(rig: Rig) -> None:
    second = NewMessage(role=Role.USER, content=text("second"), created_by=rig.user)
    chat_id = await rig.create(NewMessage(role=Role.USER, content=text("first")), CALLS)
    # Every transition answers the calls before such a row; one that was restored may follow them all the same.
    await rig.update(chat_id, lambda tx: machine.message_rows.insert(tx, [machine.message_rows.row_of(second)]))

    edited = await rig.run(
        chat_id, machine.edit_message, await rig.last_id(chat_id), content=text("better"), edited_by=rig.user
    )

    assert [closure_of(message) for message in edited.closures] == [(each, "message_edited") for each in ALL]
    assert max(message.id for message in edited.closures) < edited.replacement.id


async def test_repair_answers_the_clients_calls_only(rig: Rig) -> None:
    for state in (State.A0, State.A1):
        chat_id = await with_open_calls(rig, state)
        await rig.force(chat_id, "archived = true")
        history, before = await rig.history(chat_id), await rig.load(chat_id)
        assert before.state is State.INVALID

        closures = await rig.update(chat_id, machine.reconcile_invalid_state)

        assert [closure_of(message) for message in closures] == [("client", "invalid_state")]
        assert told(await rig.history(chat_id)) == told([*history, *closures])
        chat = await rig.load(chat_id)
        assert chat.state is (State.E1 if state.has_queue else State.E0)
        assert chat.history_version == chat.snapshot_version
        assert chat.queue_version == before.queue_version


async def test_repair_without_open_calls_moves_no_history_and_takes_the_error_it_is_given(rig: Rig) -> None:
    chat_id = await rig.invalid_chat(queued=2)
    before = await rig.load(chat_id)
    given = LastError(message="Restored from a backup. Send a message to continue.", retryable=False)

    assert await rig.run(chat_id, machine.reconcile_invalid_state, given) == []

    chat = await rig.load(chat_id)
    assert (chat.state, chat.history_version, chat.queue_len) == (State.E1, before.history_version, 2)
    assert chat.last_error is not None
    assert msgspec.json.decode(chat.last_error, type=LastError) == given


async def test_closure_is_a_row_of_its_own_that_people_and_model_see(rig: Rig) -> None:
    model = await rig.add_model()
    chat_id = await rig.create()
    await rig.commit(chat_id, NewMessage(role=Role.ASSISTANT, content=CALLS.content, model_config_id=model))
    await rig.update(chat_id, machine.finish_turn)
    author = uuid4()

    await rig.send(chat_id, "go on", created_by=author, model_config_id=rig.model)

    *_, client, server, user = await rig.history(chat_id)
    for row in (client, server):
        assert (row.role, row.visibility, row.compressed, row.created_by) == (Role.TOOL, Visibility.BOTH, False, None)
        assert (row.model_config_id, row.content_version) == (model, CONTENT_VERSION)
        (part,) = row.parts()
        assert isinstance(part, ToolResult)
        assert part.created_at is not None
    assert client.id < server.id < user.id
    assert {row.revision for row in (client, server, user)} == {(await rig.load(chat_id)).snapshot_version}
    assert (await rig.load(chat_id)).last_model_config_id == rig.model


# What is open, read from the database


async def open_ids(rig: Rig, chat_id: ChatId) -> list[str]:
    return [each.tool_call_id for each in await rig.update(chat_id, machine.open_calls.turn_calls)]


def hidden_user() -> NewMessage:
    return NewMessage(role=Role.USER, content=text("context"), visibility=Visibility.MODEL)


def compressed(message: NewMessage) -> NewMessage:
    return msgspec.structs.replace(message, compressed=True)


async def test_turn_starts_after_the_last_live_user_row_that_people_see(rig: Rig) -> None:
    user = NewMessage(role=Role.USER, content=text("hello"))
    notice = msgspec.structs.replace(user, visibility=Visibility.USER)
    for rows, expected in (
        ([user, calling(call("a"))], ["a"]),
        ([calling(call("a")), user], []),
        ([calling(call("a")), notice], []),
        ([calling(call("a")), user, calling(call("b"))], ["b"]),
        ([user, calling(call("a")), hidden_user(), calling(call("b"))], ["a", "b"]),
        ([user, calling(call("a")), compressed(user)], ["a"]),
        ([calling(call("a"))], ["a"]),
        ([user, compressed(calling(call("a"))), calling(call("b"))], ["b"]),
        ([user, calling(call("a")), compressed(result("a"))], ["a"]),
        ([user, calling(call("a")), assistant("attached"), result("a")], []),
    ):
        assert await open_ids(rig, await rig.create(*rows)) == expected


async def test_deleted_rows_neither_call_nor_answer_nor_start_a_turn(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a", "run")))
    known = await rig.last_id(chat_id)
    await rig.commit(
        chat_id, result("a", "run"), calling(call("b", "run")), NewMessage(role=Role.USER, content=text("x"))
    )
    assert await open_ids(rig, chat_id) == []

    await rig.update(
        chat_id,
        lambda tx: tx.conn.execute(
            "UPDATE chat_messages SET deleted = true WHERE chat_id = $1 AND id > $2", chat_id, known
        ),
    )

    assert await open_ids(rig, chat_id) == ["a"]


async def test_calls_of_other_chats_are_not_looked_at(rig: Rig) -> None:
    busy, other = await rig.create(), await rig.create()
    await rig.commit(busy, calling(call("a")))
    await rig.commit(other, result("a"))

    assert (await open_ids(rig, busy), await open_ids(rig, other)) == (["a"], [])


CALL_A = '{"type": "tool-call", "tool_call_id": "a", "tool_name": "run"}'
RESULT_A = '{"type": "tool-result", "tool_call_id": "a", "tool_name": "run"}'
STORED = [
    ("assistant", f"[{CALL_A}]"),
    ("assistant", f"[{CALL_A}, {RESULT_A}]"),
    ("assistant", f'[{{"type": "hologram"}}, {CALL_A}]'),
    ("assistant", f'[{{"type": "text"}}, {CALL_A}]'),
    ("assistant", '[{"type": "tool-call", "tool_name": "run"}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": "a"}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": 7, "tool_name": "run"}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": null, "tool_name": "run"}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": "a", "tool_name": "run", "provider_executed": true}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": "a", "tool_name": "run", "provider_executed": false}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": "a", "tool_name": "run", "provider_executed": null}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": "a", "tool_name": "run", "args": {"type": "tool-result"}}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": "", "tool_name": "run"}]'),
    ("assistant", '[{"type": "tool-call", "tool_call_id": "\ue000\ue001", "tool_name": "run"}]'),
    ("assistant", "[]"),
    ("assistant", "[7]"),
    ("tool", f"[{RESULT_A}]"),
    ("tool", '[{"type": "tool-result", "tool_call_id": "a"}]'),
    ("tool", f"[{CALL_A}]"),
    ("tool", f'[{RESULT_A}, {{"type": "tool-result", "tool_name": "run"}}]'),
    ("tool", f'[{RESULT_A}, {{"type": "tool-result", "tool_call_id": "b"}}]'),
    ("tool", f'[{RESULT_A}, {{"type": "tool-result", "tool_call_id": 7, "tool_name": "run"}}]'),
    ("tool", '[{"type": "tool-result", "tool_call_id": "a", "tool_name": "run", "provider_executed": "no"}]'),
    ("tool", '[{"type": "tool-result", "tool_call_id": "a", "tool_name": "run", "provider_executed": null}]'),
]


async def test_database_and_rules_agree_on_what_is_open_however_a_row_looks(rig: Rig) -> None:
    """Transitions read only parts of rows from the database; worker and stream read whole rows."""
    for role, content in STORED:
        chat_id = await rig.create()
        await put(rig, chat_id, "assistant", f"[{CALL_A}]" if role == "tool" else "[]")
        await put(rig, chat_id, role, content)
        rows = [
            CallRow(message.id, message.role, message.content, message.content_version)
            for message in (await rig.history(chat_id))[1:]
        ]

        found = await rig.update(chat_id, machine.open_calls.turn_calls)
        await rig.update(chat_id, machine.finish_turn)
        sent = await rig.send(chat_id, "go on")

        expected = open_tool_calls.open_calls(rows)
        assert found == expected, (role, content)
        answered = [closure_of(message)[0] for message in sent.inserted[:-1]]
        assert answered == [each.tool_call_id for each in expected], (role, content)


async def test_row_that_cannot_be_read_is_logged_and_wedges_nothing(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a", "run")))
    await put(rig, chat_id, "assistant", '[{"type": "tool-call"}]')
    await put(rig, chat_id, "tool", f"[{RESULT_A}]", version=CONTENT_VERSION + 1)
    broken = [message.id for message in (await rig.history(chat_id))[-2:]]
    await rig.update(chat_id, machine.finish_turn)

    with caplog.at_level(logging.WARNING, "rookery.store.machine"):
        sent = await rig.send(chat_id, "go on")

    assert [closure_of(message) for message in sent.inserted[:-1]] == [("a", "new_user_message")]
    assert words(sent.inserted[-1]) == "go on"
    logged = [record.__dict__["fields"] for record in caplog.records if record.getMessage() == "message_unreadable"]
    assert [(fields["chat_id"], fields["message_id"]) for fields in logged] == [(chat_id, each) for each in broken]


async def test_id_with_characters_that_jsonb_refuses_is_answered_under_the_same_id(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, calling(call("a\x00\ue000b", "run\x00")))
    await rig.update(chat_id, machine.finish_turn)

    await rig.send(chat_id, "go on")

    (part,) = (await rig.history(chat_id))[-2].parts()
    assert isinstance(part, ToolResult)
    assert (part.tool_call_id, part.tool_name) == ("a\x00\ue000b", "run\x00")


async def put(rig: Rig, chat_id: ChatId, role: str, content: str, *, version: int = CONTENT_VERSION) -> None:
    """Insert a row as a newer server, a restore or manual SQL could leave it."""
    await rig.update(
        chat_id,
        lambda tx: tx.conn.execute(
            "INSERT INTO chat_messages (chat_id, role, visibility, content, content_version)"
            " VALUES ($1, $2, 'both', $3, $4)",
            chat_id,
            role,
            content,
            version,
        ),
    )
