"""Arguments of tool calls: accepted forms, and the errors for all others."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import parts
from rookery.loop import tool_input

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "files": {"type": "array", "items": {"$ref": "#/$defs/File"}},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "options": {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"depth": {"type": "integer"}}}]},
    },
    "$defs": {"File": {"type": "object", "properties": {"name": {"type": "string"}}}},
}


@pytest.mark.parametrize("text", ["", "  ", "\n\t"])
def test_blank_arguments_are_an_empty_object(text: str) -> None:
    assert tool_input.read(text) == tool_input.Arguments(Raw(b"{}"), True)


def test_an_object_stays_as_it_is_written() -> None:
    text = ' {"n": 1.50, "big": 123456789012345678901234567890}'

    assert tool_input.read(text) == tool_input.Arguments(Raw(text.encode()), True)


def test_a_string_that_holds_an_object_is_that_object() -> None:
    assert tool_input.read(json.dumps('{"path": "a"}')) == tool_input.Arguments(Raw(b'{"path": "a"}'), True)


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "null",
        "3",
        '"ls"',
        '"{broken"',
        '{"path": ',
        "path=a",
        json.dumps(json.dumps("{}")),
        '{"a":1} extra',
        "{'a': 1}",
    ],
)
def test_anything_else_is_kept_for_people_and_not_run(text: str) -> None:
    found = tool_input.read(text)

    assert not found.is_object
    assert parts.is_json(bytes(found.args).decode())
    # The call is not run when it is read from the history either.
    assert not tool_input.read_stored(found.args).is_object


@given(st.text())
def test_no_text_breaks_the_reading_and_its_result_can_be_stored(text: str) -> None:
    found = tool_input.read(text)

    stored = parts.decode(parts.encode((parts.ToolCall("c", "t", args=found.args),)))[0]
    assert isinstance(stored, parts.ToolCall)
    assert isinstance(stored.args, Raw)
    assert tool_input.read_stored(stored.args).is_object == found.is_object


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ('{"path": "a", "path": "b"}', "`path` stands there more than once"),
        ('{"Path": "a"}', "`Path` is spelled `path`"),
        ('{"files": [{"name": "a"}, {"NAME": "b"}]}', "`files[1].NAME` is spelled `name`"),
        ('{"files": [{"name": "a", "name": "b"}]}', "`files[0].name` stands there more than once"),
        ('{"options": {"Depth": 1}}', "`options.Depth` is spelled `depth`"),
        ('{"labels": {"a": "1", "a": "2"}}', "`labels.a` stands there more than once"),
        ('{"other": {"x": [{"y": 1, "y": 2}]}}', "`other.x[0].y` stands there more than once"),
        (r'{"files": "[{\"name\": \"a\", \"NAME\": \"b\"}]"}', "`files[0].NAME` is spelled `name`"),
        (r'{"options": " {\"depth\": 1, \"depth\": 2}"}', "`options.depth` stands there more than once"),
    ],
)
def test_an_ambiguous_key_is_named_with_its_path(args: str, named: str) -> None:
    problem = tool_input.find_ambiguity(Raw(args.encode()), SCHEMA)

    assert problem is not None
    assert named in problem


@pytest.mark.parametrize(
    "args",
    [
        "{}",
        '{"path": "a", "files": [{"name": "a"}, {"name": "b"}], "options": {"depth": 1}}',
        '{"labels": {"Path": "data", "path": "data", "NAME": "x"}}',
        '{"unknown": 1, "Unknown": 2}',
        r'{"path": "{\"a\": 1, \"a\": 2}", "files": "[{", "unknown": "{\"a\": 1, \"a\": 2}"}',
        '{"options": null, "path": 12345678901234567890123456789012345678901234567890}',
    ],
)
def test_clear_arguments_and_keys_that_are_data_pass(args: str) -> None:
    assert tool_input.find_ambiguity(Raw(args.encode()), SCHEMA) is None


def test_a_schema_that_refers_to_itself_does_not_end_the_check() -> None:
    schema = {"$ref": "#/$defs/Node", "$defs": {"Node": {"properties": {"next": {"$ref": "#/$defs/Node"}}}}}
    endless = {"$ref": "#"}

    assert tool_input.find_ambiguity(Raw(b'{"next": {"next": {"Next": {}}}}'), schema) is not None
    assert tool_input.find_ambiguity(Raw(b'{"a": {"b": 1}}'), endless) is None
