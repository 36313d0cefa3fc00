from __future__ import annotations

from uuid import uuid4

import msgspec
import pytest

from rookery.domain.chat.errors import EditTargetNotUser, MessageNotFound
from rookery.domain.chat.messages import ChatId, Effort, MessageId, NewMessage, Role, Visibility
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.chats import messages
from rookery.store.machine import Edited
from tests.store.machine import shared_rig
from tests.store.machine.machine_rig import Rig, assistant, call, calling, closure_of, result, text, told, words

rig = shared_rig.rig

EDITABLE = (State.W, State.E0, State.E1, State.R0, State.R1, State.I0, State.I1, State.A0, State.A1)

HIDDEN = NewMessage(role=Role.USER, content=text("injected context"), visibility=Visibility.MODEL)
NOTICE = NewMessage(role=Role.USER, content=text("a notice"), visibility=Visibility.USER)
SUMMARY = (
    NewMessage(role=Role.USER, content=text("summary"), visibility=Visibility.MODEL, compressed=True),
    NewMessage(
        role=Role.ASSISTANT, content=(call("sum", "chat_summarized"),), visibility=Visibility.USER, compressed=True
    ),
    NewMessage(role=Role.TOOL, content=result("sum", "chat_summarized").content, compressed=True),
)


async def edit(rig: Rig, chat_id: ChatId, message_id: int, content: str = "edited", **fields: object) -> Edited:
    return await rig.update(
        chat_id,
        lambda tx: machine.edit_message(
            tx,
            MessageId(message_id),
            content=text(content),
            **{"edited_by": rig.user, **fields},  # type: ignore[arg-type]
        ),
    )


async def spoken(rig: Rig, chat_id: ChatId) -> list[str]:
    return [words(message) for message in await rig.history(chat_id)]


@pytest.mark.parametrize("state", EDITABLE)
async def test_edit_replaces_everything_from_the_message_on_and_starts_a_turn(rig: Rig, state: State) -> None:
    chat_id = await rig.chat(state, queued=2)
    fence = await rig.acquire(chat_id)
    before, history, queue = await rig.load(chat_id), await rig.history(chat_id), await rig.queue(chat_id)

    edited = await edit(rig, chat_id, history[0].id, "hello again")

    chat = await rig.load(chat_id)
    assert (chat.state, chat.last_error, chat.requires_action_deadline_at) == (State.R0, None, None)
    assert (chat.worker_id, chat.runner_id) == (fence.worker_id, fence.runner_id)
    assert told([edited.replacement]) == told(await rig.history(chat_id))
    assert words(edited.replacement) == "hello again"
    assert edited.deleted_ids == [message.id for message in history]
    assert edited.deleted_queued_ids == [row.id for row in queue]
    assert await rig.queue(chat_id) == []
    assert chat.history_version == chat.snapshot_version
    assert (chat.queue_version == chat.snapshot_version) is state.has_queue
    assert chat.snapshot_version == before.snapshot_version + 1


async def test_edit_of_a_chat_that_compacts_drops_the_order_to_compact(rig: Rig) -> None:
    chat_id = await rig.chat(State.E0)
    await rig.update(chat_id, machine.request_compaction)

    await edit(rig, chat_id, (await rig.history(chat_id))[0].id)

    chat = await rig.load(chat_id)
    assert (chat.state, chat.compaction_requested_at, chat.compaction_resume) == (State.R0, None, False)


async def test_rows_before_the_message_stay_as_they_are(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hi"))
    await rig.update(chat_id, machine.finish_turn)
    sent = await rig.send(chat_id, "second")
    await rig.commit(chat_id, assistant("answer"))
    kept = (await rig.history(chat_id))[:2]

    await edit(rig, chat_id, sent.inserted[-1].id)

    history = await rig.history(chat_id)
    assert history[:2] == kept
    assert [words(message) for message in history] == ["hello", "hi", "edited"]


async def test_hidden_and_compressed_rows_are_cut_too_but_only_visible_ones_reported(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hi"), HIDDEN, NOTICE, *SUMMARY)
    history = await rig.history(chat_id)

    edited = await edit(rig, chat_id, history[0].id)

    assert edited.deleted_ids == [m.id for m in history if m.visibility != "model"]
    assert len(edited.deleted_ids) == len(history) - 2
    assert await spoken(rig, chat_id) == ["edited"]
    chat = await rig.load(chat_id)
    cut = [message for message in await rig.history(chat_id, deleted=True) if message.deleted]
    assert [message.id for message in cut] == [message.id for message in history]
    assert {message.revision for message in cut} == {chat.snapshot_version}


async def test_queued_rows_are_reported_in_queue_order(rig: Rig) -> None:
    chat_id = await rig.chat(State.R1, queued=3)
    ids = [row.id for row in await rig.queue(chat_id)]
    await rig.run(chat_id, machine.reorder_queue, [ids[2], ids[0], ids[1]])

    edited = await edit(rig, chat_id, (await rig.history(chat_id))[0].id)

    assert edited.deleted_queued_ids == [ids[2], ids[0], ids[1]]


async def test_replacement_inherits_visibility_model_and_effort_and_takes_the_editor(rig: Rig) -> None:
    model, editor = await rig.add_model(), uuid4()
    for visibility in (Visibility.BOTH, Visibility.USER):
        first = NewMessage(
            role=Role.USER,
            content=text("hello"),
            visibility=visibility,
            created_by=rig.user,
            model_config_id=model,
            reasoning_effort=Effort.LOW,
            client_id="c-1",
        )
        chat_id = await rig.create(first)

        replacement = (await edit(rig, chat_id, await rig.last_id(chat_id), edited_by=editor)).replacement

        assert (replacement.role, replacement.visibility, replacement.compressed) == (Role.USER, visibility, False)
        assert (replacement.model_config_id, replacement.reasoning_effort) == (model, Effort.LOW)
        assert (replacement.created_by, replacement.client_id) == (editor, None)
        chat = await rig.load(chat_id)
        assert (chat.last_model_config_id, chat.last_reasoning_effort) == (model, "low")


async def test_edit_may_choose_another_model_and_effort(rig: Rig) -> None:
    chat_id, model = await rig.create(), await rig.add_model()

    edited = await edit(rig, chat_id, await rig.last_id(chat_id), model_config_id=model, reasoning_effort=Effort.NONE)

    assert (edited.replacement.model_config_id, edited.replacement.reasoning_effort) == (model, Effort.NONE)
    chat = await rig.load(chat_id)
    assert (chat.last_model_config_id, chat.last_reasoning_effort) == (model, "none")


async def test_suffix_follows_the_replacement(rig: Rig) -> None:
    chat_id = await rig.create()

    edited = await edit(rig, chat_id, await rig.last_id(chat_id), suffix=[HIDDEN, NOTICE])

    assert await spoken(rig, chat_id) == ["edited", "injected context", "a notice"]
    assert [words(message) for message in edited.suffix] == ["injected context", "a notice"]
    assert told([edited.replacement, *edited.suffix]) == told(await rig.history(chat_id))


async def test_call_in_the_suffix_is_answered_before_the_user_speaks_again(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    again = NewMessage(role=Role.USER, content=text("and?"), created_by=rig.user)

    edited = await edit(rig, chat_id, await rig.last_id(chat_id), suffix=[calling(call("a")), again])

    assert edited.closures == []
    assert [message.role for message in edited.suffix] == ["assistant", "tool", "user"]
    assert closure_of(edited.suffix[1]) == ("a", "message_edited")
    assert told([edited.replacement, *edited.suffix]) == told(await rig.history(chat_id))


async def test_calls_left_open_before_the_message_are_answered_before_the_replacement(rig: Rig) -> None:
    second = NewMessage(role=Role.USER, content=text("second"), created_by=rig.user)
    chat_id = await rig.create(NewMessage(role=Role.USER, content=text("first")), calling(call("a"), call("b", "run")))
    # Every transition answers the calls before such a row; one that was restored may follow them all the same.
    await rig.update(chat_id, lambda tx: machine.message_rows.insert(tx, [machine.message_rows.row_of(second)]))

    edited = await edit(rig, chat_id, await rig.last_id(chat_id))

    assert [closure_of(message) for message in edited.closures] == [("a", "message_edited"), ("b", "message_edited")]
    history = await rig.history(chat_id)
    assert told(history[2:]) == told([*edited.closures, edited.replacement])
    assert [message.role for message in history] == ["user", "assistant", "tool", "tool", "user"]


async def test_calls_that_are_cut_off_are_not_answered(rig: Rig) -> None:
    chat_id = await rig.chat(State.A0)

    edited = await edit(rig, chat_id, (await rig.history(chat_id))[0].id)

    assert edited.closures == []
    assert await spoken(rig, chat_id) == ["edited"]


async def test_target_that_people_do_not_see_here_is_not_found(rig: Rig) -> None:
    other = await rig.create()
    foreign = await rig.last_id(other)
    user = NewMessage(role=Role.USER, content=text("hello"), created_by=rig.user)
    chat_id = await rig.create(HIDDEN, SUMMARY[0], msgspec.structs.replace(user, compressed=True), user)
    hidden, boundary, compressed, visible = (message.id for message in await rig.history(chat_id))
    deleted = (await edit(rig, chat_id, visible)).deleted_ids[0]
    before = await rig.trace(chat_id)
    rig.published.clear()

    for target in (hidden, boundary, compressed, foreign, deleted, 2**40):
        with pytest.raises(MessageNotFound) as refusal:
            await edit(rig, chat_id, target)
        assert refusal.value.message_id == target

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_target_that_is_no_user_message_is_refused(rig: Rig) -> None:
    system = NewMessage(role=Role.SYSTEM, content=text("be kind"))
    chat_id = await rig.create(system)
    await rig.commit(chat_id, calling(call("a")), result("a"))
    before = await rig.trace(chat_id)
    rig.published.clear()

    for message in await rig.history(chat_id):
        with pytest.raises(EditTargetNotUser) as refusal:
            await edit(rig, chat_id, message.id)
        assert (refusal.value.message_id, refusal.value.field) == (message.id, "message_id")

    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_editing_before_a_summary_brings_the_older_rows_back_into_the_prompt(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hi"))
    await rig.update(chat_id, machine.finish_turn)
    sent = await rig.send(chat_id, "second")
    await rig.commit(chat_id, assistant("answer"))
    await rig.commit(chat_id, *SUMMARY)
    assert await prompt(rig, chat_id) == ["summary"]

    await edit(rig, chat_id, sent.inserted[-1].id)

    assert await prompt(rig, chat_id) == ["hello", "hi", "edited"]


async def test_editing_after_a_summary_keeps_it(rig: Rig) -> None:
    chat_id = await rig.create()
    await rig.commit(chat_id, assistant("hi"), *SUMMARY)
    await rig.update(chat_id, machine.finish_turn)
    sent = await rig.send(chat_id, "second")

    await edit(rig, chat_id, sent.inserted[-1].id)

    assert await prompt(rig, chat_id) == ["summary", "edited"]


async def prompt(rig: Rig, chat_id: ChatId) -> list[str]:
    async with rig.pool.acquire() as conn:
        return [words(row.message) for row in await messages.list_prompt(conn, chat_id)]
