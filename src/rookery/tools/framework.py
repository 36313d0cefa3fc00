"""The framework of built-in tools: argument structs, their schemas for models, and lenient decoding.

One struct describes the arguments of a tool. Its schema has no references, and no nulls where providers reject them.
Decoding accepts unambiguous deviations that models are known to send. Its errors tell the model how to correct the
call.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.domain.chat.parts import Json
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput, ToolSpec, object_schema

A = TypeVar("A", bound=msgspec.Struct)

_TYPE_NAMES = {
    "string": "text",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}
_EXAMPLES: Mapping[str, Json] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "null": None,
}
_MISSING = re.compile(r"missing required field `(?P<name>[^`]*)`")
_PATH = re.compile(r" - at `\$\.?(?P<path>.*)`$")


class BadArguments(ValueError):
    """Raised for arguments that the tool does not accept. The message is for the model."""


class StructTool(Generic[A]):
    """A tool built from an argument struct and a handler. The handler is called with valid arguments only."""

    def __init__(
        self,
        spec: ToolSpec,
        arguments: type[A],
        *,
        handler: Callable[[ToolContext, A], Awaitable[ToolOutput]],
        amend: Callable[[Json], Json] | None = None,
    ) -> None:
        self._spec = spec
        self._arguments = arguments
        self._handler = handler
        self._amend = amend

    @property
    def spec(self) -> ToolSpec:
        return self._spec

    async def run(self, ctx: ToolContext, call: ToolCall) -> ToolOutput:
        try:
            given = call.input if self._amend is None else parts.json_raw(self._amend(parts.json_value(call.input)))
            arguments = decode_arguments(self._arguments, given)
        except BadArguments as error:
            return ToolOutput(str(error), is_error=True)
        return await self._handler(ctx, arguments)


def make_tool(
    name: str,
    description: str,
    *,
    arguments: type[A],
    handler: Callable[[ToolContext, A], Awaitable[ToolOutput]],
    amend: Callable[[Json], Json] | None = None,
    **fields: Any,
) -> StructTool[A]:
    """Return a built-in tool. `fields` are further fields of its `ToolSpec` (exclusive, serial, replay, ...).

    `amend` changes the arguments before they are decoded, for example to accept names that the schema does not list.
    """
    spec = ToolSpec(name=name, description=description, input_schema=input_schema(arguments), **fields)
    return StructTool(spec, arguments, handler=handler, amend=amend)


@functools.cache
def input_schema(arguments: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the JSON schema of an argument struct, without references.

    The struct's name and docstring are left out, because the tool has its own.
    """
    (schema,), definitions = msgspec.json.schema_components((arguments,), ref_template="{name}")
    inlined = _inlined(schema, definitions, inside=())
    inlined.pop("description", None)
    return object_schema(inlined)


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, inside: tuple[str, ...]) -> dict[str, Any]:
    name = schema.get("$ref")
    if isinstance(name, str):
        if name in inside:
            raise TypeError(f"{name} contains itself, so its schema cannot be written without references.")
        return _inlined(definitions[name], definitions, inside=(*inside, name))
    built: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            # These keys are names of arguments, and an argument may be called `title`.
            built[key] = {each: _inlined(inner, definitions, inside=inside) for each, inner in value.items()}
        elif key in ("default", "enum", "const", "examples"):
            built[key] = value
        elif key != "title":
            built[key] = _inlined_value(value, definitions, inside)
    if not built.get("required"):
        built.pop("required", None)
    return built


def _inlined_value(value: Any, definitions: Mapping[str, Any], inside: tuple[str, ...]) -> Any:
    if isinstance(value, dict):
        return _inlined(value, definitions, inside=inside)
    if isinstance(value, list):
        return [_inlined_value(item, definitions, inside) for item in value]
    return value


def decode_arguments(arguments: type[A], args: Raw) -> A:
    """Decode the arguments of a call. Raise `BadArguments` with the field, its expected type and an example.

    Numbers and booleans may be strings. Lists and objects may be JSON in a string. An optional argument may be null.
    Unknown keys are ignored.
    """
    schema = input_schema(arguments)
    value = _corrected(parts.json_value(args), schema)
    try:
        return msgspec.convert(value, arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadArguments(_explain(str(error), schema)) from error


def _corrected(value: Json, schema: Mapping[str, Any]) -> Json:
    """Return the value with unambiguous deviations from the schema corrected."""
    if isinstance(value, str):
        return _parsed_if_json(value, schema)
    if isinstance(value, list):
        items = _alternative(schema, "array").get("items")
        return [_corrected(item, items) for item in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    alternative = _alternative(schema, "object")
    properties, required = alternative.get("properties") or {}, alternative.get("required") or ()
    corrected: dict[str, Json] = {}
    for key, item in value.items():
        declared = properties.get(key, alternative.get("additionalProperties"))
        if not isinstance(declared, dict):
            corrected[key] = item
        elif item is not None or key in required or key not in properties or _accepts(declared, "null"):
            corrected[key] = _corrected(item, declared)
    return corrected


def _parsed_if_json(text: str, schema: Mapping[str, Any]) -> Json:
    """Parse a string that holds JSON, where the schema allows a list or an object and no string."""
    if _accepts(schema, "string") or not (_accepts(schema, "array") or _accepts(schema, "object")):
        return text
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return _corrected(parts.json_value(Raw(text)), schema)
    except ValueError:
        return text


def _alternatives(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    alternatives = schema.get("anyOf")
    return list(alternatives) if isinstance(alternatives, list) else [schema]


def _alternative(schema: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the only alternative of the schema with this type; an empty schema if there are several or none."""
    found = [alternative for alternative in _alternatives(schema) if alternative.get("type") == kind]
    return found[0] if len(found) == 1 else {}


def _accepts(schema: Mapping[str, Any], kind: str) -> bool:
    # An alternative without a type, such as an enum or a constant, is a string in argument structs.
    return any(alternative.get("type", "string") == kind for alternative in _alternatives(schema))


# Error texts for the model


def _explain(problem: str, schema: Mapping[str, Any]) -> str:
    found = _PATH.search(problem)
    path = found["path"] if found else ""
    what = problem[: found.start()] if found else problem
    if missing := _MISSING.search(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        what = "it is missing"
    where = f"The argument `{path}`" if path else "The arguments"
    expected = _expected(_schema_at(schema, path))
    hint = f" It should be {expected}." if expected else ""
    first = re.split(r"[.\[]", path, maxsplit=1)[0]
    example = bytes(parts.json_raw(_example(schema, also=first))).decode()
    return f"{where} cannot be used: {what}.{hint} Example: {example}"


def _schema_at(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the schema at a path in the notation of msgspec: `files[0].path`, `map[...]`."""
    for step in re.findall(r"[^.\[\]]+|\[[^\]]*\]", path):
        if step.startswith("["):
            alternative = _alternative(schema, "array") or _alternative(schema, "object")
            inner = alternative.get("items") or alternative.get("additionalProperties")
        else:
            inner = (_alternative(schema, "object").get("properties") or {}).get(step)
        if not isinstance(inner, dict):
            return {}
        schema = inner
    return schema


def _expected(schema: Mapping[str, Any]) -> str:
    if values := schema.get("enum"):
        return "one of " + ", ".join(str(value) for value in values)
    names = [_TYPE_NAMES.get(str(alternative.get("type")), "") for alternative in _alternatives(schema)]
    return " or ".join(name for name in names if name)


def _example(schema: Mapping[str, Any], *, also: str = "") -> Json:
    """Return the smallest valid value. An example object includes the argument `also`."""
    alternative = next((each for each in _alternatives(schema) if each.get("type") != "null"), schema)
    if values := alternative.get("enum"):
        return values[0]
    if alternative.get("type") == "array":
        items = alternative.get("items")
        return [_example(items)] if isinstance(items, dict) else []
    if alternative.get("type") != "object":
        return _EXAMPLES.get(str(alternative.get("type")), "text")
    properties, required = alternative.get("properties") or {}, alternative.get("required") or ()
    return {name: _example(value) for name, value in properties.items() if name in required or name == also}
