"""The OpenAPI document without a server: routers declare their operations before they need anything of one."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from fastapi import FastAPI

from rookery.api import openapi
from rookery.api.application import create_api
from rookery.api.services import ApiServices


def describe() -> dict[str, Any]:
    """The document as every replica serves it."""
    return openapi.document(bare_api())


def bare_api() -> FastAPI:
    """All operations, of a server that has nothing to do them with."""
    nothing: dict[str, Any] = {
        field.name: None
        for field in dataclasses.fields(ApiServices)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return create_api(ApiServices(**nothing))


def text() -> str:
    """The file docs/api/openapi.json."""
    return json.dumps(describe(), indent=2, ensure_ascii=False) + "\n"
