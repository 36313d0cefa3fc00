"""A provider in a separate process that streams markdown at 200 tokens a second, for the benchmarks of the page."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, suppress
from itertools import cycle
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks import _provider_process
from benchmarks.token_decode import sse

PACE = 200.0
TOKEN_CHARACTERS = 4

# What answers are made of: prose with marks in it, lists, code and a table.
SECTION = """## Part {n}

The worker holds a **lease** on every chat that it drives, and renews it while the turn lasts. When it dies, another
one takes over after `30 s`; see [the table](https://example.test/leases) for what happens to a step that was under
way. *Nothing* is lost, since a step is committed as a whole, and its parts are only shown.

1. Read the state of the chat, and with it the version of its history.
2. Ask the model, and pass the parts on as they come.
3. Commit the step if the version is still the same, else begin again.

```python
async def renew(conn: Connection, lease: Lease) -> bool:
    found = await conn.fetchval(RENEW, lease.chat_id, lease.runner_id)
    return found is not None  # somebody else has it now
```

| State | Next | Who |
| --- | --- | --- |
| waiting | running | a message |
| running | waiting, error | the worker |

"""


def tokens(count: int) -> Iterator[str]:
    """So many pieces of text, each as long as tokens usually are."""
    made = 0
    for number in cycle(range(1, 10_000)):
        section = SECTION.replace("{n}", str(number))
        for start in range(0, len(section), TOKEN_CHARACTERS):
            if made == count:
                return
            yield section[start : start + TOKEN_CHARACTERS]
            made += 1


def packets(count: int) -> Iterator[bytes]:
    """An answer of the completions wire."""
    chunk = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    for text in tokens(count):
        delta = {"role": "assistant", "content": text}
        yield sse({**chunk, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}, named=False)
    yield sse({**chunk, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, named=False)
    usage = {"prompt_tokens": 10, "completion_tokens": count, "total_tokens": 10 + count}
    yield sse({**chunk, "choices": [], "usage": usage}, named=False)
    yield b"data: [DONE]\n\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """HTTP by hand. The name of the model says for how many seconds it speaks: `speak-10`."""
    # Whoever is interrupted hangs up, and the transport then takes nothing more.
    with suppress(asyncio.IncompleteReadError, ConnectionError, RuntimeError):
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
            length = re.search(r"content-length: *(\d+)", head)
            body = await reader.readexactly(int(length[1]) if length else 0)
            named = re.search(rb'"model": *"speak-(\d+)"', body)
            if named is None:
                writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\n{}")
                continue
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n")
            await speak(writer, int(named[1]))
    writer.close()


async def speak(writer: asyncio.StreamWriter, seconds: int) -> None:
    loop = asyncio.get_running_loop()
    due = loop.time()
    for packet in packets(int(seconds * PACE)):
        if writer.is_closing():
            return
        writer.write(b"%x\r\n%b\r\n" % (len(packet), packet))
        due += 1 / PACE
        await asyncio.sleep(max(0.0, due - loop.time()))
    writer.write(b"0\r\n\r\n")
    await writer.drain()


def providing() -> AbstractAsyncContextManager[str]:
    """The address of a provider that runs meanwhile."""
    return _provider_process.serving(__file__)


if __name__ == "__main__":
    asyncio.run(_provider_process.serve(answer))
