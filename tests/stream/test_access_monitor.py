"""Streams of users who lose their rights."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from rookery.store.db.hints import AccessHint
from rookery.stream.access_monitor import Grant, Right, concerns
from rookery.stream.query_parameters import StreamParams
from tests.stream.stream_rig import Rig, open_rig

USER, CHAT, ROOT, OTHER = (UUID(int=n) for n in range(1, 5))
GRANT = Grant(user_id=USER, credential="session-1", chat_id=CHAT, root_id=ROOT)


@pytest.mark.parametrize(
    ("kind", "id", "expected"),
    [
        ("session", "session-1", True),
        ("session", "session-2", False),
        ("token", "session-1", True),
        ("user", str(USER), True),
        ("user", str(OTHER), False),
        ("chat_acl", str(CHAT), True),
        ("chat_acl", str(ROOT), True),
        ("chat_acl", str(OTHER), False),
        ("sharing", None, True),
        ("sharing", "off", True),
        ("session", None, True),
    ],
)
def test_hint_concerns_those_it_names(kind: str, id: str | None, expected: bool) -> None:
    assert concerns(AccessHint(kind=kind, id=id), GRANT) is expected


@pytest.mark.parametrize(("right", "code"), [(Right.LOGGED_OUT, 4401), (Right.WITHDRAWN, 4403)])
async def test_lost_right_ends_the_stream_on_every_replica(database_url: str, right: Right, code: int) -> None:
    async with open_rig(database_url, sites=2) as rig:
        chat_id, user = await rig.chat("one"), uuid4()
        viewers = [await site.view(chat_id, user=user) for site in rig.sites]
        other = await rig.site.view(chat_id)
        for site in rig.sites:
            site.rights[str(user)] = right

        rig.wire.deliver([AccessHint(kind="chat_acl", id=str(chat_id))])

        assert [(await viewer.ended())[0] for viewer in viewers] == [code, code]
        assert not other.task.done()


async def test_lost_hint_is_made_up_for_by_the_poller(rig: Rig) -> None:
    chat_id, user = await rig.chat("one"), uuid4()
    viewer = await rig.site.view(chat_id, user=user)
    await viewer.until("synced")
    rig.site.rights[str(user)] = Right.WITHDRAWN

    for _ in range(5):
        await rig.site.streams.poller.tick()
    was_open = not viewer.task.done()
    await rig.site.streams.poller.tick()

    assert was_open
    assert (await viewer.ended())[0] == 4403


async def test_hint_asks_only_about_those_it_concerns(rig: Rig) -> None:
    chat_id, user = await rig.chat("one"), uuid4()
    rig.site.rights[str(user)] = Right.LOGGED_OUT
    viewer = await rig.site.view(chat_id, user=user)
    other = await rig.site.view(chat_id)
    for each in (viewer, other):
        await each.until("synced")

    rig.wire.deliver([AccessHint(kind="session", id=str(user))])
    await viewer.ended()

    assert [[grant.user_id for grant in asked] for asked in rig.site.checks] == [[user]]


async def test_check_that_fails_withdraws_nothing(database_url: str) -> None:
    asked: list[int] = []

    async def check(grants: object) -> list[Right]:
        asked.append(1)
        if len(asked) == 1:
            raise ConnectionError("the database is away")
        return [Right.WITHDRAWN]

    async with open_rig(database_url, check=check) as rig:
        viewer = await rig.site.view(await rig.chat("one"))
        await viewer.until("synced")
        await rig.site.streams.access.recheck()
        was_open = not viewer.task.done()

        await rig.site.streams.access.recheck()

        assert was_open
        assert (await viewer.ended())[0] == 4403


async def test_missed_hints_are_made_up_for_by_a_resync(rig: Rig) -> None:
    user: UUID = uuid4()
    viewer = rig.site.watch(user)
    await viewer.until("ready")
    rig.site.rights[str(user)] = Right.LOGGED_OUT

    rig.site.bus.resync()

    assert (await viewer.ended())[0] == 4401


@pytest.mark.parametrize(("right", "code"), [(Right.LOGGED_OUT, 4401), (Right.WITHDRAWN, 4403), (Right.DELETED, 4404)])
async def test_right_that_is_lost_while_a_stream_opens_shows_nothing(rig: Rig, right: Right, code: int) -> None:
    chat_id, user = await rig.chat("secret"), uuid4()
    since = rig.site.streams.access.changes
    rig.wire.deliver([AccessHint(kind="chat_acl", id=str(chat_id))])  # after the check of the API
    rig.site.rights[str(user)] = right
    grant = Grant(user_id=user, credential=str(user), chat_id=chat_id, root_id=chat_id)
    opened = await rig.site.streams.open_chat(grant, StreamParams(), since=since)

    viewer = rig.site._run(opened.run, None)

    assert (await viewer.ended())[0] == code
    assert viewer.events == []


async def test_stream_that_opens_undisturbed_is_not_asked_about(rig: Rig) -> None:
    viewer = await rig.site.view(await rig.chat("one"))
    await viewer.until("synced")

    assert rig.site.checks == []
