"""Parameters of handlers: where they are sent, how they are validated, and the words of their errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import Field
from starlette.requests import Request
from starlette.responses import Response

from rookery.api.errors import BadFields
from rookery.api.handler_parameters import InHeader, Parameters

CHAT = UUID("0192f3a1-1111-7abc-8def-0123456789ab")


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


async def handler(
    request: Request,
    chat: UUID,
    limit: Annotated[int, Field(ge=1, le=200)] = 50,
    start: Annotated[datetime | None, Field(alias="from")] = None,
    label: list[str] | None = None,
    path: tuple[str, ...] = (),
    color: Color = Color.RED,
    order: Literal["up", "down"] = "up",
    word: Annotated[str | None, Field(pattern="^[a-z]+$", max_length=5)] = None,
    is_open: bool = False,
    model_config: str = "",
    if_match: Annotated[str | None, InHeader] = None,
) -> Response:
    return Response()


def read(
    query: str = "", *, chat: str = str(CHAT), headers: dict[str, str] | None = None, of: Any = handler
) -> dict[str, Any]:
    taken: Callable[..., Awaitable[Any]] = of
    request = Request(
        {
            "type": "http",
            "query_string": query.encode(),
            "headers": [(name.encode(), value.encode()) for name, value in (headers or {}).items()],
        }
    )
    found = Parameters("birds.list", "/birds/{chat}", taken).read(request, {"chat": chat})
    return {name: value for name, value in found.items() if name != "request"}


def problems(query: str = "", **options: Any) -> dict[str, str]:
    with pytest.raises(BadFields) as refused:
        read(query, **options)
    return {each.field: each.message for each in refused.value.fields}


def test_absent_parameters_have_their_defaults() -> None:
    found = read()

    assert found.pop("chat") == CHAT
    assert found == {
        "limit": 50,
        "start": None,
        "label": None,
        "path": (),
        "color": Color.RED,
        "order": "up",
        "word": None,
        "is_open": False,
        "model_config": "",
        "if_match": None,
    }


def test_parameters_are_read_from_path_query_and_headers() -> None:
    query = "limit=7&from=2025-01-31T12:00:00Z&label=a&label=b&path=x&color=blue&order=down&word=abc&is_open=true"
    found = read(f"{query}&model_config=m", headers={"if-match": "yesterday"})

    assert found["limit"] == 7
    assert found["start"] == datetime.fromisoformat("2025-01-31T12:00:00Z")
    assert (found["label"], found["path"]) == (["a", "b"], ("x",))
    assert (found["color"], found["order"], found["word"]) == (Color.BLUE, "down", "abc")
    assert (found["is_open"], found["model_config"], found["if_match"]) == (True, "m", "yesterday")


def test_of_a_repeated_parameter_that_is_no_list_the_last_value_counts() -> None:
    assert read("limit=1&limit=2")["limit"] == 2


def test_unknown_parameters_are_refused_before_values_are_checked() -> None:
    assert problems("limits=5&limit=none&start=x") == {
        "limits": "There is no such parameter.",
        "start": "There is no such parameter.",
    }


def test_all_invalid_values_are_reported_together_in_plain_words() -> None:
    query = "limit=0&from=soon&color=green&order=left&word=UPPER&is_open=perhaps"

    assert problems(query, chat="nope") == {
        "chat": "This is not a UUID.",
        "limit": "This must be at least 1.",
        "from": "This is not a time.",
        "color": "This must be 'red' or 'blue'.",
        "order": "This must be 'up' or 'down'.",
        "word": "This has a form that is not allowed.",
        "is_open": "This must be true or false.",
    }
    assert problems("limit=many&word=abcdef") == {
        "limit": "This must be a whole number.",
        "word": "This has more than 5 characters.",
    }
    assert problems("limit=201") == {"limit": "This must be at most 200."}


def test_parameter_without_a_default_is_required() -> None:
    async def search(q: str) -> Response:
        return Response()

    assert problems(of=search) == {"q": "This is required."}
