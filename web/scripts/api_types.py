"""Write src/api/types.gen.ts from the committed description of the API (docs/api/openapi.json).

Own and small, since generators of the npm world pin an older TypeScript than the one used here. Fields that an answer
always carries stand in `required`; all others are optional.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "docs" / "api" / "openapi.json"
TARGET = ROOT / "web" / "src" / "api" / "types.gen.ts"

HEADER = """// Written by web/scripts/api_types.py from docs/api/openapi.json (`make docs`). Do not edit.

"""
SCALARS = {"string": "string", "integer": "number", "number": "number", "boolean": "boolean", "null": "null"}
IDENTIFIER = re.compile(r"^[A-Za-z_$][\w$]*$")


def type_of(schema: Any) -> str:
    """The type of a schema, in one line."""
    if not schema or schema is True:
        return "unknown"
    if "$ref" in schema:
        return name_of(schema["$ref"].rsplit("/", 1)[1])
    if "const" in schema:
        return json.dumps(schema["const"])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " | ".join(dict.fromkeys(type_of(one) for one in schema[key]))
    if "allOf" in schema:
        return " & ".join(type_of(one) for one in schema["allOf"])
    kind = schema.get("type")
    if isinstance(kind, list):
        return " | ".join(type_of({**schema, "type": one}) for one in kind)
    if kind == "array":
        inner = type_of(schema.get("items"))
        return f"({inner})[]" if " " in inner else f"{inner}[]"
    if kind == "object" or "properties" in schema:
        return object_type(schema)
    return SCALARS.get(kind or "", "unknown")


def object_type(schema: dict[str, Any]) -> str:
    if "properties" not in schema:
        more = schema.get("additionalProperties")
        return f"Record<string, {type_of(more)}>" if isinstance(more, dict) and more else "Record<string, unknown>"
    return "{ " + " ".join(members(schema)) + " }"


def members(schema: dict[str, Any]) -> list[str]:
    required = set(schema.get("required", ()))
    return [
        f"{key if IDENTIFIER.match(key) else json.dumps(key)}{'' if key in required else '?'}: {type_of(value)};"
        for key, value in schema["properties"].items()
    ]


def name_of(name: str) -> str:
    """A name that TypeScript takes; generic ones come as `Page_User_`."""
    return name.rstrip("_").replace("-", "_").replace("_", "Of", 1) if "_" in name else name


def declaration(name: str, schema: dict[str, Any]) -> str:
    note = f"/** {' '.join(schema['description'].split()).replace('*/', '*')} */\n" if schema.get("description") else ""
    if schema.get("properties") is not None:
        lines = "".join(f"  {line}\n" for line in members(schema))
        return f"{note}export interface {name_of(name)} {{\n{lines}}}\n"
    return f"{note}export type {name_of(name)} = {type_of(schema)};\n"


def text(document: dict[str, Any]) -> str:
    """The whole file."""
    schemas = document["components"]["schemas"]
    return HEADER + "\n".join(declaration(name, schema) for name, schema in sorted(schemas.items()))


def main() -> int:
    """Write the file, or with --check fail when it is not what would be written."""
    wanted = text(json.loads(SOURCE.read_text()))
    if "--check" in sys.argv[1:]:
        if not TARGET.exists() or TARGET.read_text() != wanted:
            print("web/src/api/types.gen.ts is not what docs/api/openapi.json says; run: make docs", file=sys.stderr)
            return 1
        return 0
    TARGET.write_text(wanted)
    return 0


if __name__ == "__main__":
    sys.exit(main())
