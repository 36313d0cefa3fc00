"""The routes for the server's version and the OpenAPI document."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from rookery import __version__
from rookery.api import openapi
from rookery.api.request_context import CallerDep
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.store.db import migrate

API_VERSION = 1
STREAM_PROTOCOL = 1


class VersionView(msgspec.Struct, frozen=True):
    """`build` names the build of the web application, null if there is none. `features` are the tags of this API.

    A client hides functions whose tag is missing: the server is older, or was built without them.
    """

    version: str
    commit: str | None
    api: int
    stream_protocol: int
    schema: int
    build: str | None
    features: tuple[str, ...]


def router(parts: ApiServices) -> APIRouter:
    routes = Routes("server")
    document: dict[str, Any] | None = None
    features: tuple[str, ...] | None = None

    @routes.get("/version", "server.version", returns=VersionView)
    async def version(caller: CallerDep, request: Request) -> Response:
        """Return the server's version, its protocols and its features."""
        nonlocal features
        if features is None:
            features = openapi.chapters(request.app)
        return answer(
            VersionView(
                version=__version__,
                commit=None,
                api=API_VERSION,
                stream_protocol=STREAM_PROTOCOL,
                schema=migrate.SCHEMA_VERSION,
                build=parts.web.build,
                features=features,
            )
        )

    @routes.get("/openapi.json", "server.openapi", returns=dict)
    async def describe(caller: CallerDep, request: Request) -> Response:
        """Return this document."""
        nonlocal document
        if document is None:
            # In a thread: it takes a quarter of a second, once, and would delay streams.
            document = await asyncio.to_thread(openapi.document, request.app)
        return answer(document)

    return routes.router
