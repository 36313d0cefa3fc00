"""Every operation of the OpenAPI document, by every role and with every kind of token, over a socket.

The expectations are in `rights_table`, which was written from the design. "Allowed" is any status except 401, 403 and
404: a refusal because of a chat's state means that the caller had the right.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

import httpx2
import pytest

from rookery.domain.access.rights import Role
from tests.api.api_rig import PASSWORD
from tests.api.chat_rig import text
from tests.api.rights_table import (
    ACTORS,
    MISSING,
    OK,
    ON_CHATS,
    OPERATIONS,
    REFUSED,
    RIGHTS,
    SCOPES,
    UNKNOWN,
    expected,
    operation_of,
)
from tests.api.roles_rig import NOWHERE, PRIVATE, RolesRig, client_of, mcp_server_body, open_town, provider_body

UPLOAD = {"Content-Type": "text/plain", "Content-Disposition": 'attachment; filename="a.txt"'}
GROUPS = (
    "prompts",
    "models",
    "chats",
    "subagents",
    "advisor",
    "approvals",
    "mcp",
    "sharing",
    "spend",
    "workspaces",
    "audit",
    "debug",
)
UNHEARD_OF = {"no_such_member": True}
STATUSES = {401: UNKNOWN, 403: REFUSED, 404: MISSING}

Before = Callable[[RolesRig, httpx2.AsyncClient], Awaitable[object]]


class Ask(NamedTuple):
    """A request. `bad` is an invalid body, or None if every caller may send one.

    `reads` are the statuses of a GET by an allowed caller; `before` restores what the last request changed.
    """

    body: Callable[[RolesRig], object] | None = None
    query: Callable[[RolesRig], dict[str, str]] = lambda roles: {}
    bad: object = None
    reads: tuple[int, ...] = (200,)
    before: Before | None = None
    content: bytes | None = None


def sends(body: object, *, bad: object = UNHEARD_OF, before: Before | None = None) -> Ask:
    return Ask(body=lambda roles: body, bad=bad, before=before)


async def _put_key(roles: RolesRig, client: httpx2.AsyncClient) -> None:
    provider = await roles.parameter("provider", "")
    await client.put(f"/api/v1/me/provider-keys/{provider}", json={"api_key": "sk-of-my-own"})


async def _put_prompt(roles: RolesRig, client: httpx2.AsyncClient) -> None:
    await client.put("/api/v1/saved-prompts/reviewer", json={"text": "Review this."})


async def _put_kind(roles: RolesRig, client: httpx2.AsyncClient) -> None:
    await client.put("/api/v1/agent-kinds/reviewer", json={"description": "Reviews changes."})


async def _share(roles: RolesRig, client: httpx2.AsyncClient) -> None:
    await roles.share()


def _owner_id(roles: RolesRig) -> str:
    return str(roles.people["owner"].id)


CONTENT = {"content": text("hello")}
PLAIN = Ask()
# Other operations are requested without a body and a query.
ASKS = {
    "setup.complete": sends(
        {"token": "rk_setup_x", "email": "a@example.org", "password": "a long sentence of mine"}, bad=None
    ),
    # A new login each time, because attempts are delayed after some failures.
    "auth.login": Ask(body=lambda roles: {"login": uuid4().hex, "password": PASSWORD}),
    "auth.change_password": sends({"current_password": PASSWORD, "new_password": PASSWORD, "revoke_tokens": False}),
    "users.dismiss_access_notice": sends({"through": 1}),
    "links.use": sends({"token": "rk_l_x", "password": "a long sentence of mine"}, bad=None),
    "tokens.list of a user": Ask(query=lambda roles: {"user": _owner_id(roles)}),
    "tokens.create": Ask(body=lambda roles: {"name": uuid4().hex, "scopes": ["chat:read"]}, bad=UNHEARD_OF),
    "users.directory": Ask(query=lambda roles: {"q": "ow"}),
    "users.create": Ask(body=lambda roles: {"email": f"{uuid4().hex}@example.org"}, bad=UNHEARD_OF),
    "users.update": sends({"name": "Somebody"}),
    # A caller who may change the name may also see errors about the role.
    "users.update role": Ask(body=lambda roles: {"role": str(roles.people["owner"].user.role)}),
    "chats.create": sends(CONTENT),
    "chats.list of a user": Ask(query=lambda roles: {"q": f"owner:{roles.people['owner'].user.username}"}),
    "chats.git": Ask(reads=(409,)),
    "chats.folder": Ask(reads=(409,)),
    "chats.file": Ask(query=lambda roles: {"path": "a"}, reads=(409,)),
    "chats.file_bytes": Ask(query=lambda roles: {"path": "a"}, reads=(409,)),
    "workspaces.folder": Ask(reads=(409,)),
    "chats.update title": sends({"title": "another"}, bad={"title": 7}),
    "chats.update debug_mode": sends({"debug_mode": "off"}, bad={"debug_mode": "perhaps"}),
    "chats.update folder_id": sends({"folder_id": None}, bad={"folder_id": "perhaps"}),
    "chats.update pin_order": sends({"pin_order": 0}, bad={"pin_order": -1}),
    "chats.update archived": sends({"archived": False}, bad={"archived": "perhaps"}),
    "debug.compare_runs": Ask(query=lambda roles: {"other": str(uuid4())}, reads=(404,)),
    "debug.search_run": Ask(query=lambda roles: {"q": "hello"}),
    "debug.replay": sends({}),
    "chats.mark_read": sends({"message_id": None}),
    "messages.send": sends(CONTENT),
    "messages.edit": sends(CONTENT),
    "messages.submit_tool_results": sends({"results": [{"tool_call_id": "x", "output": 1}]}),
    "approvals.answer": sends({"answers": [{"tool_call_id": "x", "decision": "approve"}]}),
    "approvals.put_rules": sends({"rules": []}),
    "messages.search": Ask(query=lambda roles: {"q": "hello"}),
    "queue.edit": sends(CONTENT),
    "queue.move": sends({"before": None}),
    "turns.interrupt": sends({"cascade": True}),
    # A child has no list of its own; its owner gets an error that names the root.
    "shares.list": Ask(reads=(200, 400)),
    "shares.update": sends({"users": {}}),
    "shares.leave": Ask(before=_share),
    "files.upload": Ask(content=b"hello"),
    "templates.update": sends({"deprecated": False}),
    "workspaces.list of a user": Ask(query=lambda roles: {"owner": _owner_id(roles)}),
    "workspaces.list of all": Ask(query=lambda roles: {"owner": "all"}),
    "workspaces.create": Ask(
        body=lambda roles: {"template": roles.known["template", PRIVATE]},
        bad=UNHEARD_OF,
        before=lambda roles, client: roles.parameter("template", PRIVATE),
    ),
    "workspaces.update": sends({"idle_stop_after": 60}),
    "workspaces.start": sends({}),
    "mcp_servers.answer": sends({"decision": "agree"}),
    "mcp.create": Ask(body=lambda roles: mcp_server_body(), bad=UNHEARD_OF),
    "mcp.create_own": Ask(body=lambda roles: mcp_server_body(), bad=UNHEARD_OF),
    "mcp.update": sends({"description": "None"}),
    "mcp.update_own": sends({"description": "None"}),
    # Without the cookie of its beginning, no login ends.
    "mcp.callback": Ask(reads=(400,)),
    "providers.create": Ask(body=lambda roles: provider_body(), bad=UNHEARD_OF),
    "providers.try_unsaved": Ask(body=lambda roles: {"type": "scripted"}, bad=UNHEARD_OF),
    "providers.update": sends({"display_name": "Nowhere"}),
    "providers.upstream_models": Ask(reads=(502,)),
    "model_configs.create": Ask(
        body=lambda roles: {"provider_id": roles.known["provider", ""], "model": "m", "context_limit": 1000},
        bad=UNHEARD_OF,
        before=lambda roles, client: roles.parameter("provider", ""),
    ),
    "model_configs.update": sends({"display_name": "Nothing"}),
    "provider_keys.put": sends({"api_key": "sk-of-my-own"}),
    "provider_keys.delete": Ask(before=_put_key),
    **{f"settings.put_{group}": sends({}) for group in GROUPS},
    "folders.create": Ask(body=lambda roles: {"name": uuid4().hex}, bad=UNHEARD_OF),
    "folders.update": sends({"color": "red"}),
    "saved_prompts.get": Ask(before=_put_prompt),
    "saved_prompts.put": sends({"text": "Review this."}),
    "saved_prompts.delete": Ask(before=_put_prompt),
    "agent_kinds.put": sends({"description": "Reviews changes."}),
    "agent_kinds.delete": Ask(before=_put_kind),
    "preferences.update": sends({"custom_prompt": ""}),
    "usage.report of a user": Ask(query=lambda roles: {"user": _owner_id(roles)}),
}


class Operation(NamedTuple):
    method: str
    path: str
    parameters: tuple[str, ...]
    is_stream: bool
    has_body: bool


class Answer(NamedTuple):
    status: int
    code: str


async def operations(roles: RolesRig) -> dict[str, Operation]:
    document = (await roles.clients["owner"].get("/api/v1/openapi.json")).json()
    return {
        described["operationId"]: Operation(
            method.upper(),
            path,
            tuple(each["name"] for each in described.get("parameters", []) if each["in"] == "path"),
            "101" in described["responses"],
            "application/json" in described.get("requestBody", {}).get("content", {}),
        )
        for path, described_by in document["paths"].items()
        for method, described in described_by.items()
    }


def targets(entry: str, operation: Operation, roles: RolesRig) -> list[str]:
    if OPERATIONS[entry].right not in ON_CHATS:
        return [PRIVATE]
    return [*roles.chats, NOWHERE] if "file" in operation.parameters else list(roles.chats)


async def send(
    roles: RolesRig, client: httpx2.AsyncClient, entry: str, operation: Operation, *, target: str, bad: bool = False
) -> Answer:
    ask = ASKS.get(entry, PLAIN)
    if ask.before is not None:
        await ask.before(roles, client)
    where = "" if operation.parameters == ("provider",) else target
    named = {name: await roles.parameter(name, where) for name in operation.parameters}
    if entry == "users.reset_password":
        # The target loses all credentials, and the owner is needed for other requests.
        named["user"] = str((await roles.rig.add(f"u{uuid4().hex[:12]}")).id)
    options: dict[str, Any] = {"params": ask.query(roles)}
    if ask.content is not None:
        options |= {"content": ask.content, "headers": UPLOAD}
    elif ask.body is not None:
        options["json"] = ask.bad if bad else ask.body(roles)
    async with client.stream(operation.method, operation.path.format(**named), **options) as answered:
        if operation.is_stream and answered.status_code == 200:
            return Answer(200, "")
        await answered.aread()
    is_error = answered.status_code >= 400 and answered.headers["content-type"] == "application/json"
    return Answer(answered.status_code, answered.json()["code"] if is_error else "")


def fits(wanted: str, answer: Answer, operation: Operation, ask: Ask) -> bool:
    if wanted != OK:
        return STATUSES.get(answer.status) == wanted and answer.code != "scope"
    if operation.method == "GET":
        return answer.status in ask.reads
    return answer.status not in STATUSES and answer.status != 429 and answer.status < 500


@pytest.fixture
async def roles(database_url: str, tmp_path: Path) -> AsyncIterator[RolesRig]:
    async with open_town(database_url, tmp_path) as opened:
        yield opened


async def test_every_operation_is_in_the_table_and_no_other(roles: RolesRig) -> None:
    assert {operation_of(entry) for entry in OPERATIONS} == set(await operations(roles))
    assert set(ASKS) <= set(OPERATIONS)
    assert {entry.right for entry in OPERATIONS.values()} == set(RIGHTS)


async def test_every_role_has_exactly_the_rights_of_the_table(roles: RolesRig) -> None:
    known = await operations(roles)
    wrong = []

    for entry in OPERATIONS:
        operation, ask = known[operation_of(entry)], ASKS.get(entry, PLAIN)
        for target in targets(entry, operation, roles):
            for actor in ACTORS:
                wanted = expected(entry, actor, target=target)
                got = await send(roles, roles.clients[actor], entry, operation, target=target)
                if not fits(wanted, got, operation, ask):
                    wrong.append(f"{entry} by {actor} on {target}: {got}, not {wanted}")
                if wanted == OK and operation.method != "GET":
                    roles.forget()

    assert wrong == [], "\n".join(wrong)


async def test_caller_without_the_right_learns_nothing_about_a_bad_body(roles: RolesRig) -> None:
    known = await operations(roles)
    wrong = []

    asked = [entry for entry in OPERATIONS if ASKS.get(entry, PLAIN).bad is not None]
    for entry in asked:
        operation = known[operation_of(entry)]
        for target in targets(entry, operation, roles):
            for actor in ACTORS:
                wanted = expected(entry, actor, target=target)
                got = await send(roles, roles.clients[actor], entry, operation, target=target, bad=True)
                if str(got.status) != ("400" if wanted == OK else wanted):
                    wrong.append(f"{entry} by {actor} on {target}: {got}, not {wanted}")

    assert wrong == [], "\n".join(wrong)
    unasked = {name for name, operation in known.items() if operation.has_body} - set(map(operation_of, asked))
    assert unasked == {"setup.complete", "auth.login", "links.use"}  # for callers without a login


async def test_each_scope_opens_what_the_design_says_and_nothing_else(database_url: str, tmp_path: Path) -> None:
    wrong = []
    # The owner is an administrator, so only the scope is missing.
    async with open_town(database_url, tmp_path, owner_role=Role.ADMIN) as roles:
        known = await operations(roles)
        for scope in SCOPES:
            made = await roles.owner.post("/api/v1/tokens", json={"name": scope, "scopes": [scope]})
            async with client_of(roles.url, made.json()["token"]) as client:
                for entry, (_, scopes) in OPERATIONS.items():
                    operation = known[operation_of(entry)]
                    bodies = (False, True) if ASKS.get(entry, PLAIN).bad is not None else (False,)
                    for bad in bodies:
                        got = await send(roles, client, entry, operation, target=PRIVATE, bad=bad)
                        if (got == Answer(403, "scope")) is (scope in scopes) or got.status == 429:
                            wrong.append(f"{entry} with {scope}, {'bad' if bad else 'good'} body: {got}")
                        if got.status < 300 and operation.method != "GET":
                            roles.forget()

    assert wrong == [], "\n".join(wrong)
