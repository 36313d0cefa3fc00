"""The model server for measurements, as a process and with our own client."""

from __future__ import annotations

import asyncio
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from rookery.testing.paced_provider import WORD, Connection, Requests


@pytest.fixture
async def url() -> AsyncIterator[str]:
    requests = Requests()
    server = await asyncio.get_running_loop().create_server(lambda: Connection(requests), "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"


async def ask(client: httpx2.AsyncClient, url: str, model: str, **headers: str) -> list[Any]:
    body = {"model": model, "stream": True, "messages": [{"role": "user", "content": "hello"}]}
    answer = await client.post(f"{url}/chat/completions", json=body, headers=headers)
    assert answer.status_code == 200
    *lines, done = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
    assert done == "[DONE]"
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(("model", "tokens"), [("1@0", 1), ("20@0", 20), ("5@1000", 5), ("1@1000", 1), ("0@0", 1)])
async def test_answer_has_as_many_tokens_as_the_model_names(url: str, model: str, tokens: int) -> None:
    async with httpx2.AsyncClient() as client:
        for _ in range(2):  # on the same connection
            *words, end, usage = await ask(client, url, model)

            assert [each["choices"][0]["delta"]["content"] for each in words] == [WORD] * tokens
            assert end["choices"][0]["finish_reason"] == "stop"
            assert usage["usage"]["completion_tokens"] == tokens


async def test_requests_are_recorded_once_with_their_chat(url: str) -> None:
    began = asyncio.get_running_loop().time()
    async with httpx2.AsyncClient() as client:
        await ask(client, url, "1@0", **{"X-Rookery-Chat-Id": "c-1"})
        await ask(client, url, "1@0")
        first = (await client.get(f"{url}/requests")).json()
        second = (await client.get(f"{url}/requests")).json()

    assert [chat for chat, _ in first] == ["c-1", ""]
    assert began <= first[0][1] <= first[1][1]
    assert second == []


async def test_endless_answer_ends_with_its_reader(url: str) -> None:
    async with httpx2.AsyncClient() as client:
        async with client.stream("POST", f"{url}/chat/completions", content=b'{"model": "0@500"}') as answer:
            seen = 0
            async for piece in answer.aiter_raw():
                seen += piece.count(b"token")
                if seen > 10:
                    break
        assert (await ask(client, url, "1@0"))[0]["choices"]


async def test_other_model_names_are_refused(url: str) -> None:
    async with httpx2.AsyncClient() as client:
        answer = await client.post(f"{url}/chat/completions", content=b'{"model": "gpt"}')

    assert (answer.status_code, "Name a model like" in answer.text) == (404, True)


def test_process_prints_its_address_and_listens_on_loopback_only() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "rookery.testing.paced_provider"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        host, _, port = address.removeprefix("http://").removesuffix("/v1").rpartition(":")
        with socket.create_connection((host, int(port)), timeout=10):
            pass
        assert host == "127.0.0.1"
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()
