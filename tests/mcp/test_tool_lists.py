"""The repair and the bounds of schemas that servers send."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from rookery.mcp import tool_lists
from rookery.mcp.call_results import call_result
from rookery.mcp.tool_lists import Annotations, McpTool, RefusedTool, ToolList, joined_list, repaired_schema, sanitized

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


def made_tool(schema: dict[str, Any]) -> McpTool | RefusedTool:
    return tool_lists.made_tool(
        name="tool",
        title=None,
        description=None,
        input_schema=schema,
        output_schema=None,
        annotations=Annotations(),
        task_support="forbidden",
    )


@pytest.mark.parametrize(
    ("given_schema", "repaired", "words"),
    [
        ({}, {"type": "object", "properties": {}}, None),
        ({"type": "object", "properties": None}, {"type": "object", "properties": {}}, None),
        ({"properties": []}, {"type": "object", "properties": {}}, "its properties were not an object"),
        (
            {"properties": {"a": True, "b": {"type": "string"}}, "required": ["a", "zzz", 7, "a"]},
            {"type": "object", "properties": {"a": {}, "b": {"type": "string"}}, "required": ["a"]},
            "the schema of a was not an object",
        ),
        (
            {
                "$defs": {"p": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
                "allOf": [{"$ref": "#/$defs/p"}, {"properties": {"b": {}}, "required": ["b"]}],
            },
            {
                "$defs": {"p": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
                "type": "object",
                "properties": {"a": {"type": "integer"}, "b": {}},
                "required": ["a", "b"],
            },
            "allOf at the root was merged",
        ),
        (
            {"oneOf": [{"properties": {"a": {}}, "required": ["a"]}, {"properties": {"b": {}}}, 7]},
            {"type": "object", "properties": {"a": {}, "b": {}}},
            "oneOf at the root was merged",
        ),
        (
            {"$ref": "#/$defs/p", "$defs": {"p": {"properties": {"a": {}}, "required": ["a"]}}, "enum": [1], "not": {}},
            {
                "$defs": {"p": {"properties": {"a": {}}, "required": ["a"]}},
                "type": "object",
                "properties": {"a": {}},
                "required": ["a"],
            },
            "enum at the root was removed; not at the root was removed; $ref at the root was merged",
        ),
        (
            {"properties": {"a": {"type": "any", "required": True}, "b": {"minimum": 1, "exclusiveMinimum": True}}},
            {"type": "object", "properties": {"a": {}, "b": {"minimum": 1}}},
            "type was invalid; required was invalid; exclusiveMinimum was invalid",
        ),
        (
            {"properties": {"a": {"type": "array"}, "b": {"items": [{}, {}], "type": ["array", "null"]}}},
            {
                "type": "object",
                "properties": {"a": {"type": "array", "items": {}}, "b": {"type": ["array", "null"], "items": {}}},
            },
            "items was invalid",
        ),
        (
            {"properties": {"a": {"$ref": "#/$defs/none"}, "b": {"$ref": "#/properties/a"}, "c": {"$ref": "#x"}}},
            {"type": "object", "properties": {"a": {}, "b": {"$ref": "#/properties/a"}, "c": {}}},
            "#/$defs/none does not exist; #x does not exist",
        ),
    ],
)
def test_schemas_become_objects_that_models_accept(
    given_schema: dict[str, Any], repaired: dict[str, Any], words: str | None
) -> None:
    assert repaired_schema(given_schema) == (repaired, words)


@given(JSON)
def test_any_list_is_sanitized_to_one_that_can_be_read(value: Any) -> None:
    result = sanitized({"tools": value if isinstance(value, list) else [value], "nextCursor": value})

    for tool in result["tools"]:
        made = tool_lists.made_tool(
            name=tool["name"],
            title=tool.get("title"),
            description=tool.get("description"),
            input_schema=tool["inputSchema"],
            output_schema=tool.get("outputSchema"),
            annotations=Annotations(),
            task_support="forbidden",
        )
        assert isinstance(made, McpTool | RefusedTool)


def test_parameters_whose_names_models_refuse_are_renamed_and_named_back() -> None:
    made = made_tool(
        {
            "properties": {"$filter": {"type": "string"}, "_filter": {}, "a b": {}, "x" * 70: {}},
            "required": ["$filter", "_filter"],
        }
    )

    assert isinstance(made, McpTool)
    assert list(made.input_schema["properties"]) == ["_filter_2", "_filter", "a_b", "x" * 60]
    assert made.input_schema["required"] == ["_filter_2", "_filter"]
    given_arguments = {"_filter_2": 1, "_filter": 2, "a_b": 3, "other": 4}
    assert made.own_arguments(given_arguments) == {"$filter": 1, "_filter": 2, "a b": 3, "other": 4}


WORDS = [*tool_lists._WORDS, *tool_lists._SCHEMA, *tool_lists._SCHEMA_LISTS, *tool_lists._SCHEMA_MAPS, "$id", "$schema"]
SCHEMAS = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["", "a", "string", "array", "#/$defs/a"]),
    lambda inner: st.dictionaries(st.sampled_from(WORDS), inner, max_size=3) | st.lists(inner, max_size=2),
    max_leaves=10,
)


@given(st.dictionaries(st.sampled_from(WORDS), SCHEMAS))
def test_any_schema_is_repaired_to_a_valid_one_or_refused(schema: dict[str, Any]) -> None:
    made = made_tool(schema)
    if isinstance(made, McpTool):
        Draft202012Validator.check_schema(made.input_schema)
        assert made.input_schema["type"] == "object"
        assert all(isinstance(each, dict) for each in made.input_schema["properties"].values())
        assert set(made.input_schema.get("required", ())) <= set(made.input_schema["properties"])


def test_deep_and_large_schemas_are_refused_by_name() -> None:
    deep: Any = {}
    for _ in range(100):
        deep = {"properties": {"a": deep}}
    tools = [{"name": "deep", "inputSchema": deep}, {"name": "large", "inputSchema": {"description": "x" * 70_000}}]
    meta = sanitized({"tools": tools})["_meta"]

    assert [each["name"] for each in meta[tool_lists.REFUSED_KEY]] == ["deep", "large"]


def test_pages_are_joined_within_the_bounds() -> None:
    def tool(name: str, size: int = 0) -> McpTool:
        return McpTool(name=name, input_schema={"description": "x" * size})

    joined = joined_list(
        [ToolList(tools=(tool("a"), tool("b")), ttl_seconds=60), ToolList(tools=(tool("a"), tool("c")), ttl_seconds=30)]
    )
    assert [each.name for each in joined.tools] == ["a", "b", "c"]
    assert (joined.ttl_seconds, joined.is_cut) == (30, False)

    large = joined_list([ToolList(tools=tuple(tool(f"t{number}", 60_000) for number in range(100)))])
    assert large.is_cut
    assert len(msgspec.json.encode(large.tools)) <= tool_lists.MAX_LIST_BYTES + 1024


@given(st.lists(st.dictionaries(st.sampled_from(["type", "text", "data", "mimeType", "resource", "uri"]), JSON)), JSON)
def test_any_content_gives_a_result(content: list[dict[str, Any]], structured: Any) -> None:
    assert isinstance(call_result(content, structured, is_error=False).text, str)


@pytest.mark.parametrize(
    ("texts", "structured", "shown"),
    [
        (["3"], {"result": 3}, "3"),
        (["three"], {"result": "three"}, "three"),
        (['{"a": 1}'], {"a": 1}, '{"a": 1}'),
        (["Found one."], {"a": 1}, 'Found one.\n{"a":1}'),
        ([], {"a": 1}, '{"a":1}'),
        (["a", "b"], None, "a\nb"),
    ],
)
def test_structured_content_is_not_said_twice(texts: list[str], structured: Any, shown: str) -> None:
    content = [{"type": "text", "text": each} for each in texts]

    assert call_result(content, structured, is_error=False).text == shown
