"""The framework of built-in tools: argument structs, their schemas for models, and lenient decoding.

A struct is the only description of a tool's arguments. Its schema has no references, and no nulls where providers
reject them. Decoding accepts what models really send if it is unambiguous, and describes errors so that a model can
correct them.
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
    """Raised for arguments that the tool does not accept; the text is for the model."""


class StructTool(Generic[A]):
    """A tool made of an argument struct and a function. Invalid arguments never reach the function."""

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
    """Return a built-in tool; `fields` are those of `ToolSpec` (exclusive, serial, replay, ...).

    `amend` corrects arguments before they are decoded: names that models are known to send, accepted but not
    advertised.
    """
    spec = ToolSpec(name=name, description=description, input_schema=input_schema(arguments), **fields)
    return StructTool(spec, arguments, handler=handler, amend=amend)


@functools.cache
def input_schema(arguments: type[msgspec.Struct]) -> Mapping[str, Any]:
    """Return the JSON schema of an argument struct, without references.

    The struct's docstring and name are left out: the tool has both.
    """
    (schema,), definitions = msgspec.json.schema_components((arguments,), ref_template="{name}")
    inlined = _inlined(schema, definitions, inside=())
    inlined.pop("description", None)
    return object_schema(inlined)


def _inlined(schema: Mapping[str, Any], definitions: Mapping[str, Any], *, inside: tuple[str, ...]) -> dict[str, Any]:
    name = schema.get("$ref")
    if isinstance(name, str):
        if name in inside:
            raise TypeError(f"{name} contains itself; its schema has no end.")
        return _inlined(definitions[name], definitions, inside=(*inside, name))
    built: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            # Keys are names here: an argument may be called `title`.
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
    """Decode the arguments of a call. `BadArguments` names the field, what it should be, and an example.

    Also accepted: numbers and booleans as strings, lists and objects as JSON in a string, null for an optional
    argument, and unknown keys, which are ignored.
    """
    schema = input_schema(arguments)
    value = _loosened(parts.json_value(args), schema)
    try:
        return msgspec.convert(value, arguments, strict=False)
    except msgspec.ValidationError as error:
        raise BadArguments(_explain(str(error), schema)) from error


def _loosened(value: Json, schema: Mapping[str, Any]) -> Json:
    """Return the value with unambiguous deviations corrected."""
    if isinstance(value, str):
        return _unwrapped(value, schema)
    if isinstance(value, list):
        items = _form(schema, "array").get("items")
        return [_loosened(item, items) for item in value] if isinstance(items, dict) else value
    if not isinstance(value, dict):
        return value
    form = _form(schema, "object")
    properties, required = form.get("properties") or {}, form.get("required") or ()
    loosened: dict[str, Json] = {}
    for key, item in value.items():
        declared = properties.get(key, form.get("additionalProperties"))
        if not isinstance(declared, dict):
            loosened[key] = item
        elif item is not None or key in required or key not in properties or _takes(declared, "null"):
            loosened[key] = _loosened(item, declared)
    return loosened


def _unwrapped(text: str, schema: Mapping[str, Any]) -> Json:
    """Parse JSON that was sent as a string, where no string is declared."""
    if _takes(schema, "string") or not (_takes(schema, "array") or _takes(schema, "object")):
        return text
    if not text.lstrip().startswith(("[", "{")):
        return text
    try:
        return _loosened(parts.json_value(Raw(text)), schema)
    except ValueError:
        return text


def _forms(schema: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    alternatives = schema.get("anyOf")
    return list(alternatives) if isinstance(alternatives, list) else [schema]


def _form(schema: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the only form of the schema that has this type; empty when there are several."""
    found = [form for form in _forms(schema) if form.get("type") == kind]
    return found[0] if len(found) == 1 else {}


def _takes(schema: Mapping[str, Any], kind: str) -> bool:
    # A form without a type, such as an enum or a constant, is a string here.
    return any(form.get("type", "string") == kind for form in _forms(schema))


# Error texts for the model


def _explain(problem: str, schema: Mapping[str, Any]) -> str:
    found = _PATH.search(problem)
    path = found["path"] if found else ""
    what = problem[: found.start()] if found else problem
    if missing := _MISSING.search(what):
        path = f"{path}.{missing['name']}" if path else missing["name"]
        what = "it is missing"
    where = f"The argument `{path}`" if path else "The arguments"
    expected = _expected(_at(schema, path))
    hint = f" It should be {expected}." if expected else ""
    first = re.split(r"[.\[]", path, maxsplit=1)[0]
    example = bytes(parts.json_raw(_example(schema, also=first))).decode()
    return f"{where} cannot be used: {what}.{hint} Example: {example}"


def _at(schema: Mapping[str, Any], path: str) -> Mapping[str, Any]:
    """Return the schema at a path as msgspec writes it: `files[0].path`, `map[...]`."""
    for step in re.findall(r"[^.\[\]]+|\[[^\]]*\]", path):
        if step.startswith("["):
            form = _form(schema, "array") or _form(schema, "object")
            inner = form.get("items") or form.get("additionalProperties")
        else:
            inner = (_form(schema, "object").get("properties") or {}).get(step)
        if not isinstance(inner, dict):
            return {}
        schema = inner
    return schema


def _expected(schema: Mapping[str, Any]) -> str:
    if values := schema.get("enum"):
        return "one of " + ", ".join(str(value) for value in values)
    names = [_TYPE_NAMES.get(str(form.get("type")), "") for form in _forms(schema)]
    return " or ".join(name for name in names if name)


def _example(schema: Mapping[str, Any], *, also: str = "") -> Json:
    """Return the smallest valid object that includes the argument in question."""
    form = next((each for each in _forms(schema) if each.get("type") != "null"), schema)
    if values := form.get("enum"):
        return values[0]
    if form.get("type") == "array":
        items = form.get("items")
        return [_example(items)] if isinstance(items, dict) else []
    if form.get("type") != "object":
        return _EXAMPLES.get(str(form.get("type")), "text")
    properties, required = form.get("properties") or {}, form.get("required") or ()
    return {name: _example(value) for name, value in properties.items() if name in required or name == also}
