"""The host rules of a template: their syntax, and their match with a host and port. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import ip_address

import msgspec

DEFAULT_PORTS = (80, 443)
MAX_NAME = 253
MAX_SHOWN = 20
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
# Resolvers treat names like `1`, `127.1` and `0x7f.0.0.1` as addresses.
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class Rule(msgspec.Struct, frozen=True):
    """One rule. With `is_domain` it matches all subdomains of `name`, but not `name` itself."""

    name: str
    is_domain: bool
    port: int | None

    def matches(self, host: str, port: int) -> bool:
        return self.matches_host(host) and self.matches_port(port)

    def matches_host(self, host: str) -> bool:
        return host.endswith(f".{self.name}") if self.is_domain else host == self.name

    def matches_port(self, port: int) -> bool:
        return port in DEFAULT_PORTS if self.port is None else port == self.port

    def __str__(self) -> str:
        return f"{'*.' if self.is_domain else ''}{self.name}{'' if self.port is None else f':{self.port}'}"


@lru_cache(4096)  # parsed for every request
def parse(text: str) -> Rule:
    """Parse a rule. Raise ValueError with a sentence for the author of the template."""
    if "://" in text or "/" in text:
        raise ValueError(f"{text!r:.80} is not a host: leave out the scheme and the path.")
    host, colon, number = text.rpartition(":") if text.count(":") == 1 else (text, "", "")
    if colon and not (number.isascii() and number.isdigit() and 1 <= int(number[:6]) <= 65_535):
        raise ValueError(f"{text!r:.80} has no port from 1 to 65535 after the colon.")
    is_domain = host.startswith("*.")
    name = host[2:] if is_domain else host
    if not name.isascii():
        raise ValueError(f"{text!r:.80} is not ASCII: write an international name in its xn-- form.")
    made = canonical_name(name)
    if made is None:
        raise ValueError(
            f"{text!r:.80} is not the name of a host. Write example.com, *.example.com (all names below it) or "
            "example.com:8443."
        )
    if is_address(made):
        raise ValueError(f"{text!r:.80} is an address. Use the name of a host; addresses are never allowed.")
    if is_domain and "." not in made:
        raise ValueError(
            f"{text!r:.80} matches too many hosts. Use a domain with at least two parts, such as *.example.com."
        )
    return Rule(made, is_domain, int(number) if colon else None)


def canonical_name(name: str) -> str | None:
    """Return a host name in lower case and without a final dot; None if it is not a valid name."""
    made = name.lower().removesuffix(".")
    if not made or len(made) > MAX_NAME or not all(_LABEL.fullmatch(label) for label in made.split(".")):
        return None
    return made


def canonical_address(text: str) -> str | None:
    """Return the canonical form of an IP address; None if it is none. Short forms such as `127.1` do not count."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return None if "%" in text else str(found)


def is_address(name: str) -> bool:
    """Return whether a resolver would treat the name as an address: its last part is a number."""
    return _NUMBER.fullmatch(name.rpartition(".")[2]) is not None


def format_rules(rules: Iterable[Rule]) -> str:
    """Return the rules as text for users and models. A long list is shortened."""
    texts = [str(each) for each in rules]
    more = f" and {len(texts) - MAX_SHOWN} more" if len(texts) > MAX_SHOWN else ""
    return ", ".join(texts[:MAX_SHOWN]) + more if texts else "none"
