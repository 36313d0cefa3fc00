"""Request bodies: read up to a limit, then validated as a whole, so that all errors are reported together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec
import pydantic
from pydantic import AfterValidator, BaseModel, ConfigDict
from pydantic_core import PydanticCustomError
from starlette.requests import ClientDisconnect, HTTPConnection, Request

from rookery.api.errors import ApiError, BadFields, FieldError
from rookery.domain.chat.errors import InvalidInput

MAX_BODY_BYTES = 1024 * 1024
READ_SECONDS = 30.0
# The rest of the body is not read; the connection is closed instead.
_LAST = {"Connection": "close"}

B = TypeVar("B", bound="Body")
T = TypeVar("T")

# The scope key under which the raw bytes of a body are stored.
_KEPT = "rookery.body"
_FAULTS = "faults"

# pydantic puts the tag of a union between the index and the field. Clients know only the index and the field.
_TAGS = frozenset({"text", "file", "file-reference"})
# pydantic appends this to a key if the key itself is wrong.
_KEY = "[key]"


class Body(BaseModel):
    """Base of all request bodies: unknown fields are refused, and no value is converted."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    @property
    def given(self) -> frozenset[str]:
        """The fields that were sent. In a PATCH, an absent field keeps its value."""
        return frozenset(self.model_fields_set)


async def read(request: Request, *, limit: int, seconds: float = READ_SECONDS) -> bytes:
    """Read the body.

    Raise 413 as soon as the body is known to be too large, without reading the rest. Raise 408 after `seconds`.
    """
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
    request.scope[_KEPT] = data = b"".join(chunks)
    return data


def raw_body(connection: HTTPConnection) -> bytes:
    """Return the raw body, which must have been read before.

    It is needed for hashes, and for JSON that is stored unchanged.
    """
    data: bytes = connection.scope.get(_KEPT, b"")
    return data


def parse(model: type[B], data: bytes) -> B:
    """Parse the body. Raise `malformed` if it is not JSON, and `invalid` with all fields that break rules."""
    found, problems = None, []
    try:
        found = model.model_validate_json(data)
    except pydantic.ValidationError as error:
        problems = error.errors(include_url=False, include_input=False)
    if any(problem["type"] == "json_invalid" for problem in problems) or _has_non_finite_numbers(data):
        raise ApiError(400, "malformed", "The body is not valid JSON.")
    if found is None:
        raise BadFields([field for problem in problems for field in _fields(problem)])
    return found


def field_errors(error: pydantic.ValidationError) -> list[FieldError]:
    """Return all errors of a validation, in the words of this API."""
    problems = error.errors(include_url=False, include_input=False)
    return [field for problem in problems for field in _fields(problem)]


def _has_non_finite_numbers(data: bytes) -> bool:
    """Return whether the JSON contains NaN or Infinity, which pydantic accepts.

    Bodies without these words are not parsed again.
    """
    if b"NaN" not in data and b"Infinity" not in data:
        return False
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except msgspec.DecodeError:
        return True
    return False


def rule(check: Callable[[T], object]) -> AfterValidator:
    """Attach a domain rule to a field of a body; its error is reported together with all others.

    If the rule names a path inside the field (`labels.key`), the error names the same path.
    """

    def validate(value: T) -> T:
        try:
            check(value)
        except InvalidInput as error:
            raise faults((error.field, str(error))) from None
        return value

    return AfterValidator(validate)


def faults(*found: tuple[str, str]) -> PydanticCustomError:
    """Report several errors of one validator.

    Each error is a path inside the field, from its first dot or bracket on, and a message.
    """
    return PydanticCustomError(_FAULTS, "This breaks a rule.", {_FAULTS: found})


def require_json(request: Request) -> None:
    kind = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if kind != "application/json":
        raise ApiError(415, "unsupported_media_type", "Send the body as JSON, with Content-Type: application/json.")


def too_large(limit: int) -> ApiError:
    size = f"{limit // (1024 * 1024)} MiB" if limit >= 1024 * 1024 else f"{limit // 1024} KiB"
    return ApiError(413, "body_too_large", f"The body is larger than {size}.", headers=_LAST, lingers=True)


def field_path(loc: Sequence[int | str]) -> str:
    """Return pydantic's location as a path: `content[0].text` for ('content', 0, 'text', 'text')."""
    path = ""
    for place, step in enumerate(loc):
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        is_last = place + 1 == len(loc)
        is_tag = place > 0 and isinstance(loc[place - 1], int) and step in _TAGS and not is_last
        is_key = place > 1 and step == _KEY and is_last
        if not is_tag and not is_key:
            path += f".{step}" if path else step
    return path or "body"


def _fields(problem: Any) -> Iterator[FieldError]:
    place, kind = field_path(problem["loc"]), problem["type"]
    if kind == _FAULTS:
        for inside, message in problem["ctx"][_FAULTS]:
            yield FieldError(place + _inside(inside), sentence(message))
        return
    if kind == "value_error":
        yield FieldError(place, sentence(problem["msg"].removeprefix("Value error, ")))
        return
    if kind == "string_pattern_mismatch":
        yield FieldError(place, PATTERN_MESSAGES.get(problem["ctx"]["pattern"], "This has a form that is not allowed."))
        return
    message = _MESSAGES.get(kind, "This is not a valid value.")
    yield FieldError(place, message.format(**problem.get("ctx", {})))


# The messages for error types of pydantic, whose own messages are for programmers.
_MESSAGES = {
    "extra_forbidden": "There is no such field.",
    "missing": "This is required.",
    "union_tag_not_found": "This needs a type: text, file or file-reference.",
    "union_tag_invalid": "A message can hold text, file and file-reference parts.",
    "model_type": "This must be an object.",
    "model_attributes_type": "This must be an object.",
    "dict_type": "This must be an object.",
    "list_type": "This must be a list.",
    "tuple_type": "This must be a list.",
    "string_type": "This must be text.",
    "string_too_long": "This has more than {max_length} characters.",
    "string_too_short": "This has fewer than {min_length} characters.",
    "too_long": "This has more than {max_length} items.",
    "too_short": "This has fewer than {min_length} items.",
    "int_type": "This must be a whole number.",
    "int_parsing": "This must be a whole number.",
    "int_from_float": "This must be a whole number.",
    "decimal_type": "This must be a number.",
    "decimal_parsing": "This must be a number.",
    "decimal_max_digits": "This has more than {max_digits} digits.",
    "decimal_whole_digits": "This has more than {whole_digits} digits before the decimal point.",
    "decimal_max_places": "This has more than {decimal_places} digits after the decimal point.",
    "finite_number": "This must be a finite number.",
    "none_required": "This is set by the server. Leave it out.",
    "float_type": "This must be a number.",
    "float_parsing": "This must be a number.",
    "greater_than": "This must be greater than {gt}.",
    "greater_than_equal": "This must be at least {ge}.",
    "less_than": "This must be less than {lt}.",
    "less_than_equal": "This must be at most {le}.",
    "bool_type": "This must be true or false.",
    "bool_parsing": "This must be true or false.",
    "enum": "This must be {expected}.",
    "literal_error": "This must be {expected}.",
    "uuid_type": "This is not a UUID.",
    "uuid_parsing": "This is not a UUID.",
    "datetime_type": "This is not a time.",
    "datetime_parsing": "This is not a time.",
    "datetime_from_date_parsing": "This is not a time.",
}

SLUG = "^[a-z0-9]+(-[a-z0-9]+)*$"
TOOL_NAME = "^[A-Za-z0-9_-]{1,64}$"
AUDIT_WORD = r"^[a-z_]+(\.[a-z_]+)?$"
PRINTABLE = r"^[\x20-\x7e]+$"

# The messages for patterns. Every pattern of a body or a parameter is here; a test checks it.
PATTERN_MESSAGES = {
    SLUG: "Use lowercase letters, digits, and single hyphens between them.",
    TOOL_NAME: "Use 1 to 64 letters, digits, hyphens and underscores.",
    AUDIT_WORD: "Use lowercase letters and underscores, with one dot at most, such as `chat.delete`.",
    PRINTABLE: "Use the id as the audit log shows it.",
}


def _inside(field: str) -> str:
    """Return the path after the name of the field: `.key` of `labels.key`, `[0].name` of `tools[0].name`."""
    places = [place for place in (field.find("."), field.find("[")) if place >= 0]
    return field[min(places) :] if places else ""


def sentence(text: str) -> str:
    text = text.strip()
    return text if text.endswith((".", "!", "?")) else f"{text}."
