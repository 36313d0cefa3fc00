"""The replicas of this deployment. For administrators and auditors."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
from fastapi import APIRouter
from starlette.responses import Response

from rookery.api.caller import CallerDep
from rookery.api.parts import ApiParts
from rookery.api.routes import Items, Routes, answer
from rookery.store.replicas import ReplicaState


class ReplicaView(msgspec.Struct, frozen=True, kw_only=True):
    """`owned_chats` are at work there. `streams` is null for others than the replica that answers."""

    id: UUID
    hostname: str
    pid: int
    index: int
    version: str
    schema_version: int
    state: ReplicaState
    owned_chats: int
    streams: int | None
    started_at: datetime
    heartbeat_at: datetime
    stopping_at: datetime | None


def router(parts: ApiParts) -> APIRouter:
    routes = Routes("operations")

    @routes.get("/replicas", "operations.replicas", returns=Items[ReplicaView])
    async def replicas(caller: CallerDep) -> Response:
        """Every replica that the database knows, oldest first."""
        found = await caller.store.reports.replicas()
        owned = await caller.store.reports.owned_chats()
        shown = tuple(
            ReplicaView(
                id=each.replica.id,
                hostname=each.replica.hostname,
                pid=each.replica.pid,
                index=each.replica.index,
                version=each.replica.version,
                schema_version=each.replica.schema_version,
                state=each.state,
                owned_chats=owned.get(each.replica.id, 0),
                streams=len(parts.streams.sessions) if each.replica.id == parts.streams.parts.replica_id else None,
                started_at=each.started_at,
                heartbeat_at=each.heartbeat_at,
                stopping_at=each.stopping_at,
            )
            for each in found
        )
        return answer(Items(shown))

    return routes.router
