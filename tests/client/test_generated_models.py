"""The generator of the client's structs from an OpenAPI document."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import datetime
from types import ModuleType
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec
import pytest
from msgspec import UNSET, Raw, UnsetType

from tools import generate_client_models

NAME = "generated_models"
Make = Callable[..., dict[str, Any]]
T = TypeVar("T")


class Text(msgspec.Struct, tag="text", tag_field="type"):
    text: str


class ToolCall(msgspec.Struct, tag="tool-call", tag_field="type"):
    tool_name: str
    args: Raw | UnsetType = UNSET
    text: int = 0


class OwnerView(msgspec.Struct):
    id: UUID
    name: str | None


class MessageView(msgspec.Struct):
    """A message.

    `failed` is there when it is true.
    """

    id: int
    owner: OwnerView | None
    content: tuple[Text | ToolCall, ...]
    created_at: datetime
    ended_at: datetime | None
    labels: dict[str, str]
    seconds: float = 1.5
    failed: bool | UnsetType = UNSET
    notes: tuple[str, ...] = ()


class Page(msgspec.Struct, Generic[T]):
    items: tuple[T, ...]
    next_cursor: str | None = None


class Body(msgspec.Struct):
    sent: str


def document(*answers: Any) -> dict[str, Any]:
    template = "#/components/schemas/{name}"
    (body, *schemas), components = msgspec.json.schema_components((Body, *answers), ref_template=template)
    paths = {
        f"/{number}": {
            "post": {
                "operationId": f"chats.{number}",
                "requestBody": {"content": {"application/json": {"schema": body}}},
                "responses": {
                    "200": {"content": {"application/json": {"schema": schema}}},
                    "400": {"content": {"application/json": {"schema": body}}},
                },
            }
        }
        for number, schema in enumerate(schemas)
    }
    return {"paths": paths, "components": {"schemas": components}}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, Any]]:
    """Return the structs of the generated module by name."""

    def make(*answers: Any) -> dict[str, Any]:
        module = ModuleType(NAME)
        monkeypatch.setitem(sys.modules, NAME, module)  # msgspec resolves the names in this module
        exec(compile(generate_client_models.generate(document(*answers)), NAME, "exec"), vars(module))
        return {name: kind for name, kind in vars(module).items() if getattr(kind, "__module__", "") == NAME}

    return make


def fields(kind: Any) -> dict[str, str]:
    return dict(kind.__annotations__)


def test_answers_become_structs_and_requests_do_not(made: Make) -> None:
    assert set(made(Page[MessageView])) == {"Message", "Owner", "Part"}


def test_members_have_the_types_of_the_document(made: Make) -> None:
    assert fields(made(MessageView)["Message"]) == {
        "id": "int",
        "owner": "Owner | None",
        "content": "tuple[Part, ...]",
        "created_at": "datetime",
        "ended_at": "datetime | None",
        "labels": "dict[str, str]",
        "seconds": "float",
        "failed": "bool",
        "notes": "tuple[str, ...]",
    }


def test_nullable_members_may_be_absent_and_unknown_members_are_ignored(made: Make) -> None:
    kind = made(MessageView)["Message"]
    given = b'{"id": 1, "content": [], "created_at": "2030-01-01T00:00:00Z", "labels": {}, "new": 1}'

    message = msgspec.json.decode(given, type=kind)

    assert (message.owner, message.failed, message.seconds, message.notes) == (None, False, 1.5, ())


def test_union_becomes_one_struct_with_the_members_of_all(made: Make) -> None:
    part = made(MessageView)["Part"]

    assert fields(part) == {"type": "str", "text": "str | int | None", "tool_name": "str | None", "args": "Any"}
    assert msgspec.json.decode(b'{"type": "something-new"}', type=part).type == "something-new"


def test_words_of_the_document_are_kept(made: Make) -> None:
    assert made(MessageView)["Message"].__doc__ == "A message.\n\n    `failed` is there when it is true.\n    "


def test_two_components_of_one_name_are_refused_unless_they_are_the_same(made: Make) -> None:
    owner = msgspec.defstruct("Owner", [("id", int)])

    twin = msgspec.defstruct("Owner", [("id", UUID), ("name", str | None)])

    with pytest.raises(ValueError, match="both be called Owner"):
        made(OwnerView, owner)
    assert set(made(OwnerView, twin)) == {"Owner"}


def test_union_without_a_name_is_refused(made: Make) -> None:
    one = msgspec.defstruct("One", [("a", int)], tag="one")
    two = msgspec.defstruct("Two", [("b", int)], tag="two")
    holder = msgspec.defstruct("Holder", [("either", one | two)])

    with pytest.raises(ValueError, match="union of one, two has no name"):
        made(holder)
