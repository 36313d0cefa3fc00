"""The server's version, the OpenAPI document, and the API browser, a page that loads nothing from other hosts."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from importlib import resources
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from rookery import __version__
from rookery.api import openapi
from rookery.api.caller import Caller
from rookery.api.routes import Routes, answer
from rookery.api.services import ApiServices
from rookery.store.db import migrate

API_VERSION = 1
STREAM_PROTOCOL = 1

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; img-src 'none'"
)


class Asset(StrEnum):
    SCRIPT = "docs.js"
    STYLE = "docs.css"


_MEDIA_TYPES = {Asset.SCRIPT: "text/javascript", Asset.STYLE: "text/css"}


class VersionView(msgspec.Struct, frozen=True):
    """The version of the server. `build` is the build of the web application; null if there is none. `features` are the
    tags of this API.

    A client hides functions whose tag is missing, because the server is older or was built without them.
    """

    version: str
    commit: str | None
    api: int
    stream_protocol: int
    schema: int
    build: str | None
    features: tuple[str, ...]


def router(services: ApiServices) -> Routes:
    routes = Routes("server")
    document: dict[str, Any] | None = None
    features: tuple[str, ...] | None = None
    files = resources.files("rookery.api") / "docs_page"
    page = (files / "index.html").read_bytes()
    assets = {asset: (files / asset).read_bytes() for asset in Asset}

    @routes.get("/version", "server.version", returns=VersionView)
    async def version(caller: Caller, request: Request) -> Response:
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
                build=services.web.build,
                features=features,
            )
        )

    @routes.get("/openapi.json", "server.openapi", returns=dict)
    async def describe(caller: Caller, request: Request) -> Response:
        """Return this document."""
        nonlocal document
        if document is None:
            # In a thread, because it takes a quarter of a second, once, and would delay streams.
            document = await asyncio.to_thread(openapi.document, request.app)
        return answer(document)

    @routes.get("/docs", "docs.page", returns=bytes, media_type="text/html", is_public=True)
    async def show_docs() -> Response:
        """Show the OpenAPI document as a page.

        The page needs no login, because it contains no data of this server. To send requests from it, log in or enter
        a token.
        """
        return Response(page, headers={"Content-Security-Policy": POLICY}, media_type="text/html")

    @routes.get("/docs/{asset}", "docs.asset", returns=bytes, media_type="*/*", is_public=True)
    async def get_docs_asset(asset: Asset) -> Response:
        """Return a script or style of the API browser."""
        return Response(assets[asset], media_type=_MEDIA_TYPES[asset])

    return routes
