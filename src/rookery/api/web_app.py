"""The web application: serves the files that `make web` built, and the page for every address outside the API.

The list of files is read once, at the start. A request cannot name any other file, and a changed folder takes effect
with the next start. Threads read the files, in the encoding that the browser prefers.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import msgspec
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rookery import __version__

FOLDER = Path(__file__).parent.parent / "web_dist"
ASSETS = "/assets/"
SANDBOX = "/sandbox/"
PAGE = "/index.html"

# Scripts are strict. Inline styles are allowed, because scroll locking, formulas and terminals write styles at run
# time.
POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; connect-src 'self'; "
    "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
# The frame that draws diagrams from a model's text has no origin and no network. It can only post messages to its page.
SANDBOX_POLICY = (
    "sandbox allow-scripts; default-src 'none'; script-src 'self'; style-src 'unsafe-inline'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
_ABSENT_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"
_COMMON = {
    # Popups of other sites, in which users connect accounts, may still notify this page.
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
FOREVER = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"

_BUILD = re.compile(rb'<meta name="rookery-build" content="([0-9a-zA-Z._-]{1,64})"')
# Paths that never return the page, even if no file exists there.
_RESERVED = re.compile(r"/(api|internal|assets|sandbox|healthz|readyz|metrics)(/|$)")
# The encodings, in order of preference.
_ENCODINGS = (("br", ".br"), ("gzip", ".gz"))
_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".map": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".webp": "image/webp",
    ".woff2": "font/woff2",
}

ABSENT_PAGE = f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rookery</title>
<style>
  body {{ font: 16px/1.6 system-ui, sans-serif; max-width: 40rem; margin: 15vh auto; padding: 0 1.5rem }}
  body {{ background: #fff; color: #1a1d23 }}
  @media (prefers-color-scheme: dark) {{ body {{ background: #14161a; color: #e8eaee }} a {{ color: #7fb0ff }} }}
  code {{ font-family: ui-monospace, monospace }}
</style>
<h1>Rookery is running</h1>
<p>Version {__version__}. The web application is not built. Run <code>make web</code> in the source tree and restart the
server. Release packages contain it.</p>
<p>Programs and <code>rookery chat</code> do not need it: they use the API, which is documented at
<a href="/api/v1/docs"><code>/api/v1/docs</code></a>. <a href="/readyz"><code>/readyz</code></a> shows the state of the
server.</p>
</html>
"""


class WebFile(msgspec.Struct, frozen=True):
    """One file of the application. `encoded` are compressed versions of it, by the name of the encoding."""

    path: Path
    etag: str
    encoded: Mapping[str, Path]


class WebApp:
    """The built application. `build` is its name, or None if nothing was built."""

    def __init__(self, folder: Path) -> None:
        self.files = _list_files(folder)
        self.build = _find_build(self.files)

    @property
    def is_built(self) -> bool:
        return self.build is not None


def packaged() -> WebApp:
    """Return the application that is part of this package or was built into it."""
    return WebApp(FOLDER)


class Spa:
    """Answers GET requests for pages and their files; all other requests go to the inner application."""

    def __init__(self, application: ASGIApp, web: WebApp) -> None:
        self._application = application
        self._web = web

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "GET":
            await self._application(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path: str = scope["path"]
        if (name := find_name(self._web, path, accept=headers.get("accept"))) is not None:
            # The name for metrics and the log. The path is not used, because it contains ids of chats.
            scope["route"] = SimpleNamespace(path=_template(name))
            response = await _answer(self._web, name, headers)
            await response(scope, receive, send)
            return
        await self._application(scope, receive, send)


def find_name(web: WebApp, path: str, *, accept: str | None) -> str | None:
    """Return the file that answers this path, or None when the inner application has to answer. Pure.

    A program that requests an unknown address gets an error. A browser that navigates gets the page, which has its own
    routes.
    """
    if path != PAGE and path in web.files:
        return path
    if _RESERVED.match(path):
        return None
    if path == "/" or "text/html" in (accept or ""):
        return PAGE
    return None


async def _answer(web: WebApp, name: str, headers: Headers) -> Response:
    file = web.files.get(name)
    if file is None:
        absent = {"Content-Security-Policy": _ABSENT_POLICY, "Cache-Control": "no-store"}
        return Response(ABSENT_PAGE, headers=absent, media_type="text/html")
    given = {
        "Cache-Control": FOREVER if name.startswith(ASSETS) else ASK_AGAIN,
        "ETag": file.etag,
        "Vary": "Accept-Encoding",
        "Content-Type": _TYPES.get(file.path.suffix, "application/octet-stream"),
        **_policy(name),
    }
    if file.etag in headers.get("if-none-match", ""):
        return Response(status_code=304, headers=given)
    path = file.path
    accepted = _accepted(headers.get("accept-encoding", ""))
    for encoding, _ in _ENCODINGS:
        if encoding in accepted and encoding in file.encoded:
            path, given["Content-Encoding"] = file.encoded[encoding], encoding
            break
    return Response(await asyncio.to_thread(path.read_bytes), headers=given)


def _policy(name: str) -> dict[str, str]:
    if name.startswith(SANDBOX):
        return {"Content-Security-Policy": SANDBOX_POLICY}
    if name.startswith(ASSETS):
        # The sandbox has no origin, so loading its modules is a cross-origin request. They contain nothing secret.
        return {"Access-Control-Allow-Origin": "*"}
    if name.endswith(".html"):
        return {"Content-Security-Policy": POLICY, "X-Frame-Options": "DENY", **_COMMON}
    return {}


def _template(name: str) -> str:
    for folder in (ASSETS, SANDBOX):
        if name.startswith(folder):
            return f"{folder}{{file}}"
    return "/{page}" if name == PAGE else name


def _accepted(header: str) -> set[str]:
    """Return the encodings that a browser accepts. `q=0` refuses an encoding."""
    found = set()
    for each in header.split(","):
        name, _, quality = each.partition(";")
        if not re.fullmatch(r"\s*q=0(\.0*)?\s*", quality):
            found.add(name.strip().lower())
    return found


def _list_files(folder: Path) -> dict[str, WebFile]:
    suffixes = tuple(suffix for _, suffix in _ENCODINGS)
    paths = [path for path in folder.rglob("*") if path.is_file()] if folder.is_dir() else []
    found = {}
    for path in paths:
        if path.suffix in suffixes:
            continue
        name = "/" + path.relative_to(folder).as_posix()
        encoded = {
            encoding: twin for encoding, suffix in _ENCODINGS if (twin := path.with_name(path.name + suffix)).is_file()
        }
        # Names of assets change with their content; the other files are few and small.
        named = name.encode() if name.startswith(ASSETS) else path.read_bytes()
        found[name] = WebFile(path, f'"{hashlib.sha256(named).hexdigest()[:32]}"', encoded)
    return found


def _find_build(files: Mapping[str, WebFile]) -> str | None:
    page = files.get(PAGE)
    if page is None:
        return None
    told = _BUILD.search(page.path.read_bytes())
    # A build without a name is named by the hash of its page, which refers to all other files by their content hashes.
    return told[1].decode() if told else page.etag.strip('"')[:12]
