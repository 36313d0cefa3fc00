"""The OpenAPI document without a running server; writes docs/api/openapi.json."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from fastapi import FastAPI

from rookery.api import openapi
from rookery.api.application import create_api
from rookery.api.services import ApiServices


def describe() -> dict[str, Any]:
    """Return the document as every replica serves it."""
    return openapi.document(bare_api())


def bare_api() -> FastAPI:
    """Return an application with all operations but no services. Declaring operations needs none."""
    nothing: dict[str, Any] = {
        field.name: None
        for field in dataclasses.fields(ApiServices)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    return create_api(ApiServices(**nothing))


def text() -> str:
    """Return the content of docs/api/openapi.json."""
    return json.dumps(describe(), indent=2, ensure_ascii=False) + "\n"
