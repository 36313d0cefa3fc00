"""The page docs/api/identity.md names exactly the existing operations."""

from __future__ import annotations

import re
from pathlib import Path

from tests.api.api_rig import ApiRig, Person

PAGE = Path(__file__).parents[2] / "docs" / "api" / "identity.md"
ROW = re.compile(r"^\| `(GET|POST|PATCH|DELETE) (/[^`]+)`", re.MULTILINE)
SETUP = {("GET", "/setup"), ("POST", "/setup")}  # shown as commands


async def test_page_names_every_operation_of_identity_and_no_other(rig: ApiRig, ada: Person) -> None:
    document = (await ada.http.get("/api/v1/openapi.json")).json()
    subjects = {"setup", "auth", "tokens", "users"}

    served = {
        (method.upper(), path.removeprefix("/api/v1"))
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        if subjects & set(operation["tags"])
    }

    assert set(ROW.findall(PAGE.read_text())) | SETUP == served
