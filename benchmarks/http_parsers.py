"""The HTTP parsers of the workspace agent and the egress proxy, compared with h11 in the same run.

    python benchmarks/http_parsers.py [--quick]

Two comparisons. The first is the CPU time of one small request: parse its head, take its body, encode the response. The
second is strictness: both parsers get requests that two programs could parse differently. Ours must refuse all of
them; the count of those that h11 accepts is printed.

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}. If the first or second claim is
missed, or if h11 accepts none of the requests, the reasons of docs/decisions/0068 are gone.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import h11

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.server import connections, http
from rookery.workspaces.egress import requests

BODY = json.dumps({"command": "make test", "cwd": "/home/agent/project", "timeout_s": 600, "env": {"CI": "1"}}).encode()
ANSWER = json.dumps({"id": "p-1", "state": "running", "output": "x" * 200}).encode()
AGENT_HEAD = (
    b"POST /v1/processes HTTP/1.1\r\nHost: agent\r\nAuthorization: Bearer 0123456789abcdef0123456789abcdef\r\n"
    b"X-Rookery-Generation: 3\r\nX-Rookery-Chat-Id: 0192f3a1-1111-7abc-8def-0123456789ab\r\n"
    b"Content-Type: application/json\r\nIdempotency-Key: 0192f3a1-2222-7abc-8def-0123456789ab\r\nAccept: */*\r\n"
    b"Accept-Encoding: gzip, deflate\r\nUser-Agent: rookery\r\nContent-Length: %d\r\n\r\n" % len(BODY)
)
PROXY_HEAD = (
    b"GET http://packages.test/simple/requests/ HTTP/1.1\r\nHost: packages.test\r\nUser-Agent: pip/25.0\r\n"
    b"Accept: application/vnd.pypi.simple.v1+json, text/html; q=0.1\r\nAccept-Encoding: gzip, deflate\r\n"
    b"Cache-Control: max-age=0\r\nConnection: keep-alive\r\nProxy-Connection: keep-alive\r\n\r\n"
)
# Requests that two programs could parse differently. The space of the last one is before the colon.
AMBIGUOUS = {
    "lines end with a bare newline": b"GET / HTTP/1.1\nHost: a\n\n",
    "a folded header": b"GET / HTTP/1.1\r\nHost: a\r\nX-A: b\r\n c\r\n\r\n",
    "a length and chunked encoding": (
        b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n"
    ),
    "the same length twice": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\nContent-Length: 4\r\n\r\n",
    "two lengths in one header": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 4, 4\r\n\r\n",
    "a header that occurs twice": b"GET / HTTP/1.1\r\nHost: a\r\nAuthorization: x\r\nAuthorization: y\r\n\r\n",
    "a fragment in the target": b"GET /a#b HTTP/1.1\r\nHost: a\r\n\r\n",
    "a space before the colon": b"GET / HTTP/1.1\r\nHost : a\r\n\r\n",
}
CPU_BUDGET = 0.6
ROUNDS = {True: (2_000, 5), False: (20_000, 9)}


def agent_ours() -> None:
    head = http.parse_head(AGENT_HEAD)
    assert head.length == len(BODY)
    response = http.Response(200, ANSWER, {"content-type": "application/json"})
    connections._encode(response, keep_alive=head.keep_alive)


def agent_h11(connection: h11.Connection) -> None:
    connection.receive_data(AGENT_HEAD + BODY)
    while not isinstance(connection.next_event(), h11.EndOfMessage):
        pass
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(ANSWER)).encode())]
    connection.send(h11.Response(status_code=200, headers=headers))
    connection.send(h11.Data(data=ANSWER))
    connection.send(h11.EndOfMessage())
    connection.start_next_cycle()


def proxy_ours() -> None:
    requests.parse(PROXY_HEAD[:-4]).head()


def proxy_h11() -> None:
    """Parse the request and encode it for the host, which are two connections. Headers are dropped as we do."""
    inside, outside = h11.Connection(h11.SERVER), h11.Connection(h11.CLIENT)
    inside.receive_data(PROXY_HEAD)
    request = inside.next_event()
    assert isinstance(request, h11.Request)
    kept = [pair for pair in request.headers if pair[0].decode() not in requests._HOP]
    outside.send(h11.Request(method=request.method, target=b"/simple/requests/", headers=kept))
    outside.send(h11.EndOfMessage())


def accepts_h11(data: bytes) -> bool:
    connection = h11.Connection(h11.SERVER)
    connection.receive_data(data)
    try:
        return isinstance(connection.next_event(), h11.Request)
    except h11.RemoteProtocolError:
        return False


def accepts_ours(data: bytes) -> bool:
    """Return whether our parser accepts the head. A head without CRLF never reaches it: the reader waits for CRLF."""
    if not data.endswith(b"\r\n\r\n"):
        return False
    try:
        http.parse_head(data)
    except AgentError:
        return False
    return True


def cpu_us(work: Callable[[], None], rounds: int) -> float:
    began = time.process_time()
    for _ in range(rounds):
        work()
    return (time.process_time() - began) / rounds * 1e6


def compare(name: str, library: Callable[[], None], ours: Callable[[], None], *, quick: bool) -> float:
    rounds, repeats = ROUNDS[quick]
    pairs = [(cpu_us(library, rounds), cpu_us(ours, rounds)) for _ in range(repeats)]
    theirs, mine = (statistics.median(column) for column in zip(*pairs, strict=True))
    ratio = statistics.median(own / other for other, own in pairs)
    print(f"{name}: {ratio:.2f}x  (CPU us of a request, h11 -> ours: {theirs:.1f} -> {mine:.1f})")
    return ratio


def main() -> int:
    parser = argparse.ArgumentParser(description="Our HTTP parsers, against h11.")
    parser.add_argument("--quick", action="store_true", help="fewer rounds, under 5 seconds")
    arguments = parser.parse_args()
    connection = h11.Connection(h11.SERVER)
    agent = compare("workspace agent", lambda: agent_h11(connection), agent_ours, quick=arguments.quick)
    proxy = compare("egress proxy", proxy_h11, proxy_ours, quick=arguments.quick)
    lax = [name for name, data in AMBIGUOUS.items() if accepts_h11(data)]
    ours = [name for name, data in AMBIGUOUS.items() if accepts_ours(data)]
    print(f"h11 accepts {len(lax)} of {len(AMBIGUOUS)} ambiguous requests: {', '.join(lax)}")
    claims = {
        "CPU of an agent request: over h11": (agent, CPU_BUDGET),
        "CPU of a proxied request: over h11": (proxy, CPU_BUDGET),
        "ambiguous requests that ours accepts": (len(ours), 0),
    }
    shown = {
        name: {"value": round(value, 3), "budget": most, "ok": value <= most} for name, (value, most) in claims.items()
    }
    print(f"\n{json.dumps(shown)}")
    return 0 if all(each["ok"] for each in shown.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
