"""Requests to the proxy: what is parsed, what is forwarded, and what is ambiguous."""

from __future__ import annotations

import time

import pytest

from rookery.workspaces.egress import requests
from rookery.workspaces.egress.requests import Refusal


def lines(*parts: str) -> bytes:
    return "\r\n".join(parts).encode("latin-1")


def test_plain_request_is_encoded_from_parsed_values() -> None:
    request = requests.parse(
        lines(
            "GET http://Listed.Test.:8080/a/b?c=d HTTP/1.1",
            "Host: another.test",
            "Accept: */*",
            "Connection: keep-alive, X-Private",
            "X-Private: 1",
            "Proxy-Connection: keep-alive",
            "Proxy-Authorization: Basic x",
            "Upgrade: h2c",
        )
    )

    assert (request.host, request.port, request.is_tunnel) == ("listed.test", 8080, False)
    assert request.head() == lines(
        "GET /a/b?c=d HTTP/1.1", "Host: listed.test:8080", "Accept: */*", "Connection: close", "", ""
    )


@pytest.mark.parametrize(
    ("target", "path"),
    [
        ("http://a.test", "/"),
        ("http://a.test?x", "/?x"),
        ("http://a.test/%20;p?q=[1]", "/%20;p?q=[1]"),
        ("HTTP://a.test/x", "/x"),
    ],
)
def test_path_is_what_follows_the_host(target: str, path: str) -> None:
    assert requests.parse(f"GET {target} HTTP/1.1".encode()).path == path


@pytest.mark.parametrize(
    ("headers", "length"),
    [((), 0), (("Content-Length: 12",), 12), (("Transfer-Encoding: Chunked",), None)],
)
def test_body_is_framed_by_one_header(headers: tuple[str, ...], length: int | None) -> None:
    request = requests.parse(lines("POST http://a.test/ HTTP/1.1", *headers))

    framing = b"Transfer-Encoding: chunked" if length is None else b"Content-Length: %d" % length
    assert request.length == length
    assert request.head().count(framing) == 1


def test_framing_cannot_be_taken_away_by_naming_it() -> None:
    request = requests.parse(
        lines("POST http://a.test/ HTTP/1.1", "Connection: content-length, host", "Content-Length: 5")
    )

    assert request.length == 5
    assert b"Content-Length: 5\r\n" in request.head()
    assert b"Host: a.test\r\n" in request.head()


def test_tunnel_names_host_and_port() -> None:
    request = requests.parse(lines("CONNECT a.test:443 HTTP/1.1", "Host: b.test:22", "User-Agent: x"))

    assert (request.is_tunnel, request.host, request.port) == (True, "a.test", 443)


@pytest.mark.parametrize(
    ("status", "parts"),
    [
        (400, ["GET /path HTTP/1.1", "Host: a.test"]),
        (400, ["GET a.test HTTP/1.1"]),
        (400, ["GET  http://a.test/ HTTP/1.1"]),
        (400, ["GET http://a.test/ HTTP/1.1 "]),
        (400, ["GET http://a.test/ HTTP/9.9"]),
        (400, ["GET http://a.test/"]),
        (400, ["GET http://a.test/ b HTTP/1.1"]),
        (400, ["G\x01T http://a.test/ HTTP/1.1"]),
        (400, ["GET http://a.test/\x00 HTTP/1.1"]),
        (400, ["GET http://ä.test/ HTTP/1.1"]),
        (400, ["GET http://user:pass@a.test/ HTTP/1.1"]),
        (400, ["GET http://a.test\\@b.test/ HTTP/1.1"]),
        (400, ["GET http://a%2etest/ HTTP/1.1"]),
        (400, ["GET http:///x HTTP/1.1"]),
        (400, ["GET http://a.test:0/ HTTP/1.1"]),
        (400, ["GET http://a.test:99999/ HTTP/1.1"]),
        (400, ["GET http://a.test:/ HTTP/1.1"]),
        (400, ["GET http://a.test/#x HTTP/1.1"]),
        (400, ["GET https://a.test/ HTTP/1.1"]),
        (400, ["GET ftp://a.test/ HTTP/1.1"]),
        (400, ["CONNECT a.test HTTP/1.1"]),
        (400, ["CONNECT http://a.test:443/ HTTP/1.1"]),
        (400, ["CONNECT a.test:443 HTTP/1.1", "Content-Length: 3"]),
        (400, ["CONNECT a.test:443 HTTP/1.1", "Transfer-Encoding: chunked"]),
        (400, ["GET http://a.test/ HTTP/1.1", "Host: a.test", "Host: b.test"]),
        (400, ["GET http://a.test/ HTTP/1.1", "X-A : b"]),
        (400, ["GET http://a.test/ HTTP/1.1", "X-A: b", " folded"]),
        (400, ["GET http://a.test/ HTTP/1.1", "no colon"]),
        (400, ["GET http://a.test/ HTTP/1.1", ": empty"]),
        (400, ["GET http://a.test/ HTTP/1.1", "X: a\rb"]),
        (400, ["GET http://a.test/ HTTP/1.1", "X: a\nY: b"]),
        (400, ["GET http://a.test/ HTTP/1.1", "X: a\x00b"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Content-Length: 5", "Content-Length: 6"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Content-Length: 5, 5"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Content-Length: +5"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Content-Length: -1"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Content-Length: 0x5"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Content-Length: 5", "Transfer-Encoding: chunked"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Transfer-Encoding: gzip, chunked"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Transfer-Encoding: identity"]),
        (400, ["POST http://a.test/ HTTP/1.1", "Transfer-Encoding: chunked", "Transfer-Encoding: chunked"]),
        (400, ["POST http://a.test/ HTTP/1.0", "Transfer-Encoding: chunked"]),
        (400, ["GET http://2130706433/ HTTP/1.1"]),
        (400, ["GET http://0x7f.1/ HTTP/1.1"]),
        (400, ["GET http://127.1/ HTTP/1.1"]),
        (400, ["GET http://127.0.0.01/ HTTP/1.1"]),
        (400, ["GET http://0177.0.0.1/ HTTP/1.1"]),
        (400, ["GET http://256.0.0.1/ HTTP/1.1"]),
        (400, ["GET http://1.2.3.4.5/ HTTP/1.1"]),
        (400, ["GET http://[127.0.0.1x]/ HTTP/1.1"]),
        (400, ["GET http://[::1/ HTTP/1.1"]),
        (400, ["GET http://[fe80::1%25lo]/ HTTP/1.1"]),
        (400, ["GET http://[::1]x/ HTTP/1.1"]),
        (400, ["GET http://[]/ HTTP/1.1"]),
        (400, ["CONNECT [::1] HTTP/1.1"]),
        (400, ["CONNECT ::1:443 HTTP/1.1"]),
        (414, ["GET http://a.test/" + "x" * 9000 + " HTTP/1.1"]),
        (431, ["GET http://a.test/ HTTP/1.1", *["X: y"] * 101]),
        (505, ["PRI * HTTP/2.0"]),
    ],
)
def test_ambiguous_request_is_refused(status: int, parts: list[str]) -> None:
    with pytest.raises(Refusal) as caught:
        requests.parse("\r\n".join(parts).encode("utf-8"))

    assert caught.value.status == status
    assert caught.value.text.endswith(".")
    assert caught.value.reason.isascii()


@pytest.mark.parametrize(
    ("target", "host", "sent"),
    [
        ("198.51.100.7", "198.51.100.7", b"Host: 198.51.100.7\r\n"),
        ("198.51.100.7.:8080", "198.51.100.7", b"Host: 198.51.100.7:8080\r\n"),
        ("[2001:DB8:0:0::7]", "2001:db8::7", b"Host: [2001:db8::7]\r\n"),
        ("[::ffff:127.0.0.1]:81", "::ffff:7f00:1", b"Host: [::ffff:7f00:1]:81\r\n"),
    ],
)
def test_addresses_are_read_in_full_and_written_in_one_way(target: str, host: str, sent: bytes) -> None:
    request = requests.parse(lines(f"GET http://{target}/ HTTP/1.1"))

    assert (request.host, request.is_address) == (host, True)
    assert sent in request.head()
    assert requests.parse(lines("CONNECT [2001:db8::7]:443 HTTP/1.1")).host == "2001:db8::7"


def test_header_of_blanks_costs_no_time() -> None:
    began = time.process_time()

    with pytest.raises(Refusal):
        requests.parse(lines("GET http://a.test/ HTTP/1.1", "X:" + " " * 32_000 + "\x01"))

    assert time.process_time() - began < 0.5


def test_answer_is_passed_on_without_what_was_meant_for_the_proxy() -> None:
    status, head = requests.parse_answer_head(
        lines(
            "HTTP/1.1 200 OK",
            "Connection: keep-alive, X-Hop",
            "Keep-Alive: timeout=5",
            "X-Hop: 1",
            "Transfer-Encoding: chunked",
            "Set-Cookie: a=b",
            "Set-Cookie: c=d",
        )
    )

    assert status == 200
    assert head == lines(
        "HTTP/1.1 200 OK",
        "Transfer-Encoding: chunked",
        "Set-Cookie: a=b",
        "Set-Cookie: c=d",
        "Connection: close",
        "",
        "",
    )


@pytest.mark.parametrize("text", ["", "SSH-2.0-OpenSSH", "HTTP/2 200", "HTTP/1.1 20", "HTTP/1.1 200 OK\r\nno colon"])
def test_answer_that_is_none_is_not_passed_on(text: str) -> None:
    with pytest.raises(ValueError, match="no "):
        requests.parse_answer_head(text.encode())
