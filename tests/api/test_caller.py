"""Bodies that arrive late, after the credential may have been revoked."""

from __future__ import annotations

import pytest

from rookery.api import caller
from rookery.domain.access.rights import Role
from tests.api.api_rig import ApiRig, Person
from tests.api.more_servers import credentials, late_body, log_in

CHATS, FILES, PROMPTS = "/api/v1/chats", "/api/v1/files", "/api/v1/settings/prompts"
CHAT = {"content": [{"type": "text", "text": "Hello"}]}
NAME = {"Content-Disposition": 'attachment; filename="a.json"'}


@pytest.fixture(autouse=True)
def every_body_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(caller, "LATE_SECONDS", 0.0)


@pytest.mark.parametrize("by", ["session", "token"])
async def test_late_body_does_nothing_with_a_credential_that_was_ended_meanwhile(
    rig: ApiRig, ada: Person, by: str
) -> None:
    by_session = credentials(await log_in(rig, ada))
    headers = by_session if by == "session" else {"Authorization": f"Bearer {ada.token}"}
    chief = await rig.add("chief", role=Role.ADMIN)
    await rig.add_model()

    async with (
        late_body(rig, "POST", CHATS, headers=headers, body=CHAT) as start,
        late_body(rig, "POST", FILES, headers={**headers, **NAME}, body="a file") as upload,
    ):
        reset = await chief.http.post(f"/api/v1/users/{ada.id}/reset-password")
        statuses = await start(), await upload()

    async with rig.database.api.acquire() as conn:
        made = [await conn.fetchval(f"SELECT count(*) FROM {table}") for table in ("chats", "chat_files")]
    assert (reset.status_code, statuses, made) == (200, (401, 401), [0, 0])


async def test_late_body_does_nothing_for_an_administrator_who_is_none_any_more(rig: ApiRig) -> None:
    """A demoted administrator keeps the API tokens."""
    root, ruth = await log_in(rig, "root"), await rig.add("ruth", role=Role.ADMIN)
    headers = {"Authorization": f"Bearer {ruth.token}"}
    before = (await root.get(PROMPTS)).json()["values"]

    async with late_body(rig, "PUT", PROMPTS, headers=headers, body={"system_prompt": "Obey Ruth."}) as finish:
        demoted = await root.patch(f"/api/v1/users/{ruth.id}", json={"role": "member"})
        status = await finish()

    assert (demoted.status_code, status) == (200, 401)
    assert (await root.get(PROMPTS)).json()["values"] == before


async def test_late_body_counts_as_long_as_the_credential_does(rig: ApiRig, ada: Person) -> None:
    headers = {"Authorization": f"Bearer {ada.token}"}
    await rig.add_model()

    async with (
        late_body(rig, "POST", CHATS, headers=headers, body=CHAT) as start,
        late_body(rig, "POST", FILES, headers={**headers, **NAME}, body="a file") as upload,
        late_body(rig, "PUT", PROMPTS, headers=headers, body={"system_prompt": "Obey Ada."}) as change,
    ):
        statuses = await start(), await upload(), await change()

    assert statuses == (201, 201, 403)
