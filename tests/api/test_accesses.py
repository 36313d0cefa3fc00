"""The list of accesses by administrators, and the notice to the user."""

from __future__ import annotations

from datetime import timedelta

import httpx2

from rookery.domain.access.rights import Role, UserActor
from rookery.store.people import audit
from rookery.store.people.audit import Event
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import ChatRig
from tests.api.more_servers import KEY, log_in
from tests.api.test_one_time_links import LINK, NEW_PASSWORD
from tests.api.test_users import running_chat

ACCESSES, SEEN, ME = "/api/v1/me/accesses", "/api/v1/me/accesses/seen", "/api/v1/users/me"
REASON = "a report about this chat"


async def notice_counts(client: httpx2.AsyncClient) -> tuple[int, int] | None:
    """Return the reads and resets in the notice of this client."""
    notice = (await client.get(ME)).json()["access_notice"]
    return None if notice is None else (notice["reads"], notice["password_resets"])


async def dismiss(client: httpx2.AsyncClient) -> None:
    notice = (await client.get(ME)).json()["access_notice"]
    assert (await client.post(SEEN, json={"through": notice["through"]})).status_code == 204


async def test_reset_is_listed_for_its_user_and_told_at_the_next_login(rig: ApiRig, ada: Person) -> None:
    """This also holds if administrators may not read chats: a reset would circumvent that."""
    chat = await running_chat(rig, ada)
    root = await log_in(rig, "root")
    await root.put("/api/v1/settings/chats", json={"admin_access": "none"})

    link = (await root.post(f"/api/v1/users/{ada.id}/reset-password")).json()["token"]
    await rig.nobody.post(LINK, json={"token": link, "password": NEW_PASSWORD})
    browser = await log_in(rig, ada, password=NEW_PASSWORD)

    notice = (await browser.get(ME)).json()["access_notice"]
    assert (notice["reads"], notice["password_resets"]) == (0, 1)
    for path in (ACCESSES, f"/api/v1/chats/{chat}/accesses"):
        (item,) = (await browser.get(path)).json()["items"]
        assert (item["kind"], item["user"]["username"], item["chat_id"]) == ("password_reset", "root", None)


async def test_break_glass_reads_are_listed_over_all_chats_and_told_until_dismissed(rig: ApiRig, ada: Person) -> None:
    await rig.add_model()
    chat_rig = ChatRig(rig, ada)
    chats = [await chat_rig.create() for _ in range(2)]
    browser, root = await log_in(rig, ada), await log_in(rig, "root")
    assert (await browser.get(ME)).json()["access_notice"] is None

    for chat in chats:
        read = await root.get(f"/api/v1/chats/{chat}", headers={"Rookery-Break-Glass": REASON})
        assert read.status_code == 200

    items = (await browser.get(ACCESSES)).json()["items"]
    assert [(item["kind"], item["chat_id"], item["reason"]) for item in items] == [
        ("read", str(chat), REASON) for chat in reversed(chats)
    ]
    notice = (await browser.get(ME)).json()["access_notice"]
    assert (notice["reads"], notice["password_resets"]) == (2, 0)
    assert (await browser.post(SEEN, json={"through": notice["through"]})).status_code == 204
    assert (await browser.get(ME)).json()["access_notice"] is None
    assert len((await browser.get(ACCESSES)).json()["items"]) == 2

    await root.get(f"/api/v1/chats/{chats[0]}", headers={"Rookery-Break-Glass": REASON})
    assert (await browser.get(ME)).json()["access_notice"]["reads"] == 1


async def test_user_of_a_reset_link_cannot_dismiss_the_notice_for_the_owner(rig: ApiRig, ada: Person) -> None:
    """Neither the session of the link nor a token created in it can: the owner logs in later, with the new password."""
    chat = await running_chat(rig, ada)
    root = await log_in(rig, "root")
    await root.get(f"/api/v1/chats/{chat}", headers={"Rookery-Break-Glass": REASON})
    link = (await root.post(f"/api/v1/users/{ada.id}/reset-password")).json()["token"]
    intruder = rig.client(None, Origin=rig.url)
    entered = await intruder.post(LINK, json={"token": link, "password": NEW_PASSWORD})
    intruder.headers[KEY] = entered.json()["session_key"]
    script = rig.client(await rig.token_of(ada.user))

    for client in (intruder, script):
        assert (await notice_counts(client)) == (1, 1)
        await dismiss(client)
        assert (await notice_counts(client)) is None

    for _ in range(2):
        owner = await log_in(rig, ada, password=NEW_PASSWORD)
        assert (await notice_counts(owner)) == (1, 1)
        await dismiss(owner)
        assert (await notice_counts(owner)) is None


async def test_notice_of_a_reset_a_month_ago_is_dismissed_for_all_logins(rig: ApiRig, ada: Person) -> None:
    root = await log_in(rig, "root")
    reset = Event(action=audit.RESET_PASSWORD, resource_type="user", resource_id=str(ada.id), subject_id=ada.id)
    by = UserActor((await root.get(ME)).json()["id"], Role.ADMIN)
    async with rig.database.api.acquire() as conn:
        await audit.record(conn, reset, actor=by, now=rig.clock.now() - timedelta(days=30, seconds=1))
    browser = await log_in(rig, ada)
    assert (await notice_counts(browser)) == (0, 1)

    await dismiss(browser)

    assert (await notice_counts(await log_in(rig, ada))) is None


async def test_notice_cannot_be_dismissed_in_advance(rig: ApiRig, ada: Person) -> None:
    browser, root = await log_in(rig, ada), await log_in(rig, "root")
    bad = [await browser.post(SEEN, json={"through": each}) for each in (0, -1, 2**63, "7", None)]
    assert [each.status_code for each in bad] == [400] * 5
    assert (await browser.post(SEEN, json={"through": 2**63 - 1})).status_code == 204

    chat = await running_chat(rig, ada)
    await root.get(f"/api/v1/chats/{chat}", headers={"Rookery-Break-Glass": REASON})

    assert (await browser.get(ME)).json()["access_notice"]["reads"] == 1


async def test_pages_of_accesses_follow_each_other(rig: ApiRig, ada: Person) -> None:
    chat = await running_chat(rig, ada)
    browser, root = await log_in(rig, ada), await log_in(rig, "root")
    for _ in range(3):
        await root.get(f"/api/v1/chats/{chat}", headers={"Rookery-Break-Glass": REASON})

    first = (await browser.get(ACCESSES, params={"limit": 2})).json()
    second = (await browser.get(ACCESSES, params={"limit": 2, "cursor": first["next_cursor"]})).json()

    assert (len(first["items"]), len(second["items"]), second["next_cursor"]) == (2, 1, None)


async def test_actions_of_users_on_their_own_accounts_are_not_accesses(rig: ApiRig, ada: Person) -> None:
    root = await log_in(rig, "root")
    me = (await root.get(ME)).json()["id"]

    await root.post(f"/api/v1/users/{me}/reset-password")

    again = await log_in(rig, "root")
    assert (await again.get(ACCESSES)).json()["items"] == []
    assert (await again.get(ME)).json()["access_notice"] is None
