"""The ASGI application: the routers, wrapped in the middleware."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

from starlette.types import ASGIApp

from rookery.api import openapi, stream_endpoints
from rookery.api.middleware import ApiMiddleware
from rookery.api.routers import (
    agent_kinds,
    approvals,
    audit,
    auth,
    chats,
    debug,
    download_links,
    files,
    folders,
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
    saved_prompts,
    settings,
    setup,
    shares,
    templates,
    titles,
    tokens,
    turns,
    usage,
    users,
    version_and_docs,
    workspace_context,
    workspace_files,
    workspace_mcp_servers,
    workspace_operations,
    workspaces,
)
from rookery.api.routes import Routes, RouteTable
from rookery.api.services import ApiServices
from rookery.api.web_app import Spa

# One per subject, in the order of the OpenAPI document. Each takes the services and returns its routes.
ROUTERS: tuple[Callable[[ApiServices], Routes], ...] = (
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
    folders.router,
    saved_prompts.router,
    files.router,
    download_links.router,
    templates.router,
    workspaces.router,
    workspace_operations.router,
    workspace_context.router,
    workspace_mcp_servers.router,
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
    debug.router,
    audit.router,
    replicas.router,
    version_and_docs.router,
)


def create_application(services: ApiServices) -> ASGIApp:
    """Return the application that serves the public port."""
    return ApiMiddleware(Spa(create_api(services), services.web), services)


def create_api(services: ApiServices) -> RouteTable:
    """Return the routes without the middleware. The OpenAPI document is made from them."""
    return RouteTable(
        [
            *health.routes(services.health, services.clock),
            *stream_endpoints.routes(services.streams, services.workspaces),
            *(route for router in ROUTERS for route in router(services).all),
        ]
    )


def openapi_document() -> dict[str, Any]:
    """Return the OpenAPI document without a running server. Every replica serves the same document."""
    return openapi.document(bare_api())


def openapi_json() -> str:
    """Return the content of docs/api/openapi.json."""
    return json.dumps(openapi_document(), indent=2, ensure_ascii=False) + "\n"


def bare_api() -> RouteTable:
    """Return the routes of all operations, without services. The declarations need none."""
    required: dict[str, Any] = {
        field.name: None
        for field in dataclasses.fields(ApiServices)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return create_api(ApiServices(**required))
