"""The results of tool calls: a result for the model, or questions for the user.

The texts of a result are joined by newlines. Images and audio are kept as bytes; the caller decides whether the model
gets them.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

# A media type from a server goes into headers and file names.
_MAX_MIME = 100


class ResultMedia(msgspec.Struct, frozen=True):
    """An image or a sound."""

    data: bytes
    mime_type: str


class CallResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a call. `structured` is checked against the output schema of the tool; `schema_problem` describes a
    mismatch.
    """

    text: str = ""
    media: tuple[ResultMedia, ...] = ()
    structured: Any = None
    is_error: bool = False
    schema_problem: str | None = None


class InputRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A question of a server to the user: a form described by a JSON schema, or an address to open.

    In the protocol era with sessions, `id` is a hash of the question, so that a repeated call finds the answer.
    """

    id: str
    mode: Literal["form", "url"]
    message: str
    schema: Mapping[str, Any] | None = None
    url: str | None = None


# The answer of the user by the id of the question: `{"action": "accept" | "decline" | "cancel", "content": {...}}`.
Responses: TypeAlias = Mapping[str, Mapping[str, Any]]


class InputRequired(msgspec.Struct, frozen=True, kw_only=True):
    """The call waits for the user. `Resume` continues it.

    The caller stores `request_state` and `task_id` with the call, and passes them back in `Resume`.
    """

    requests: tuple[InputRequest, ...]
    request_state: str | None = None
    task_id: str | None = None


class Resume(msgspec.Struct, frozen=True, kw_only=True):
    """Continues a call: after questions of the server, or after a crash with the task that the call had started.

    `responses` has the answers of all rounds. A server of the session era that has lost the call is called again and
    asks all of its questions again.
    """

    responses: Responses = {}
    request_state: str | None = None
    task_id: str | None = None


class Progress(msgspec.Struct, frozen=True):
    """A notification of progress."""

    progress: float
    total: float | None = None
    message: str | None = None


Outcome: TypeAlias = CallResult | InputRequired


def call_result(
    content: Sequence[Mapping[str, Any]], structured: Any, *, is_error: bool, schema_problem: str | None = None
) -> CallResult:
    """Return the result that the content blocks of a server form.

    Structured content is added as text, unless a text block already has the same value. The protocol recommends to
    servers to send such a block.
    """
    texts = [text for block in content if (text := _text_of(block))]
    if structured is not None and not any(_says(text, structured) for text in texts):
        texts.append(msgspec.json.encode(structured).decode())
    if schema_problem is not None:
        texts.append(f"[The structured result does not fit the schema that the server declares: {schema_problem}]")
    return CallResult(
        text="\n".join(texts),
        media=tuple(_media_of(content)),
        structured=structured,
        is_error=is_error,
        schema_problem=schema_problem,
    )


def _says(text: str, structured: Any) -> bool:
    """Return whether the text has the same value as the structured content, or as the only field of it."""
    same = [structured]
    if isinstance(structured, Mapping) and len(structured) == 1:
        same += structured.values()
    if text in same:
        return True
    try:
        return bool(msgspec.json.decode(text) in same)
    except (msgspec.DecodeError, RecursionError):
        return False


def _text_of(block: Mapping[str, Any]) -> str:
    resource = block.get("resource")
    match block.get("type"):
        case "text":
            return str(block.get("text") or "")
        case "resource" if isinstance(resource, Mapping) and isinstance(resource.get("text"), str):
            return str(resource["text"])
        case "resource_link" | "resource":
            named = resource if isinstance(resource, Mapping) else block
            return f"[resource: {named.get('uri') or named.get('name') or ''}]"
        case _:
            return ""


def _media_of(content: Iterable[Mapping[str, Any]]) -> Iterable[ResultMedia]:
    for block in content:
        if block.get("type") not in ("image", "audio"):
            continue
        data, mime_type = block.get("data"), block.get("mimeType")
        if isinstance(data, str) and isinstance(mime_type, str) and len(mime_type) <= _MAX_MIME:
            try:
                yield ResultMedia(base64.b64decode(data, validate=True), mime_type)
            except (binascii.Error, ValueError):
                continue
