"""The ASGI application: the routers, wrapped in the middleware."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import asyncpg
from fastapi import APIRouter, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp

from rookery import __version__
from rookery.api import openapi, streams
from rookery.api.errors import ApiError, BadFields, FieldError, explain, internal
from rookery.api.middleware import ApiMiddleware
from rookery.api.request_bodies import field_path, sentence
from rookery.api.routers import (
    agent_kinds,
    approvals,
    audit,
    auth,
    chats,
    download_links,
    files,
    health,
    mcp_servers,
    messages,
    model_configs,
    models,
    preferences,
    provider_keys,
    providers,
    queue,
    replicas,
    server,
    settings,
    setup,
    shares,
    templates,
    titles,
    tokens,
    turns,
    usage,
    users,
    workspace_context,
    workspace_files,
    workspace_operations,
    workspaces,
)
from rookery.api.services import ApiServices
from rookery.api.web_app import Spa
from rookery.domain.chat.errors import ChatError
from rookery.store.authorized.settings import StaleSetting
from rookery.store.db.errors import StoreError
from rookery.store.models.errors import ModelError
from rookery.store.people.errors import AccessError
from rookery.stream.errors import StreamRefused
from rookery.workspaces.errors import NotWatchable
from rookery.workspaces.template_problems import Invalid

# One per subject, in the order of the OpenAPI document. Each takes the services and returns its routes.
ROUTERS: tuple[Callable[[ApiServices], APIRouter], ...] = (
    setup.router,
    auth.router,
    tokens.router,
    users.router,
    chats.router,
    messages.router,
    approvals.router,
    queue.router,
    turns.router,
    titles.router,
    shares.router,
    files.router,
    download_links.router,
    templates.router,
    workspaces.router,
    workspace_operations.router,
    workspace_context.router,
    mcp_servers.router,
    workspace_files.router,
    models.router,
    providers.router,
    model_configs.router,
    provider_keys.router,
    settings.router,
    agent_kinds.router,
    preferences.router,
    usage.router,
    audit.router,
    replicas.router,
    server.router,
)

# Exception types that `errors.explain` maps to responses. Any other exception is a bug; the middleware logs it.
_EXPLAINED: tuple[type[Exception], ...] = (
    ApiError,
    ChatError,
    AccessError,
    ModelError,
    StaleSetting,
    StoreError,
    StreamRefused,
    Invalid,
    ConnectionError,
    TimeoutError,
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    NotWatchable,
)


def create_application(services: ApiServices) -> ASGIApp:
    """Return the application that serves the public port."""
    return ApiMiddleware(Spa(create_api(services), services.web), services)


def create_api(services: ApiServices) -> FastAPI:
    """Return the routers without the middleware. The OpenAPI document is made from it."""
    # Trailing slashes are not redirected. Behind a proxy that ends TLS, the redirect would point to http and leak
    # tokens.
    application = FastAPI(
        title="Rookery",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
        # The middleware makes the spans of requests. Those of FastAPI would have paths and texts of errors.
        telemetry={"tracing": False, "metrics": False, "logs": False, "operation_spans": False},
    )
    # The list is flat. FastAPI analyzes the routes of an included router a second time at its first request, and walks
    # through nested lists at every request.
    routes = application.router.routes
    routes.extend(health.router(services.health, services.clock).routes)
    routes.extend(streams.routes(services.streams, services.workspaces))
    for router in ROUTERS:
        routes.extend(router(services).routes)
    application.add_exception_handler(HTTPException, _explain_http)
    application.add_exception_handler(RequestValidationError, _explain_parameters)
    for kind in _EXPLAINED:
        application.add_exception_handler(kind, _explain)
    application.add_exception_handler(Exception, _explain_bug)
    return application


async def _explain(request: Request, error: Exception) -> Response:
    explained = explain(error)
    if explained is None:
        raise error
    return _answer(request, explained)


async def _explain_bug(request: Request, error: Exception) -> Response:
    """Answer an unexpected exception. Without this handler, the framework would send its own text."""
    return _answer(request, internal())


async def _explain_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    known = {
        404: ("not_found", "There is nothing at this address."),
        405: ("not_allowed", "This method is not allowed here."),
    }
    code, message = known.get(error.status_code, ("invalid", str(error.detail)))
    return _answer(request, ApiError(error.status_code, code, message, headers=error.headers))


async def _explain_parameters(request: Request, error: Exception) -> Response:
    """Answer invalid path and query parameters: all errors together, each with the name of its parameter."""
    assert isinstance(error, RequestValidationError)
    problems: list[Any] = list(error.errors())
    fields = [FieldError(field_path(problem["loc"][1:]), sentence(problem["msg"])) for problem in problems]
    return _answer(request, BadFields(fields) if fields else internal())


def _answer(request: Request, error: ApiError) -> Response:
    request.scope["rookery.error"] = error.code
    return error.response(request.scope.get("rookery.request_id", ""))


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document without a running server. Every replica serves the same document."""
    return openapi.document(bare_api())


def openapi_json() -> str:
    """Return the content of docs/api/openapi.json."""
    return json.dumps(openapi_document(), indent=2, ensure_ascii=False) + "\n"


def bare_api() -> FastAPI:
    """Return an application with all operations but no services. The declarations need none."""
    required: dict[str, Any] = {
        field.name: None
        for field in dataclasses.fields(ApiServices)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return create_api(ApiServices(**required))
