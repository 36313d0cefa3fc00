"""Bad input to the page: names with markup, invalid images, wrong clocks, and a tab that slept for a long time."""

from __future__ import annotations

import json
import re
from datetime import datetime, timedelta

from playwright.sync_api import expect

from rookery.testing.fake_completions import Answer, FakeCall
from rookery.testing.fake_server import failure
from tests.browser.browser_user import PASSWORD, Visitor
from tests.browser.conftest import Visit
from tests.browser.faulty_connection import FaultyConnection
from tests.browser.hostile_texts import HOSTILE, damage, unfold
from tests.browser.model_script import ModelScript

BROKEN = "WebSocket connection|net::ERR_|status of 50[23]"
# A header of a picture, and nothing that could be one behind it.
NO_PICTURE = b"\x89PNG\r\n\x1a\n" + b"\x00\x00\x00\rIHDR" + b"\x00" * 64


def test_hostile_names_are_only_names_on_every_page(ada: Visitor, script: ModelScript) -> None:
    person = {"email": "mallory@example.org", "name": HOSTILE, "password": PASSWORD}
    ada.ask("POST", "/users", person)
    provider = ada.ask(
        "POST",
        "/model-providers",
        {"type": "openai_compat", "name": "hostile", "base_url": "http://127.0.0.1:9/v1", "display_name": HOSTILE},
    )
    model = {"provider_id": provider["id"], "model": HOSTILE, "display_name": HOSTILE, "context_limit": 1000}
    config = ada.ask("POST", "/model-configs", model)
    ada.ask("POST", "/tokens", {"name": HOSTILE, "scopes": ["all"], "expires_in_days": 1})
    unknown = FakeCall("look_up", json.dumps({"q": HOSTILE, HOSTILE: [HOSTILE]}))
    script.plays("be hostile", Answer(calls=[unknown]), Answer(reasoning=HOSTILE, text=HOSTILE))
    script.plays("fail", failure(401, HOSTILE))
    file = upload(ada, "<img src=x onerror=window.owned=1>.txt", "text/plain", HOSTILE.encode())
    chat = ada.chat("be hostile", title=HOSTILE, labels={"k": HOSTILE}, model_config_id=script.config(ada))
    for part in ({"type": "file", "file_id": file}, {"type": "text", "text": "fail"}):
        ada.wait_for_rest(chat["id"])
        ada.ask("POST", f"/chats/{chat['id']}/messages", {"content": [part]})
    assert ada.wait_for_rest(chat["id"])["status"] == "error"

    page = ada.go(f"/c/{chat['id']}?panel=info")
    expect(page.get_by_role("complementary", name="Panel").get_by_text(HOSTILE)).not_to_have_count(0)
    unfold(page)
    expect(page.get_by_role("feed").get_by_text(HOSTILE)).not_to_have_count(0)
    page.get_by_role("button", name=re.compile("^Model:")).click()
    expect(page.get_by_role("option", name=HOSTILE)).to_be_visible()
    found = {"chat": damage(page)}
    for path in ("/", "/search?q=hostile", "/settings/models", "/settings/providers", "/settings/tokens"):
        page = ada.go(path)
        expect(page.get_by_text(HOSTILE).first).to_be_attached()
        found[path] = damage(page)
    page = ada.go("/settings/users")
    expect(page.get_by_role("table").get_by_text(HOSTILE)).to_be_visible()
    found["users"] = damage(page)
    page = ada.go("/?label=" + HOSTILE)
    expect(page.get_by_role("textbox", name="Message")).to_be_visible()
    found["address"] = damage(page)
    ada.ask("DELETE", f"/model-configs/{config['id']}")
    ada.ask("DELETE", f"/model-providers/{provider['id']}")

    assert {place: wrong for place, wrong in found.items() if wrong} == {}


def test_picture_that_does_not_decode_is_a_file_like_others(ada: Visitor, script: ModelScript) -> None:
    file = upload(ada, "holiday.png", "image/png", NO_PICTURE)
    parts = [{"type": "text", "text": "look at this"}, {"type": "file", "file_id": file}]
    body = {"content": parts, "title": "A broken picture", "model_config_id": script.config(ada)}
    chat = ada.ask("POST", "/chats", body)
    page = ada.go(f"/c/{chat['id']}")

    link = page.get_by_role("link", name=re.compile("holiday.png"))
    with page.expect_download() as started:
        link.click()

    assert started.value.suggested_filename == "holiday.png"
    assert started.value.path().read_bytes() == NO_PICTURE


def test_page_that_was_offline_for_an_hour_is_complete_afterwards(
    visit: Visit, connection: FaultyConnection, script: ModelScript
) -> None:
    ada = visit(url=connection.url)
    ada.allow(BROKEN)
    chat = ada.chat("hello", title="Away for an hour", model_config_id=script.config(ada))
    ada.wait_for_rest(chat["id"])
    ada.page.clock.install()
    page = ada.go(f"/c/{chat['id']}")
    expect(page.get_by_role("img", name=re.compile("^Live"))).to_be_visible()
    page.get_by_role("textbox", name="Message").fill("typed before the tunnel")
    connection.is_down = True
    connection.cut()
    expect(page.get_by_role("img", name=re.compile("^Offline|^Connecting|^Not connected"))).to_be_visible()
    others = visit()
    others.ask("POST", f"/chats/{chat['id']}/messages", {"content": [{"type": "text", "text": "said meanwhile"}]})
    others.wait_for_rest(chat["id"])
    others.ask("PATCH", f"/chats/{chat['id']}", {"title": "Renamed meanwhile"})

    page.clock.fast_forward("01:00:00")
    connection.is_down = False
    page.clock.fast_forward("01:00")

    expect(page.get_by_role("img", name=re.compile("^Live"))).to_be_visible()
    expect(page.get_by_role("feed").get_by_text("said meanwhile", exact=True)).to_have_count(1)
    expect(page.get_by_role("feed").get_by_text("Understood.", exact=True)).to_have_count(2)
    expect(page.get_by_role("link", name=re.compile("Renamed meanwhile"))).to_be_visible()
    expect(page.get_by_role("textbox", name="Message")).to_have_value("typed before the tunnel")


def test_clock_that_is_a_day_ahead_counts_from_the_servers(visit: Visit, script: ModelScript) -> None:
    ada = visit()
    cue = script.cue()
    script.plays("what time is it", [cue, Answer(text="Later than you think.")])
    chat = ada.chat("what time is it", title="A wrong clock", model_config_id=script.config(ada))
    created = ada.ask("GET", f"/chats/{chat['id']}")["created_at"]
    ada.page.clock.install(time=datetime.fromisoformat(created) + timedelta(days=1))
    page = ada.go(f"/c/{chat['id']}")

    phase = page.get_by_test_id("phase")
    expect(phase).to_contain_text("Waiting for the model")
    # At most minutes on a busy machine, and not a day.
    assert not re.search(r"\d{4,} s", phase.inner_text()), phase.inner_text()
    cue.give()
    expect(page.get_by_role("main")).to_contain_text("Later than you think.")


def upload(visitor: Visitor, name: str, kind: str, data: bytes) -> str:
    """Upload a file as this user. Return its id."""
    answer = visitor.context.request.post(
        f"{visitor.url}/api/v1/files",
        data=data,
        headers={**visitor.headers, "Content-Type": kind, "Content-Disposition": f'attachment; filename="{name}"'},
    )
    assert answer.ok, answer.text()
    return str(answer.json()["id"])
