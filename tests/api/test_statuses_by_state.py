"""Statuses that depend on the state: one sequence of requests that causes every documented status.

The client records the statuses by operation. Every documented status must occur, and no undocumented one. The usual
refusals are in `test_statuses`.
"""

from __future__ import annotations

import copy
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx2
import pytest

from rookery.api.middleware import ApiMiddleware
from rookery.domain.access.rights import Role
from rookery.domain.chat.messages import ChatId
from rookery.store.models import usage_ledger
from rookery.store.models.spending import SETTING, SpendSettings
from rookery.store.models.usage_ledger import CallStatus, KeySource
from rookery.store.settings import locked_settings, settings
from rookery.worker.short_texts import NoTitle
from tests.api.api_rig import PASSWORD, Person
from tests.api.chat_rig import CALL_ID, CHATS, ChatRig, text
from tests.api.debug_rig import DebugRecords, said
from tests.api.more_servers import KEY, open_door
from tests.api.openapi_operations import ALL
from tests.api.rights_table import OPERATIONS, operation_of
from tests.api.roles_rig import PRIVATE, SHARED, RolesRig, open_town, provider_body
from tests.api.test_approvals import asking, yes
from tests.api.test_rights import operations, send
from tests.api.test_workspaces import archive

API = "/api/v1"
# Statuses of all operations, tested in `test_statuses`.
USUAL = {400, 401, 403, 408, 413, 415, 429, 500, 503}
# Operations that need a server without accounts, an upgrade, or a workspace agent.
ELSEWHERE = {
    ("setup.complete", 201): "test_setup",
    ("chats.watch", 101): "test_stream_endpoints",
    ("chats.stream", 101): "test_stream_endpoints",
    ("chats.git", 101): "test_git",
    ("chats.git", 200): "test_git",
    ("chats.folder", 200): "test_git",
    ("chats.file", 200): "test_git",
    ("chats.file_bytes", 200): "test_git",
    ("workspaces.folder", 200): "test_git",
    ("providers.try_unsaved", 404): "test_models",
    ("providers.try_unsaved", 409): "test_models",
    ("mcp.connect", 200): "test_mcp_servers",
    ("mcp.connect", 502): "test_mcp_servers",
    ("mcp.callback", 200): "test_mcp_servers",
    ("mcp.callback", 502): "test_mcp_servers",
    ("mcp.callback", 409): "test_mcp_servers",
    ("mcp.connect", 412): "test_mcp_servers",
}
# One key of each group, as in the environment.
PINNED = {
    "prompts": ("include_default", "false", True),
    "models": ("generate_titles", "false", True),
    "chats": ("retention_days", "5", 6),
    "approvals": ("allow_always", "false", True),
    "sharing": ("enabled", "true", False),
    "spend": ("enabled", "false", True),
    "workspaces": ("max_per_user", "5", 6),
    "audit": ("retention_days", "5", 6),
    "subagents": ("max_minutes", "5", 6),
    "advisor": ("max_uses_per_run", "4", 6),
    "debug": ("retention_days", "5", 6),
    "mcp": ("allow_user_servers", "false", True),
}

Known = tuple[str, int]


def mcp_server_body() -> dict[str, Any]:
    return {
        "slug": f"s-{uuid4().hex[:12]}",
        "url": "https://mcp.example.org/mcp",
        "auth_type": "api_key",
        "api_key_header": "X-Key",
        "api_key": "a-key-of-a-server",
    }


class Notes:
    """Records the statuses of each operation."""

    def __init__(self) -> None:
        self.seen: set[Known] = set()
        # A literal path segment takes precedence over a parameter.
        places = sorted(ALL, key=lambda asked: len(asked.parameters))
        self._places = [(each, re.compile(re.sub(r"\{[^}]+\}", "[^/]+", each.path))) for each in places]

    async def take(self, response: httpx2.Response) -> None:
        request = response.request
        for asked, path in self._places:
            if asked.method == request.method and path.fullmatch(request.url.path):
                self.seen.add((asked.name, response.status_code))
                return
        raise AssertionError(f"There is no operation {request.method} {request.url.path}.")

    def of(self, client: httpx2.AsyncClient) -> httpx2.AsyncClient:
        client.event_hooks = {"response": [self.take]}
        return client


@pytest.fixture
async def roles(database_url: str, tmp_path: Path) -> AsyncIterator[RolesRig]:
    """A rig whose owner is an administrator, so that all operations are allowed."""
    async with open_town(database_url, tmp_path, owner_role=Role.ADMIN) as opened:
        yield opened


class Story:
    """The requests of the owner, by subject."""

    def __init__(self, roles: RolesRig, notes: Notes) -> None:
        self.roles = roles
        self.notes = notes
        self.http = notes.of(roles.owner)
        owner = roles.people["owner"]
        self.owner = Person(owner.user, owner.token, self.http)
        self.chat_rig = ChatRig(roles.rig, self.owner)

    async def ask(self, method: str, path: str, **options: Any) -> httpx2.Response:
        return await self.http.request(method, f"{API}{path}", **options)

    async def make(self, name: str) -> str:
        """Create a new object for a path parameter."""
        self.roles.known.pop((name, PRIVATE), None)
        return await self.roles.parameter(name, PRIVATE)

    async def ask_for_everything(self) -> None:
        known = await operations(self.roles)
        for entry in OPERATIONS:
            operation = known[operation_of(entry)]
            await send(self.roles, self.http, entry, operation, target=PRIVATE)
            if operation.method != "GET":
                self.roles.forget()

    async def log_in_and_out(self) -> None:
        house = self.roles.rig
        spare = await house.add("spare")
        link = (await self.ask("POST", f"/users/{spare.id}/reset-password")).json()["token"]
        stranger = self.notes.of(house.client(link))
        assert (await stranger.get(f"{API}/auth/link")).status_code == 200
        await stranger.post(f"{API}/auth/link", json={"token": link, "password": "another long sentence"})
        browser = self.notes.of(house.client(None, Origin=house.url))
        body = {"login": "owner", "password": PASSWORD}
        await browser.post(f"{API}/auth/login", json=body, headers={"Sec-Fetch-Site": "same-origin"})
        browser.headers[KEY] = (await browser.post(f"{API}/auth/login", json=body)).json()["session_key"]
        await browser.get(f"{API}/download-links", params={"path": f"{API}/files/{uuid4()}"})
        await browser.post(f"{API}/auth/logout")
        await stranger.post(f"{API}/setup", json={"token": "x", "email": "a@example.org", "password": PASSWORD})

    async def name_people_and_tokens(self) -> None:
        for _ in range(2):
            await self.ask("POST", "/tokens", json={"name": "twice", "scopes": ["all"]})
            await self.ask("POST", "/users", json={"email": "twice@example.org", "username": "twice"})
        spare = await self.make_user()
        await self.ask("PATCH", f"/users/{spare}", json={"username": "twice"})
        await self.ask("DELETE", f"/users/{spare}")
        await self.ask("PATCH", f"/users/{spare}", json={"status": "disabled"})
        await self.ask("DELETE", f"/users/{spare}")
        stranger = self.notes.of(self.roles.clients["stranger"])
        for path in (
            f"tokens?user={self.owner.id}",
            f"usage?user={self.owner.id}",
            f"workspaces?owner={self.owner.id}",
        ):
            assert (await stranger.get(f"{API}/{path}")).status_code == 404

    async def make_user(self) -> str:
        made = await self.ask("POST", "/users", json={"email": f"{uuid4().hex}@example.org"})
        return str(made.json()["id"])

    async def talk_to_chats(self) -> None:
        chat_rig = self.chat_rig
        key = {"Idempotency-Key": uuid4().hex}
        for words in ("one", "other"):
            await self.ask("POST", "/chats", json={"content": text(words)}, headers=key)
        running, waiting, archived = await chat_rig.create(), await chat_rig.waiting(), await chat_rig.archived()
        first = (await self.ask("GET", f"/chats/{archived}/messages?after_id=0")).json()["items"][0]["id"]
        queued, later = await chat_rig.queue(running, "one", "other")
        path = f"/chats/{running}/queue/{queued}"
        for method, place, body in (
            ("PATCH", f"/chats/{running}", {"archived": True}),
            ("POST", f"/chats/{archived}/messages", {"content": text("x")}),
            ("PATCH", f"/chats/{archived}/messages/{first}", {"content": text("x")}),
            ("POST", f"/chats/{waiting}/tool-results", {"results": [{"tool_call_id": "x", "output": 1}]}),
            (
                "POST",
                f"/chats/{await chat_rig.asking()}/tool-results",
                {"results": [{"tool_call_id": CALL_ID, "output": 1}]},
            ),
            ("POST", f"/chats/{waiting}/approvals", {"answers": [yes()]}),
            ("POST", f"/chats/{await asking(chat_rig)}/approvals", {"answers": [yes()]}),
            ("PATCH", path, {"content": text("x")}),
            ("POST", f"{path}/move", {"before": None}),
            ("POST", f"{path}/promote", None),
            ("DELETE", f"/chats/{running}/queue/{later}", None),
            ("DELETE", f"/chats/{running}/queue", None),
            ("DELETE", f"/chats/{archived}/queue", None),
            ("DELETE", f"/chats/{archived}/queue/1", None),
            ("PATCH", f"/chats/{archived}/queue/1", {"content": text("x")}),
            ("POST", f"/chats/{archived}/queue/1/promote", None),
            ("POST", f"/chats/{archived}/queue/1/move", {"before": None}),
            ("POST", f"/chats/{waiting}/interrupt", None),
            ("POST", f"/chats/{await chat_rig.create()}/interrupt", None),
            ("POST", f"/chats/{waiting}/retry", None),
            ("POST", f"/chats/{await chat_rig.failed()}/retry", None),
            ("POST", f"/chats/{await chat_rig.create()}/nudge", None),
            ("POST", f"/chats/{running}/compact", None),
            ("POST", f"/chats/{running}/reconcile-invalid", None),
            ("DELETE", f"/chats/{waiting}", None),
            ("POST", f"/chats/{waiting}/compact", None),
            ("DELETE", f"/chats/{archived}", None),
        ):
            await self.ask(method, place, json=body)
        reader = self.notes.of(self.roles.clients["reader"])
        await reader.delete(f"{CHATS}/{self.roles.chats[SHARED]}/acl/me")

    async def think_of_titles(self) -> None:
        chat = await self.chat_rig.create()
        for error in (NoTitle(), TimeoutError()):
            async with open_door(self.roles.rig, texts=Texts(error)) as url:
                for how in ("propose", "regenerate"):
                    await self.http.post(f"{url}{CHATS}/{chat}/title/{how}")

    async def keep_files(self) -> None:
        named = {"Content-Type": "text/plain", "Content-Disposition": 'attachment; filename="a.txt"'}
        file = (await self.ask("POST", "/files", content=b"hello", headers=named)).json()["id"]
        signed = (await self.ask("POST", f"/files/{file}/download-url")).json()["url"]
        tag = (await self.ask("GET", f"/files/{file}")).headers["etag"]
        for range_ in ("bytes=0-1", "bytes=9-"):
            for url in (f"{self.roles.url}{API}/files/{file}", signed):
                await self.http.get(url, headers={"Range": range_})
        await self.http.get(signed)
        await self.ask("GET", f"/files/{file}", headers={"If-None-Match": tag})
        unused = (await self.ask("POST", "/files", content=b"hello", headers=named)).json()["id"]
        await self.chat_rig.create_with(file)
        for each in (file, unused):
            await self.ask("DELETE", f"/files/{each}")
        await self.roles.rig.database.api.execute(
            "INSERT INTO chat_files (owner_id, name, mime_type, size_bytes)"
            " SELECT $1, 'x', 'text/plain', 0 FROM generate_series(1, 200)",
            self.owner.id,
        )
        await self.ask("POST", "/files", content=b"hello", headers=named)

    async def have_workspaces(self) -> None:
        template = f"t-{uuid4().hex[:12]}"
        await self.ask("PUT", f"/templates/{template}", content=archive(f'name = "{template}"'.encode()))
        await self.ask("POST", "/workspaces", json={"template": "no-such-template"})
        made = [
            (await self.ask("POST", "/workspaces", json={"template": template, "name": name})).json()
            for name in ("desk", "bench", "desk")
        ]
        await self.ask("DELETE", f"/templates/{template}")
        desk, bench = (each["workspace"]["id"] for each in made[:2])
        await self.ask("PATCH", f"/workspaces/{bench}", json={"name": "desk"})
        running, stopping = await self.make("workspace"), await self.make("workspace")
        database = self.roles.rig.database.api
        await database.execute("UPDATE workspaces SET status = 'running' WHERE id = $1", UUID(running))
        await database.execute(
            "INSERT INTO workspace_operations (workspace_id, kind, reason) VALUES ($1, 'delete', 'user')",
            UUID(stopping),
        )
        chat = await self.chat_rig.create(workspace_id=desk)
        assert (await self.chat_rig.get(chat))["workspace_id"] == desk
        for method, path, body in (
            ("POST", f"{stopping}/start", {}),
            ("POST", f"{stopping}/stop", None),
            ("POST", f"{running}/start", {}),
            ("POST", f"{running}/stop", None),
            ("DELETE", desk, None),
            ("DELETE", bench, None),
        ):
            await self.ask(method, f"/workspaces/{path}", json=body)

    async def set_up_models(self) -> None:
        database = self.roles.rig.database.api
        offline = await database.fetchval("SELECT id FROM model_providers WHERE type = 'scripted'")
        await self.ask("GET", f"/model-providers/{offline}/upstream-models")
        one, other = provider_body(), provider_body()
        ids = [(await self.ask("POST", "/model-providers", json=body)).json()["id"] for body in (one, other)]
        await self.ask("POST", "/model-providers", json=one)
        await self.ask("PATCH", f"/model-providers/{ids[1]}", json={"name": one["name"]})
        model = {"provider_id": ids[0], "model": "m", "context_limit": 1000}
        config = (await self.ask("POST", "/model-configs", json=model)).json()["id"]
        await self.ask("PATCH", f"/model-providers/{ids[1]}", json={"enabled": False})
        await self.ask("POST", "/model-configs", json={**model, "provider_id": ids[1]})
        await self.ask("PATCH", f"/model-configs/{config}", json={"provider_id": ids[1]})
        await self.ask("PUT", f"/me/provider-keys/{ids[1]}", json={"api_key": "sk-of-my-own"})
        await database.execute("UPDATE model_providers SET source = 'env' WHERE id = $1", UUID(ids[0]))
        await self.ask("DELETE", f"/model-providers/{ids[0]}")

    async def lose_the_key_ring(self) -> None:
        house = self.roles.rig
        application = house.replica.application
        assert isinstance(application, ApiMiddleware)
        parts = application.services
        store = copy.copy(parts.store)
        store._ring = None
        file, provider, workspace = await self.make("file"), await self.make("provider"), await self.make("workspace")
        template = await self.make("template")
        server, own_server = await self.make_mcp_server("/mcp-servers"), await self.make_mcp_server("/me/mcp-servers")
        specs = parts.workspaces.service._parts.specs
        kept, specs._ring = specs._ring, None
        try:
            async with open_door(house, store=store, ring=None) as url:
                for method, path, body in (
                    ("POST", f"files/{file}/download-url", None),
                    ("POST", "model-providers", {**provider_body(), "api_key": "sk-central"}),
                    ("PATCH", f"model-providers/{provider}", {"api_key": "sk-central"}),
                    ("POST", "workspaces", {"template": template}),
                    ("POST", f"workspaces/{workspace}/start", {}),
                    ("POST", "mcp-servers", mcp_server_body()),
                    ("POST", "me/mcp-servers", mcp_server_body()),
                    ("PATCH", f"mcp-servers/{server}", {"api_key": "a-key-of-a-server"}),
                    ("PATCH", f"me/mcp-servers/{own_server}", {"api_key": "a-key-of-a-server"}),
                ):
                    await self.http.request(method, f"{url}{API}/{path}", json=body)
        finally:
            specs._ring = kept

    async def make_mcp_server(self, path: str) -> str:
        made = await self.ask("POST", path, json=mcp_server_body())
        assert made.status_code == 201, (path, made.text)
        return str(made.json()["id"])

    async def name_mcp_servers(self) -> None:
        for path in ("/mcp-servers", "/me/mcp-servers"):
            taken = mcp_server_body()
            await self.ask("POST", path, json=taken)
            await self.ask("POST", path, json=taken)
            other = await self.make_mcp_server(path)
            await self.ask("PATCH", f"{path}/{other}", json={"slug": taken["slug"]})

    async def change_settings(self) -> None:
        pins = {f"ROOKERY_PIN_{group}_{key}".upper(): value for group, (key, value, _) in PINNED.items()}
        async with self.roles.rig.database.api.acquire() as conn:
            await locked_settings.apply(conn, pins, now=self.roles.rig.clock.now())
        for group, (key, _, value) in PINNED.items():
            await self.ask("PUT", f"/settings/{group}", json={key: value})
            await self.ask("PUT", f"/settings/{group}", json={}, headers={"If-Match": "2020-01-01T00:00:00Z"})

    async def compare_runs(self) -> None:
        chat = await self.chat_rig.create()
        records = DebugRecords(self.roles.rig.database.api)
        (one, _), (other, _) = [await records.run(chat, [said("Hello.")]) for _ in range(2)]
        await self.ask("GET", f"/chats/{chat}/debug/runs/{one}/compare?other={other}")

    async def name_folders(self) -> None:
        """Give two folders the same name."""
        first = (await self.ask("POST", "/folders", json={"name": "one"})).json()
        await self.ask("POST", "/folders", json={"name": "two"})
        await self.ask("POST", "/folders", json={"name": "two"})
        await self.ask("PATCH", f"/folders/{first['id']}", json={"name": "two"})

    async def replay_a_call(self) -> None:
        """Replay a step whose record names no model."""
        chat = await self.chat_rig.create()
        run, (step,) = await DebugRecords(self.roles.rig.database.api).run(chat, [said("Hello.")])
        await self.ask("POST", f"/chats/{chat}/debug/runs/{run}/steps/{step}/replay", json={})

    async def spend_everything(self) -> None:
        chat = await self.chat_rig.create()
        async with self.roles.rig.database.api.acquire() as conn:
            await locked_settings.apply(conn, {}, now=self.roles.rig.clock.now())
            await settings.write_setting(conn, SETTING, value=SpendSettings(enabled=True, default_limit_micros=10))
            provider, model = (await conn.fetch("SELECT provider_id, id FROM model_configs LIMIT 1"))[0]
            await usage_ledger.record_call(conn, dear_call(self.owner, chat, provider, model))
        self.roles.rig.replica.directory.invalidate()
        for how in ("propose", "regenerate"):
            await self.ask("POST", f"/chats/{chat}/title/{how}")

    async def repair_a_chat(self) -> None:
        chat = await self.chat_rig.waiting()
        async with self.roles.rig.database.api.acquire() as conn, conn.transaction():
            await conn.execute("ALTER TABLE chats DROP CONSTRAINT chats_status")
            await conn.execute("UPDATE chats SET snapshot_version = snapshot_version + 1 WHERE id = $1", UUID(chat))
            await conn.execute("UPDATE chats SET status = 'asleep' WHERE id = $1", UUID(chat))
        await self.ask("POST", f"/chats/{chat}/reconcile-invalid")


def dear_call(owner: Person, chat: str, provider_id: UUID, model_config_id: UUID) -> usage_ledger.Entry:
    """Record a call that costs more than the spending limit."""
    return usage_ledger.Entry(
        owner_id=owner.id,
        chat_id=ChatId(UUID(chat)),
        purpose="chat",
        provider_id=provider_id,
        model_config_id=model_config_id,
        model="guide",
        key_source=KeySource.AMBIENT,
        status=CallStatus.OK,
        cost_micros=25,
    )


class Texts:
    """Replaces the service that asks a model for titles."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def propose_title(self, chat: object, said: str, *, about: object) -> str:
        raise self._error


async def test_every_status_that_is_promised_is_answered_and_no_other(roles: RolesRig) -> None:
    notes = Notes()
    story = Story(roles, notes)
    chapters: tuple[Callable[[], Awaitable[None]], ...] = (
        story.ask_for_everything,
        story.log_in_and_out,
        story.name_people_and_tokens,
        story.talk_to_chats,
        story.think_of_titles,
        story.lose_the_key_ring,
        story.keep_files,
        story.have_workspaces,
        story.set_up_models,
        story.name_mcp_servers,
        story.change_settings,
        story.name_folders,
        story.compare_runs,
        story.replay_a_call,
        story.repair_a_chat,
        story.spend_everything,
    )

    for chapter in chapters:
        await chapter()

    promised: Mapping[str, frozenset[int]] = {asked.name: asked.statuses for asked in ALL}
    assert {(name, status) for name, status in notes.seen if status not in promised[name]} == set()
    asked_elsewhere = {(asked.name, 404) for asked in ALL if asked.parameters}
    missing = {(name, status) for name, statuses in promised.items() for status in statuses - USUAL}
    assert missing - notes.seen - asked_elsewhere - set(ELSEWHERE) == set()
