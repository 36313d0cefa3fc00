"""Bodies of requests: read up to a limit, then checked whole, so that all that is wrong is told at once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TypeVar

import pydantic
from pydantic import BaseModel, ConfigDict
from starlette.requests import ClientDisconnect, Request

from rookery.api.errors import ApiError, BadFields, FieldError

MAX_BODY_BYTES = 1024 * 1024
READ_SECONDS = 30.0
# What is left of the body is not worth reading.
_LAST = {"Connection": "close"}

B = TypeVar("B", bound="Body")

# pydantic puts the tag of a union between the place and the field; people know only place and field.
_TAGS = frozenset({"text", "file", "file-reference"})


class Body(BaseModel):
    """Base of every request body: nothing unknown, nothing converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @property
    def given(self) -> frozenset[str]:
        """The members that were sent; in a PATCH an absent one is left as it is."""
        return frozenset(self.model_fields_set)


async def read(request: Request, *, limit: int, seconds: float = READ_SECONDS) -> bytes:
    """The body, or 413 as soon as it is known to be too large: the rest is not read. 408 after `seconds`."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > limit:
        raise too_large(limit)
    chunks: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(seconds):
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    raise too_large(limit)
                chunks.append(chunk)
    except TimeoutError:
        raise ApiError(
            408, "too_slow", "The request did not arrive in time.", headers={"Connection": "close"}
        ) from None
    except ClientDisconnect:
        raise ApiError(400, "malformed", "The request ended before its body did.") from None
    return b"".join(chunks)


def parse(model: type[B], data: bytes) -> B:
    """The body as the model says. `malformed` when it is no JSON, `invalid` with all fields when it breaks rules."""
    try:
        return model.model_validate_json(data)
    except pydantic.ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
    if any(problem["type"] == "json_invalid" for problem in problems):
        raise ApiError(400, "malformed", "The body is not valid JSON.")
    raise BadFields([_field(problem["loc"], problem["type"], problem["msg"]) for problem in problems])


def require_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "unsupported_media_type", "Send the body as JSON, with Content-Type: application/json.")


def too_large(limit: int) -> ApiError:
    size = f"{limit // (1024 * 1024)} MiB" if limit >= 1024 * 1024 else f"{limit // 1024} KiB"
    return ApiError(413, "body_too_large", f"The body is larger than {size}.", headers=_LAST)


def field_path(loc: Sequence[int | str]) -> str:
    """`content[0].text` for where pydantic says ('content', 0, 'text', 'text')."""
    path = ""
    for place, step in enumerate(loc):
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        is_tag = place > 0 and isinstance(loc[place - 1], int) and step in _TAGS and place + 1 < len(loc)
        if not is_tag:
            path += f".{step}" if path else step
    return path or "body"


def _field(loc: Sequence[int | str], kind: str, message: str) -> FieldError:
    if kind == "extra_forbidden":
        message = "There is no such member."
    elif kind == "missing":
        message = "This is required."
    return FieldError(field_path(loc), sentence(message.removeprefix("Value error, ")))


def sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
