"""The transport of servers with protocol version 2024-11-05: one event stream for all messages of the server, and a
POST for each message of the client.

The official package also implements it, but limits an event to 1 MiB and does not report a failed POST.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from urllib.parse import urljoin, urlsplit

import anyio
import httpx2
import msgspec
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    ErrorData,
    JSONRPCError,
    JSONRPCRequest,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError

from rookery.mcp.errors import McpError, Problem, ProblemKind
from rookery.mcp.guarded_http import MAX_ANSWER_BYTES, sanitized_list

_Read = MemoryObjectReceiveStream[SessionMessage | Exception]
_Write = MemoryObjectSendStream[SessionMessage]


@asynccontextmanager
async def sse_streams(
    url: str,
    client: httpx2.AsyncClient,
    *,
    on_lost: Callable[[], None],
    problem_in: Callable[[object], Problem | None],
) -> AsyncGenerator[tuple[_Read, _Write]]:
    """Yield the streams of a connection. `on_lost` is called when the server ends the event stream.

    `problem_in` finds a transport problem in the data of a JSON-RPC error.
    """
    to_session, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
    write, from_session = anyio.create_memory_object_stream[SessionMessage](0)
    async with (
        to_session,
        read,
        write,
        from_session,
        client.stream("GET", url, headers={"accept": "text/event-stream", "cache-control": "no-store"}) as response,
        anyio.create_task_group() as tasks,
    ):
        if not response.is_success or not response.headers.get("content-type", "").startswith("text/event-stream"):
            body = await response.aread()
            with suppress(ValueError, KeyError, TypeError):
                if (problem := problem_in(msgspec.json.decode(body)["error"]["data"])) is not None:
                    raise McpError(problem)
            why = f"The server does not answer with an event stream, but with status {response.status_code}."
            raise McpError(Problem(ProblemKind.HTTP, why, status=response.status_code))
        endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def receive() -> None:
            try:
                async for event in httpx2.EventSource(response, max_event_size=MAX_ANSWER_BYTES):
                    if event.event == "endpoint" and not endpoint.done():
                        endpoint.set_result(urljoin(url, event.data))
                    elif event.event == "message" and event.data:
                        await to_session.send(_message(event.data))
            except httpx2.TransportError:
                pass
            finally:
                if not endpoint.done():
                    why = "The server names no address for messages."
                    endpoint.set_exception(McpError(Problem(ProblemKind.INVALID, why)))
                on_lost()
                to_session.close()

        async def send(address: str) -> None:
            async for each in from_session:
                tasks.start_soon(post, address, each)

        async def post(address: str, each: SessionMessage) -> None:
            body = each.message.model_dump(by_alias=True, mode="json", exclude_unset=True)
            answer = await client.post(address, json=body)
            if isinstance(each.message, JSONRPCRequest) and not answer.is_success:
                error = ErrorData(code=CONNECTION_CLOSED, message=f"The server answered with {answer.status_code}.")
                with suppress(ValueError, KeyError, TypeError, ValidationError):
                    error = ErrorData.model_validate(answer.json()["error"])
                await to_session.send(SessionMessage(JSONRPCError(jsonrpc="2.0", id=each.message.id, error=error)))

        tasks.start_soon(receive)
        address = await endpoint
        here, there = urlsplit(url), urlsplit(address)
        if (here.scheme, here.netloc) != (there.scheme, there.netloc):
            why = "The server names an address for messages that is not its own."
            raise McpError(Problem(ProblemKind.REDIRECTED, why))
        tasks.start_soon(send, address)
        yield read, write
        tasks.cancel_scope.cancel()


def _message(data: str) -> SessionMessage | Exception:
    body = sanitized_list(data.encode()) if '"tools"' in data else data
    try:
        message = jsonrpc_message_adapter.validate_json(body, by_name=False)
    except (ValidationError, ValueError) as error:
        return error
    return SessionMessage(message)
