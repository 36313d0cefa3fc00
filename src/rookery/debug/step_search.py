"""Search in the steps of a run: in the new messages of each step, its answer, and its errors. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import TypeVar
from uuid import UUID

import msgspec

from rookery.debug.normalization import NormalizedMessage, NormalizedPart
from rookery.store.debug.record_rows import SearchedStep

MAX_PLACES = 500
_BEFORE_CHARS = 30
_AFTER_CHARS = 90


class PlaceKind(StrEnum):
    MESSAGE = "message"
    OUTPUT = "output"
    ERROR = "error"
    PRIOR_ERROR = "prior_error"


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """A text that contains the searched words. `before` and `after` are the text around the first of them.

    `message` is the index of a message of the prompt, and `role` its role. Both are None for other texts.
    """

    step_id: UUID
    number: int
    kind: PlaceKind
    message: int | None = None
    role: str | None = None
    before: str
    found: str
    after: str


class _Request(msgspec.Struct, frozen=True):
    messages: tuple[NormalizedMessage, ...] = ()
    prefix_len: int = 0


class _Response(msgspec.Struct, frozen=True):
    content: tuple[NormalizedPart, ...] = ()


class _Error(msgspec.Struct, frozen=True):
    message: str = ""
    detail: str | None = None


class _Text(msgspec.Struct, frozen=True):
    kind: PlaceKind
    text: str
    message: int | None = None
    role: str | None = None


T = TypeVar("T")


def find_places(steps: Iterable[SearchedStep], query: str) -> list[Place]:
    """Return the texts of the steps that contain the query, in order. Case and kinds of white space do not matter."""
    wanted = _one_line(query).casefold()
    places: list[Place] = []
    for step in steps:
        for text in _texts(step):
            place = _place(step, text, wanted)
            if place is not None:
                places.append(place)
            if len(places) == MAX_PLACES:
                return places
    return places


def _texts(step: SearchedStep) -> Iterator[_Text]:
    request = _read(step.normalized_request, _Request) or _Request()
    for index, message in enumerate(request.messages, request.prefix_len):
        yield _Text(PlaceKind.MESSAGE, _joined(message.parts), index, message.role)
    if (response := _read(step.normalized_response, _Response)) is not None:
        yield _Text(PlaceKind.OUTPUT, _joined(response.content))
    if (error := _read(step.error, _Error)) is not None:
        yield _error_text(PlaceKind.ERROR, error)
    for prior in _read(step.prior_errors, list[_Error]) or ():
        yield _error_text(PlaceKind.PRIOR_ERROR, prior)


def _read(stored: msgspec.Raw | None, kind: type[T]) -> T | None:
    """Return a stored value; None if it is missing or has the format of another version."""
    try:
        return None if stored is None else msgspec.json.decode(stored, type=kind)
    except (msgspec.DecodeError, UnicodeError):
        return None


def _error_text(kind: PlaceKind, error: _Error) -> _Text:
    return _Text(kind, "\n".join(filter(None, (error.message, error.detail))))


def _joined(parts: Iterable[NormalizedPart]) -> str:
    texts = (
        text
        for part in parts
        for text in (part.tool_name, part.text, part.arguments, part.result, part.filename, part.title, part.url)
    )
    return "\n".join(filter(None, texts))


def _place(step: SearchedStep, text: _Text, wanted: str) -> Place | None:
    line = _one_line(text.text)
    folded = line.casefold()
    at = folded.find(wanted)
    if at < 0:
        return None
    if len(folded) != len(line):  # some letters become two, such as ß, so the positions differ
        line = folded
    end = at + len(wanted)
    start = max(0, at - _BEFORE_CHARS)
    return Place(
        step_id=step.id,
        number=step.step_number,
        kind=text.kind,
        message=text.message,
        role=text.role,
        before=("…" if start else "") + line[start:at],
        found=line[at:end],
        after=line[end : end + _AFTER_CHARS],
    )


def _one_line(text: str) -> str:
    return " ".join(text.split())
