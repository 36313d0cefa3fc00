"""The OpenAPI document is valid and current, and clients can be generated from it."""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from rookery.api import application, middleware
from rookery.api.routes import Endpoint
from rookery.stream.events import Event
from tests.api.api_rig import ApiRig, Person
from tests.api.rights_table import OPERATIONS

COMMITTED = Path(__file__).parents[2] / "docs" / "api" / "openapi.json"
BYTES = {"type": "string", "format": "binary"}
METHODS = ("get", "put", "post", "patch", "delete")


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return application.openapi_document()


def operations(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for path in document["paths"].values():
        yield from (path[method] for method in METHODS if method in path)


def responses(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for operation in operations(document):
        yield from operation["responses"].values()


def taken(document: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the request headers of each operation."""
    return {
        operation["operationId"]: [each for each in operation.get("parameters", ()) if each["in"] == "header"]
        for operation in operations(document)
    }


def listed(headers: str) -> set[str]:
    return set(headers.lower().split(", "))


def references(value: object) -> Iterator[str]:
    match value:
        case dict():
            for key, each in value.items():
                if key == "$ref" and isinstance(each, str):
                    yield each
                elif key == "mapping":
                    yield from each.values()
                else:
                    yield from references(each)
        case list():
            for each in value:
                yield from references(each)


def test_committed_document_is_current() -> None:
    assert COMMITTED.read_text() == application.openapi_json(), "run: make docs"


def test_document_is_valid_openapi(document: dict[str, Any]) -> None:
    assert [error.message for error in OpenAPIV31SpecValidator(document).iter_errors()] == []


def test_every_reference_leads_to_something_and_nothing_is_left_over(document: dict[str, Any]) -> None:
    named = {
        f"#/components/{kind}/{name}" for kind in ("schemas", "responses") for name in document["components"][kind]
    }

    assert set(references(document)) - named == set()
    assert named - set(references(document)) == set()


def test_operations_have_stable_names_that_are_their_own(document: dict[str, Any]) -> None:
    names = [operation["operationId"] for operation in operations(document)]

    assert len(names) == len(set(names))
    assert [name for name in names if not re.fullmatch(r"[a-z_]+\.[a-z_]+", name)] == []


def test_every_operation_says_what_it_does_and_how_it_fails(document: dict[str, Any]) -> None:
    for operation in operations(document):
        assert operation["summary"], operation["operationId"]
        usual = {"400", "429", "500", "503", *(("401", "403") if operation["security"] else ())}
        assert usual <= set(operation["responses"]), operation["operationId"]
        assert any(status.startswith("2") for status in operation["responses"]), operation["operationId"]
        assert "422" not in operation["responses"], operation["operationId"]


def test_every_operation_that_is_not_public_needs_a_token_or_a_session(document: dict[str, Any]) -> None:
    open_ones = {each["operationId"] for each in operations(document) if not each["security"]}

    people = {"setup.get", "setup.complete", "auth.login", "links.get", "links.use"}
    logins = {"mcp.callback", "mcp.client_metadata"}
    assert open_ones == {*people, *logins, "files.download", "docs.page", "docs.asset"}


def test_headers_that_other_sites_may_send_and_read_are_described(document: dict[str, Any]) -> None:
    sent = {each["name"].lower() for headers in taken(document).values() for each in headers}
    given = {
        name.lower()
        for response in (*responses(document), *document["components"]["responses"].values())
        for name in response.get("headers", {})
    }

    # Credentials are security schemes, not parameters of each operation.
    usual = {"authorization", "rookery-session-key", "content-type", "x-request-id", "traceparent"}
    assert listed(middleware.SHARED_HEADERS) - usual <= sent
    assert listed(middleware.SHOWN_HEADERS) - usual <= given


def test_reason_of_an_administrator_is_taken_wherever_it_opens_a_door(document: dict[str, Any]) -> None:
    takers = {name for name, headers in taken(document).items() if "Rookery-Break-Glass" in str(headers)}

    assert takers == {name for name, entry in OPERATIONS.items() if entry.right in ("read", "inspect")}


def test_new_things_say_where_they_are(document: dict[str, Any]) -> None:
    makers = {
        each["operationId"]
        for each in operations(document)
        if "Location" in each["responses"].get("201", {}).get("headers", {})
    }

    people = {"users.create", "chats.create", "files.upload"}
    assert makers == {*people, "providers.create", "model_configs.create", "mcp.create", "mcp.create_own"}


def test_upload_is_bytes_and_download_may_be_a_part_of_them(document: dict[str, Any]) -> None:
    upload, get = (
        next(each for each in operations(document) if each["operationId"] == name)
        for name in ("files.upload", "files.get")
    )

    assert upload["requestBody"] == {"required": True, "content": {"*/*": {"schema": BYTES}}}
    assert get["responses"]["206"]["content"] == get["responses"]["200"]["content"] == {"*/*": {"schema": BYTES}}
    assert set(get["responses"]["206"]["headers"]) == {"ETag", "Content-Range"}
    assert "content" not in get["responses"]["304"]


def test_events_of_streams_are_described(document: dict[str, Any]) -> None:
    kinds = document["components"]["schemas"]["StreamEvent"]["discriminator"]["mapping"]

    assert {str(kind.__struct_config__.tag) for kind in Event.__subclasses__()} <= set(kinds)
    assert "message_part" in kinds


def test_body_is_required_where_it_may_not_be_left_out(document: dict[str, Any]) -> None:
    bodies = {each["operationId"]: each["requestBody"] for each in operations(document) if "requestBody" in each}

    assert [name for name, body in bodies.items() if not body["required"]] == ["turns.interrupt"]


def test_absent_members_of_bodies_have_no_default_that_could_not_be_sent(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        for key, member in schema.get("properties", {}).items():
            if "default" in member and member["default"] is None:
                takes_anything = member.keys() <= {"default", "description"} or member.get("type") == "null"
                assert takes_anything or {"type": "null"} in member.get("anyOf", ()), f"{name}.{key}"


def test_absent_members_of_changes_have_no_default(document: dict[str, Any]) -> None:
    """An absent member keeps its value. A client that filled in a documented default would change all other members."""
    schemas = document["components"]["schemas"]
    bodies = [path["patch"]["requestBody"] for path in document["paths"].values() if "patch" in path]
    names = [body["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2] for body in bodies]

    assert len(names) > 6
    for name in (*names, "OverridesChange"):
        assert [key for key, member in schemas[name]["properties"].items() if "default" in member] == [], name


def test_keys_and_passwords_go_in_and_never_out(document: dict[str, Any]) -> None:
    schemas = document["components"]["schemas"]
    secret = {"api_key", "password", "password_hash", "secret", "api_key_enc", "key_enc"}
    holders = {name for name, schema in schemas.items() if secret & schema.get("properties", {}).keys()}

    # The key of an MCP server is shown as the name of its header, without its value.
    assert [name for name in holders if name.endswith("View")] == ["McpServerView"]
    assert not schemas["HeaderView"]["properties"].keys() & {"value", "secret"}
    assert "example" not in json.dumps(document)


async def test_server_returns_the_document_to_authenticated_users(rig: ApiRig, ada: Person) -> None:
    assert (await ada.http.get("/api/v1/openapi.json")).json() == json.loads(COMMITTED.read_text())
    assert (await rig.nobody.get("/api/v1/openapi.json")).status_code == 401


def test_every_handler_is_a_coroutine_function() -> None:
    """A plain function would need a thread, which waits longer in a busy process than most requests take."""
    endpoints = [route.application for route in application.bare_api().routes]
    handlers = [each.handler for each in endpoints if isinstance(each, Endpoint)]

    assert len(handlers) > 100
    assert [each for each in handlers if not inspect.iscoroutinefunction(each)] == []


def test_framework_with_its_own_routes_and_threads_is_not_installed() -> None:
    """Operations are declared through `Routes` alone (docs/decisions/0069)."""
    assert "fastapi" not in (Path(__file__).parents[2] / "pyproject.toml").read_text()
