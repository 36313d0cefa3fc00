"""What administrators did with an account, as its user is told."""

from __future__ import annotations

from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import ChatRig
from tests.api.more_servers import log_in
from tests.api.test_one_time_links import LINK, NEW_PASSWORD
from tests.api.test_users import running_chat

ACCESSES, SEEN, ME = "/api/v1/me/accesses", "/api/v1/me/accesses/seen", "/api/v1/users/me"
REASON = "a report about this chat"


async def test_reset_is_listed_for_its_user_and_told_at_the_next_login(rig: ApiRig, ada: Person) -> None:
    """Also where administrators may read nothing: a reset would be a way around that."""
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


async def test_what_users_do_to_themselves_is_no_access(rig: ApiRig, ada: Person) -> None:
    root = await log_in(rig, "root")
    me = (await root.get(ME)).json()["id"]

    await root.post(f"/api/v1/users/{me}/reset-password")

    again = await log_in(rig, "root")
    assert (await again.get(ACCESSES)).json()["items"] == []
    assert (await again.get(ME)).json()["access_notice"] is None
