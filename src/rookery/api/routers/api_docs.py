"""The API browser: a page read from the package once, which loads nothing from other hosts."""

from __future__ import annotations

from enum import StrEnum
from importlib import resources

from fastapi import APIRouter
from starlette.responses import Response

from rookery.api.routes import Routes
from rookery.api.services import ApiServices

POLICY = (
    "default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; img-src 'none'"
)


class Asset(StrEnum):
    SCRIPT = "docs.js"
    STYLE = "docs.css"


_MEDIA_TYPES = {Asset.SCRIPT: "text/javascript", Asset.STYLE: "text/css"}


def router(parts: ApiServices) -> APIRouter:
    routes = Routes("server")
    files = resources.files("rookery.api") / "docs_page"
    page = (files / "index.html").read_bytes()
    assets = {asset: (files / asset).read_bytes() for asset in Asset}

    @routes.get("/docs", "docs.page", returns=bytes, media_type="text/html", is_public=True)
    async def show() -> Response:
        """Show this document in a page that can also send requests, with a login or a token.

        The page contains no data of this server, so it needs no login.
        """
        return Response(page, headers={"Content-Security-Policy": POLICY}, media_type="text/html")

    @routes.get("/docs/{asset}", "docs.asset", returns=bytes, media_type="*/*", is_public=True)
    async def get_asset(asset: Asset) -> Response:
        """Return a script or style of the API browser."""
        return Response(assets[asset], media_type=_MEDIA_TYPES[asset])

    return routes.router
