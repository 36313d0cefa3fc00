"""The ASGI application: routers, and around them the access log and the shape of errors."""

from __future__ import annotations

import time

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rookery import __version__
from rookery.api.routers import health
from rookery.clock import Clock
from rookery.log import get_logger

log = get_logger("api")


def create_application(found: health.Health, *, clock: Clock, log_access: bool) -> ASGIApp:
    """Everything the public port serves. The interactive docs come with the API; they must not load foreign assets."""
    application = FastAPI(title="Rookery", version=__version__, docs_url=None, redoc_url=None, openapi_url=None)
    application.include_router(health.router(found, clock))
    application.add_exception_handler(HTTPException, _explain)
    return AccessLog(application) if log_access else application


async def _explain(request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    codes = {
        404: ("not_found", "There is nothing at this address."),
        405: ("not_allowed", "This method is not allowed here."),
    }
    code, message = codes.get(error.status_code, ("invalid", str(error.detail)))
    return JSONResponse({"code": code, "message": message}, status_code=error.status_code, headers=error.headers)


class AccessLog:
    """One line per request: method, route template, status, time, bytes. Never the path's values or the query."""

    def __init__(self, application: ASGIApp) -> None:
        self._application = application

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._application(scope, receive, send)
            return
        started = time.perf_counter()
        status, size = 500, 0

        async def count(message: Message) -> None:
            nonlocal status, size
            if message["type"] == "http.response.start":
                status = message["status"]
            elif message["type"] == "http.response.body":
                size += len(message.get("body", b""))
            await send(message)

        try:
            await self._application(scope, receive, count)
        finally:
            route = getattr(scope.get("route"), "path", None)
            milliseconds = round((time.perf_counter() - started) * 1000, 1)
            log.info("request", method=scope["method"], route=route, status=status, ms=milliseconds, bytes=size)
