"""The expected rights of each operation, written from the design of the API, not from its code.

`OPERATIONS` has an entry for every operation of the OpenAPI document: a kind of right, whose row is in `RIGHTS`, and
the scopes of which a token needs one. If the right depends on the request, an operation has several entries, with a
suffix after a space.
"""

from __future__ import annotations

from typing import NamedTuple

OK, UNKNOWN, REFUSED, MISSING = "allowed", "401", "403", "404"

ACTORS = ("nobody", "stranger", "reader", "owner", "admin", "admin with a reason", "auditor")


def _row(stranger: str, reader: str, owner: str, admin: str, with_reason: str, auditor: str) -> dict[str, str]:
    return dict(zip(ACTORS, (UNKNOWN, stranger, reader, owner, admin, with_reason, auditor), strict=True))


# The expected statuses by kind of right. Reader and owner refer to the requested chat, file, user or token; the reader
# of one chat is a stranger to another.
RIGHTS = {
    "public": dict.fromkeys(ACTORS, OK),
    # The credential is part of the request, not a login. Here it is wrong.
    "by link": dict.fromkeys(ACTORS, UNKNOWN),
    "by signature": dict.fromkeys(ACTORS, MISSING),
    # All requests here have a token, not a session.
    "session": _row(REFUSED, REFUSED, REFUSED, REFUSED, REFUSED, REFUSED),
    "user": _row(OK, OK, OK, OK, OK, OK),
    # For a chat. Administrators need a reason to read, and none to stop it.
    "read": _row(MISSING, OK, OK, REFUSED, OK, MISSING),
    # Debug records: like reading, but a share does not include them.
    "inspect": _row(MISSING, REFUSED, OK, REFUSED, OK, MISSING),
    "drive": _row(MISSING, REFUSED, OK, REFUSED, REFUSED, MISSING),
    "stop": _row(MISSING, REFUSED, OK, OK, OK, MISSING),
    "mark": _row(MISSING, OK, OK, REFUSED, REFUSED, MISSING),
    # A signed address carries no reason.
    "sign": _row(MISSING, OK, OK, REFUSED, REFUSED, MISSING),
    "leave": _row(MISSING, OK, REFUSED, REFUSED, REFUSED, MISSING),
    # For other objects of a user.
    "own": _row(MISSING, MISSING, OK, MISSING, MISSING, MISSING),
    "own or admin": _row(MISSING, MISSING, OK, OK, OK, MISSING),
    "own or staff": _row(MISSING, MISSING, OK, OK, OK, OK),
    "own or admin, auditor reads": _row(MISSING, MISSING, OK, OK, OK, REFUSED),
    "own, staff reads": _row(MISSING, MISSING, OK, REFUSED, REFUSED, REFUSED),
    "admin, own and auditor read": _row(MISSING, MISSING, REFUSED, OK, OK, REFUSED),
    "list of": _row(REFUSED, REFUSED, OK, OK, OK, OK),
    # By role alone.
    "staff": _row(REFUSED, REFUSED, REFUSED, OK, OK, OK),
    "admins": _row(REFUSED, REFUSED, REFUSED, OK, OK, REFUSED),
}

SCOPES = ("all", "chat:read", "chat:write", "usage:read", "admin")
ANY = frozenset(SCOPES)
READ = frozenset({"all", "chat:read", "chat:write"})
WRITE = frozenset({"all", "chat:write"})
USAGE = frozenset({"all", "usage:read"})
ADMIN = frozenset({"all", "admin"})
# The user's own account, which only the scope `all` includes.
ACCOUNT = frozenset({"all"})


class Entry(NamedTuple):
    right: str
    scopes: frozenset[str]


OPERATIONS = {
    "setup.get": Entry("public", ANY),
    "setup.complete": Entry("public", ANY),
    "auth.login": Entry("by link", ANY),
    "auth.logout": Entry("session", ANY),
    "sessions.list": Entry("user", ACCOUNT),
    "sessions.end_others": Entry("user", ACCOUNT),
    "sessions.end": Entry("own", ACCOUNT),
    "auth.change_password": Entry("user", ACCOUNT),
    "links.get": Entry("by link", ANY),
    "links.use": Entry("by link", ANY),
    "tokens.list": Entry("user", ACCOUNT),
    "tokens.list of a user": Entry("own or admin", ACCOUNT),
    "tokens.create": Entry("user", ACCOUNT),
    "tokens.delete": Entry("own or admin", ACCOUNT),
    "users.me": Entry("user", ANY),
    "users.directory": Entry("user", WRITE | ADMIN),
    "users.list": Entry("staff", ADMIN),
    "users.create": Entry("admins", ADMIN),
    "users.get": Entry("own or staff", ADMIN),
    "users.update": Entry("own or admin, auditor reads", ADMIN),
    "users.update role": Entry("admin, own and auditor read", ADMIN),
    "users.delete": Entry("admins", ADMIN),
    "users.reset_password": Entry("admins", ADMIN),
    "users.accesses": Entry("user", ACCOUNT),
    "users.dismiss_access_notice": Entry("user", ACCOUNT),
    "chats.create": Entry("user", WRITE),
    "chats.list": Entry("user", READ),
    "chats.list of a user": Entry("list of", READ),
    "chats.get": Entry("read", READ),
    "chats.update title": Entry("drive", WRITE),
    "chats.update debug_mode": Entry("drive", WRITE),
    "chats.update folder_id": Entry("drive", WRITE),
    "chats.update pin_order": Entry("mark", WRITE),
    "chats.update archived": Entry("stop", WRITE),
    "chats.delete": Entry("stop", WRITE),
    "chats.mark_read": Entry("mark", WRITE),
    "messages.list": Entry("read", READ),
    "messages.send": Entry("drive", WRITE),
    "messages.get": Entry("read", READ),
    "messages.edit": Entry("drive", WRITE),
    "messages.submit_tool_results": Entry("drive", WRITE),
    "approvals.answer": Entry("drive", WRITE),
    "approvals.list_rules": Entry("read", READ),
    "approvals.put_rules": Entry("drive", WRITE),
    "messages.list_prompts": Entry("read", READ),
    "messages.list_own_prompts": Entry("user", READ),
    "messages.search": Entry("read", READ),
    "queue.list": Entry("read", READ),
    "queue.clear": Entry("drive", WRITE),
    "queue.delete": Entry("drive", WRITE),
    "queue.edit": Entry("drive", WRITE),
    "queue.promote": Entry("drive", WRITE),
    "queue.move": Entry("drive", WRITE),
    "turns.interrupt": Entry("stop", WRITE),
    "turns.retry": Entry("drive", WRITE),
    "turns.nudge": Entry("drive", WRITE),
    "turns.compact": Entry("drive", WRITE),
    "turns.reconcile": Entry("stop", WRITE),
    "titles.propose": Entry("drive", WRITE),
    "titles.regenerate": Entry("drive", WRITE),
    "folders.list": Entry("user", READ),
    "folders.create": Entry("user", WRITE),
    "folders.update": Entry("own", WRITE),
    "folders.delete": Entry("own", WRITE),
    "shares.list": Entry("drive", READ),
    "shares.update": Entry("drive", WRITE),
    "shares.leave": Entry("leave", WRITE),
    "shares.list_accesses": Entry("drive", READ),
    "files.upload": Entry("user", WRITE),
    "files.get": Entry("read", READ),
    "files.delete": Entry("drive", WRITE),
    "files.sign": Entry("sign", READ),
    "files.download": Entry("by signature", ANY),
    "download_links.list": Entry("session", ANY),
    "templates.list": Entry("user", READ | ADMIN),
    "templates.get": Entry("user", READ | ADMIN),
    "templates.push": Entry("admins", ADMIN),
    "templates.update": Entry("admins", ADMIN),
    "templates.delete": Entry("admins", ADMIN),
    "workspaces.list": Entry("user", READ),
    "workspaces.list of a user": Entry("own or staff", READ),
    "workspaces.list of all": Entry("staff", READ),
    "workspaces.create": Entry("user", WRITE),
    "workspaces.get": Entry("own or staff", READ),
    "workspaces.update": Entry("own, staff reads", WRITE),
    "workspaces.start": Entry("own, staff reads", WRITE),
    "workspaces.stop": Entry("own or admin, auditor reads", WRITE),
    "workspaces.delete": Entry("own or admin, auditor reads", WRITE),
    "operations.get": Entry("own or admin", READ),
    "operations.log": Entry("own or admin", READ),
    "chats.get_context": Entry("read", READ),
    "chats.refresh_context": Entry("drive", WRITE),
    "chats.diff": Entry("read", READ),
    "chats.git": Entry("drive", WRITE),
    "chats.folder": Entry("drive", WRITE),
    "chats.file": Entry("drive", WRITE),
    "chats.file_bytes": Entry("drive", WRITE),
    "mcp_servers.list": Entry("own, staff reads", WRITE),
    "mcp_servers.answer": Entry("own, staff reads", WRITE),
    "mcp_servers.withdraw": Entry("own, staff reads", WRITE),
    "mcp.list": Entry("user", READ | ADMIN),
    "mcp.catalog": Entry("user", ANY),
    "mcp.create": Entry("admins", ADMIN),
    "mcp.create_own": Entry("user", ACCOUNT),
    "mcp.get": Entry("user", READ | ADMIN),
    "mcp.tools": Entry("user", READ | ADMIN),
    "mcp.update": Entry("admins", ADMIN),
    "mcp.update_own": Entry("own", ACCOUNT),
    "mcp.delete": Entry("admins", ADMIN),
    "mcp.delete_own": Entry("own", ACCOUNT),
    "mcp.test": Entry("admins", ADMIN),
    "mcp.test_own": Entry("own", ACCOUNT),
    "mcp.connect": Entry("user", ACCOUNT),
    "mcp.callback": Entry("public", ANY),
    "mcp.client_metadata": Entry("public", ANY),
    "mcp.disconnect": Entry("user", ACCOUNT),
    "workspaces.folder": Entry("own, staff reads", WRITE),
    "models.list": Entry("user", READ | ADMIN),
    "providers.list": Entry("staff", ADMIN),
    "providers.create": Entry("admins", ADMIN),
    "providers.get": Entry("staff", ADMIN),
    "providers.update": Entry("admins", ADMIN),
    "providers.delete": Entry("admins", ADMIN),
    "providers.test": Entry("admins", ADMIN),
    "providers.try_unsaved": Entry("admins", ADMIN),
    "providers.upstream_models": Entry("admins", ADMIN),
    "model_configs.list": Entry("staff", ADMIN),
    "model_configs.create": Entry("admins", ADMIN),
    "model_configs.get": Entry("staff", ADMIN),
    "model_configs.update": Entry("admins", ADMIN),
    "model_configs.delete": Entry("admins", ADMIN),
    "model_configs.forget_window": Entry("admins", ADMIN),
    "provider_keys.list": Entry("user", ACCOUNT),
    "provider_keys.put": Entry("user", ACCOUNT),
    "provider_keys.delete": Entry("user", ACCOUNT),
    # Members see the groups with public keys; of `prompts` and `audit` nothing is public.
    "settings.list": Entry("user", READ | ADMIN),
    "settings.get_prompts": Entry("staff", ADMIN),
    "settings.put_prompts": Entry("admins", ADMIN),
    "settings.get_models": Entry("user", READ | ADMIN),
    "settings.put_models": Entry("admins", ADMIN),
    "settings.affected": Entry("staff", ADMIN),
    "settings.get_chats": Entry("user", READ | ADMIN),
    "settings.put_chats": Entry("admins", ADMIN),
    "settings.get_subagents": Entry("user", READ | ADMIN),
    "settings.put_subagents": Entry("admins", ADMIN),
    "settings.get_advisor": Entry("user", READ | ADMIN),
    "settings.put_advisor": Entry("admins", ADMIN),
    "saved_prompts.list": Entry("user", READ),
    "saved_prompts.get": Entry("user", READ),
    "saved_prompts.put": Entry("user", WRITE),
    "saved_prompts.delete": Entry("user", WRITE),
    "agent_kinds.list": Entry("user", ACCOUNT),
    "agent_kinds.put": Entry("user", ACCOUNT),
    "agent_kinds.delete": Entry("user", ACCOUNT),
    "settings.get_approvals": Entry("user", READ | ADMIN),
    "settings.put_approvals": Entry("admins", ADMIN),
    "settings.get_sharing": Entry("user", READ | ADMIN),
    "settings.put_sharing": Entry("admins", ADMIN),
    "settings.get_spend": Entry("user", READ | ADMIN),
    "settings.put_spend": Entry("admins", ADMIN),
    "settings.get_workspaces": Entry("user", READ | ADMIN),
    "settings.put_workspaces": Entry("admins", ADMIN),
    "settings.get_mcp": Entry("user", READ | ADMIN),
    "settings.put_mcp": Entry("admins", ADMIN),
    "settings.get_audit": Entry("staff", ADMIN),
    "settings.put_audit": Entry("admins", ADMIN),
    "settings.get_debug": Entry("user", READ | ADMIN),
    "settings.put_debug": Entry("admins", ADMIN),
    "preferences.get": Entry("user", ACCOUNT),
    "preferences.update": Entry("user", ACCOUNT),
    "debug.list_runs": Entry("inspect", READ),
    "debug.get_run": Entry("inspect", READ),
    "debug.get_step": Entry("inspect", READ),
    "debug.search_run": Entry("inspect", READ),
    "debug.compare_runs": Entry("inspect", READ),
    "debug.get_attempt": Entry("inspect", READ),
    "debug.export": Entry("inspect", READ),
    "debug.delete": Entry("drive", WRITE),
    "debug.replay": Entry("drive", WRITE),
    "chats.agents": Entry("read", READ),
    "chats.cost": Entry("read", READ | USAGE),
    "usage.spend": Entry("user", USAGE),
    "usage.report": Entry("user", USAGE),
    "usage.report of a user": Entry("own or staff", USAGE),
    "audit.list": Entry("staff", USAGE),
    "operations.replicas": Entry("staff", ADMIN),
    "operations.jobs": Entry("staff", ADMIN),
    "server.version": Entry("user", ANY),
    "server.openapi": Entry("user", ANY),
    "docs.page": Entry("public", ANY),
    "docs.asset": Entry("public", ANY),
    "chats.watch": Entry("user", READ),
    "chats.stream": Entry("read", READ),
}

# Paths of a chat or a file: tested with a private one, a shared one, and a child of each.
ON_CHATS = frozenset({"read", "inspect", "drive", "stop", "mark", "sign", "leave"})


def expected(entry: str, actor: str, *, target: str) -> str:
    """Return the expected status for an actor. `target` is the name of a chat, or of the chat that a file is in."""
    right = OPERATIONS[entry].right
    if target == "linked nowhere" and actor not in ("nobody", "owner"):
        return MISSING
    if right in ON_CHATS and actor == "reader" and "shared" not in target:
        actor = "stranger"
    return RIGHTS[right][actor]


def operation_of(entry: str) -> str:
    return entry.partition(" ")[0]
