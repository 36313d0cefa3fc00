"""The stream of a chat's repositories: who may open it, its events, and its end."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import ClientConnection

from rookery.api.routers import workspace_files
from rookery.workspaces import chat_repositories
from tests.api.chat_rig import text
from tests.api.test_stream_endpoints import bearer, close_code, opened, refusal
from tests.api.test_workspaces import WORKSPACES, Site, open_site
from tests.eventually import until


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(database_url, tmp_path) as found:
        await found.rig.add_model()
        yield found


def repository(root: str = "/p", **fields: Any) -> dict[str, Any]:
    return {"root": root, "branch": "main", "diff": "+x", "additions": 1, "deletions": 0, "changed_files": 1, **fields}


async def new_chat(site: Site, **fields: Any) -> str:
    made = await site.ada.http.post("/api/v1/chats", json={"content": text("hi"), **fields})
    assert made.status_code == 201, made.text
    chat_id: str = made.json()["id"]
    return chat_id


async def running(site: Site) -> tuple[str, str]:
    """Create a running workspace and a chat in it."""
    made = (await site.create())["workspace"]["id"]
    await site.until(made, "running")
    return made, await new_chat(site, workspace_id=made)


async def changes(socket: ClientConnection) -> list[dict[str, Any]]:
    while True:
        for event in json.loads(await socket.recv()):
            if event["type"] == "changes":
                found: list[dict[str, Any]] = event["repositories"]
                return found


def path_of(chat_id: str) -> str:
    return f"/api/v1/chats/{chat_id}/git"


async def test_owner_sees_changes_as_they_come_and_lists_keep_the_counts(site: Site) -> None:
    _, chat = await running(site)
    site.driver.repositories = [repository(untracked_omitted=2)]

    async with opened(site.rig, path_of(chat), **bearer(site.ada)) as socket:
        (first,) = await changes(socket)
        site.driver.repositories = [repository(additions=2**40, diff="+x+y")]
        await socket.send(json.dumps({"type": "refresh"}))
        (second,) = await changes(socket)

        async def is_kept() -> bool:
            shown = (await site.ada.http.get(f"/api/v1/chats/{chat}")).json()["git"]
            return shown is not None and shown["additions"] == 2**31 - 1

        await until(is_kept, timeout=30)
        site.driver.repositories = [repository(removed=True)]
        await socket.send(json.dumps({"type": "refresh"}))
        (third,) = await changes(socket)

        async def is_forgotten() -> bool:
            return (await site.ada.http.get(f"/api/v1/chats/{chat}")).json()["git"] is None

        await until(is_forgotten, timeout=30)

    assert (first["root"], first["additions"], first["diff"], first["untracked_omitted"]) == ("/p", 1, "+x", 2)
    assert (second["additions"], second["diff"]) == (2**40, "+x+y")
    assert third["removed"] is True


async def test_without_a_workspace_that_answers_there_is_no_upgrade(site: Site) -> None:
    headers = bearer(site.ada)
    workspace, chat = await running(site)
    alone = await new_chat(site)
    assert await refusal(site.rig, path_of(alone), **headers) == (409, "no_workspace")
    assert await refusal(site.rig, path_of("x"), **headers) == (400, "invalid")

    await site.ada.http.post(f"{WORKSPACES}/{workspace}/stop")
    await site.until(workspace, "stopped")
    assert await refusal(site.rig, path_of(chat), **headers) == (409, "workspace_not_running")

    async with site.rig.database.api.acquire() as conn:
        await conn.execute("UPDATE workspaces SET status = 'running', node = 'elsewhere'")
    assert await refusal(site.rig, path_of(chat), **headers) == (409, "agent_unreachable")


async def test_neither_readers_nor_administrators_look_into_the_workspace(site: Site) -> None:
    _, chat = await running(site)
    eve, mallory = await site.rig.add("eve"), await site.rig.add("mallory")
    await site.ada.http.patch(f"/api/v1/chats/{chat}/acl", json={"users": {str(eve.id): "read"}})

    assert (await refusal(site.rig, path_of(chat), **bearer(eve)))[0] == 403
    assert (await refusal(site.rig, path_of(chat), **bearer(site.root)))[0] in (403, 404)
    assert (await refusal(site.rig, path_of(chat), **bearer(mallory)))[0] == 404
    assert (await refusal(site.rig, path_of(chat)))[0] == 401
    assert (await refusal(site.rig, path_of(chat), Origin="https://evil.example"))[0] in (401, 403)


async def test_ends_when_the_workspace_does(site: Site) -> None:
    workspace, chat = await running(site)

    async with opened(site.rig, path_of(chat), **bearer(site.ada)) as socket:
        assert await changes(socket) == []
        await site.driver.kill(workspace)
        assert await close_code(socket) == 1000


async def test_ends_when_the_chat_gets_another_workspace(site: Site) -> None:
    _, chat = await running(site)

    async with opened(site.rig, path_of(chat), **bearer(site.ada)) as socket:
        assert await changes(socket) == []
        await site.ada.http.patch(f"/api/v1/chats/{chat}", json={"workspace_id": None})
        site.driver.repositories = [repository()]
        await socket.send(json.dumps({"type": "refresh"}))
        assert await close_code(socket) == 1000

    assert (await site.ada.http.get(f"/api/v1/chats/{chat}")).json()["git"] is None


async def test_places_at_the_agent_are_few_and_given_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_repositories, "MAX_WATCHES", 1)
    _, chat = await running(site)
    headers = bearer(site.ada)

    async with opened(site.rig, path_of(chat), **headers) as socket:
        await changes(socket)
        assert await refusal(site.rig, path_of(chat), **headers) == (429, "too_many_streams")

    async def is_free() -> bool:
        return (await site.ada.http.get(f"/api/v1/chats/{chat}/diff")).status_code == 200 and not await is_taken()

    async def is_taken() -> bool:
        return bool(site.rig.replica.streams.sessions)

    await until(is_free, timeout=30)
    async with opened(site.rig, path_of(chat), **headers) as socket:
        assert await changes(socket) == []


async def test_owner_lists_folders_below_the_place_of_work(site: Site) -> None:
    workspace, chat = await running(site)
    site.driver.folders["/home/agent/project/src"] = [{"name": "lib", "is_dir": True}, {"name": "a.py", "size": 3}]
    address = f"/api/v1/chats/{chat}/folder"

    found = await site.ada.http.get(address, params={"path": "src/"})
    missing = await site.ada.http.get(address, params={"path": "nowhere"})
    outside = [await site.ada.http.get(address, params={"path": path}) for path in ("../x", "/etc", "src/../../x")]
    await site.ada.http.post(f"{WORKSPACES}/{workspace}/stop")
    await site.until(workspace, "stopped")
    stopped = await site.ada.http.get(address)

    assert found.json() == {
        "path": "src/",
        "entries": [{"name": "lib", "is_dir": True, "size": 0}, {"name": "a.py", "is_dir": False, "size": 3}],
        "truncated": False,
    }
    assert [one.status_code for one in (missing, *outside)] == [400] * 4
    assert (stopped.status_code, stopped.json()["code"]) == (409, "workspace_not_running")


async def test_owner_reads_files_below_the_place_of_work_and_kept_results(site: Site) -> None:
    workspace, chat = await running(site)
    home, address = "/home/agent", f"/api/v1/chats/{chat}/file"
    site.driver.files = {
        f"{home}/project/src/a.py": "x = 'é'\n".encode(),
        f"{home}/project/logo": b"\x89PNG\r\n\x1a\n\0\0",
        f"{home}/project/long.txt": b"a" * (workspace_files.MAX_TEXT_BYTES + 1),
        f"{home}/project/page.html": b"<script>alert(1)</script>",
        f"{home}/.rookery/results/call_1": b"all of it",
        f"{home}/.ssh/id": b"secret",
    }

    async def read(path: str, where: str = address) -> Any:
        return await site.ada.http.get(where, params={"path": path})

    found = [(await read(path)).json() for path in ("src/a.py", f"{home}/project/src/../src/a.py")]
    kept = (await read(f"{home}/.rookery/results/call_1")).json()
    long = (await read("long.txt")).json()
    refused = [await read(path) for path in ("", "../.ssh/id", f"{home}/.ssh/id", f"{home}/.rookery/results", "gone")]
    picture, page = await read("logo", f"{address}/bytes"), await read("page.html", f"{address}/bytes")
    listed = await site.ada.http.get(f"{WORKSPACES}/{workspace}/folder", params={"path": "nowhere"})

    assert found == [{"path": "src/a.py", "text": "x = 'é'\n", "truncated": False}] * 2
    assert kept == {"path": f"{home}/.rookery/results/call_1", "text": "all of it", "truncated": False}
    assert (len(long["text"]), long["truncated"]) == (workspace_files.MAX_TEXT_BYTES, True)
    assert (await read("logo")).json()["text"] is None
    assert [one.status_code for one in (*refused, listed)] == [400] * 6
    assert (picture.headers["content-type"], picture.content[:4]) == ("image/png", b"\x89PNG")
    assert (page.headers["content-type"], page.headers["content-security-policy"]) == (
        "application/octet-stream",
        "sandbox; default-src 'none'",
    )
    assert page.headers["content-disposition"] == "attachment; filename*=UTF-8''page.html"


async def test_more_than_is_given_out_is_refused_in_words(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workspace_files, "MAX_SAVED_BYTES", 3)
    _, chat = await running(site)
    site.driver.files["/home/agent/project/a"] = b"abcd"

    refused = await site.ada.http.get(f"/api/v1/chats/{chat}/file/bytes", params={"path": "a"})

    assert (refused.status_code, refused.json()["code"]) == (409, "file_too_large")
