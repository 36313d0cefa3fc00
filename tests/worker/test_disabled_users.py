"""Disabled accounts: their chats are stopped."""

from __future__ import annotations

from rookery.domain.access.rights import Role, UserActor
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import Say, Wait
from rookery.store.authorized.actor_store import Store
from rookery.store.db.hints import AccessHint
from rookery.store.people.users import Status as AccountStatus
from rookery.store.people.users import UserDraft, UserPatch, create_user
from rookery.testing import FakeClock
from rookery.worker.disabled_users import DisabledUsers
from tests.store.machine.machine_rig import Recorder
from tests.worker.worker_rig import WorkerRig, in_turn, open_house

HANG = (Say("half"), Wait(3600))


async def set_status(rig: WorkerRig, status: AccountStatus) -> None:
    """Change the status as an administrator does."""
    async with rig.database.api.acquire() as conn:
        admin = await conn.fetchval("SELECT id FROM users WHERE role = 'admin'")
        if admin is None:
            draft = UserDraft(email="root@example.test", role=Role.ADMIN)
            admin = (await create_user(conn, draft)).id
    store = Store(rig.database.api, machine=rig.machine, publisher=rig.replicas[0].notifier, clock=rig.clock)
    await store.as_actor(UserActor(admin, Role.ADMIN)).users.update(rig.user, UserPatch(status=status))


async def test_queued_messages_of_a_disabled_owner_stay_queued_and_unheard(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=in_turn(HANG, (Say("never"),)), clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        for words in ("first", "second"):
            await rig.send(chat_id, words, BusyBehavior.QUEUE)

        await set_status(rig, AccountStatus.DISABLED)
        chat = await rig.rested(chat_id)

        assert (chat.status, chat.queue_len) == (Status.ERROR, 2)
        assert "disabled" in (chat.last_error or "")
        assert await rig.story(chat_id) == [("user", "hello"), ("assistant", "half")]
        await set_status(rig, AccountStatus.ACTIVE)
        await rig.worker.wait_idle()
        assert ((await rig.chat(chat_id)).status, len(rig.calls)) == (Status.ERROR, 1)


async def test_running_chat_of_a_disabled_owner_rests_with_what_was_said(database_url: str) -> None:
    clock = FakeClock()
    async with open_house(database_url, script=HANG, clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")

        await set_status(rig, AccountStatus.DISABLED)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[1:] == [("assistant", "half")]


async def test_turn_that_begins_just_behind_the_change_asks_no_model(database_url: str) -> None:
    async with open_house(database_url, script=(Say("never"),)) as rig:
        await set_status(rig, AccountStatus.DISABLED)

        chat_id = await rig.ask("hello")
        chat = await rig.rested(chat_id)

        assert chat.status in (Status.ERROR, Status.WAITING)
        assert rig.calls == []


async def test_replica_makes_up_for_what_another_one_did_not_live_to_tell(database_url: str) -> None:
    """The account was disabled and a chat was started without any hint."""
    clock = FakeClock()
    async with open_house(database_url, script=HANG, clock=clock) as rig:
        chat_id = await rig.ask("hello")
        await clock.until_waiting("scripted-wait")
        async with rig.database.api.acquire() as conn:
            await conn.execute(
                "UPDATE users SET status = 'disabled', disabled_at = clock_timestamp() WHERE id = $1", rig.user
            )
        told = Recorder()
        looking = DisabledUsers(rig.machine, rig.database.api, publisher=told, clock=clock, every_seconds=2.0)

        assert await looking.run_once() == 1
        assert (await rig.rested(chat_id)).status == Status.WAITING
        assert await looking.run_once() == 0
        assert told.hints == [AccessHint(kind="user", id=str(rig.user))]
