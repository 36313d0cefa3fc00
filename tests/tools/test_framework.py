"""Argument structs: the schema for the model, and the decoding of its arguments."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Raw

from rookery.domain.chat import parts
from rookery.loop.tool import Replay, ToolContext, ToolOutput, ToolSet, ToolSource
from rookery.tools import framework
from rookery.tools.framework import BadArguments
from tests.loop.loop_rig import BatchRig, call, value


class Edit(msgspec.Struct):
    """One replacement."""

    old_text: str
    new_text: str = ""


class Arguments(msgspec.Struct):
    """This docstring is not part of the schema."""

    path: Annotated[str, Meta(description="Where the file is.")]
    title: str = "untitled"
    limit: Annotated[int, Meta(ge=1)] | None = None
    edits: list[Edit] = []
    labels: dict[str, int] = {}
    recursive: bool = False
    mode: Literal["fast", "exact"] = "fast"
    ratio: float = 1.0


class Endless(msgspec.Struct):
    inner: Endless | None = None


class Nothing(msgspec.Struct):
    pass


def decode(text: str) -> Arguments:
    return framework.decode_arguments(Arguments, Raw(text.encode()))


# Schemas


def test_the_schema_is_in_one_piece_and_of_an_object() -> None:
    schema = framework.input_schema(Arguments)

    assert "$ref" not in json.dumps(schema)
    assert set(schema) == {"type", "properties", "required"}
    assert (schema["type"], schema["required"]) == ("object", ["path"])
    assert schema["properties"]["path"] == {"type": "string", "description": "Where the file is."}
    edit = schema["properties"]["edits"]["items"]
    assert edit["properties"] == {"old_text": {"type": "string"}, "new_text": {"type": "string", "default": ""}}
    assert edit["required"] == ["old_text"]


def test_an_argument_may_be_called_like_a_keyword_of_schemas() -> None:
    assert framework.input_schema(Arguments)["properties"]["title"] == {"type": "string", "default": "untitled"}


def test_a_tool_without_arguments_has_properties_all_the_same() -> None:
    assert framework.input_schema(Nothing) == {"type": "object", "properties": {}}


def test_a_struct_that_contains_itself_has_no_schema() -> None:
    with pytest.raises(TypeError, match="contains itself"):
        framework.input_schema(Endless)


# Decoding


def test_arguments_that_fit_are_taken_as_they_are() -> None:
    found = decode('{"path": "a", "edits": [{"old_text": "x"}], "limit": 3, "labels": {"a": 1}}')

    assert found == Arguments("a", limit=3, edits=[Edit("x")], labels={"a": 1})


@pytest.mark.parametrize(
    ("given_text", "expected"),
    [
        ('{"path": "a", "limit": "5"}', Arguments("a", limit=5)),
        ('{"path": "a", "recursive": "true"}', Arguments("a", recursive=True)),
        ('{"path": "a", "ratio": "2.5"}', Arguments("a", ratio=2.5)),
        ('{"path": "a", "edits": "[{\\"old_text\\": \\"x\\"}]"}', Arguments("a", edits=[Edit("x")])),
        ('{"path": "a", "edits": ["{\\"old_text\\": \\"x\\"}"]}', Arguments("a", edits=[Edit("x")])),
        ('{"path": "a", "labels": "{\\"k\\": \\"1\\"}"}', Arguments("a", labels={"k": 1})),
        ('{"path": "a", "edits": null, "title": null}', Arguments("a")),
        ('{"path": "a", "limit": null}', Arguments("a")),
        ('{"path": "a", "nobody_knows": {"x": 1}}', Arguments("a")),
        ('{"path": "[1]", "title": "{}"}', Arguments("[1]", title="{}")),
    ],
)
def test_unambiguous_deviations_are_corrected(given_text: str, expected: Arguments) -> None:
    assert decode(given_text) == expected


@pytest.mark.parametrize(
    ("given_text", "told"),
    [
        ("{}", "The argument `path` cannot be used: it is missing. It should be text."),
        ('{"path": 3}', "The argument `path`"),
        ('{"path": null}', "The argument `path`"),
        ('{"path": "a", "limit": 0}', "The argument `limit` cannot be used: Expected `int` >= 1."),
        ('{"path": "a", "limit": "many"}', "It should be an integer or null."),
        ('{"path": "a", "edits": [{"old_text": "x"}, {}]}', "The argument `edits[1].old_text` cannot be used: it is"),
        ('{"path": "a", "edits": "[broken"}', "The argument `edits`"),
        ('{"path": "a", "labels": {"k": "v"}}', "The argument `labels[...]`"),
        ('{"path": "a", "mode": "slow"}', "It should be one of exact, fast."),
        ('{"path": "a", "recursive": "perhaps"}', "It should be true or false."),
    ],
)
def test_a_bad_argument_is_named_with_what_it_should_be_and_an_example(given_text: str, told: str) -> None:
    with pytest.raises(BadArguments) as caught:
        decode(given_text)

    message = str(caught.value)
    assert told in message
    _, _, example = message.partition("Example: ")
    # The example in the message is valid.
    assert isinstance(decode(example), Arguments)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["path", "edits", "x"]), inner),
        max_leaves=8,
    )
)
def test_every_input_of_a_model_is_accepted_or_explained(anything: Any) -> None:
    args = parts.json_raw({"path": anything, "edits": anything, "labels": anything})

    explained = ""
    try:
        taken = framework.decode_arguments(Arguments, args)
    except BadArguments as error:
        taken, explained = None, str(error)

    assert isinstance(taken, Arguments) or "Example: " in explained


# Tools


async def greet(ctx: ToolContext, arguments: Arguments) -> ToolOutput:
    return ToolOutput({"greeted": arguments.path, "call": ctx.call_id})


GREET = framework.make_tool(
    "greet", "Greets a path.", arguments=Arguments, handler=greet, serial=True, replay=Replay.TOKEN
)


def test_a_tool_is_described_by_its_struct() -> None:
    assert (GREET.spec.name, GREET.spec.source, GREET.spec.serial) == ("greet", ToolSource.BUILTIN, True)
    assert GREET.spec.input_schema == framework.input_schema(Arguments)


async def test_a_tool_gets_its_arguments_decoded_and_never_bad_ones() -> None:
    tools = ToolSet([GREET], active={"greet"})

    good, bad = await BatchRig([]).run(
        call("greet", '{"path": "a", "limit": "2"}', "c1"), call("greet", "{}", "c2"), toolset=tools
    )

    assert value(good) == {"greeted": "a", "call": "c1"}
    assert bad.is_error
    assert "`path`" in value(bad)["error"]
