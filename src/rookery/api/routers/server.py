"""About the server itself: its version, and the description of this API."""

from __future__ import annotations

from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from rookery import __version__
from rookery.api import openapi
from rookery.api.caller import CallerDep
from rookery.api.parts import ApiParts
from rookery.api.routes import Routes, answer
from rookery.store import migrate

API_VERSION = 1
STREAM_PROTOCOL = 1


class VersionView(msgspec.Struct, frozen=True):
    version: str
    commit: str | None
    api: int
    stream_protocol: int
    schema: int


def router(parts: ApiParts) -> APIRouter:
    routes = Routes("server")
    document: dict[str, Any] | None = None

    @routes.get("/version", "server.version", returns=VersionView)
    async def version(caller: CallerDep) -> Response:
        """Which version this is, and which protocols it speaks."""
        return answer(VersionView(__version__, None, API_VERSION, STREAM_PROTOCOL, migrate.SCHEMA_VERSION))

    @routes.get("/openapi.json", "server.openapi", returns=dict)
    async def describe(caller: CallerDep, request: Request) -> Response:
        """This document."""
        nonlocal document
        if document is None:
            document = openapi.document(request.app)
        return answer(document)

    return routes.router
