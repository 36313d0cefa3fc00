"""HTTP requests to the proxy: the parser, and the encoder of forwarded requests and refusals. Pure.

The parser refuses everything that two programs could parse differently. A forwarded request is encoded from the parsed
values, so that the host cannot read it as two requests.
"""

from __future__ import annotations

import re
from typing import Literal, TypeAlias

import msgspec

from rookery.workspaces.egress import hosts

MAX_HEAD_BYTES = 32 * 1024
MAX_TARGET_BYTES = 8 * 1024
MAX_HEADERS = 100

# The result of a request, which metrics count.
Decision: TypeAlias = Literal["allowed", "not_listed", "blocked_address", "malformed", "unreachable", "too_many"]

ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"

_LINE = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]{1,32}) ([\x21-\x7e]+) HTTP/1\.([01])")
_NAME = re.compile(rb"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(rb"[\t\x20-\x7e\x80-\xff]*")
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_AUTHORITY = re.compile(r"(?:([A-Za-z0-9._-]+)|\[([0-9A-Fa-f:.]{2,45})\])(?::([0-9]{1,5}))?")
_LENGTH = re.compile(r"[0-9]{1,18}")
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-9][0-9]{2})(?: [\t\x20-\x7e\x80-\xff]*)?")
# Hop-by-hop headers, which are never forwarded.
_HOP = frozenset(
    {
        *("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization"),
        *("te", "trailer", "transfer-encoding", "upgrade", "http2-settings"),  # codespell:ignore te
    }
)
# Encoded from parsed values when a request is forwarded.
_OWN = frozenset({"host", "content-length"})


class Refusal(Exception):
    """Raised for a refused request. `reason` is for the status line, which may be all that a program shows."""

    def __init__(self, status: int, reason: str, text: str, *, decision: Decision = "malformed") -> None:
        super().__init__(text)
        self.status = status
        self.reason = reason
        self.text = text
        self.decision: Decision = decision


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A parsed request. `host` is a name or an address. `length` is that of the body; None if it is chunked."""

    method: str
    host: str
    port: int
    protocol: Literal["http", "socks5"] = "http"
    path: str = ""
    version: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    length: int | None = 0

    @property
    def is_tunnel(self) -> bool:
        return self.method == "CONNECT"

    @property
    def is_address(self) -> bool:
        return hosts.canonical_address(self.host) is not None

    def head(self) -> bytes:
        """Return the head of the forwarded request."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        where = host if self.port == 80 else f"{host}:{self.port}"
        lines = [f"{self.method} {self.path} HTTP/1.{self.version}", f"Host: {where}"]
        lines += [f"{name}: {value}" for name, value in self.headers]
        if self.length is None:
            lines.append("Transfer-Encoding: chunked")
        elif self.length or self.method in ("POST", "PUT", "PATCH"):
            lines.append(f"Content-Length: {self.length}")
        return ("\r\n".join([*lines, "Connection: close"]) + "\r\n\r\n").encode("latin-1")


def parse(head: bytes) -> Request:
    """Parse a head without its empty line. Raise `Refusal` if it is invalid."""
    first, *rest = head.split(b"\r\n")
    if first.startswith(b"PRI * HTTP/2"):
        raise Refusal(505, "HTTP/2 is not supported", "This proxy supports HTTP/1.1 only, not HTTP/2.")
    line = _LINE.fullmatch(first)
    if line is None:
        raise malformed("its first line is not `METHOD URL HTTP/1.1`")
    method, target, version = line[1].decode(), line[2].decode(), int(line[3])
    if len(target) > MAX_TARGET_BYTES:
        raise Refusal(414, "URL too long", f"A URL may have at most {MAX_TARGET_BYTES} bytes.")
    headers = _headers(rest)
    if method == "CONNECT":
        return _tunnel(target, headers)
    host, port, path = _absolute(target)
    dropped = _dropped_headers(headers) | _OWN
    return Request(
        method=method,
        host=host,
        port=port,
        path=path,
        version=version,
        headers=tuple((name, value) for name, value in headers if name.lower() not in dropped),
        length=_length(headers, version),
    )


def parse_answer_head(head: bytes) -> tuple[int, bytes]:
    """Return the status of a response, and its head for the client. Raise ValueError if the head is invalid.

    Hop-by-hop headers are dropped, and `Connection: close` is added.
    """
    first, *rest = head.split(b"\r\n")
    line = _STATUS.fullmatch(first)
    if line is None:
        raise ValueError("no status line")
    headers = [_header(each) for each in rest]
    # The framing headers are kept, because the body is forwarded unchanged.
    dropped = _dropped_headers(headers) - {"transfer-encoding", "trailer"}
    kept = [f"{name}: {value}" for name, value in headers if name.lower() not in dropped]
    status = int(line[1])
    if status >= 200:
        kept.append("Connection: close")
    return status, first + b"\r\n" + "".join(f"{each}\r\n" for each in kept).encode("latin-1") + b"\r\n"


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the HTTP response for a refusal."""
    body = f"{refusal.text}\n".encode()
    head = (
        f"HTTP/1.1 {refusal.status} {refusal.reason}\r\nContent-Type: text/plain; charset=utf-8\r\n"
        f"Content-Length: {len(body)}\r\nX-Rookery-Egress: {refusal.decision}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


def malformed(why: str) -> Refusal:
    return Refusal(400, "Malformed request", f"The request is not valid: {why}.")


def _headers(lines: list[bytes]) -> list[tuple[str, str]]:
    if len(lines) > MAX_HEADERS:
        raise Refusal(431, "Too many headers", f"A request may have at most {MAX_HEADERS} headers.")
    try:
        found = [_header(each) for each in lines]
    except ValueError:
        raise malformed("one of its headers is not `Name: value` on one line") from None
    if len(_values(found, "host")) > 1:
        raise malformed("it has two Host headers")
    return found


def _header(line: bytes) -> tuple[str, str]:
    # Matched in pieces. One pattern for the whole line could take hours for a line of blanks.
    name, colon, value = line.partition(b":")
    value = value.strip(b" \t")
    if not colon or _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
        raise ValueError("no header")
    return name.decode(), value.decode("latin-1")


def _values(headers: list[tuple[str, str]], name: str) -> list[str]:
    return [value for each, value in headers if each.lower() == name]


def _dropped_headers(headers: list[tuple[str, str]]) -> frozenset[str]:
    named = {name.strip().lower() for value in _values(headers, "connection") for name in value.split(",")}
    return _HOP | named


def _length(headers: list[tuple[str, str]], version: int) -> int | None:
    lengths, codings = _values(headers, "content-length"), _values(headers, "transfer-encoding")
    if codings:
        if lengths or version == 0 or [each.lower() for each in codings] != ["chunked"]:
            raise malformed("the end of its body is ambiguous")
        return None
    if not lengths:
        return 0
    if len(lengths) > 1 or not _LENGTH.fullmatch(lengths[0]):
        raise malformed("its Content-Length is not one number")
    return int(lengths[0])


def _tunnel(target: str, headers: list[tuple[str, str]]) -> Request:
    if _values(headers, "content-length") not in ([], ["0"]) or _values(headers, "transfer-encoding"):
        raise malformed("a CONNECT has no body")
    host, port = _host_and_port(target, default_port=None)
    return Request(method="CONNECT", host=host, port=port)


def _absolute(target: str) -> tuple[str, int, str]:
    scheme = _SCHEME.match(target)
    if scheme is None:
        raise malformed("its target is not a URL with a host. This server is a proxy and has no pages")
    if scheme[1].lower() != "http":
        why = "use CONNECT for it" if scheme[1].lower() == "https" else "only http and https are allowed"
        raise malformed(f"its URL begins with {scheme[1][:20].lower()}://, and {why}")
    rest = target[scheme.end() :]
    end = min((canonical_host for mark in "/?#" if (canonical_host := rest.find(mark)) >= 0), default=len(rest))
    authority, path = rest[:end], rest[end:]
    if "#" in path:
        raise malformed("its URL has a fragment")
    host, port = _host_and_port(authority, default_port=80)
    return host, port, path if path.startswith("/") else f"/{path}"


def _host_and_port(authority: str, *, default_port: int | None) -> tuple[str, int]:
    """Return the host and the port of an authority. Raise `Refusal` if it is invalid."""
    match = _AUTHORITY.fullmatch(authority)
    written = (match[1] or match[2]) if match is not None else ""
    host = hosts.canonical_address(written) if match is not None and match[2] is not None else canonical_host(written)
    port = int(match[3]) if match is not None and match[3] else default_port
    if host is None or port is None or not 1 <= port <= 65_535:
        raise malformed(
            "it does not name `host:port`" if default_port is None else "its URL has no host that could be asked"
        )
    return host, port


def canonical_host(written: str) -> str | None:
    """Return the canonical form of a host name or IPv4 address; None if it is neither."""
    host = hosts.canonical_name(written)
    if host is None or not hosts.is_address(host):
        return host
    if (found := hosts.canonical_address(host)) is not None:
        return found
    raise malformed(f"{host[:60]} is an address that is not written in full, as in 198.51.100.7")


def address_refused(address: str) -> Refusal:
    return Refusal(
        403,
        "Addresses are not allowed in this workspace, only host names on its list",
        f"{address} is an address. This workspace may reach only hosts on its list, by their names.",
        decision="not_listed",
    )
