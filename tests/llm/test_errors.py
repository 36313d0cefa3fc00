"""The table of errors, row by row, and the parsing of refusals."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.llm import errors
from rookery.llm.error_bodies import bare_urls, find_context_numbers, find_request_id, parse_retry_after, read_body
from rookery.llm.errors import (
    TransportError,
    TransportFault,
    classify,
    find_replay_fault,
    from_response,
    from_transport,
)
from rookery.llm.types import MAX_DETAIL, ErrorKind, ReplayFault

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)

ROWS: list[tuple[int | None, str, str, ErrorKind, bool]] = [
    # status, code, text -> kind, retry
    (529, "", "", ErrorKind.OVERLOADED, True),
    (None, "overloaded_error", "", ErrorKind.OVERLOADED, True),
    (503, "", "The server is Overloaded", ErrorKind.OVERLOADED, True),
    (429, "insufficient_quota", "You exceeded your current quota", ErrorKind.USAGE_LIMIT, False),
    (400, "billing_error", "", ErrorKind.USAGE_LIMIT, False),
    (402, "", "", ErrorKind.USAGE_LIMIT, False),
    (403, "", "Your quota is used up", ErrorKind.USAGE_LIMIT, False),
    (400, "", "check your plan and billing details", ErrorKind.USAGE_LIMIT, False),
    (None, "", "Payment required", ErrorKind.USAGE_LIMIT, False),
    (429, "", "Quota exceeded for requests per minute", ErrorKind.RATE_LIMIT, True),
    (400, "context_length_exceeded", "", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "invalid_request_error", "prompt is too long: 2 tokens > 1 maximum", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "", "This model's maximum context length is 5 tokens", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "", "Input is too long for requested model", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "", "blocks are bound to a different conversation", ErrorKind.GENERIC, False),
    (401, "", "", ErrorKind.AUTH, False),
    (400, "authentication_error", "", ErrorKind.AUTH, False),
    (400, "invalid_api_key", "", ErrorKind.AUTH, False),
    (400, "", "Unauthorized client", ErrorKind.AUTH, False),
    (404, "model_not_found", "", ErrorKind.CONFIG, False),
    (500, "", "invalid model: x", ErrorKind.CONFIG, False),
    (None, "", "unsupported model", ErrorKind.CONFIG, False),
    (400, "", "", ErrorKind.CONFIG, False),
    (404, "", "", ErrorKind.CONFIG, False),
    (422, "", "", ErrorKind.CONFIG, False),
    (403, "", "", ErrorKind.AUTH, False),
    (None, "permission_error", "", ErrorKind.AUTH, False),
    (None, "", "Forbidden", ErrorKind.AUTH, False),
    (429, "", "", ErrorKind.RATE_LIMIT, True),
    (None, "rate_limit_error", "", ErrorKind.RATE_LIMIT, True),
    (None, "rate_limit_exceeded", "", ErrorKind.RATE_LIMIT, True),
    (None, "content_filter", "", ErrorKind.CONTENT_FILTER, False),
    (400, "content_policy_violation", "", ErrorKind.CONTENT_FILTER, False),
    (None, "misalignment_policy_violation", "", ErrorKind.CONTENT_FILTER, False),
    (408, "", "", ErrorKind.TIMEOUT, True),
    (409, "", "", ErrorKind.TIMEOUT, True),
    (502, "", "", ErrorKind.TIMEOUT, True),
    (503, "", "", ErrorKind.TIMEOUT, True),
    (504, "", "", ErrorKind.TIMEOUT, True),
    (None, "timeout_error", "", ErrorKind.TIMEOUT, True),
    (500, "", "", ErrorKind.GENERIC, True),
    (599, "", "", ErrorKind.GENERIC, True),
    (None, "api_error", "", ErrorKind.GENERIC, True),
    (None, "server_error", "", ErrorKind.GENERIC, True),
    (None, "internal_error", "", ErrorKind.GENERIC, True),
    (418, "", "", ErrorKind.GENERIC, False),
    (302, "", "", ErrorKind.GENERIC, False),
    (None, "something_new", "what", ErrorKind.GENERIC, False),
    # Words, for responses without a specific status.
    (None, "", "ai budget of this team", ErrorKind.USAGE_LIMIT, False),
    (None, "", "quota exceeded", ErrorKind.USAGE_LIMIT, False),
    (None, "", "Authentication failed", ErrorKind.AUTH, False),
    (400, "", "Invalid API key", ErrorKind.AUTH, False),
    (400, "", "invalid_api_key", ErrorKind.AUTH, False),
    (None, "", "Rate limit reached", ErrorKind.RATE_LIMIT, True),
    (400, "", "Rate limit reached", ErrorKind.RATE_LIMIT, True),
    (None, "", "you are rate-limited", ErrorKind.RATE_LIMIT, True),
    (400, "", "Too many requests", ErrorKind.RATE_LIMIT, True),
    (None, "", "rate_limit", ErrorKind.RATE_LIMIT, True),
    (None, "", "Internal Server Error", ErrorKind.GENERIC, True),
    (400, "", "Internal Server Error", ErrorKind.GENERIC, True),
    (None, "", "upstream timed out", ErrorKind.TIMEOUT, True),
    (200, "", "Service Unavailable", ErrorKind.TIMEOUT, True),
    (500, "", "internal server error: timeout", ErrorKind.TIMEOUT, True),
    (None, "", "the stream closed before its end", ErrorKind.TIMEOUT, True),
    (None, "", "stream error: stream ID 5; CANCEL; received from peer", ErrorKind.TIMEOUT, True),
    (None, "", "stream error: stream ID 5; PROTOCOL_ERROR; timeout", ErrorKind.GENERIC, False),
    (None, "", "malformed configuration", ErrorKind.CONFIG, False),
    (None, "", "Unable to locate credentials", ErrorKind.CONFIG, False),
    # A response about an invalid request may quote any of these words.
    (400, "", "Invalid schema for function 'run': properties.timeout", ErrorKind.CONFIG, False),
    (404, "", "This model is unavailable in your region", ErrorKind.CONFIG, False),
    (422, "", "'timeout' must be a number", ErrorKind.CONFIG, False),
    # A disabled provider is reported with 503.
    (503, "provider_disabled", "", ErrorKind.PROVIDER_DISABLED, False),
    (503, "", "provider_disabled: switched off", ErrorKind.PROVIDER_DISABLED, False),
    # A limit that does not end with time, even with 429.
    (429, "", "AI budget of $5 reached", ErrorKind.USAGE_LIMIT, False),
    (400, "", "AI budget of $5 reached", ErrorKind.USAGE_LIMIT, False),
    (429, "", "error: insufficient_quota", ErrorKind.USAGE_LIMIT, False),
    # Configuration errors, with every status that is not about the key.
    (503, "", "Model not found", ErrorKind.CONFIG, False),
    (429, "", "model_not_found", ErrorKind.CONFIG, False),
    (403, "", "unsupported model", ErrorKind.CONFIG, False),
    (401, "", "invalid model", ErrorKind.AUTH, False),
    # Requests that are too long.
    (413, "", "", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "request_too_large", "", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "", "Context length exceeded", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "", "error context_exceeded", ErrorKind.CONTEXT_OVERFLOW, False),
    (400, "context_exceeded", "", ErrorKind.CONTEXT_OVERFLOW, False),
    (429, "", "context_length_exceeded", ErrorKind.CONTEXT_OVERFLOW, False),
    (503, "", "maximum context length", ErrorKind.CONTEXT_OVERFLOW, False),
    # The answer that the request refers to is gone.
    (400, "previous_response_not_found", "", ErrorKind.GENERIC, True),
    (404, "", "Previous response with id 'resp_1' not found.", ErrorKind.GENERIC, True),
    (401, "", "previous_response_not_found", ErrorKind.GENERIC, True),
    # Codes precede words and statuses.
    (401, "rate_limit_error", "unauthorized", ErrorKind.RATE_LIMIT, True),
    (None, "rate_limit_exceeded", "quota of requests per minute", ErrorKind.RATE_LIMIT, True),
    (429, "model_not_found", "rate limit", ErrorKind.CONFIG, False),
    # The order of the words.
    (400, "", "overloaded, check your quota", ErrorKind.OVERLOADED, True),
    (401, "", "unauthorized: billing", ErrorKind.USAGE_LIMIT, False),
    (403, "", "forbidden: rate limit", ErrorKind.AUTH, False),
    (400, "", "rate limit, provider_disabled", ErrorKind.RATE_LIMIT, True),
]


@pytest.mark.parametrize(("status", "code", "text", "kind", "retry"), ROWS)
def test_each_row_of_the_table_decides_kind_and_retry(
    status: int | None, code: str, text: str, kind: ErrorKind, retry: bool
) -> None:
    error = classify("Acme", status, codes=(code,), text=text)

    assert (error.kind, error.retryable) == (kind, retry)
    assert (error.status, error.code, error.provider) == (status, code or None, "Acme")
    assert error.message.endswith(".")
    assert "{" not in error.message


def test_codes_are_compared_without_case_and_the_first_is_reported() -> None:
    error = classify("Acme", 400, codes=(None, 7, "Some_Code", "RATE_LIMIT_ERROR"))

    assert (error.kind, error.code) == (ErrorKind.RATE_LIMIT, "Some_Code")


@pytest.mark.parametrize(
    ("status", "said", "expected"), [(500, "false", False), (400, "True", True), (500, "maybe", True)]
)
def test_provider_may_decide_about_retrying(status: int, said: str, expected: bool) -> None:
    assert classify("Acme", status, headers={"x-should-retry": said}).retryable is expected


# Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after": "-3"}, 0),
        ({"retry-after-ms": "1500.5"}, 1.5005),
        ({"retry-after-ms": "1500", "retry-after": "60"}, 1.5),
        ({"retry-after-ms": "soon", "retry-after": "60"}, 60),
        ({"retry-after-ms": "0", "retry-after": "60"}, 60),
        ({"retry-after-ms": "-1", "retry-after": "60"}, 60),
        ({"retry-after-ms": "0"}, None),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90),
        ({"retry-after": format_datetime(NOW - timedelta(hours=1), usegmt=True)}, 0),
        ({"retry-after": "Sun Mar  1 12:00:30 2026"}, 30),
        ({"retry-after": "tomorrow"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "1e300"}, 31_536_000),
    ],
)
def test_retry_after_is_read_in_all_its_forms(headers: dict[str, str], seconds: float | None) -> None:
    expected = None if seconds is None else timedelta(seconds=seconds)

    assert parse_retry_after(headers, NOW) == expected


def test_ten_minutes_are_waited_for_and_an_hour_is_not() -> None:
    short = classify("Acme", 429, headers={"retry-after": "600"}, text="slow down", now=NOW)
    long = classify("Acme", 429, headers={"retry-after": "3600", "x-should-retry": "true"}, text="slow down", now=NOW)

    assert (short.retryable, short.detail) == (True, "slow down")
    assert (long.retryable, long.detail) == (False, "Possible again at 2026-03-01 13:00 UTC. slow down")
    assert long.retry_after == timedelta(hours=1)


# Context numbers, replay faults, request ids


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("prompt is too long: 210,123 tokens > 200000 maximum", (210_123, 200_000)),
        (
            "This model's maximum context length is 128000 tokens. However, your messages resulted in 130001 tokens.",
            (130_001, 128_000),
        ),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in it)",
            (5_000, 4_096),
        ),
        ("maximum context length is 4096 tokens", (None, 4_096)),
        ("Input is too long", (None, None)),
        ("prompt is too long: 99999999999999999999 tokens > 1", (None, 1)),
    ],
)
def test_context_numbers_are_read_where_the_text_has_them(text: str, numbers: tuple[int | None, int | None]) -> None:
    error = classify("Acme", 400, codes=("context_length_exceeded",), text=text)

    assert (error.context_used, error.context_max) == numbers == find_context_numbers(text)


@pytest.mark.parametrize(
    ("code", "text", "fault"),
    [
        ("", "`thinking` is bound to a different conversation", ReplayFault.STALE_THINKING),
        ("", "Invalid `signature` in `thinking` block", ReplayFault.UNPROVEN_REASONING),
        ("invalid_encrypted_content", "", ReplayFault.UNPROVEN_REASONING),
        ("", "Item with id 'rs_1' not found.", ReplayFault.UNPROVEN_REASONING),
        ("", "'function_call' was provided without its required 'reasoning' item", ReplayFault.UNPROVEN_REASONING),
        ("", "'reasoning' was provided without its required following item", ReplayFault.UNPROVEN_REASONING),
        ("", "No tool output found for function call call_1.", ReplayFault.BROKEN_PAIRS),
        ("", "No tool call found for function call output with call_id call_1.", ReplayFault.BROKEN_PAIRS),
        ("", "No tool call found for custom tool call output with call_id call_1.", ReplayFault.BROKEN_PAIRS),
        ("", "`tool_use` ids were found without `tool_result` blocks", ReplayFault.BROKEN_PAIRS),
        ("", "`tool_use` ids must be unique", ReplayFault.BROKEN_PAIRS),
        ("", "Duplicate item found with id fc_1", ReplayFault.BROKEN_PAIRS),
        ("", "An assistant message with 'tool_calls' must be followed by tool messages", ReplayFault.BROKEN_PAIRS),
        ("", "the signature of the request", None),
        ("", "no such tool", None),
    ],
)
def test_refused_history_names_its_rung(code: str, text: str, fault: ReplayFault | None) -> None:
    error = classify("Acme", 400, codes=(code,), text=text)

    assert error.replay_fault is fault
    assert (error.kind is ErrorKind.GENERIC) is (fault is not None)
    assert find_replay_fault(500, (code,), text) is None


@pytest.mark.parametrize(
    ("headers", "request_id"),
    [
        ({"request-id": "req_1", "x-request-id": "other"}, "req_1"),
        ({"x-request-id": "x1"}, "x1"),
        ({}, None),
        ({"request-id": "a\x1b[31m"}, "a\\u001b[31m"),
    ],
)
def test_request_id_is_found_in_either_header(headers: dict[str, str], request_id: str | None) -> None:
    assert find_request_id(headers) == request_id
    assert classify("Acme", 500, headers=headers).request_id == request_id


# Bodies


@pytest.mark.parametrize(
    ("body", "content_type", "detail", "code"),
    [
        (b'{"type":"error","error":{"type":"api_error","message":"a"}}', "application/json", "a", "api_error"),
        (b'{"error":{"message":"b","type":"t","code":"c"}}', "application/json", "b", "c"),
        (b'{"error":{"message":"g","code":404,"status":"NOT_FOUND"}}', "application/json", "g", "NOT_FOUND"),
        (b'[{"error":{"message":"in a list"}}]', "application/json", "in a list", None),
        (b'{"error":"only text"}', "application/json", "only text", None),
        (b'{"error":"Bad Request","message":"why"}', "application/json", "why", None),
        (b'{"error":"bad_request","message":"why"}', "application/json", "why", "bad_request"),
        (b'{"error":"bad_request","message":"why","code":"c"}', "application/json", "why", "c"),
        (b'{"error":"why","message":" "}', "application/json", "why", None),
        (b'{"error":"why","detail":"more"}', "application/json", "why", None),
        (b'{"message":"top","code":"x"}', "application/json", "top", "x"),
        (b'{"detail":"of a framework"}', "application/json", "of a framework", None),
        (b'{"error":{"message":""},"message":"top"}', "application/json", "top", None),
        (b'{"error":{"message":"no type given"}}', "", "no type given", None),
        (b'"just a string"', "application/json", "just a string", None),
        (b"first line\nsecond line", "text/plain; charset=utf-8", "first line", None),
        (b"\xff\xfe broken", "text/plain", "\ufffd\ufffd broken", None),
        (b"<html>secret page</html>", "text/html", None, None),
        (b"<!doctype html>", "text/plain", None, None),
        (b'{"error":{"message":"<html>page</html>"}}', "application/json", None, None),
        (b"not shown", "application/octet-stream", None, None),
        (b"", "application/json", None, None),
        (b"{}", "application/json", None, None),
        (b"[]", "application/json", None, None),
        (b"null", "application/json", None, None),
        (b'{"error":{"message":{"no":"text"}}}', "application/json", None, None),
    ],
)
def test_detail_and_code_are_found_in_every_envelope(
    body: bytes, content_type: str, detail: str | None, code: str | None
) -> None:
    error = from_response("Acme", 500, headers={"content-type": content_type}, body=body)

    assert (error.detail, error.code) == (detail, code)


@pytest.mark.parametrize(
    ("text", "status", "kind", "detail", "code"),
    [
        (
            'POST "https://a.example/v1": 429 Too Many Requests {"error":{"message":"why","code":"c"}}',
            *(429, ErrorKind.RATE_LIMIT, "why", "c"),
        ),
        ('it failed: GET "https://a.example": 401 {"message":"why"} (twice)', 401, ErrorKind.AUTH, "why", None),
        (
            'POST "https://a.example": 400 {"error":{"message":"why","type":"overloaded_error"}}',
            *(400, ErrorKind.OVERLOADED, "why", "overloaded_error"),
        ),
        (
            'POST "https://a.example": 502 {"message":"GET \\"https://b.example\\": 500 {}"}',
            *(502, ErrorKind.TIMEOUT, 'GET "https://b.example": 500 {}', None),
        ),
        ('PUT "x": 503 {"a":1}', 503, ErrorKind.TIMEOUT, 'PUT "x": 503 {"a":1}', None),
        ('PUT "x": 503 {broken', 503, ErrorKind.TIMEOUT, 'PUT "x": 503 {broken', None),
        ('Say "x": 503 {"message":"why"}', None, ErrorKind.GENERIC, 'Say "x": 503 {"message":"why"}', None),
    ],
)
def test_answer_that_a_gateway_passes_on_is_unwrapped(
    text: str, status: int | None, kind: ErrorKind, detail: str, code: str | None
) -> None:
    body = msgspec.json.encode({"error": {"message": text}})

    error = from_response("Acme", 200, headers={}, body=body)

    assert (error.status, error.kind, error.detail, error.code) == (status or 200, kind, detail, code)
    assert classify("Acme", text=text).status == status
    assert classify("Acme", 418, text=text).status == 418


@pytest.mark.parametrize(
    "text", ["1" * 60_000 + " prompt is too long", "prompt is too long: " + "1," * 30_000, "a." * 30_000]
)
def test_hostile_text_is_not_searched_again_from_each_of_its_places(text: str) -> None:
    started = time.process_time()

    classify("Acme", 400, text=bare_urls(text))

    # This takes some hundredths of a second. A search from each position would take seconds to minutes.
    assert time.process_time() - started < 1.5


@given(
    st.one_of(
        st.binary(max_size=200),
        st.recursive(
            st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=3)
                | st.dictionaries(
                    st.sampled_from(["error", "message", "type", "code", "detail", "x"]), inner, max_size=4
                )
            ),
            max_leaves=12,
        ).map(msgspec.json.encode),
    ),
    st.sampled_from(["", "application/json", "text/plain", "text/html"]),
)
def test_no_body_surprises(body: bytes, content_type: str) -> None:
    codes, text = read_body(body, content_type)
    error = classify("Acme", 500, codes=codes, text=text)

    assert error.detail is None or len(error.detail) <= MAX_DETAIL


def test_detail_is_one_bounded_line_without_keys_or_control_characters() -> None:
    text = "Incorrect key: sk-abcdefgh12345678\x1b[2J\n at https://me:pw@host/x?api_key=zzz " + "x" * 1000

    detail = classify("Acme", 401, text=text).detail

    assert detail is not None
    assert len(detail) == MAX_DETAIL
    assert not any(secret in detail for secret in ("sk-abc", "pw", "zzz", "\x1b", "\n"))


def test_redirect_tells_where_it_points_without_the_query() -> None:
    headers = {"location": "https://user:pw@login.example/start?token=abc#frag"}

    error = from_response("Acme", 302, headers=headers, body=b"")

    assert error.detail == "Location: https://login.example/start"


# Connections


@pytest.mark.parametrize(
    ("reason", "kind", "retry"),
    [
        (TransportFault.CONNECT, ErrorKind.TIMEOUT, True),
        (TransportFault.WRITE, ErrorKind.TIMEOUT, True),
        (TransportFault.CUT, ErrorKind.TIMEOUT, True),
        (TransportFault.CERTIFICATE, ErrorKind.CONFIG, False),
        (TransportFault.REQUEST, ErrorKind.CONFIG, False),
    ],
)
def test_broken_connection_decides_kind_and_retry(reason: TransportFault, kind: ErrorKind, retry: bool) -> None:
    error = from_transport("Acme", TransportError(reason, "see https://a:b@host/p?q=1#f now"))

    assert (error.kind, error.retryable) == (kind, retry)
    assert error.detail == "see https://host/p now"
    assert "Acme" in error.message


def test_every_way_a_connection_breaks_has_its_row() -> None:
    assert set(errors._TRANSPORT_RULES) == set(TransportFault)


def test_bare_urls_keep_what_is_not_secret() -> None:
    assert bare_urls(f"{'x' * 99}://me:pw@h/p?q and ://no") == f"{'x' * 99}://h/p and ://no"
    assert bare_urls("a http://h:80/p/q?x b postgres://u:p@h/d#f c") == "a http://h:80/p/q b postgres://h/d c"
