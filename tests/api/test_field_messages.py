"""The messages for invalid fields: every documented field gets wrong values, and no message is a validator's."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from rookery.api.request_bodies import PATTERN_MESSAGES
from rookery.domain.access.rights import Role
from tests.api.openapi_operations import ALL, DOCUMENT, Asked
from tests.api.roles_rig import PRIVATE, RolesRig, open_town

# The fallback for values that no message explains is a validator's word too: no documented field may need it.
VALIDATOR_WORDS = re.compile(
    r"Expected `|got `|should (be|have|match)|valid (string|integer|list|dictionary)|regex|pattern|pydantic|msgspec"
    r"|Value error|type=|input_|NoneType|ValidationError|\bstr\b|\bint\b|This is not a valid value"
)
WRONG: tuple[object, ...] = (None, "", "\0 ?!", "x" * 90_000, -(10**12), 10**18, 0.5, True, [], ["a"], {"a": 1})
DEPTH = 3


def batched(names: list[str], size: int) -> Iterator[list[str]]:
    return (names[start : start + size] for start in range(0, len(names), size))


@pytest.fixture
async def roles(database_url: str, tmp_path: Path) -> AsyncIterator[RolesRig]:
    """A rig whose owner is an administrator, with all rights."""
    async with open_town(database_url, tmp_path, owner_role=Role.ADMIN) as opened:
        yield opened


def resolved(schema: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the alternatives of a schema, without references."""
    if "$ref" in schema:
        return resolved(DOCUMENT["components"]["schemas"][schema["$ref"].rsplit("/", 1)[-1]])
    choices = schema.get("anyOf") or schema.get("oneOf")
    return [each for choice in choices for each in resolved(choice)] if choices else [schema]


def wrong_bodies(schema: dict[str, Any], depth: int = DEPTH) -> Iterator[object]:
    """Yield values of the schema in which fields or items are wrong."""
    for each in resolved(schema):
        if depth and (properties := each.get("properties")):
            tag = {name: kind["const"] for name, kind in properties.items() if "const" in kind}
            # Several fields at once, because all are reported, up to 20.
            for names in batched(sorted(properties), 10):
                yield from ({**tag, **dict.fromkeys(names, value)} for value in WRONG)
            for name, kind in properties.items():
                yield from ({**tag, name: value} for value in wrong_bodies(kind, depth - 1))
        elif depth and isinstance(items := each.get("items"), dict):
            yield from ([value] for value in (*WRONG, *wrong_bodies(items, depth - 1)))
        elif depth and isinstance(values := each.get("additionalProperties"), dict):
            yield from ({"key": value} for value in (*WRONG, *wrong_bodies(values, depth - 1)))


def body_schema(asked: Asked) -> dict[str, Any] | None:
    content = DOCUMENT["paths"][asked.path][asked.method.lower()].get("requestBody", {}).get("content", {})
    found: dict[str, Any] | None = content.get("application/json", {}).get("schema")
    return found


async def test_no_message_about_a_documented_field_has_words_of_validators(roles: RolesRig) -> None:
    seen: dict[str, set[str]] = {}
    for asked in ALL:
        if (schema := body_schema(asked)) is None or asked.is_public:
            continue
        path = asked.path.format(**{name: await roles.parameter(name, PRIVATE) for name in asked.parameters})
        for body in wrong_bodies(schema):
            # An unknown member keeps a body from being accepted: nothing is changed by this test.
            sent = {**body, "not_a_field": 1} if isinstance(body, dict) else body
            refused = await roles.owner.request(asked.method, path, json=sent)
            assert refused.status_code == 400, (asked.name, body, refused.text)
            for each in refused.json()["fields"]:
                seen.setdefault(each["message"], set()).add(f"{asked.name} {each['field']}")

    assert len(seen) > 50
    assert not {text: places for text, places in seen.items() if VALIDATOR_WORDS.search(text) or not text.endswith(".")}


async def test_no_message_about_a_parameter_has_words_of_validators(roles: RolesRig) -> None:
    asked_parameters = 0
    for asked in ALL:
        if asked.is_public or asked.name in {"chats.stream", "chats.watch", "chats.git"}:
            continue
        path = asked.path.format(**{name: await roles.parameter(name, PRIVATE) for name in asked.parameters})
        for name in asked.queries:
            for value in ("", "\0 ?!", "x" * 1000, "-1", "1e99"):
                params = {name: value, "not_a_parameter": "1"} if asked.method != "GET" else {name: value}
                refused = await roles.owner.request(asked.method, path, params=params, json={})
                if refused.status_code != 400:
                    continue
                asked_parameters += 1
                for each in refused.json().get("fields", ()):
                    assert not VALIDATOR_WORDS.search(each["message"]), (asked.name, name, each)

    assert asked_parameters > 100


def test_every_documented_pattern_has_a_message() -> None:
    """Patterns of responses are not sent by clients, so only those of bodies and parameters count."""
    found: set[str] = set()

    def collect(value: object, seen: frozenset[str]) -> None:
        if isinstance(value, dict):
            if isinstance(value.get("pattern"), str):
                found.add(value["pattern"])
            name = str(value.get("$ref", "")).rsplit("/", 1)[-1]
            if name and name not in seen:
                collect(DOCUMENT["components"]["schemas"][name], seen | {name})
            for each in value.values():
                collect(each, seen)
        elif isinstance(value, list):
            for each in value:
                collect(each, seen)

    for methods in DOCUMENT["paths"].values():
        for operation in methods.values():
            if isinstance(operation, dict):
                collect(operation.get("requestBody", {}), frozenset())
                collect(operation.get("parameters", []), frozenset())

    assert found == set(PATTERN_MESSAGES)
