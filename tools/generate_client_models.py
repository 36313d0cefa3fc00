"""Writes the structs of the client from the OpenAPI document: what the operations answer with, and what that holds.

    python -m tools.generate_client_models > src/rookery/client/models.py

The structs forgive: members that may be null may be absent, closed sets of words are plain text, and a union that is
told apart by a member becomes one struct with the members of all. A newer server adds to each of these.
A test compares the committed file with what this gives.
"""

from __future__ import annotations

import keyword
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tools.formatting import formatted

DOCUMENT = Path(__file__).parents[1] / "docs" / "api" / "openapi.json"
REF = "#/components/schemas/"
# What the client uses: families of operations, or single ones.
OPERATIONS = (
    "approvals",
    "auth",
    "chats",
    "files",
    "mcp_servers",
    "messages",
    "models",
    "operations.get",
    "queue",
    "server.version",
    "setup",
    "templates",
    "titles",
    "tokens",
    "turns",
    "users.accesses",
    "users.get",  # whoever logs in
    "users.me",
    "workspaces",
)
# What events of streams hold besides.
OF_EVENTS = ("ChatView",)
# Lists and pages, which are generic in client/pages.py.
GENERIC = ("Page_", "Items_", "ChatListPage")
# Where a name without its suffix says too little.
RENAMED = {
    "DownloadView": "DownloadUrl",
    "EditView": "EditAnswer",
    "LoginView": "LoggedIn",
    "MessagesView": "MessagePage",
    "ModelsOfProvider": "ModelProvider",
    "ModelsView": "ModelList",
    "PromoteView": "PromoteAnswer",
    "RequestedView": "RequestedWorkspace",
    "SendView": "SendAnswer",
    "TitleView": "ProposedTitle",
    "TokensView": "TokenCounts",
}
# Unions by one of their tags. A new one needs a name here.
UNIONS = {"tool-call": "Part"}
SUFFIX = "View"
WIDTH = 114

HEAD = '''"""What the server answers with. Made by tools/generate_client_models.py from docs/api/openapi.json.

Members that this version does not know are ignored, and those that may be null may be absent: servers within one
version of the API only ever add to it.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec
'''

Schema = Mapping[str, Any]


def load() -> Schema:
    document: Schema = msgspec.json.decode(DOCUMENT.read_bytes())
    return document


def generate(document: Schema) -> str:
    return formatted("\n".join([HEAD, *_Structs(document).lines()]) + "\n")


class _Structs:
    def __init__(self, document: Schema) -> None:
        self._components: Mapping[str, Schema] = document["components"]["schemas"]
        self._unions: dict[str, Schema] = {}
        self._found: dict[str, str] = {}  # component by the name of its struct
        for schema in _answers(document):
            self._visit(schema)
        for component in OF_EVENTS:
            if component in self._components:
                self._visit_component(component)

    def lines(self) -> Iterator[str]:
        written = {name: self._components[component] for name, component in self._found.items()}
        for name, union in self._unions.items():
            written[name] = self._merged(union)
        for name in sorted(written):
            yield from self._struct(name, written[name])

    def _visit(self, schema: Schema) -> None:
        """Note every component that a value of the schema may hold."""
        if "discriminator" in schema:
            name = _union_name(schema)
            if name not in self._unions:
                self._unions[name] = schema
                for _, member, _ in self._members(self._merged(schema)):
                    self._visit(member)
            return
        if reference := schema.get("$ref"):
            self._visit_component(reference.removeprefix(REF))
            return
        for inner in (schema.get("items"), schema.get("additionalProperties"), *_choices(schema)):
            if isinstance(inner, Mapping):
                self._visit(inner)
        for inner in (*schema.get("properties", {}).values(), *schema.get("prefixItems", ())):
            self._visit(inner)

    def _visit_component(self, component: str) -> None:
        schema = self._components[component]
        if component.startswith(GENERIC) or "properties" not in schema:
            self._visit(schema)
            return
        name = _name(component)
        if name not in self._found:
            self._found[name] = component
            self._visit(schema)
        elif self._shape(self._components[self._found[name]]) != self._shape(schema):
            raise ValueError(f"{component} and {self._found[name]} would both be called {name}")

    def _struct(self, name: str, schema: Schema) -> Iterator[str]:
        yield f"\n\nclass {name}(msgspec.Struct, frozen=True, kw_only=True):"
        if said := schema.get("description"):
            yield textwrap.indent(f'"""{_wrapped(said)}"""', "    ") + "\n"
        members = list(self._members(schema))
        for member, described, is_required in members:
            if keyword.iskeyword(member) or not member.isidentifier():
                raise ValueError(f"{name}.{member} cannot be the name of a field")
            kind = self._field(described, is_required=is_required)
            # msgspec does not say which strings are times; by the rules of the API these are.
            yield f"    {member}: {kind.replace('str', 'datetime', 1) if member.endswith('_at') else kind}"
        if not members:
            yield "    pass"

    def _shape(self, schema: Schema) -> dict[str, str]:
        members = self._members(schema)
        return {name: self._field(described, is_required=is_required) for name, described, is_required in members}

    def _members(self, schema: Schema) -> Iterator[tuple[str, Schema, bool]]:
        required = set(schema.get("required", ()))
        for name, described in schema.get("properties", {}).items():
            yield name, described, name in required

    def _field(self, schema: Schema, *, is_required: bool) -> str:
        kind = self._type(schema)
        if kind == "None":
            return "Any = None"  # what it will be once it is something, only a newer document knows
        if kind.endswith("| None"):
            return f"{kind} = None"
        if is_required:
            return kind
        match schema.get("default"):
            case None if kind == "bool":
                return "bool = False"
            case None if kind.startswith("tuple["):
                return f"{kind} = ()"
            case None:
                return f"{_either([kind, 'None'])} = None"
            case []:
                return f"{kind} = ()"
            case default:
                return f"{kind} = {default!r}"

    def _type(self, schema: Schema) -> str:
        if "discriminator" in schema:
            return _union_name(schema)
        if reference := schema.get("$ref"):
            return self._referred(reference.removeprefix(REF))
        if choices := list(_choices(schema)):
            return _either([self._type(choice) for choice in choices])
        if "enum" in schema or "const" in schema:
            values = schema.get("enum", [schema.get("const")])
            return _either([type(value).__name__ if value is not None else "None" for value in values])
        kinds = schema.get("type")
        if isinstance(kinds, list):
            return _either([self._type({**schema, "type": kind}) for kind in kinds])
        return self._plain(kinds, schema)

    def _plain(self, kind: str | None, schema: Schema) -> str:
        match kind:
            case "string":
                return {"uuid": "UUID", "date-time": "datetime"}.get(schema.get("format", ""), "str")
            case "integer":
                return "int"
            case "number":
                return "float"
            case "boolean":
                return "bool"
            case "null":
                return "None"
            case "array":
                return f"tuple[{self._type(schema.get('items') or {})}, ...]"
            case "object":
                values = schema.get("additionalProperties")
                return f"dict[str, {self._type(values) if isinstance(values, Mapping) else 'Any'}]"
        return "Any"

    def _referred(self, component: str) -> str:
        schema = self._components[component]
        return _name(component) if "properties" in schema else self._type(schema)

    def _merged(self, union: Schema) -> Schema:
        """One schema with the members of all variants, of which only the tag is sure to be there."""
        tag = union["discriminator"]["propertyName"]
        members: dict[str, Schema] = {tag: {"type": "string"}}
        for choice in _choices(union):
            for name, described in self._components[choice["$ref"].removeprefix(REF)]["properties"].items():
                if name != tag:
                    known = members.setdefault(name, described)
                    if self._type(known) != self._type(described):
                        members[name] = {"anyOf": [known, described]}
        said = "One of any type, with the members of all: a newer server may send types that this client does not know."
        optional = {name: {k: v for k, v in each.items() if k != "default"} for name, each in members.items()}
        return {"description": said, "properties": optional, "required": [tag]}


def _answers(document: Schema) -> Iterator[Schema]:
    for path in document["paths"].values():
        for operation in path.values():
            if not operation["operationId"].startswith(OPERATIONS):
                continue
            for status, response in operation["responses"].items():
                if status.startswith("2") and (content := response.get("content", {}).get("application/json")):
                    yield content["schema"]


def _name(component: str) -> str:
    return RENAMED.get(component) or component.removesuffix(SUFFIX)


def _choices(schema: Schema) -> Sequence[Schema]:
    found: Sequence[Schema] = schema.get("anyOf") or schema.get("oneOf") or schema.get("allOf") or ()
    return found


def _union_name(schema: Schema) -> str:
    tags = schema["discriminator"].get("mapping", {})
    for tag, name in UNIONS.items():
        if tag in tags:
            return name
    raise ValueError(f"a union of {', '.join(tags)} has no name; give it one in UNIONS")


def _either(kinds: Sequence[str]) -> str:
    """A union in the order of its members, with None last."""
    parts = dict.fromkeys(part for kind in kinds for part in kind.split(" | "))
    if "Any" in parts:
        return "Any"
    return " | ".join([*(part for part in parts if part != "None"), *(["None"] if "None" in parts else [])])


def _wrapped(said: str) -> str:
    paragraphs = [" ".join(paragraph.split()) for paragraph in said.split("\n\n")]
    lines = ["\n".join(textwrap.wrap(paragraph, WIDTH)) for paragraph in paragraphs]
    return "\n\n".join(lines) + ("\n" if len(lines) > 1 else "")


if __name__ == "__main__":
    sys.stdout.write(generate(load()))
