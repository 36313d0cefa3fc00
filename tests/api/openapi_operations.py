"""The operations of the committed OpenAPI document, for tests that iterate over them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCUMENT = json.loads((Path(__file__).parents[2] / "docs" / "api" / "openapi.json").read_text())
METHODS = ("get", "put", "post", "patch", "delete")


class Asked(NamedTuple):
    """An operation. `path` has its parameters in braces; `statuses` are the documented ones."""

    name: str
    method: str
    path: str
    parameters: tuple[str, ...]
    queries: tuple[str, ...]
    statuses: frozenset[int]
    is_public: bool
    is_json: bool


def operations() -> Iterator[Asked]:
    for path, methods in DOCUMENT["paths"].items():
        for method in METHODS:
            if (found := methods.get(method)) is None:
                continue
            yield Asked(
                name=found["operationId"],
                method=method.upper(),
                path=path,
                parameters=tuple(part[1:-1] for part in path.split("/") if part.startswith("{")),
                queries=tuple(each["name"] for each in found.get("parameters", ()) if each["in"] == "query"),
                statuses=frozenset(map(int, found["responses"])),
                is_public=found["security"] == [],
                is_json="application/json" in found.get("requestBody", {}).get("content", {}),
            )


ALL = list(operations())
