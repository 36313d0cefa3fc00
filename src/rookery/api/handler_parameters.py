"""Parameters of operations: read from the signature of a handler, validated by pydantic, described in OpenAPI.

A parameter is part of the path if the path names it, a header if it is annotated with `InHeader`, and otherwise part of
the query. Arguments of the types `Caller` and `Request` are not parameters.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pydantic
from starlette.requests import Request

from rookery.api.caller import Caller, caller_of
from rookery.api.errors import BadFields, FieldError
from rookery.api.request_bodies import field_errors


class InHeader:
    """Annotates a parameter that is sent as a header. Underscores of its name are hyphens in the header."""


class Parameter(msgspec.Struct, frozen=True):
    """One parameter. `name` is that of the handler's argument, and `sent_as` that in the request."""

    name: str
    sent_as: str
    place: Literal["path", "query", "header"]
    is_list: bool


class Parameters:
    """The parameters of one handler. `model` has a field for each of them.

    `allows_unknown`: other servers send browsers here, and may add parameters to the query.
    """

    def __init__(
        self, operation: str, path: str, handler: Callable[..., Awaitable[Any]], *, allows_unknown: bool = False
    ) -> None:
        hints = get_type_hints(handler, include_extras=True)
        fields: dict[str, Any] = {}
        found: list[Parameter] = []
        self._takes: dict[type, str] = {}
        self._allows_unknown = allows_unknown
        for name, argument in inspect.signature(handler).parameters.items():
            hint = hints[name]
            if hint in (Caller, Request):
                self._takes[hint] = name
                continue
            parameter = _parameter(name, hint, path)
            default = ... if argument.default is argument.empty else argument.default
            # The prefix avoids names that pydantic reserves, such as `model_config`.
            fields[_field(name)] = (hint, pydantic.Field(default, alias=parameter.sent_as))
            found.append(parameter)
        # In the order of the document: path, query, header.
        self.all = tuple(each for place in ("path", "query", "header") for each in found if each.place == place)
        self.model = pydantic.create_model(operation, **fields)
        self._in_query = frozenset(each.sent_as for each in self.all if each.place == "query")

    def read(self, request: Request, in_path: Mapping[str, str]) -> dict[str, Any]:
        """Return the arguments of the handler. Raise `BadFields` with all unknown or invalid parameters."""
        arguments = self._read_parameters(request, in_path)
        if name := self._takes.get(Caller):
            arguments[name] = caller_of(request)
        if name := self._takes.get(Request):
            arguments[name] = request
        return arguments

    def _read_parameters(self, request: Request, in_path: Mapping[str, str]) -> dict[str, Any]:
        # Unknown parameters are refused, so that a typo is noticed.
        checks = not self._allows_unknown and request.scope["query_string"]
        if checks and (unknown := sorted(set(request.query_params) - self._in_query)):
            raise BadFields([FieldError(name, "There is no such parameter.") for name in unknown])
        if not self.all:
            return {}
        try:
            values = self.model.model_validate(self._sent(request, in_path))
        except pydantic.ValidationError as error:
            raise BadFields(field_errors(error)) from None
        return {each.name: getattr(values, _field(each.name)) for each in self.all}

    def _sent(self, request: Request, in_path: Mapping[str, str]) -> dict[str, object]:
        sent: dict[str, object] = {}
        for each in self.all:
            value: object = None
            match each.place:
                case "path":
                    value = in_path[each.sent_as]
                case "query" if each.is_list:
                    value = request.query_params.getlist(each.sent_as) or None
                case "query":
                    value = request.query_params.get(each.sent_as)
                case "header":
                    value = request.headers.get(each.sent_as)
            if value is not None:
                sent[each.sent_as] = value
        return sent


def _parameter(name: str, hint: Any, path: str) -> Parameter:
    kind, *notes = get_args(hint) if get_origin(hint) is Annotated else (hint,)
    if InHeader in notes:
        return Parameter(name, name.replace("_", "-"), "header", is_list=False)
    alias = next((note.alias for note in notes if isinstance(note, pydantic.fields.FieldInfo) and note.alias), name)
    place: Literal["path", "query"] = "path" if f"{{{name}}}" in path else "query"
    return Parameter(name, alias, place, is_list=_is_list(kind))


def _field(name: str) -> str:
    return f"value_{name}"


def _is_list(kind: Any) -> bool:
    if get_origin(kind) in (Union, UnionType):
        return any(_is_list(each) for each in get_args(kind))
    return get_origin(kind) in (list, tuple)
