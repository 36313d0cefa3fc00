"""A rig with a user in every role towards a chat, and with an object for every path parameter."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID, uuid4

import httpx2

from rookery.api.rate_limits import Limit, RateLimits
from rookery.domain.access.rights import Role
from rookery.domain.chat.mcp_consent import Entry
from rookery.domain.chat.messages import NewMessage
from rookery.domain.chat.messages import Role as MessageRole
from rookery.domain.chat.parts import Text
from rookery.store import machine
from rookery.store.machine import Bundle, ChatSpec
from rookery.store.workspaces import context
from rookery.store.workspaces import templates as stored_templates
from rookery.store.workspaces.context import ContextResource, Snapshot
from rookery.workspaces import templates
from rookery.workspaces.operation_requests import as_push
from rookery.workspaces.templates import TemplateFile
from tests.api.api_rig import PASSWORD, ApiRig, Person, open_house
from tests.api.chat_rig import CHATS, ChatRig, text
from tests.api.debug_rig import DebugRecords, said
from tests.api.more_servers import KEY, open_door

REASON = "The owner asked for help"
PRIVATE, SHARED = "private", "shared"
NOWHERE = "linked nowhere"
ROLES = {"admin": Role.ADMIN, "auditor": Role.AUDITOR}


SERVER = Entry(name="docs", folder="/p", command="npx")


@dataclass
class RolesRig:
    """`url` is a server without rate limits. After `forget`, an object that a request deleted is created again."""

    rig: ApiRig
    url: str
    people: dict[str, Person]
    clients: dict[str, httpx2.AsyncClient]
    model: UUID
    chats: dict[str, str] = field(default_factory=dict)
    known: dict[tuple[str, str], str] = field(default_factory=dict)

    @property
    def owner(self) -> httpx2.AsyncClient:
        return self.clients["owner"]

    def forget(self) -> None:
        self.known.clear()

    async def share(self) -> None:
        readers = {str(self.people["reader"].id): "read"}
        done = await self.owner.patch(f"{CHATS}/{self.chats[SHARED]}/acl", json={"users": readers})
        assert done.status_code == 204, done.text

    async def parameter(self, name: str, target: str) -> str:
        """Return an object of the owner for a path parameter."""
        if name == "chat":
            return self.chats[target]
        if (name, target) not in self.known:
            self.known[name, target] = await self._make(name, target)
        return self.known[name, target]

    async def _make(self, name: str, target: str) -> str:
        match name:
            case "message":
                found = await self.owner.get(f"{CHATS}/{self.chats[target]}/messages", params={"after_id": 0})
                return str(next(each["id"] for each in found.json()["items"] if each["role"] == "user"))
            case "queued":
                chat = f"{CHATS}/{self.chats[target]}"
                await self.owner.delete(f"{chat}/queue")
                sent = await self.owner.post(f"{chat}/messages", json={"content": text("later")})
                return str(sent.json()["queued_message"]["id"])
            case "file":
                return await self._file(target)
            case "user":
                return str(self.people["owner"].id)
            case "token":
                body = {"name": uuid4().hex, "scopes": ["chat:read"]}
                return str((await self.owner.post("/api/v1/tokens", json=body)).json()["id"])
            case "folder":
                made = await self.owner.post("/api/v1/folders", json={"name": uuid4().hex})
                return str(made.json()["id"])
            case "session":
                return await self._session()
            case "provider" | "model_config":
                return await self._configured(name)
            case "template" | "workspace" | "operation":
                return await self._workspace(name)
            case "mcp_server":
                made = await self.clients["admin"].post("/api/v1/mcp-servers", json=mcp_server_body())
                return str(made.json()["id"])
            case "own_server":
                made = await self.owner.post("/api/v1/me/mcp-servers", json=mcp_server_body())
                return str(made.json()["id"])
            case "entry_hash":
                return SERVER.hash
            case "run" | "step" | "number":
                return await self._recorded(name, target)
            case "asset":
                return "docs.js"
            case "name":
                return "reviewer"
        raise AssertionError(f"There is nothing for the parameter {name}.")

    async def _recorded(self, kind: str, target: str) -> str:
        """Record a run with one step and one attempt."""
        records = DebugRecords(self.rig.database.api)
        run, (step,) = await records.run(self.chats[target], [said("Hello.")], model_config_id=self.model)
        self.known |= {("run", target): str(run), ("step", target): str(step), ("number", target): "1"}
        return self.known[kind, target]

    async def _workspace(self, kind: str) -> str:
        """Create a template, a stopped workspace with an MCP server, and the operation that stopped it."""
        template = f"t-{uuid4().hex[:12]}"
        packed = templates.pack({"template.toml": TemplateFile(f'name = "{template}"'.encode())})
        async with self.rig.database.api.acquire() as conn:
            await stored_templates.push_template(conn, as_push(packed))
            if kind == "template":
                return template
            workspace = await conn.fetchval(
                "INSERT INTO workspaces (owner_id, name, template, template_revision) VALUES ($1, $2, $2, $3)"
                " RETURNING id",
                self.people["owner"].id,
                template,
                packed.revision,
            )
            server = ContextResource(ordinal=0, kind="mcp_server", source="docs", status="pending", entry=SERVER)
            now = self.rig.clock.now()
            await context.write_snapshot(conn, Snapshot(workspace, 1, 1, "h", None, (server,), now))
            operation = await conn.fetchval(
                "INSERT INTO workspace_operations (workspace_id, kind, reason, state, finished_at)"
                " VALUES ($1, 'stop', 'user', 'succeeded', now()) RETURNING id",
                workspace,
            )
        return str(workspace if kind == "workspace" else operation)

    async def _file(self, target: str) -> str:
        named = {"Content-Type": "text/plain", "Content-Disposition": 'attachment; filename="a.txt"'}
        made = (await self.owner.post("/api/v1/files", content=b"hello", headers=named)).json()["id"]
        if target != NOWHERE:
            linked = "INSERT INTO chat_file_links VALUES ($1, $2)"
            await self.rig.database.api.execute(linked, UUID(self.chats[target]), UUID(made))
        return str(made)

    async def _session(self) -> str:
        async with httpx2.AsyncClient(base_url=self.url, headers={"Origin": self.url}) as browser:
            body = {"login": self.people["owner"].user.username, "password": PASSWORD}
            made = await browser.post("/api/v1/auth/login", json=body)
            assert made.status_code == 200, made.text
            browser.headers[KEY] = made.json()["session_key"]
            found = (await browser.get("/api/v1/auth/sessions")).json()["items"]
        return str(next(each["id"] for each in found if each["current"]))

    async def _configured(self, kind: str) -> str:
        admin = self.clients["admin"]
        made = (await admin.post("/api/v1/model-providers", json=provider_body())).json()["id"]
        if kind == "provider":
            return str(made)
        body = {"provider_id": made, "model": "m", "context_limit": 1000}
        return str((await admin.post("/api/v1/model-configs", json=body)).json()["id"])


def provider_body() -> dict[str, object]:
    """Return the body for a provider that does not respond."""
    return {
        "type": "openai_compat",
        "name": f"p{uuid4().hex}",
        "base_url": "http://127.0.0.1:9/v1",
        "allow_user_key": True,
    }


def mcp_server_body() -> dict[str, object]:
    """Return the body for an MCP server that is never reached."""
    return {"slug": f"s{uuid4().hex[:20]}", "url": "http://127.0.0.1:9/mcp"}


@asynccontextmanager
async def open_town(database_url: str, tmp_path: Path, *, owner_role: Role = Role.MEMBER) -> AsyncIterator[RolesRig]:
    async with open_house(database_url, tmp_path) as rig:
        # No rate limits: these tests are about rights.
        limits = RateLimits(clock=rig.clock, per_minute=dict.fromkeys(Limit, 1_000_000))
        async with open_door(rig, limits=limits) as url:
            town = await _settle(rig, url, owner_role)
            try:
                yield town
            finally:
                await asyncio.gather(*(client.aclose() for client in town.clients.values()))


async def _settle(rig: ApiRig, url: str, owner_role: Role) -> RolesRig:
    roles = {"stranger": Role.MEMBER, "reader": Role.MEMBER, "owner": owner_role, **ROLES}
    people = {name: await rig.add(name, role=role) for name, role in roles.items()}
    clients = {name: client_of(url, person.token) for name, person in people.items()}
    clients["nobody"] = client_of(url, None)
    clients["admin with a reason"] = client_of(url, people["admin"].token)
    clients["admin with a reason"].headers["Rookery-Break-Glass"] = REASON
    town = RolesRig(rig, url, people, clients, await rig.add_model())
    chat_rig = ChatRig(rig, people["owner"])
    for name in (PRIVATE, SHARED):
        town.chats[name] = await chat_rig.create(f"hello from the {name} one")
        town.chats[f"child of {name}"] = await child_of(rig, people["owner"], town.chats[name], model=town.model)
    await town.share()
    return town


def client_of(url: str, token: str | None) -> httpx2.AsyncClient:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return httpx2.AsyncClient(base_url=url, headers=headers, timeout=30.0)


async def child_of(rig: ApiRig, owner: Person, root: str, *, model: UUID) -> str:
    """Create a subagent's chat, which only the server can do."""
    spec = ChatSpec(
        owner_id=owner.id,
        title="a child",
        model_config_id=model,
        messages=(NewMessage(role=MessageRole.USER, content=(Text("hello child"),)),),
        parent_chat_id=UUID(root),
        root_chat_id=UUID(root),
    )

    async def make(bundle: Bundle) -> UUID:
        return (await machine.create_chat(bundle, spec)).chat.id

    return str(await rig.replica.machine.bundle(make))
