"""Parts are read exactly as they were stored, also from a real jsonb column."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import UTC
from decimal import Decimal
from typing import Any

import asyncpg
import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from rookery.domain.chat import parts
from rookery.domain.chat.parts import (
    MAX_DEPTH,
    ContextFile,
    File,
    FileReference,
    HookContext,
    HookNotice,
    Part,
    Reasoning,
    Source,
    Text,
    ToolCall,
    ToolResult,
    WorkspaceContext,
)

# A busy machine is no reason to fail.
unhurried = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def mended(text: str) -> str:
    """Return a string as storing changes it, computed without the codec."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


nasty = st.sampled_from(["\0", "\ue000", "\ue001", "\ud800", "\udc00", "\U0001f426", "\\", "u0000", "ue000", '"', "\n"])
texts = st.lists(nasty | st.characters(categories=["L", "N", "Cs", "Co", "Cc"]), max_size=8).map("".join)
numbers = st.from_regex(r"-?(0|[1-9][0-9]{0,30})(\.[0-9]{1,20})?([eE][+-]?[0-9]{1,3})?", fullmatch=True)


def _json_string(text: str) -> st.SearchStrategy[str]:
    return st.booleans().map(lambda ascii_only: json.dumps(text, ensure_ascii=ascii_only))


def _json_object(members: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}: {value}" for key, value in members) + "}"


def _members(values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[tuple[str, Any]]]:
    # Keys that storing makes equal would leave open which of their values stays.
    return st.lists(st.tuples(texts, values), max_size=3, unique_by=lambda member: mended(member[0]))


json_texts = st.recursive(
    numbers | texts.flatmap(_json_string) | st.sampled_from(["null", "true", "false"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + " , ".join(items) + "]") | _members(inner).map(_json_object)
    ),
    max_leaves=8,
)
raws = json_texts.map(parts.json_text)


def is_not_minus_zero(number: Decimal) -> bool:
    """Minus zero is stored as integer zero, in Python and in jsonb."""
    return str(number) != "-0"


metas = _members(
    st.recursive(
        texts | st.none() | st.booleans() | st.integers() | numbers.map(Decimal).filter(is_not_minus_zero),
        lambda inner: st.lists(inner, max_size=3) | _members(inner).map(dict),
        max_leaves=8,
    )
).map(dict)
maybe_meta = st.none() | metas
maybe_raw = st.just(UNSET) | raws
maybe_text = st.none() | texts
maybe_time = st.none() | st.datetimes(timezones=st.just(UTC))
maybe_id = st.none() | st.uuids()
flags = st.booleans()
lines = st.integers(min_value=0, max_value=2**63)
commands = st.none() | st.lists(st.lists(texts, max_size=2).map(tuple), max_size=2).map(tuple)

any_part: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, texts, flags, maybe_meta),
    st.builds(Reasoning, texts, maybe_time, maybe_time, maybe_meta),
    st.builds(ToolCall, texts, texts, maybe_raw, maybe_text, commands, maybe_id, flags, flags, maybe_time, maybe_meta),
    st.builds(
        ToolResult,
        *(texts, texts, maybe_raw, maybe_text, flags, flags, flags, maybe_id, flags, maybe_time, maybe_meta),
    ),
    st.builds(Source, texts, maybe_text, maybe_text, maybe_meta),
    st.builds(File, texts, maybe_text, maybe_id, maybe_text, maybe_meta),
    st.builds(FileReference, texts, lines, lines, texts),
    st.builds(HookContext, texts),
    st.builds(HookNotice, texts),
    st.builds(WorkspaceContext, st.uuids(), lines, texts, st.just((ContextFile("/a"),)), st.tuples(texts)),
)
contents = st.lists(any_part, max_size=4).map(tuple)

Number = Callable[[str], Any]


def as_written(text: str) -> tuple[str, str]:
    return "number", text


def by_value(text: str) -> tuple[str, Decimal]:
    return "number", Decimal(text)


def view(value: Any, number: Number) -> Any:
    """Return a part as plain values: strings as stored, and numbers distinct from strings and booleans."""
    match value:
        case str():
            return mended(value)
        case Raw():
            return view(json.loads(bytes(value), parse_int=number, parse_float=number), number)
        case dict():
            return {mended(key): view(child, number) for key, child in value.items()}
        case tuple(("number", _)):
            return value
        case list() | tuple():
            return [view(child, number) for child in value]
        case int() | Decimal() if not isinstance(value, bool):
            return by_value(str(value))
        case msgspec.Struct():
            return type(value), {name: view(getattr(value, name), number) for name in value.__struct_fields__}
        case _:
            return value


def jsonb_takes(text: str) -> bool:
    """Return whether jsonb accepts the text: no U+0000 and no unpaired surrogate, neither as a character nor as an
    escape.
    """
    plain = re.sub(r"\\\\", "", text)
    without_pairs = re.sub(r"(?i)\\ud[89ab]..\\ud[c-f]..", "", plain)
    return "\\u0000" not in plain and not re.search(r"(?i)\\ud[89a-f]|[\ud800-\udfff]", without_pairs)


@unhurried
@given(contents)
def test_parts_survive_storing(content: tuple[Part, ...]) -> None:
    text = parts.encode(content)

    assert jsonb_takes(text)
    assert view(parts.decode(text), as_written) == view(content, as_written)
    assert view(parts.decode(text.encode()), as_written) == view(content, as_written)


@unhurried
@given(contents)
def test_storing_what_was_read_changes_nothing(content: tuple[Part, ...]) -> None:
    text = parts.encode(content)

    assert parts.encode(parts.decode(text)) == text


@pytest.fixture
async def connection(empty_database_url: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(empty_database_url)
    yield connection
    await connection.close()


@settings(unhurried, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(contents)
async def test_parts_survive_jsonb(connection: asyncpg.Connection, content: tuple[Part, ...]) -> None:
    stored = await connection.fetchval("SELECT $1::jsonb::text", parts.encode(content))

    assert view(parts.decode(stored), by_value) == view(content, by_value)
    assert parts.same(parts.decode(stored), parts.decode(parts.encode(content)))


async def test_the_largest_numbers_and_deepest_trees_survive_jsonb(connection: asyncpg.Connection) -> None:
    deepest = "[" * MAX_DEPTH + "]" * MAX_DEPTH
    in_meta = parts.json_text(deepest[1:-1])
    for text in ["9" * 4300, "1e3998", "-1.5e-3990", "0." + "1" * 3998, deepest, '{"a":' * 255 + "1e400" + "}" * 255]:
        content: list[Part] = [ToolCall("c", "t", parts.json_text(text)), Text("", provider_meta={"raw": in_meta})]

        stored = await connection.fetchval("SELECT $1::jsonb::text", parts.encode(content))

        assert parts.same(parts.decode(stored), content)
        call = parts.decode(stored)[0]
        assert isinstance(call, ToolCall)
        assert isinstance(call.args, Raw)
        parts.json_value(call.args)


@unhurried
@given(json_texts)
def test_json_text_keeps_numbers_as_written(text: str) -> None:
    raw = parts.json_text(text)

    assert view(raw, as_written) == view(json.loads(text, parse_int=as_written, parse_float=as_written), as_written)


@unhurried
@given(metas)
def test_json_raw_takes_any_value(value: dict[str, Any]) -> None:
    assert view(parts.json_raw(value), by_value) == view(value, by_value)
