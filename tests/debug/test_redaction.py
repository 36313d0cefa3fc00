"""Redaction: no secret survives in any kind of body, and everything else does."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from urllib.parse import quote

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.debug.redaction import (
    BODY_BYTES,
    MAX_REQUEST_BYTES,
    NOT_JSON,
    TAIL_BYTES,
    CapturedBody,
    Redactor,
)
from rookery.telemetry.redaction import SecretRegistry

# The canary matches no pattern, so only its value or its place can reveal it.
CANARY = 'canary.9f8e7d6c5b4a/+x="very~private'
PLAIN = "unregistered-value"


def redactor(*, body_bytes: int = BODY_BYTES) -> Redactor:
    secrets = SecretRegistry()
    secrets.add("Nest key", CANARY)
    return Redactor(secrets, ["X-Tenant"], body_bytes=body_bytes)


def whole(data: bytes) -> CapturedBody:
    return CapturedBody(head=data, size=len(data))


def request_text(document: object, content_type: str | None = "application/json") -> str:
    return redactor().body(json.dumps(document).encode(), content_type).data.decode()


def response_text(data: bytes, content_type: str | None) -> str:
    return redactor().captured(whole(data), content_type).data.decode()


# Names


@pytest.mark.parametrize(
    "name",
    [
        *("Authorization", "proxy-authorization", "Cookie", "set-cookie", "X-Api-Key", "api-key", "x-goog-api-key"),
        *("x-amz-security-token", "X-Client-Secret", "x-bearer", "X-Tenant", "openai-api_key"),
    ],
)
def test_secret_headers_are_hidden(name: str) -> None:
    assert redactor().headers({name: PLAIN}) == {name: "[REDACTED]"}


@pytest.mark.parametrize(
    "name",
    [
        *(
            "anthropic-ratelimit-tokens-remaining",
            "anthropic-ratelimit-input-tokens-limit",
            "anthropic-fast-input-tokens-reset",
        ),
        *("x-ratelimit-remaining-tokens", "x-ratelimit-limit-requests", "request-id", "content-type", "retry-after"),
    ],
)
def test_rate_limit_headers_and_ordinary_headers_survive(name: str) -> None:
    assert redactor().headers({name: "117"}) == {name: "117"}


def test_headers_configured_for_one_provider_are_hidden_and_known_secrets_in_others() -> None:
    headers = redactor().headers({"X-Flock": "north", "x-note": f"use {CANARY}"}, configured=["x-flock"])

    assert headers == {"X-Flock": "[REDACTED]", "x-note": "use [REDACTED:Nest-key]"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@api.example/v1/messages", "https://api.example/v1/messages"),
        (f"https://api.example/v1?key={PLAIN}&alt=sse", "https://api.example/v1?key=%5BREDACTED%5D&alt=sse"),
        (f"https://api.example/?X-Amz-Signature={PLAIN}", "https://api.example/?X-Amz-Signature=%5BREDACTED%5D"),
        (f"https://api.example/{quote(CANARY, safe='')}/x", "https://api.example/[REDACTED:Nest-key]/x"),
        ("https://user:pa/ss@host:99/x", "[REDACTED_URL]"),
        ("http://[broken", "[REDACTED_URL]"),
    ],
)
def test_urls_keep_their_path_and_lose_user_and_secret_parameters(url: str, shown: str) -> None:
    assert redactor().url(url) == shown


def test_known_secret_in_a_url_does_not_hide_the_rest_of_it_from_the_rule() -> None:
    link = f"see https://u:{quote(CANARY, safe='')}@nest.example/?api_key={PLAIN}&q={quote(CANARY, safe='')} now"

    assert PLAIN not in redactor().text(link)
    assert CANARY[:12] not in redactor().text(link)


SECRET_KEYS = [
    *(
        "token",
        "access_token",
        "refreshToken",
        "ID_TOKEN",
        "apiKey",
        "api-key",
        "x-api-key",
        "private_key",
        "signingKey",
    ),
    *("client_secret", "db_password", "Proxy-Authorization", "credentials", "GITHUB_TOKEN", "secretKey", "passphrase"),
]


@pytest.mark.parametrize("key", SECRET_KEYS)
def test_values_under_secret_keys_are_replaced_whole(key: str) -> None:
    for value in (PLAIN, {"inner": PLAIN}, [PLAIN, 7], 123456789):
        assert json.loads(request_text({"a": [{key: value}]})) == {"a": [{key: "[REDACTED]"}]}


USAGE = {
    "usage": {
        "input_tokens": 12,
        "cache_read_input_tokens": 0,
        "completion_tokens_details": {"reasoning_tokens": 3},
        "total_tokens": 15,
        "max_tokens": 4096,
    }
}


def test_usage_counters_survive() -> None:
    assert json.loads(request_text(USAGE)) == USAGE


def test_schemas_of_tools_are_not_data_but_arguments_are() -> None:
    schema = {"type": "object", "properties": {"password": {"type": "string"}, "token": {"type": "string"}}}
    body = {
        "tools": [{"name": "login", "input_schema": schema}, {"function": {"parameters": schema}}],
        "response_format": {"json_schema": {"schema": schema}},
        "messages": [
            {"input": {"password": PLAIN}},
            {"arguments": json.dumps({"tools": [{"parameters": {"token": PLAIN}}]})},
        ],
    }

    shown = json.loads(request_text(body))

    assert shown["tools"] == body["tools"]
    assert shown["response_format"] == body["response_format"]
    assert PLAIN not in json.dumps(shown["messages"])


# Values in every place


def places(secret: str) -> dict[str, object]:
    """Return documents that contain the secret in one place each."""
    encoded = base64.b64encode(b"user:" + secret.encode()).decode()
    return {
        "value": {"a": secret},
        "inside a text": {"a": [f"the key is {secret}, do not tell"]},
        "key": {secret: 1},
        "nested JSON": {"arguments": json.dumps({"b": json.dumps({"c": secret})})},
        "escaped": {"a": "\n" + secret + "\n"},
        "URL": {"url": f"https://x.example/?q={quote(secret, safe='')}"},
        "base64": {"header": f"Basic {encoded}"},
        "next to base64": {"data": base64.b64encode(bytes(range(256)) * 3).decode() + secret},
        "schema text": {"tools": [{"input_schema": {"description": secret}}]},
    }


@pytest.mark.parametrize("place", list(places("x")))
@pytest.mark.parametrize("content_type", ["application/json", None, "application/vnd.x+json; charset=utf-8"])
def test_known_secret_is_hidden_wherever_it_stands_in_json(place: str, content_type: str | None) -> None:
    text = request_text(places(CANARY)[place], content_type)

    assert_hidden(text)


@pytest.mark.parametrize("place", list(places("x")))
@pytest.mark.parametrize(
    ("content_type", "wrap"),
    [
        ("text/event-stream", "event: x\ndata: {}\n\n"),
        ("application/x-ndjson", "{{}}\n{}\n"),
        ("text/plain", "Refused: {}"),
        ("text/html", "<p>{}</p>"),
        ("application/json", "{}"),
    ],
)
def test_known_secret_is_hidden_in_every_kind_of_answer(place: str, content_type: str, wrap: str) -> None:
    document = json.dumps(places(CANARY)[place])

    assert_hidden(response_text(wrap.replace("{}", document).replace("{{}}", "{}").encode(), content_type))


def assert_hidden(text: str) -> None:
    assert CANARY not in text
    assert CANARY[:16] not in text
    assert base64.b64encode(CANARY.encode()).decode()[4:20] not in text


def test_repeated_key_cannot_smuggle_a_secret_into_the_record() -> None:
    escaped = json.dumps(CANARY)
    source = f'{{"a": {{"password": "{PLAIN}", "b": {escaped}}}, "a": 1}}'.encode()

    assert redactor().body(source, "application/json").data == b'{"a":1}'


# Kinds of bodies


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"{} {}", b"\xff\xfe", b"not json", b"[" * 100_000, b'"\\ud800"', b"\xef\xbb\xbf{}", bytes(range(256))],
)
def test_json_that_is_not_one_document_is_replaced(data: bytes) -> None:
    shown = redactor().captured(whole(data), "application/json")

    assert shown.data.decode() == (NOT_JSON if data else "")
    assert shown.is_replaced == bool(data)
    assert shown.size == len(data)


def test_document_without_secrets_keeps_its_bytes_and_others_keep_their_digits() -> None:
    same = b'{ "a" : 1.50, "b": 1e5, "c": 123456789012345678901234567890 }'
    other = b'{ "a" : 1.50, "b": 1e5, "c": 123456789012345678901234567890, "token": "x-y-z" }'

    assert redactor().body(same, "application/json").data == same
    assert redactor().body(other, "application/json").data == (
        b'{"a":1.50,"b":1e5,"c":123456789012345678901234567890,"token":"[REDACTED]"}'
    )


@pytest.mark.parametrize(
    "content_type", ["image/png", "application/octet-stream", "application/vnd.amazon.eventstream"]
)
def test_binary_body_is_replaced_by_its_size_and_hash(content_type: str) -> None:
    shown = redactor().captured(whole(b"\x89PNG" + CANARY.encode()), content_type)

    assert shown.data.startswith(b"[BINARY 40 bytes sha256:")
    assert shown.is_replaced


def test_binary_that_claims_to_be_text_is_replaced() -> None:
    shown = redactor().captured(whole(CANARY.encode("utf-16")), "text/plain")

    assert shown.data.startswith(b"[BINARY ")
    assert (
        "[REDACTED:Nest-key]"
        in redactor().captured(whole(CANARY.encode("utf-16")), "text/plain; charset=utf-16").data.decode()
    )


def test_invalid_utf8_in_a_text_does_not_hide_a_secret_from_the_check() -> None:
    assert_hidden(response_text(b"\xff\xfe" + CANARY.encode() + b"\xff", "text/plain"))


def test_form_is_redacted_by_the_names_of_its_fields() -> None:
    data = f"grant_type=refresh&refresh_token={PLAIN}&client_secret={PLAIN}".encode()

    assert response_text(data, "application/x-www-form-urlencoded") == (
        "grant_type=refresh&refresh_token=%5BREDACTED%5D&client_secret=%5BREDACTED%5D"
    )


def test_base64_of_media_becomes_a_note_of_its_size() -> None:
    data = base64.b64encode(bytes(3000)).decode()
    body = {
        "source": {"media_type": "image/png", "data": data},
        "url": f"data:image/png;base64,{data}",
        "id": "a" * 255,
    }

    assert json.loads(request_text(body)) == {
        "source": {"media_type": "image/png", "data": "[base64 3000 bytes]"},
        "url": "data:image/png;base64,[base64 3000 bytes]",
        "id": "a" * 255,
    }


# Event streams


def deltas(pieces: list[str], wire: str) -> bytes:
    forms: dict[str, Callable[[str], object]] = {
        "anthropic": lambda piece: {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": piece},
        },
        "responses": lambda piece: {
            "type": "response.function_call_arguments.delta",
            "item_id": "fc_1",
            "output_index": 0,
            "delta": piece,
        },
        "completions": lambda piece: {
            "id": "c1",
            "choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}}],
        },
    }
    return b"".join(b"data: " + json.dumps(forms[wire](piece)).encode() + b"\n\n" for piece in pieces)


WIRES = ["anthropic", "responses", "completions"]


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("size", [1, 3, 7, 20])
def test_secret_that_is_split_over_events_is_hidden(wire: str, size: int) -> None:
    text = json.dumps({"command": f"login {CANARY} now"})
    pieces = [text[start : start + size] for start in range(0, len(text), size)]

    joined = read_deltas(response_text(deltas(pieces, wire), "text/event-stream"))

    assert_hidden(joined)
    assert "login [REDACTED:Nest-key] now" in joined


@pytest.mark.parametrize("wire", WIRES)
def test_value_under_a_secret_key_is_hidden_when_its_argument_is_split_or_cut(wire: str) -> None:
    whole_text = '{"user": "wren", "password": "' + PLAIN + '", "host": "nest"}'
    for text in (whole_text, whole_text[: whole_text.index(PLAIN) + 8]):
        pieces = [text[start : start + 5] for start in range(0, len(text), 5)]

        joined = read_deltas(response_text(deltas(pieces, wire), "text/event-stream"))

        assert PLAIN[:8] not in joined
        assert '"user": "wren"' in joined or '"user":"wren"' in joined


def read_deltas(text: str) -> str:
    """Return all strings of all events in order."""

    def strings(value: object) -> str:
        if isinstance(value, dict):
            return "".join(strings(item) for item in value.values())
        if isinstance(value, list):
            return "".join(strings(item) for item in value)
        return value if isinstance(value, str) and value not in ("input_json_delta", "content_block_delta") else ""

    skipped = ("response.function_call_arguments.delta", "fc_1", "c1")
    joined = "".join(strings(json.loads(line[6:])) for line in text.splitlines() if line.startswith("data: "))
    for name in skipped:
        joined = joined.replace(name, "")
    return joined


def test_event_stream_without_secrets_keeps_its_bytes() -> None:
    data = b': ping\n\nevent: a\r\ndata: {"x": 1.50}\r\n\r\ndata: [DONE]\n\n'

    assert redactor().captured(whole(data), "text/event-stream").data == data


def test_event_that_is_not_json_is_replaced() -> None:
    text = response_text(b'data: {"a": "' + PLAIN.encode() + b"\n\ndata: [DONE]\n\n", "text/event-stream")

    assert text == f"data: {NOT_JSON}\n\ndata: [DONE]\n\n"


@pytest.mark.parametrize("cut", range(4, len(CANARY) - 4, 5))
def test_secret_at_the_cut_of_a_long_stream_is_hidden(cut: int) -> None:
    def event(text: str) -> bytes:
        return b"data: " + json.dumps({"type": "t", "delta": {"text": text}}).encode() + b"\n\n"

    head = event("begin ") + event(CANARY[:cut]) + b"data: {"
    tail = b'"x": 1}\n' + event(CANARY[cut:]) + event(" end")
    body = CapturedBody(head=head, tail=tail, size=10**6, dropped_sha256="ab")

    text = redactor().captured(body, "text/event-stream").data.decode()

    assert CANARY[:cut] not in text
    assert CANARY[cut:][:12] not in text
    assert f"[TRUNCATED {10**6 - len(head) - len(tail)} bytes sha256:ab]" in text
    assert "begin" in text
    assert "end" in text


@pytest.mark.parametrize("cut", range(4, len(CANARY) - 4, 5))
def test_secret_at_the_cut_of_a_long_text_is_hidden(cut: int) -> None:
    body = CapturedBody(
        head=("begin " + CANARY[:cut]).encode(), tail=(CANARY[cut:] + " end").encode(), size=10**6, dropped_sha256="ab"
    )

    text = redactor().captured(body, "text/plain").data.decode()

    assert CANARY[:cut] not in text
    assert CANARY[cut:] not in text
    assert text.startswith("begin")
    assert text.endswith(" end")


# Sizes


def test_long_strings_of_a_request_keep_their_ends_and_a_count() -> None:
    shown = redactor().body(json.dumps({"system": "a " * 1000 + " b " * 4000 + "c " * 128}).encode(), None)

    text = json.loads(shown.data)["system"]
    assert text == "a " * 512 + f"[... {2000 + 12000 + 256 - 1280} characters ...]" + "c " * 128
    assert shown.is_truncated
    assert not shown.is_replaced


def test_long_history_keeps_its_first_and_its_newest_messages() -> None:
    messages = [{"role": "user", "content": f"message {number} " + "word " * 200} for number in range(300)]
    shown = redactor().body(json.dumps({"model": "m", "messages": messages, "tools": []}).encode(), None)

    document = json.loads(shown.data)
    kept = document["messages"]
    (marker,) = [item for item in kept if isinstance(item, str)]
    assert len(shown.data) <= BODY_BYTES
    assert kept[0] == messages[0]
    assert kept[-1] == messages[-1]
    assert marker.startswith(f"[TRUNCATED {300 - len(kept) + 1} messages, ")
    assert document["tools"] == []


def test_request_that_stays_too_long_is_cut() -> None:
    shown = redactor().body(json.dumps({"tools": [f"tool {number} é" for number in range(20_000)]}).encode(), None)

    assert len(shown.data) < BODY_BYTES + 200
    assert b"[TRUNCATED " in shown.data
    shown.data.decode()


def test_request_beyond_the_limit_is_only_counted() -> None:
    data = b'"' + b"a" * MAX_REQUEST_BYTES + b'"'

    shown = redactor().body(data, "application/json")

    assert shown.data.startswith(f"[TRUNCATED {len(data)} bytes sha256:".encode())
    assert shown.is_replaced


def test_long_answers_keep_their_beginning_and_their_end() -> None:
    document = json.dumps({"a": [f"word {number}" for number in range(50_000)], "z": "end"}).encode()

    shown = redactor().captured(whole(document), "application/json")

    assert BODY_BYTES + TAIL_BYTES < len(shown.data) < BODY_BYTES + TAIL_BYTES + 200
    assert shown.data.endswith(b'"z": "end"}')
    assert (shown.size, shown.is_truncated) == (len(document), True)


def test_cut_json_answer_is_not_stored_because_it_cannot_be_checked() -> None:
    body = CapturedBody(head=b'{"a": "' + PLAIN.encode(), tail=b'"}', size=2_000_000, dropped_sha256="ab")

    assert redactor().captured(body, "application/json").data == b"[TRUNCATED 2000000 bytes sha256:ab]"


# Properties

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=40),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=4),
    max_leaves=20,
)


@given(json_values, st.sampled_from(SECRET_KEYS))
def test_no_value_under_a_secret_key_survives_and_redaction_is_stable(value: object, key: str) -> None:
    document = {"a": value, "b": [{key: PLAIN, "c": json.dumps({key: PLAIN, "d": value})}]}

    once = redactor().body(msgspec.json.encode(document), "application/json").data
    twice = redactor().body(once, "application/json").data

    assert PLAIN.encode() not in once
    assert twice == once


@given(
    json_values, st.sampled_from(["", CANARY, '"password": "' + PLAIN + '"', json.dumps(json.dumps({"token": PLAIN}))])
)
def test_value_is_redacted_alike_alone_and_beside_a_secret(value: object, text: str) -> None:
    mixed = [value, {"text": text, "again": json.dumps({"inner": value, "text": text})}]
    shown = redactor()

    # A value with a secret is redacted string by string, others are checked as a whole.
    assert shown.value(mixed) == shown.value([mixed, {"password": PLAIN}])[0]
    assert shown.body(msgspec.json.encode([mixed]), None).data == msgspec.json.encode(
        [msgspec.json.decode(shown.body(msgspec.json.encode([mixed, {"password": PLAIN}]), None).data)[0]]
    )


@given(
    st.binary(max_size=300), st.sampled_from([None, "application/json", "text/event-stream", "text/plain", "a/b", ""])
)
def test_any_bytes_of_any_type_are_redacted_to_text_without_an_error(data: bytes, content_type: str | None) -> None:
    for body in (whole(data), CapturedBody(head=data, tail=data, size=10**6, dropped_sha256="ab")):
        redactor().captured(body, content_type).data.decode()
    redactor().body(data, content_type).data.decode()


@given(st.text(max_size=200), st.text(max_size=200), st.integers(0, 40))
def test_no_text_around_a_secret_makes_it_visible(before: str, after: str, quotes: int) -> None:
    text = before + '"' * (quotes % 2) + CANARY + after

    assert CANARY not in redactor().text(text)
    assert CANARY not in redactor().json_text(text)


@given(st.text(max_size=400))
def test_text_rule_is_stable(text: str) -> None:
    once = redactor().text(text)

    assert redactor().text(once) == once
