"""Signed links for images and downloads, which browsers load without the session key."""

from __future__ import annotations

from datetime import datetime

import msgspec
from starlette.responses import Response

from rookery.api import download_links
from rookery.api.caller import Caller
from rookery.api.errors import BadFields, FieldError
from rookery.api.routes import Items, Routes, answer
from rookery.api.services import ApiServices
from rookery.store.people import signed_links
from rookery.store.people.errors import Forbidden

MAX_LINKS = 100
_RULE = "This is not an address, beginning with /api/v1, of a file, of a file of a workspace, or of a report as CSV."


class DownloadLink(msgspec.Struct, frozen=True):
    """A signed link.

    `url` is the path with its signature. It is valid only with the cookie of this session, until it expires.
    """

    path: str
    url: str
    expires_at: datetime


def router(services: ApiServices) -> Routes:
    routes = Routes("files")

    @routes.get("/download-links", "download_links.list", returns=Items[DownloadLink])
    async def sign(caller: Caller, path: tuple[str, ...] = ()) -> Response:
        """Sign addresses that a browser loads without the session key. The links are valid for five to ten minutes.

        Repeat `path` for up to 100 addresses of files, files of workspaces, or reports as CSV. Only sessions can sign
        links; an API token is sent as a header. The user's rights are checked when a link is used.
        """
        links = caller.links
        if links is None:
            raise Forbidden(
                "Only sessions can sign links. Send the API token with the request for the file, or request "
                "its download-url."
            )
        if not 1 <= len(path) <= MAX_LINKS:
            raise BadFields([FieldError("path", f"Name 1 to {MAX_LINKS} addresses.")])
        if not all(map(download_links.is_signable, path)):
            raise BadFields([FieldError("path", _RULE)])
        expires_at = signed_links.expiry(services.clock.now())
        made = (
            DownloadLink(each, download_links.sign(links, each, expires_at=expires_at), expires_at) for each in path
        )
        return answer(Items(tuple(made)))

    return routes
