"""Owners' consents to the MCP servers that files of their workspaces name.

A workspace has one consent per server name. It applies to one entry, so a changed entry needs a new consent. Each
workspace needs its own consent, because the same command may run different files there.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from uuid import UUID

import msgspec

from rookery.domain.chat import mcp_consent
from rookery.domain.chat.mcp_consent import Entry, McpDecision, McpState
from rookery.store.db.pool import Connection
from rookery.store.workspaces.context import ContextResource, Snapshot

LIST = "SELECT name, entry_hash, decision, decided_at FROM workspace_mcp_consents WHERE workspace_id = $1"
AGREED = "SELECT entry_hash FROM workspace_mcp_consents WHERE workspace_id = $1 AND decision = 'agree'"
WRITE = """
    INSERT INTO workspace_mcp_consents (workspace_id, name, entry_hash, decision, decided_by)
    VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (workspace_id, name) DO UPDATE
       SET entry_hash = excluded.entry_hash, decision = excluded.decision, decided_by = excluded.decided_by,
           decided_at = clock_timestamp()
"""
WITHDRAW = "DELETE FROM workspace_mcp_consents WHERE workspace_id = $1 AND name = $2 AND entry_hash = $3 RETURNING name"


class Consent(msgspec.Struct, frozen=True):
    """The owner's last decision about a server name, and the entry that it applies to."""

    name: str
    entry_hash: str
    decision: McpDecision
    decided_at: datetime


class NamedServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server that a file of the workspace names now, and the state of the owner's consent."""

    entry: Entry
    state: McpState
    decided_at: datetime | None
    resource: ContextResource


async def list_consents(conn: Connection, workspace_id: UUID) -> dict[str, Consent]:
    """Return the consents by server name."""
    found = (
        Consent(record["name"], record["entry_hash"], McpDecision(record["decision"]), record["decided_at"])
        for record in await conn.fetch(LIST, workspace_id)
    )
    return {each.name: each for each in found}


async def list_agreed(conn: Connection, workspace_id: UUID) -> frozenset[str]:
    """Return the hashes of the entries that the owner agreed to."""
    return frozenset(record[0] for record in await conn.fetch(AGREED, workspace_id))


async def write(conn: Connection, workspace_id: UUID, entry: Entry, decision: McpDecision, *, by: UUID | None) -> None:
    await conn.execute(WRITE, workspace_id, entry.name, entry.hash, decision.value, by)


async def withdraw(conn: Connection, workspace_id: UUID, entry: Entry) -> bool:
    """Delete the consent to this entry. Returns whether there was one."""
    return await conn.fetchval(WITHDRAW, workspace_id, entry.name, entry.hash) is not None


def named_servers(snapshot: Snapshot | None, consents: dict[str, Consent]) -> tuple[NamedServer, ...]:
    """Return the servers of a workspace in order of their names."""
    found = []
    for resource in snapshot.resources if snapshot is not None else ():
        if resource.kind != "mcp_server" or resource.entry is None:
            continue
        consent = consents.get(resource.entry.name)
        answered = None if consent is None else (consent.entry_hash, consent.decision)
        state = mcp_consent.state(resource.entry.hash, answered)
        decided_at = consent.decided_at if consent is not None and state is not McpState.CHANGED else None
        found.append(NamedServer(entry=resource.entry, state=state, decided_at=decided_at, resource=resource))
    return tuple(sorted(found, key=lambda each: each.entry.name))


def agreed_entries(snapshot: Snapshot, agreed: Collection[str]) -> list[Entry]:
    return [each.entry for each in snapshot.resources if each.entry is not None and each.entry.hash in agreed]


def differs_from_consents(snapshot: Snapshot, agreed: Collection[str]) -> bool:
    """Return whether the agent uses a server without consent, or does not use one with consent."""
    servers = [each for each in snapshot.resources if each.entry is not None]
    return any((each.entry is not None and each.entry.hash in agreed) == (each.status == "pending") for each in servers)


def signature(snapshot: Snapshot | None) -> frozenset[tuple[str, str]]:
    """Return the servers' entry hashes and states. Chats and users are notified when this value changes."""
    resources = () if snapshot is None else snapshot.resources
    return frozenset((each.entry.hash, each.status) for each in resources if each.entry is not None)
