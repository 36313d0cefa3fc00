"""SOCKS 5 (RFC 1928) for programs without support for HTTP proxies: without authentication, and only CONNECT.

The server resolves names (clients call this `socks5h`). A refusal is only a reply code; the log has the reason.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address

from rookery.workspaces.egress import hosts, requests
from rookery.workspaces.egress.byte_relay import ByteStream
from rookery.workspaces.egress.requests import Decision, Refusal, Request

FIRST_BYTE = b"\x05"
_VERSION, _NO_AUTHENTICATION, _CONNECT = 5, 0, 1
# No bound address is sent, because it would reveal the address of the server.
_BOUND = b"\x00\x01\x00\x00\x00\x00\x00\x00"

ESTABLISHED = b"\x05\x00" + _BOUND
_GENERAL_FAILURE, _NOT_ALLOWED, _HOST_UNREACHABLE, _NO_SUCH_COMMAND, _NO_SUCH_KIND = 1, 2, 4, 7, 8
_REPLIES: dict[Decision, int] = {
    "not_listed": _NOT_ALLOWED,
    "blocked_address": _NOT_ALLOWED,
    "unreachable": _HOST_UNREACHABLE,
}


class SocksRefusal(Refusal):
    """Raised for a refusal that has its own reply code."""

    def __init__(self, text: str, reply: int) -> None:
        super().__init__(400, "Malformed request", text)
        self.reply = reply


async def negotiate(client: ByteStream) -> None:
    """Read the first message, the authentication methods, and respond. Raise `Refusal` if it is invalid."""
    version, count = await client.read_exactly(2)
    methods = await client.read_exactly(count)
    if version != _VERSION or _NO_AUTHENTICATION not in methods:
        raise requests.malformed("it does not offer SOCKS 5 without authentication")
    await client.write(bytes((_VERSION, _NO_AUTHENTICATION)))


async def read_request(client: ByteStream) -> Request:
    """Read the second message, the destination. Raise `Refusal` if it is invalid."""
    version, command, reserved, kind = await client.read_exactly(4)
    if version != _VERSION or reserved != 0:
        raise requests.malformed("its second message is not SOCKS 5")
    if command != _CONNECT:
        raise SocksRefusal(
            "Only the SOCKS command CONNECT is supported: no UDP, and no incoming connections.", _NO_SUCH_COMMAND
        )
    host = await _read_host(client, kind)
    port = int.from_bytes(await client.read_exactly(2), "big")
    if host is None or port == 0:
        raise requests.malformed("it names no valid host and port")
    return Request(method="CONNECT", host=host, port=port, protocol="socks5")


async def _read_host(client: ByteStream, kind: int) -> str | None:
    match kind:
        case 1:  # an IPv4 address
            return str(IPv4Address(await client.read_exactly(4)))
        case 4:  # an IPv6 address
            return str(IPv6Address(await client.read_exactly(16)))
        case 3:  # a name
            (length,) = await client.read_exactly(1)
            written = (await client.read_exactly(length)).decode("latin-1")
            # Some clients send addresses as names.
            return hosts.canonical_address(written) or requests.canonical_host(written)
    raise SocksRefusal("The address type of this request is not defined by SOCKS 5.", _NO_SUCH_KIND)


def encode_no_method(refusal: Refusal) -> bytes:
    """Return the response to the first message if no authentication method is acceptable."""
    return b"\x05\xff"


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the response to the second message for a refusal."""
    reply = refusal.reply if isinstance(refusal, SocksRefusal) else _REPLIES.get(refusal.decision, _GENERAL_FAILURE)
    return bytes((_VERSION, reply)) + _BOUND
