"""Files of messages: upload, download, links that are valid without a login, and deletion."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
import re
import struct
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Literal
from urllib.parse import quote, unquote
from uuid import UUID

import msgspec
from starlette.requests import HTTPConnection, Request
from starlette.responses import Response

from rookery.api import download_links, headers
from rookery.api.caller import Caller
from rookery.api.errors import NO_STORE, ApiError
from rookery.api.middleware import is_secure
from rookery.api.rate_limits import Limit
from rookery.api.routes import PREFIX, Routes, answer, nothing
from rookery.api.services import ApiServices
from rookery.domain.access.rights import Action, Resource, Scope, UserActor, has_scope
from rookery.domain.chat.errors import ChatError, InvalidInput
from rookery.domain.content import uploads
from rookery.store.authorized.files import FileContent, Span
from rookery.store.chats.files import MAX_FILE_BYTES, FileInfo, Origin
from rookery.store.models.errors import KeysMissing
from rookery.store.people import users
from rookery.store.people.errors import AccessError, FileNotFound, Forbidden, ScopeMissing

# The lifetime of a download address. The address is valid for one file, without a login.
LINK_LIFETIME = timedelta(minutes=5)
# Enough for ten megabytes over a slow line.
UPLOAD_SECONDS = 300.0
# A file never changes.
FOREVER = "private, max-age=31536000, immutable"
# A browser must not show a file that was loaded with one session's key to a page without this key.
VARIES = "Rookery-Session-Key"
SANDBOX = "sandbox; default-src 'none'"

_EXTENDED_NAME = re.compile(r";\s*filename\*\s*=\s*([\w-]*)'[^']*'([^;]*)", re.IGNORECASE)
_PLAIN_NAME = re.compile(r';\s*filename\s*=\s*(?:"((?:\\.|[^"\\])*)"|([^;\s]+))', re.IGNORECASE)
# The encodings of RFC 8187. Python knows many more, and not all of them encode text.
_ENCODINGS = frozenset({"utf-8", "iso-8859-1"})
# No file size has 19 digits. The bound matters because a header may hold thousands of digits.
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})", re.ASCII)
# The token of a download address: the user and the time of expiry, followed by a MAC that also covers the file id.
_TOKEN_HEAD = struct.Struct(">16sQ")
_MAC_BYTES = 32


class FileView(msgspec.Struct, frozen=True, kw_only=True):
    id: UUID
    name: str
    mime_type: str
    size_bytes: int
    sha256: str
    created_at: datetime


class DownloadView(msgspec.Struct, frozen=True, kw_only=True):
    """A download address. `url` returns the file to any client that has the address, until it expires."""

    url: str
    expires_at: datetime
    sha256: str
    size_bytes: int
    name: str
    mime_type: str


def router(services: ApiServices) -> Routes:
    routes = Routes("files")

    @routes.post(
        "/files",
        "files.upload",
        returns=FileView,
        status=201,
        raw_body="*/*",
        errors=(408, 409, 413),
        takes=[headers.FILE_NAME],
        gives=[headers.LOCATION],
    )
    async def upload(caller: Caller, request: Request, origin: Literal["upload", "pasted"] = "upload") -> Response:
        """Upload a file: its bytes are the body; its type and name are in the headers.

        `origin=pasted` marks a file that the interface made from a long pasted text.
        """
        caller.take(Limit.UPLOAD)
        if not has_scope(caller.actor, Resource.FILE, Action.CREATE):
            raise ScopeMissing(Scope.CHAT_WRITE)
        name = uploads.cleaned_name(_given_name(request.headers.get("content-disposition", "")))
        data = await caller.read_bytes(limit=MAX_FILE_BYTES, seconds=max(UPLOAD_SECONDS, caller.read_seconds))
        declared = request.headers.get("content-type")
        # In a thread, because the check of some megabytes of text takes long.
        mime_type = await asyncio.to_thread(uploads.checked_type, data, name=name, declared=declared)
        info = await caller.store.files.create(name=name, mime_type=mime_type, data=data, origin=Origin(origin))
        return answer(_view(info), 201, Location=f"{PREFIX}/files/{info.id}")

    @routes.get(
        "/files/{file}",
        "files.get",
        returns=bytes,
        media_type=uploads.UNKNOWN,
        also=(206, 304),
        errors=(404, 416),
        takes=[headers.RANGE, headers.IF_RANGE, headers.IF_NONE_MATCH, headers.BREAK_GLASS],
        gives=[headers.ETAG],
    )
    async def get(caller: Caller, request: Request, file: UUID) -> Response:
        """Return the bytes of a file, or a range of them."""
        sent = request.headers
        caching = download_links.CACHING if caller.is_by_link else FOREVER
        if sent.get("if-none-match") is not None:
            info = await caller.store.files.get(file)
            if _etag(info) in sent["if-none-match"]:
                return Response(
                    status_code=304, headers={"ETag": _etag(info), "Cache-Control": caching, "Vary": VARIES}
                )
        read = await caller.store.files.read(file, span_of=lambda info: _span(sent, info))
        return _served(read, caching=caching, Vary=VARIES)

    @routes.post("/files/{file}/download-url", "files.sign", returns=DownloadView, errors=(404, 412))
    async def sign(caller: Caller, request: Request, file: UUID) -> Response:
        """Create an address that returns the file without a login, for five minutes.

        Administrators who read the file by break-glass cannot create an address.
        """
        try:
            info = await caller.own_store.files.get(file)
        except Forbidden:
            raise Forbidden(
                "Administrators must give a reason with each read, and a link cannot contain one. Get the file "
                f"itself at {PREFIX}/files/{file}, with the reason."
            ) from None
        if services.ring is None:
            raise KeysMissing
        expires_at = _link_expiry(services.clock.now())
        token = sign_token(services.ring.subkey("download"), file, user_id=caller.user.id, expires_at=expires_at)
        view = DownloadView(
            url=f"{_base(services, request)}{PREFIX}/files/{file}/download?token={token}",
            expires_at=expires_at,
            sha256=info.sha256.hex(),
            size_bytes=info.size_bytes,
            name=info.name,
            mime_type=info.mime_type,
        )
        return answer(view)

    @routes.get(
        "/files/{file}/download",
        "files.download",
        returns=bytes,
        media_type=uploads.UNKNOWN,
        also=(206,),
        errors=(404, 416),
        takes=[headers.RANGE, headers.IF_RANGE],
        gives=[headers.ETAG],
        is_public=True,
    )
    async def download(request: Request, file: str, token: str = "") -> Response:
        """Return the bytes of a file by a signed address. Every invalid address gets 404."""
        sent = request.headers
        try:
            file_id = UUID(file)
            store = services.store.as_actor(await _signer(services, token, file_id))
            read = await store.files.read(file_id, span_of=lambda info: _span(sent, info))
        except (AccessError, ChatError, ValueError):
            raise ApiError(404, "not_found", "There is nothing at this address, or it has expired.") from None
        # Pages of other sites may show the file if they have the address.
        return _served(read, caching=NO_STORE, **{"Cross-Origin-Resource-Policy": "cross-origin"})

    @routes.delete("/files/{file}", "files.delete", errors=(404, 409))
    async def delete(caller: Caller, file: UUID) -> Response:
        """Delete a file that no chat uses."""
        await caller.store.files.delete(file)
        return nothing()

    return routes


def _link_expiry(now: datetime) -> datetime:
    """Return the expiry time of an address that is created now, in whole seconds."""
    return (now + LINK_LIFETIME).astimezone(UTC).replace(microsecond=0)


def sign_token(key: bytes, file_id: UUID, *, user_id: UUID, expires_at: datetime) -> str:
    head = _TOKEN_HEAD.pack(user_id.bytes, int(expires_at.timestamp()))
    return base64.urlsafe_b64encode(head + _mac(key, file_id, head)).decode().rstrip("=")


def verify_token(key: bytes, token: str, *, file_id: UUID, now: datetime) -> UUID | None:
    """Return the user who made the token if it is valid for this file and not expired."""
    try:
        data = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
    except (ValueError, binascii.Error):
        return None
    head, mac = data[: _TOKEN_HEAD.size], data[_TOKEN_HEAD.size :]
    if len(mac) != _MAC_BYTES or not hmac.compare_digest(mac, _mac(key, file_id, head)):
        return None
    user, expires = _TOKEN_HEAD.unpack(head)
    return UUID(bytes=user) if now.timestamp() < expires else None


def _mac(key: bytes, file_id: UUID, head: bytes) -> bytes:
    return hmac.digest(key, file_id.bytes + head, "sha256")


async def _signer(services: ApiServices, token: str, file_id: UUID) -> UserActor:
    """Return the user who created the address. Their current rights apply to it."""
    user_id = None
    if services.ring is not None:
        user_id = verify_token(services.ring.subkey("download"), token, file_id=file_id, now=services.clock.now())
    if user_id is None:
        raise FileNotFound(file_id)
    async with services.pool.acquire() as conn:
        user = await users.find_user(conn, user_id)
    if user is None or not user.is_active:
        raise FileNotFound(file_id)
    return UserActor(user.id, user.role)


def _served(read: FileContent, *, caching: str, **more: str) -> Response:
    info, span = read.info, read.span
    how = "inline" if uploads.is_shown_inline(info.mime_type) else "attachment"
    given = {
        **more,
        "Cache-Control": caching,
        "ETag": _etag(info),
        "Accept-Ranges": "bytes",
        "Content-Security-Policy": SANDBOX,
        "X-Content-Type-Options": "nosniff",
        "Content-Disposition": f"{how}; filename*=UTF-8''{quote(info.name, safe='')}",
        "Content-Type": f"{info.mime_type}; charset=utf-8" if info.mime_type.startswith("text/") else info.mime_type,
    }
    if span is None:
        return Response(read.data, headers=given)
    given["Content-Range"] = f"bytes {span.start}-{span.start + span.length - 1}/{info.size_bytes}"
    return Response(read.data, 206, given)


def _span(sent: Mapping[str, str], info: FileInfo) -> Span | None:
    """Return the range that the request asks for, or None to send the whole file.

    The whole file is also sent if the request has several ranges or an invalid range, or if `If-Range` names another
    version.
    """
    match = _RANGE.fullmatch(sent.get("range", ""))
    if match is None or sent.get("if-range", _etag(info)) != _etag(info):
        return None
    first, last = match.groups()
    size = info.size_bytes
    if first:
        start, end = int(first), min(int(last), size - 1) if last else size - 1
    elif last:
        start, end = max(0, size - int(last)), size - 1
    else:
        return None
    if first and last and int(last) < int(first):
        return None
    if start > end:
        raise ApiError(
            416,
            "range_not_satisfiable",
            f"The file has {size} bytes; there is no such range of it.",
            headers={"Content-Range": f"bytes */{size}"},
        )
    return Span(start, end - start + 1)


def _given_name(disposition: str) -> str:
    """Return the name in a `Content-Disposition`. The extended form, which has an encoding, takes precedence."""
    if match := _EXTENDED_NAME.search(f";{disposition}"):
        encoding, value = match.groups()
        if encoding.lower() not in _ENCODINGS:
            raise InvalidInput(
                "Content-Disposition", (f"File names in the encoding {encoding!r} are not supported. Use UTF-8.")
            )
        return unquote(value.strip().strip('"'), encoding=encoding, errors="replace")
    if match := _PLAIN_NAME.search(f";{disposition}"):
        quoted, plain = match.groups()
        name = re.sub(r"\\(.)", r"\1", quoted) if quoted is not None else plain
        try:
            return name.encode("latin-1").decode()  # many programs send plain UTF-8
        except UnicodeError:
            return name
    return ""


def _base(services: ApiServices, connection: HTTPConnection) -> str:
    """Return the base address of this request, with https if a proxy terminates TLS."""
    scheme = "https" if is_secure(connection, services) else "http"
    return f"{scheme}://{connection.headers.get('host', '')}"


def _etag(info: FileInfo) -> str:
    return f'"{info.sha256.hex()}"'


def _view(info: FileInfo) -> FileView:
    return FileView(
        id=info.id,
        name=info.name,
        mime_type=info.mime_type,
        size_bytes=info.size_bytes,
        sha256=info.sha256.hex(),
        created_at=info.created_at,
    )
