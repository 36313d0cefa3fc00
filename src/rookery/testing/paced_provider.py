"""A model server for measurements: answers of any length at a given pace, from bytes that are encoded once.

    python -m rookery.testing.paced_provider --port 9000

The name of the model defines the answer: `20@50` sends 20 tokens at 50 per second, `20@0` sends them at once, and
`0@50` never ends. The server speaks the streaming part of the chat completions API and accepts any key. It records when
each request arrived; `GET /v1/requests` returns the times of the monotonic clock, with the chat of each request, and
forgets them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
from collections import deque
from typing import Any, cast

WORD = " token"
DONE = b"data: [DONE]\n\n"
# Multiples of it modulo one are evenly distributed, however many there are.
GOLDEN = 0.618034
# Chosen: more than any measurement leaves unread.
MAX_RECORDED = 100_000
MAX_REQUEST_BYTES = 64 * 1024 * 1024

_MODEL = re.compile(rb'"model": *"(\d+)@(\d+(?:\.\d+)?)"')
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_CHAT = re.compile(rb"x-rookery-chat-id: *(\S+)", re.IGNORECASE)


def event(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()


def chunk(delta: dict[str, Any], reason: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": reason}
    return {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def framed(data: bytes) -> bytes:
    """Return a chunk of a chunked HTTP body."""
    return b"%x\r\n%b\r\n" % (len(data), data)


FIRST = framed(event(chunk({"role": "assistant", "content": WORD})))
NEXT = framed(event(chunk({"content": WORD})))
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
REPLY = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"


def end(tokens: int) -> bytes:
    """Return the last chunks of an answer."""
    usage = {"prompt_tokens": 10, "completion_tokens": tokens, "total_tokens": 10 + tokens}
    last = {**chunk({}), "choices": [], "usage": usage}
    return framed(event(chunk({}, "stop"))) + framed(event(last)) + framed(DONE) + b"0\r\n\r\n"


class Requests:
    """The requests so far: (chat, time). All connections of a server share it."""

    def __init__(self) -> None:
        self.seen: deque[tuple[str, float]] = deque(maxlen=MAX_RECORDED)
        self.answers = 0


class Connection(asyncio.Protocol):
    """One client. It sends one request at a time."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests
        self._loop = asyncio.get_running_loop()
        self._received = b""
        self._timer: asyncio.TimerHandle | None = None
        self._transport: asyncio.Transport | None = None
        self._sent = self._tokens = 0
        self._interval = self._due = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # those of uvloop have another base class

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop()
        self._transport = None

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, found, rest = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        size = int(length[1]) if length else 0
        if len(self._received) > MAX_REQUEST_BYTES or (found and size > MAX_REQUEST_BYTES):
            self._write(REPLY % (b"413 Content Too Large", 2, b"{}"))
            self._close()
        elif found and len(rest) >= size:
            self._received = rest[size:]
            self._answer(head, rest[:size])

    def _answer(self, head: bytes, body: bytes) -> None:
        arrived = self._loop.time()
        if head.split(b" ", 2)[1].endswith(b"/requests"):
            seen = json.dumps(list(self._requests.seen)).encode()
            self._requests.seen.clear()
            self._write(REPLY % (b"200 OK", len(seen), seen))
            return
        model = _MODEL.search(body)
        if model is None:
            problem = b'{"error": {"message": "Name a model like 20@50: tokens, and tokens a second."}}'
            self._write(REPLY % (b"404 Not Found", len(problem), problem))
            return
        chat = _CHAT.search(head)
        self._requests.seen.append((chat[1].decode("latin-1") if chat else "", arrived))
        self._tokens, pace = int(model[1]), float(model[2])
        if pace == 0 and self._tokens == 0:
            self._tokens = 1  # an endless answer needs a pace
        if pace == 0:
            self._write(HEAD + FIRST)
            self._write(NEXT * (self._tokens - 1) + end(self._tokens))
            return
        self._start(pace)

    def _start(self, pace: float) -> None:
        """Send the first token now. The second is early by a part of the interval that differs for each answer.

        Answers that begin together must not stay in step, because a reader that finds ten of them at one wake-up works
        less for each, and real providers do not send like that.
        """
        self._requests.answers += 1
        self._interval, self._sent = 1 / pace, 1
        self._write(HEAD + FIRST)
        self._due = self._loop.time() - self._interval * (self._requests.answers * GOLDEN % 1.0)
        self._schedule()

    def _schedule(self) -> None:
        if self._tokens and self._sent >= self._tokens:
            self._write(end(self._tokens))
            return
        self._due += self._interval
        self._timer = self._loop.call_at(self._due, self._send_next)

    def _send_next(self) -> None:
        self._sent += 1
        self._write(NEXT)
        self._schedule()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _close(self) -> None:
        self._stop()
        if self._transport is not None:
            self._transport.close()


async def serve(port: int) -> None:
    """Print the address, and serve until the process is ended."""
    requests = Requests()
    server = await asyncio.get_running_loop().create_server(
        lambda: Connection(requests), "127.0.0.1", port, backlog=2048
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", flush=True)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description="A model server for measurements. Models are named like 20@50.")
    parser.add_argument("--port", type=int, default=0, help="its port on the loopback interface (default: a free one)")
    arguments = parser.parse_args()
    try:
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(arguments.port))
    except KeyboardInterrupt:
        return


if __name__ == "__main__":
    main()
