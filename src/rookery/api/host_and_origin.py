"""Checks of the `Host` and `Origin` headers of requests.

They prevent two attacks. A page of another site must not use a visitor's cookie (cross-site requests). A host name of
an attacker that resolves to this machine must not reach the server (DNS rebinding).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

_DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}
_HTTP_OF = {"ws": "http", "wss": "https"}
# An origin as browsers send it: without a path, a user, or any other part of a URL.
_HEADER = re.compile(r"https?://[^\s/?#@\\]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origins:
    """The accepted hosts and origins. Without an `external_url` only loopback names and listed hosts are accepted."""

    external_url: str | None = None
    allowed_origins: Collection[str] = ()
    allowed_hosts: Collection[str] = ()

    @property
    def is_secure(self) -> bool:
        return self.external_url is not None and self.external_url.startswith("https:")

    def accepts_host(self, host: str) -> bool:
        name = host_name(host)
        if name is None:
            return False
        if is_loopback(name) or name in {each.casefold() for each in self.allowed_hosts}:
            return True
        return self.external_url is not None and name == (urlsplit(self.external_url).hostname or "").casefold()

    def accepts_origin(self, origin: str, *, scheme: str, host: str) -> bool:
        """Return whether a page of this origin may act with the visitor's cookie. The origin `null` may not."""
        found = _sent(origin)
        if found is None:
            return False
        own = _origin(f"{_HTTP_OF.get(scheme, scheme)}://{host}")
        listed = (_origin(each) for each in (*self.allowed_origins, self.external_url or ""))
        return found == own or found in {each for each in listed if each is not None}

    def shares_with(self, origin: str) -> bool:
        """Return whether pages of this origin may read responses with their own credentials (CORS)."""
        found = _sent(origin)
        return found is not None and found in {_origin(each) for each in self.allowed_origins}


def host_name(host: str) -> str | None:
    """Return the name in a `Host` header without its port, or None if the header is malformed."""
    if not host or any(character in host for character in "/@?#\\ \t"):
        return None
    try:
        name = urlsplit(f"//{host}").hostname
        _ = urlsplit(f"//{host}").port
    except ValueError:
        return None
    return name.casefold().rstrip(".") if name else None


def is_loopback(name: str) -> bool:
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _sent(header: str) -> tuple[str, str, int] | None:
    return _origin(header) if _HEADER.fullmatch(header) else None


def _origin(text: str) -> tuple[str, str, int] | None:
    try:
        url = urlsplit(text)
        port = _DEFAULT_PORTS.get(url.scheme) if url.port is None else url.port
    except ValueError:
        return None
    if url.scheme not in ("http", "https") or not url.hostname or port is None:
        return None
    return url.scheme, url.hostname.casefold(), port
