"""Serving a stream on an ASGI connection: it is opened first and answered afterwards, so it can fail before the
upgrade.

A refusal is an ordinary response with the error body of the API, over WebSocket as well, so that the client gets the
reason. The caller has authenticated the request and checked its rights.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from rookery.domain.chat.errors import ChatNotFound, InvalidInput
from rookery.server.asgi import Receive, Scope, Send
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.stream import sse, ws
from rookery.stream.errors import ReplicaDraining, TooManyStreams
from rookery.stream.service import Opened
from rookery.stream.session import Transport
from rookery.stream.ws import Refusal

_UNAVAILABLE = {"Retry-After": "2"}


async def serve(scope: Scope, receive: Receive, send: Send, open_stream: Callable[[], Awaitable[Opened]]) -> None:
    """Serve one stream on a WebSocket or a plain GET; return when it ends.

    If `open_stream` raises a refusal, it is sent as a response; other exceptions are re-raised.
    """
    try:
        opened = await open_stream()
    except Exception as error:
        refusal = refusal_of(error)
        if refusal is None:
            raise
        await refuse(scope, receive, send, refusal)
        return
    try:
        transport: Transport
        if scope["type"] == "websocket":
            transport = await ws.accept(scope, receive, send)
        else:
            transport = await sse.start(receive, send)
    except OSError:
        await opened.close()  # the client left before the response
        return
    except BaseException:
        await opened.close()
        raise
    await opened.run(transport)


async def refuse(scope: Scope, receive: Receive, send: Send, refusal: Refusal) -> None:
    """Send a refusal instead of a stream."""
    if scope["type"] == "websocket":
        await ws.refuse(receive, send, refusal)
    else:
        await sse.refuse(send, refusal)


def refusal_of(error: Exception) -> Refusal | None:
    """Return the response to an exception; None for an unexpected one."""
    match error:
        case InvalidInput():
            return Refusal(status=400, code=error.code, message=str(error))
        case ChatNotFound():
            return Refusal(status=404, code="chat_not_found", message=str(error))
        case TooManyStreams():
            return Refusal(status=429, code="too_many_streams", message=str(error))
        case ReplicaDraining():
            return Refusal(status=503, code="unavailable", message=str(error), headers=_UNAVAILABLE)
    if isinstance(error, DATABASE_ERRORS):
        message = "The database does not answer. Try again in a moment."
        return Refusal(status=503, code="unavailable", message=message, headers=_UNAVAILABLE)
    return None
