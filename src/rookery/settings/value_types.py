"""Types of setting values: parsing from text or TOML, validation, and display."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from datetime import timedelta
from ipaddress import IPv4Address, IPv6Address, ip_network
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

_MS, _SECOND = timedelta(milliseconds=1), timedelta(seconds=1)
MAX_UID = 2**32 - 2
NO_UIDS = (65534, 65535)
MAX_SOCKET_PATH = 107  # the limit of sockaddr_un in Linux, without the terminating zero


class Address(msgspec.Struct, frozen=True):
    """A listening address.

    An empty host means every interface, and port 0 means any free port. With a `path` it is a unix socket.
    """

    host: str
    port: int
    path: str | None = None

    def __str__(self) -> str:
        if self.path is not None:
            return f"unix:{self.path}"
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Kind(msgspec.Struct, frozen=True):
    """A type of value. `parse` takes text or a TOML value. `nothing` is the value of a setting that is not set.

    `parse` raises ValueError. Its message is the end of a sentence that begins with the value: "is not a whole number".
    """

    name: str
    parse: Callable[[object], Any]
    is_switch: bool = False
    nothing: Any = None


def _text(raw: object) -> str:
    if not isinstance(raw, str):
        raise ValueError("is not text; write it in quotes")
    if not raw.strip():
        raise ValueError("is empty")
    if re.search(r"[\x00-\x1f\x7f\ud800-\udfff]", raw):
        raise ValueError("contains control characters or is not valid UTF-8")
    return raw.strip()


def _integer(raw: object) -> int:
    text = str(raw).strip()
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError("is not a whole number")
    return int(text)


def _ratio(raw: object) -> float:
    text = str(raw).strip()
    if not re.fullmatch(r"[0-9]{1,3}(\.[0-9]{1,9})?", text) or float(text) > 1:
        raise ValueError("is not a number between 0 and 1")
    return float(text)


_BOOLEANS = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}


def _boolean(raw: object) -> bool:
    value = _BOOLEANS.get(str(raw).strip().lower())
    if value is None:
        raise ValueError("is not true or false")
    return value


_SECONDS = {"ms": 0.001, "s": 1, "": 1, "m": 60, "h": 3600, "d": 86_400}


def _duration(raw: object) -> timedelta:
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,9})?) ?(ms|s|m|h|d|)", str(raw).strip())
    if not match:
        raise ValueError('is not a duration; write "500ms", "25s", "2m", "1h", "90d" or a number of seconds')
    return timedelta(seconds=float(match[1]) * _SECONDS[match[2]])


_BYTES = {"": 1, "kib": 1024, "mib": 1024**2, "gib": 1024**3}


def _size(raw: object) -> int:
    match = re.fullmatch(r"([0-9]{1,12}) ?(kib|mib|gib|)", str(raw).strip().lower())
    if not match:
        raise ValueError('is not a size; write "512KiB", "1MiB" or a number of bytes')
    return int(match[1]) * _BYTES[match[2]]


def _replicas(raw: object) -> int:
    if str(raw).strip().lower() == "auto":
        return usable_cores()
    return _integer(raw)


def usable_cores() -> int:
    """Return the number of cores that this process may use. The machine may have more."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _list_of(parse: Callable[[str], str]) -> Callable[[object], tuple[str, ...]]:
    """Parse an array in TOML, or a list separated by commas elsewhere."""

    def parse_all(raw: object) -> tuple[str, ...]:
        items = raw if isinstance(raw, list) else _text(raw).split(",")
        return tuple(dict.fromkeys(parse(_text(item)) for item in items))

    return parse_all


def _network(text: str) -> str:
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        raise ValueError(f"has {text!r:.80}, which is neither an IP address nor a network like 10.0.0.0/8") from None


def _uid_range(raw: object) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]{1,10})\s*-\s*([0-9]{1,10})", str(raw).strip())
    if not match:
        raise ValueError("is not a range of user ids like 2000000000-2000999999")
    low, high = int(match[1]), int(match[2])
    if high < low:
        raise ValueError("ends before it begins")
    if low < 1000:
        raise ValueError("begins below 1000, where users of the system are")
    if high > MAX_UID:
        raise ValueError(f"ends above {MAX_UID}, the highest user id")
    if low <= NO_UIDS[-1] and NO_UIDS[0] <= high:
        raise ValueError(f"holds {NO_UIDS[0]} and {NO_UIDS[-1]}, which have a special meaning")
    return low, high


def _folder(text: str) -> str:
    path = Path(text)
    if not path.is_absolute() or ".." in path.parts or path == Path("/"):
        raise ValueError(f"has {text!r:.80}, which is not an absolute path of a folder")
    return str(path)


def _origin(text: str) -> str:
    try:
        return _external_url(text)
    except ValueError:
        raise ValueError(f"has {text!r:.80}, which is not an origin like https://chat.example.org") from None


def _host_name(text: str) -> str:
    if re.fullmatch(r"[a-z0-9._-]+|\[[0-9a-f:.]+\]", text.lower()) is None:
        raise ValueError(f"has {text!r:.80}, which is not a host name without a port")
    return text.lower().strip("[]")


def _address(raw: object) -> Address:
    if not isinstance(raw, str):
        raise ValueError('is not an address; write "host:port" in quotes, for example "127.0.0.1:7117"')
    host, colon, port = _text(raw).rpartition(":")
    if not colon or not re.fullmatch("[0-9]{1,5}", port):
        raise ValueError("is not an address; write host:port, for example 127.0.0.1:7117")
    if int(port) > 65535:
        raise ValueError("has a port that is not between 0 and 65535")
    return Address(_host(host), int(port))


def _listen(raw: object) -> Address:
    text = _text(raw) if isinstance(raw, str) else ""
    if not text.startswith("unix:"):
        return _address(raw)
    path = Path(text.removeprefix("unix:"))
    if not path.is_absolute() or ".." in path.parts or not path.name:
        raise ValueError("is not a socket; write unix:/absolute/path")
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise ValueError(f"has a path of more than {MAX_SOCKET_PATH} bytes, which no socket can have")
    return Address("", 0, str(path))


def _host(text: str) -> str:
    try:
        if text.startswith("[") and text.endswith("]"):
            return str(IPv6Address(text[1:-1]))
        if re.fullmatch(r"[A-Za-z0-9._-]*", text):
            return str(IPv4Address(text)) if re.fullmatch(r"[0-9.]+", text) else text
    except ValueError:
        pass
    raise ValueError("has a host that is neither a name nor an IP address; IPv6 goes in brackets, like [::1]:7117")


def _external_url(raw: object) -> str:
    url = _text(raw).rstrip("/").lower()
    match = re.fullmatch(r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", url)
    if not match or int(match[1] or 0) > 65535:
        raise ValueError("is not scheme, host and perhaps a port, like https://rookery.example.org")
    return url


def _base_url(raw: object) -> str:
    url = _text(raw).rstrip("/")
    match = re.fullmatch(
        r"https?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?(?:/[!$&-;=@-Z_a-z~]*)?", url, re.IGNORECASE
    )
    if not match or int(match[1] or 0) > 65535 or "//" in url.partition("://")[2]:
        raise ValueError("is not an http or https URL like http://localhost:4318, without user, query and fragment")
    return url


def _headers(raw: object) -> str:
    """Check headers, written as in OTEL_EXPORTER_OTLP_HEADERS. The text itself is the value of the setting."""
    text = _text(raw)
    for pair in text.split(","):
        name, equals, value = pair.strip().partition("=")
        if not equals or not re.fullmatch(r"[A-Za-z0-9-]{1,64}", name.strip()) or not re.fullmatch(r"[ -~]+", value):
            raise ValueError("is not a list of headers like name=value, separated by commas")
    return text


def _database_url(raw: object) -> str:
    url = _text(raw)
    if not re.match("postgres(ql)?://", url):
        raise ValueError("does not begin with postgresql://")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise ValueError("is not a URL") from None
    # The driver would split such a password in the wrong place, and masking would show a part of it.
    if "#" in url or " " in url or "@" in parts.path + parts.query:
        raise ValueError("has special characters; percent-encode them (@ is %40, / is %2F, # is %23, ? is %3F)")
    return url


def _relay_url(raw: object) -> str:
    url = _text(raw).rstrip("/")
    match = re.fullmatch(r"wss?://(?:[a-z0-9._-]+|\[[0-9a-f:.]+\])(?::([0-9]{1,5}))?", url.lower())
    if not match or int(match[1] or 0) > 65535:
        raise ValueError("is not scheme, host and perhaps a port, like wss://10.0.0.5:7118")
    return url.lower()


def choice(*allowed: str, old: Mapping[str, str] | None = None) -> Kind:
    """Return a type with fixed values. `old` maps former names to the values."""

    def parse(raw: object) -> str:
        word = str(raw).strip().lower()
        word = (old or {}).get(word, word)
        if word not in allowed:
            raise ValueError(f"is not one of {', '.join(allowed)}")
        return word

    return Kind(" or ".join(f"`{word}`" for word in allowed), parse)


TEXT = Kind("text", _text)
PATH = Kind("path", lambda raw: Path(_text(raw)))
INTEGER = Kind("number", _integer)
BOOLEAN = Kind("`true` or `false`", _boolean, is_switch=True)
DURATION = Kind("duration", _duration)
ADDRESS = Kind("host:port", _address)
LISTEN = Kind("host:port or unix:/path", _listen)
EXTERNAL_URL = Kind("URL", _external_url)
BASE_URL = Kind("URL", _base_url)
HEADERS = Kind("name=value, separated by commas", _headers)
RATIO = Kind("number from 0 to 1", _ratio)
DATABASE_URL = Kind("URL", _database_url)
RELAY_URL = Kind("URL", _relay_url)
SIZE = Kind("size", _size)
REPLICAS = Kind("number or `auto`", _replicas)
NETWORKS = Kind("list of networks", _list_of(_network), nothing=())
ORIGINS = Kind("list of origins", _list_of(_origin), nothing=())
HOSTS = Kind("list of hosts", _list_of(_host_name), nothing=())
UID_RANGE = Kind("range of user ids", _uid_range)
FOLDERS = Kind("list of folders", _list_of(_folder), nothing=())

Check = Callable[[Any], str | None]


def between(low: Any, high: Any) -> Check:
    """Return a check that the number is in this range, including both ends."""

    def check(value: Any) -> str | None:
        return None if low <= value <= high else f"is not between {shown(low)} and {shown(high)}"

    return check


Shown = str | int | float | bool | list[Any] | None


def shown(value: Any) -> Shown:
    """Return a value as it is written in TOML or JSON. For secrets, use `masked`."""
    if isinstance(value, timedelta):
        return f"{value / _MS:g}ms" if value % _SECOND else f"{value // _SECOND}s"
    if isinstance(value, tuple):
        return [shown(item) for item in value]
    return value if value is None or isinstance(value, int | float) else str(value)
