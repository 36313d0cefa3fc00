"""Links to files: a transition that stores content links the files that it names."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.errors import FileCapExceeded, FileUnavailable
from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import File, FileReference, Part, ToolResult
from rookery.domain.chat.states import State
from rookery.domain.chat.transitions import BusyBehavior
from rookery.store import machine
from rookery.store.machine import MAX_FILES_PER_CHAT
from tests.store.machine.held_bundles import until_blocked
from tests.store.machine.machine_rig import Rig, call, calling, text, words


def naming(*file_ids: UUID) -> tuple[Part, ...]:
    return (*text("see these"), *(File("text/plain", file_id=file_id) for file_id in file_ids))


def row(role: Role, *file_ids: UUID) -> NewMessage:
    return NewMessage(role=role, content=naming(*file_ids))


async def add_files(rig: Rig, count: int) -> list[UUID]:
    async with rig.pool.acquire() as conn:
        records = await conn.fetch(
            "INSERT INTO chat_files (owner_id, name, mime_type, size_bytes)"
            " SELECT $1, 'a.txt', 'text/plain', 1 FROM generate_series(1, $2) RETURNING id",
            rig.user,
            count,
        )
    return [record["id"] for record in records]


async def send_files(
    rig: Rig, chat_id: ChatId, file_ids: Iterable[UUID], busy: BusyBehavior = BusyBehavior.QUEUE
) -> machine.Sent:
    message = rig.message("", content=naming(*file_ids))
    return await rig.run(chat_id, machine.send_message, message, busy)


Writer = Callable[[Rig, UUID], Awaitable[ChatId]]


async def _create(rig: Rig, file_id: UUID) -> ChatId:
    return await rig.create(row(Role.USER, file_id))


def _send(state: State, busy: BusyBehavior = BusyBehavior.QUEUE) -> Writer:
    async def send(rig: Rig, file_id: UUID) -> ChatId:
        chat_id = await rig.chat(state)
        await send_files(rig, chat_id, [file_id], busy)
        return chat_id

    return send


async def _edit(rig: Rig, file_id: UUID) -> ChatId:
    chat_id = await rig.chat(State.W)
    await rig.run(
        chat_id, machine.edit_message, await rig.last_id(chat_id), content=naming(file_id), edited_by=rig.user
    )
    return chat_id


async def _edit_suffix(rig: Rig, file_id: UUID) -> ChatId:
    chat_id = await rig.chat(State.W)
    await rig.run(
        chat_id,
        machine.edit_message,
        await rig.last_id(chat_id),
        content=text("better"),
        edited_by=rig.user,
        suffix=[row(Role.USER, file_id)],
    )
    return chat_id


async def _edit_queued(rig: Rig, file_id: UUID) -> ChatId:
    chat_id = await rig.chat(State.E1)
    (queued,) = await rig.queue(chat_id)
    await rig.run(chat_id, machine.edit_queued_message, queued.id, content=naming(file_id))
    return chat_id


async def _commit_step(rig: Rig, file_id: UUID) -> ChatId:
    chat_id = await rig.chat(State.R0)
    attached = NewMessage(role=Role.TOOL, content=(ToolResult("a", "draw"), File("image/png", file_id=file_id)))
    await rig.commit(chat_id, calling(call("a", "draw")), attached)
    return chat_id


async def _finish_interruption(rig: Rig, file_id: UUID) -> ChatId:
    chat_id = await rig.chat(State.I0)
    await rig.run(chat_id, machine.finish_interruption, [row(Role.TOOL, file_id)])
    return chat_id


async def _complete(rig: Rig, file_id: UUID) -> ChatId:
    chat_id = await rig.chat(State.A0)
    await rig.run(
        chat_id,
        machine.complete_requires_action,
        [SubmittedResult("call-1", "{}")],
        submitted_by=rig.user,
        suffix=[row(Role.USER, file_id)],
    )
    return chat_id


WRITERS: dict[str, Writer] = {
    "create": _create,
    "send to W": _send(State.W),
    "send to E1": _send(State.E1),
    "send to R0": _send(State.R0),
    "send to I1": _send(State.I1),
    "send to A0": _send(State.A0),
    "interrupt A0": _send(State.A0, BusyBehavior.INTERRUPT),
    "interrupt A1": _send(State.A1, BusyBehavior.INTERRUPT),
    "edit": _edit,
    "edit suffix": _edit_suffix,
    "edit queued": _edit_queued,
    "commit_step": _commit_step,
    "finish_interruption": _finish_interruption,
    "complete_requires_action": _complete,
}


async def test_every_transition_that_stores_content_links_the_files_it_names(rig: Rig) -> None:
    for name, write in WRITERS.items():
        file_id = await rig.add_file()

        chat_id = await write(rig, file_id)

        assert await rig.linked_files(chat_id) == {file_id}, name


async def test_only_stored_files_are_links(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    content = (
        FileReference("a.py", 1, 2, "quoted"),
        File("text/plain", data="aGVsbG8="),
    )

    await rig.run(chat_id, machine.send_message, rig.message("", content=content), BusyBehavior.QUEUE)

    assert await rig.linked_files(chat_id) == set()


async def test_file_that_does_not_exist_undoes_the_whole_message(rig: Rig) -> None:
    known, missing = await rig.add_file(), sorted([uuid4(), uuid4()])
    for state in (State.W, State.E1, State.R0, State.A0):
        chat_id = await rig.chat(state)
        before = await rig.trace(chat_id)

        with pytest.raises(FileUnavailable) as refusal:
            await send_files(rig, chat_id, [missing[1], known, missing[0]])

        assert refusal.value.file_ids == tuple(missing)
        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []


async def test_chat_that_names_a_missing_file_is_not_created(rig: Rig) -> None:
    with pytest.raises(FileUnavailable):
        await rig.create(row(Role.USER, uuid4()))

    assert await rig.value("SELECT count(*) FROM chats") == 0


async def test_file_over_the_cap_undoes_the_whole_message(rig: Rig) -> None:
    files = await add_files(rig, MAX_FILES_PER_CHAT + 1)
    for state in (State.W, State.R0):
        chat_id = await rig.create(row(Role.USER, *files[:-2]))
        if state is State.W:
            await rig.update(chat_id, machine.finish_turn)
        before = await rig.trace(chat_id)
        rig.published.clear()

        with pytest.raises(FileCapExceeded) as refusal:
            await send_files(rig, chat_id, files[-2:])

        assert refusal.value.maximum == MAX_FILES_PER_CHAT == 50
        assert await rig.trace(chat_id) == before
        assert rig.published.hints == []


async def test_files_up_to_the_cap_are_accepted_and_linked_ones_are_free(rig: Rig) -> None:
    files = await add_files(rig, MAX_FILES_PER_CHAT)
    chat_id = await rig.create(row(Role.USER, *files[:-1]))

    await send_files(rig, chat_id, [files[-1], *files[:3], files[-1]])
    await send_files(rig, chat_id, files)

    assert await rig.linked_files(chat_id) == set(files)


async def test_new_file_among_linked_ones_at_the_cap_is_refused(rig: Rig) -> None:
    files = await add_files(rig, MAX_FILES_PER_CHAT + 1)
    chat_id = await rig.create(row(Role.USER, *files[:-1]))

    with pytest.raises(FileCapExceeded):
        await send_files(rig, chat_id, files)

    assert await rig.linked_files(chat_id) == set(files[:-1])


async def test_sends_at_once_never_exceed_the_cap(rig: Rig) -> None:
    files = await add_files(rig, MAX_FILES_PER_CHAT + 4)
    chat_id = await rig.create(row(Role.USER, *files[: MAX_FILES_PER_CHAT - 2]))

    sends = (send_files(rig, chat_id, [file_id]) for file_id in files[MAX_FILES_PER_CHAT - 2 :])
    outcomes = await asyncio.gather(*sends, return_exceptions=True)

    assert sum(isinstance(outcome, FileCapExceeded) for outcome in outcomes) == 4
    assert sum(isinstance(outcome, machine.Sent) for outcome in outcomes) == 2
    assert len(await rig.linked_files(chat_id)) == MAX_FILES_PER_CHAT
    assert len(await rig.queue(chat_id)) == 2


async def test_links_outlive_edits_and_deleted_queue_rows(rig: Rig) -> None:
    first, queued, edited = await add_files(rig, 3)
    chat_id = await rig.create(row(Role.USER, first))
    await send_files(rig, chat_id, [queued])
    await rig.update(chat_id, machine.clear_queue)

    await rig.run(chat_id, machine.edit_message, await rig.last_id(chat_id), content=naming(edited), edited_by=rig.user)

    assert await rig.linked_files(chat_id) == {first, queued, edited}


async def test_promoted_message_finds_its_file_linked_already(rig: Rig) -> None:
    files = await add_files(rig, MAX_FILES_PER_CHAT)
    chat_id = await rig.chat(State.R0)
    await send_files(rig, chat_id, files)

    finished = await rig.update(chat_id, machine.finish_turn)

    assert finished.promoted is not None
    assert words(finished.promoted) == "see these"
    assert await rig.linked_files(chat_id) == set(files)


async def test_file_purged_between_the_look_and_the_link_is_unavailable(rig: Rig) -> None:
    chat_id, file_id = await rig.chat(State.W), await rig.add_file()
    before = await rig.trace(chat_id)
    async with rig.pool.acquire() as purge:
        transaction = purge.transaction()
        await transaction.start()
        await purge.execute("DELETE FROM chat_files WHERE id = $1", file_id)
        sending = asyncio.create_task(send_files(rig, chat_id, [file_id]))
        await until_blocked(rig)
        await transaction.commit()

    with pytest.raises(FileUnavailable) as refusal:
        await sending

    assert refusal.value.file_ids == (file_id,)
    assert await rig.trace(chat_id) == before


async def test_file_that_another_chat_links_can_be_linked_here_too(rig: Rig) -> None:
    file_id = await rig.add_file()

    chats = [await rig.create(row(Role.USER, file_id)) for _ in range(2)]

    assert [await rig.linked_files(chat_id) for chat_id in chats] == [{file_id}, {file_id}]
