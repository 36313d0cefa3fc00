"""Classification of library exceptions: every literal, status and precedence of the table."""

from __future__ import annotations

import asyncio
import errno
import http.client
import socket
import ssl
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.llm.types import ErrorKind
from rookery.worker import error_classification
from rookery.worker.error_classification import classify
from tests.worker.library_errors import (
    AGAIN,
    AUTH,
    CONFIG,
    DISABLED,
    OVERFLOW,
    OVERLOADED,
    RATE,
    TIMEOUT,
    UNKNOWN,
    USAGE,
    Answered,
    verdict,
)

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)

# Words


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("chat interrupted", UNKNOWN),
        ("request interrupted", UNKNOWN),
        ("operation interrupted", UNKNOWN),
        ("No tool output found for function call call_1.", UNKNOWN),
        ("Item 'fc_1' was provided without its required 'reasoning' item: 'rs_1'.", UNKNOWN),
        ("Previous response with id 'resp_1' not found.", AGAIN),
        ("previous_response_not_found", AGAIN),
        ("stream closed before the response completed", TIMEOUT),
        ("the stream ended before its last event", TIMEOUT),
        ("Overloaded", OVERLOADED),
        ("insufficient_quota", USAGE),
        ("The AI budget of this team is spent", USAGE),
        ("quota exceeded", USAGE),
        ("check your billing", USAGE),
        ("Payment required", USAGE),
        ("authentication failed", AUTH),
        ("Unauthorized", AUTH),
        ("invalid api key", AUTH),
        ("invalid_api_key", AUTH),
        ("Forbidden", AUTH),
        ("rate limit reached", RATE),
        ("rate_limit", RATE),
        ("rate limited", RATE),
        ("rate-limited", RATE),
        ("Too many requests", RATE),
        ("provider_disabled", DISABLED),
        ("timeout", TIMEOUT),
        ("timed out", TIMEOUT),
        ("unavailable", TIMEOUT),
        ("Service Unavailable", TIMEOUT),
        ("connection reset by peer", TIMEOUT),
        ("connection refused", TIMEOUT),
        ("unexpected EOF", TIMEOUT),
        ("broken pipe", TIMEOUT),
        ("bad gateway", TIMEOUT),
        ("gateway timeout", TIMEOUT),
        ("http2: client conn not usable", TIMEOUT),
        ("server sent GOAWAY", TIMEOUT),
        ("http2 stream closed", TIMEOUT),
        ("use of closed network connection", TIMEOUT),
        ("INTERNAL_ERROR; received from peer", TIMEOUT),
        ("REFUSED_STREAM; received from peer", TIMEOUT),
        ("CANCEL; received from peer", TIMEOUT),
        ("ENHANCE_YOUR_CALM; received from peer", TIMEOUT),
        ("NO_ERROR; received from peer", TIMEOUT),
        ("invalid model", CONFIG),
        ("model not found", CONFIG),
        ("model_not_found", CONFIG),
        ("unsupported model", CONFIG),
        ("malformed config", CONFIG),
        ("malformed configuration", CONFIG),
        ("Unable to locate credentials", CONFIG),
        ("Your default credentials were not found.", CONFIG),
        ("could not find default credentials", CONFIG),
        ("could not resolve credentials", CONFIG),
        ("context length exceeded", OVERFLOW),
        ("context_length_exceeded", OVERFLOW),
        ("context_exceeded", OVERFLOW),
        ("this model's maximum context length is 5", OVERFLOW),
        ("server error", AGAIN),
        ("internal server error", AGAIN),
        ("whatever", UNKNOWN),
        ("", UNKNOWN),
        # Words that only resemble signals.
        ("the proof thereof", UNKNOWN),
        ("the user wants to cancel", UNKNOWN),
    ],
)
def test_words_decide(text: str, expected: tuple[ErrorKind, bool]) -> None:
    assert verdict(classify(RuntimeError(text))) == expected
    assert verdict(classify(RuntimeError(text.upper()))) == expected


# Statuses


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (401, AUTH),
        (402, USAGE),
        (403, AUTH),
        (408, TIMEOUT),
        (413, OVERFLOW),
        (429, RATE),
        (500, AGAIN),
        (502, TIMEOUT),
        (503, TIMEOUT),
        (504, TIMEOUT),
        (529, OVERLOADED),
        (400, UNKNOWN),
        (404, UNKNOWN),
        (418, UNKNOWN),
    ],
)
def test_status_decides(status: int, expected: tuple[ErrorKind, bool]) -> None:
    failure = classify(Answered(status=status))

    assert verdict(failure) == expected
    assert failure.status_code == status


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("status 418", 418),
        ("status code: 429", 429),
        ("status_code=503", 503),
        ("HTTP 500", 500),
        ("HTTP/1.1 502", 502),
        ("got 401 back", 401),
        ("403", 403),
        ("(408)", 408),
        ("429, again", 429),
        ("error 500.", 500),
        ("502 Bad Gateway", 502),
        ("after 503", 503),
        ("504!", 504),
        ("529", 529),
        ('POST "https://api.example/v1": 429 Too Many', 429),
        ('POST "https://api.example/v1": 422 Unprocessable {"message": "no"}', 422),
        # Numbers that are not a status: ports, stream ids, parts of longer numbers.
        ("404", None),
        ("418", None),
        ("dial 10.0.0.1:503", None),
        ("stream ID 503 was closed", None),
        ("stream error: stream ID 503; PROTOCOL_ERROR", None),
        ("5030", None),
        ("1.503", None),
        ("503.7", None),
        ("1,500 tokens", None),
        ("model-500", None),
        ("gpt503", None),
        ("http://503.example", None),
        ("GET /v1/items/500 failed", None),
    ],
)
def test_status_is_read_from_the_text_when_there_is_no_other(text: str, status: int | None) -> None:
    assert classify(RuntimeError(text)).status_code == status


def test_status_of_the_exception_beats_the_text() -> None:
    assert classify(Answered("status 429", status=503)).status_code == 503


def test_status_and_headers_are_found_on_a_response() -> None:
    class Response:
        status_code = 429
        headers = {"Retry-After": "7"}  # noqa: RUF012 - as libraries have it

    class WithResponse(Exception):
        response = Response()

    failure = classify(WithResponse())

    assert (failure.kind, failure.status_code, failure.retry_after) == (
        ErrorKind.RATE_LIMIT,
        429,
        timedelta(seconds=7),
    )


# Precedence


@pytest.mark.parametrize(
    ("failure", "expected"),
    [
        (Answered("quota exceeded", status=429), RATE),
        (Answered("insufficient_quota", status=429), USAGE),
        (Answered("ai budget of $5 reached", status=429), USAGE),
        (Answered("invalid model", status=503), CONFIG),
        (Answered("maximum context length", status=503), OVERFLOW),
        (Answered("provider_disabled", status=503), DISABLED),
        (Answered("invalid model", status=403), CONFIG),
        (Answered("model not found", status=429), CONFIG),
        (Answered("invalid model", status=401), AUTH),
        (Answered("overloaded", status=401), OVERLOADED),
        (Answered("overloaded, check your quota", status=400), OVERLOADED),
        (Answered("unauthorized: billing", status=401), USAGE),
        (Answered("forbidden: rate limit", status=403), AUTH),
        (Answered("rate limit, provider_disabled", status=400), RATE),
        (Answered("internal server error: timeout", status=500), TIMEOUT),
        (Answered("server error", status=503), TIMEOUT),
        (Answered("properties.timeout is no schema", status=400), UNKNOWN),
        (Answered("chat interrupted", status=429), UNKNOWN),
        (Answered("no tool output found for function call x", status=529), UNKNOWN),
        (Answered("previous response with id x not found", status=401), AGAIN),
        (Answered("stream closed before the end", status=529), TIMEOUT),
    ],
    ids=lambda value: f"{value.status_code} {value}" if isinstance(value, Answered) else "",
)
def test_first_match_wins(failure: Answered, expected: tuple[ErrorKind, bool]) -> None:
    assert verdict(classify(failure)) == expected


# Codes


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("overloaded_error", OVERLOADED),
        ("rate_limit_error", RATE),
        ("authentication_error", AUTH),
        ("permission_error", AUTH),
        ("billing_error", USAGE),
        ("request_too_large", OVERFLOW),
        ("timeout_error", TIMEOUT),
        ("api_error", AGAIN),
        ("insufficient_quota", USAGE),
        ("rate_limit_exceeded", RATE),
        ("invalid_api_key", AUTH),
        ("model_not_found", CONFIG),
        ("context_length_exceeded", OVERFLOW),
        ("server_error", AGAIN),
    ],
)
def test_codes_come_before_words_and_statuses(code: str, expected: tuple[ErrorKind, bool]) -> None:
    in_body = {"error": {"code": code, "message": "timeout, unauthorized, quota"}}

    assert verdict(classify(Answered("forbidden", status=418, code=code.upper()))) == expected
    assert verdict(classify(Answered("forbidden", status=418, body=in_body))) == expected


def test_code_of_a_lost_answer_breaks_the_chain() -> None:
    failure = classify(Answered("gone", status=400, code="previous_response_not_found"))

    assert (verdict(failure), failure.chain_broken) == (AGAIN, True)


def test_unknown_code_leaves_it_to_the_rest() -> None:
    assert verdict(classify(Answered("overloaded", code="e_17"))) == OVERLOADED


# The provider's text is searched, except for signals that it may only mention


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("your quota is used up", USAGE),
        ("unauthorized", AUTH),
        ("invalid model", CONFIG),
        ("connection refused", TIMEOUT),
        ("the rate limit of this tool is fine", UNKNOWN),
        ("no internal server error here", UNKNOWN),
    ],
)
def test_detail_is_searched_for_all_but_rate_and_server_signals(said: str, expected: tuple[ErrorKind, bool]) -> None:
    assert verdict(classify(Answered("it failed", body={"error": {"message": said}}))) == expected


# Transport


@pytest.mark.parametrize(
    "failure",
    [
        ConnectionResetError(errno.ECONNRESET, "x"),
        ConnectionRefusedError(errno.ECONNREFUSED, "x"),
        BrokenPipeError(errno.EPIPE, "x"),
        ConnectionError("x"),
        TimeoutError(),
        EOFError(),
        OSError(errno.ENETUNREACH, "x"),
        OSError(errno.EHOSTUNREACH, "x"),
        asyncio.IncompleteReadError(b"", 7),
        http.client.IncompleteRead(b""),
        http.client.RemoteDisconnected("x"),
        socket.gaierror(socket.EAI_NONAME, "x"),
        ssl.SSLError(1, "handshake failure"),
        aiohttp.ServerDisconnectedError("x"),
        aiohttp.ClientPayloadError("x"),
        asyncio.CancelledError(),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_broken_exchange_is_tried_again(failure: BaseException) -> None:
    classified = classify(failure, "Acme")

    assert verdict(classified) == TIMEOUT
    assert classified.message == "Acme cannot be reached at the moment."


@pytest.mark.parametrize("module", ["httpx", "httpx2"])
def test_broken_exchange_of_an_optional_library_is_known_by_name(module: str) -> None:
    base = type("TransportError", (Exception,), {"__module__": module})
    below = type("ReadError", (base,), {"__module__": f"{module}._exceptions"})
    stranger = type("TransportError", (Exception,), {"__module__": "logistics"})

    assert verdict(classify(below())) == TIMEOUT
    assert verdict(classify(stranger())) == UNKNOWN


@pytest.mark.parametrize("failure", [FileNotFoundError(errno.ENOENT, "x"), PermissionError(errno.EACCES, "x")])
def test_trouble_with_files_is_no_broken_exchange(failure: OSError) -> None:
    assert verdict(classify(failure)) == UNKNOWN


def test_certificate_that_cannot_be_verified_is_not_tried_again() -> None:
    failure = classify(ssl.SSLCertVerificationError(1, "certificate verify failed"), "Acme")

    assert verdict(failure) == CONFIG
    assert failure.message.startswith("The certificate of Acme")


def test_cancellation_with_a_status_means_what_the_status_means() -> None:
    cancelled = asyncio.CancelledError("status 418")

    assert verdict(classify(cancelled)) == UNKNOWN


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("stream error: stream ID 5; INTERNAL_ERROR; received from peer", TIMEOUT),
        ("stream error: stream ID 5; REFUSED_STREAM; received from peer", TIMEOUT),
        ("stream error: stream ID 5; CANCEL; received from peer", TIMEOUT),
        ("stream error: stream ID 5; ENHANCE_YOUR_CALM; received from peer", TIMEOUT),
        ("stream error: stream ID 5; NO_ERROR; received from peer", TIMEOUT),
        ("stream error: stream ID 5; INTERNAL_ERROR", UNKNOWN),
        ("stream error: stream ID 5; PROTOCOL_ERROR; received from peer", UNKNOWN),
        ("stream error: stream ID 5; PROTOCOL_ERROR; received from peer: timeout", UNKNOWN),
        ("<StreamReset stream_id:1, error_code:2, remote_reset:True>", TIMEOUT),
        ("<StreamReset stream_id:1, error_code:ErrorCodes.CANCEL, remote_reset:True>", TIMEOUT),
        ("<StreamReset stream_id:1, error_code:2, remote_reset:False> timeout", UNKNOWN),
        ("<StreamReset stream_id:1, error_code:1, remote_reset:True> timeout", UNKNOWN),
    ],
)
def test_reset_of_a_stream_decides_by_its_code(text: str, expected: tuple[ErrorKind, bool]) -> None:
    assert verdict(classify(ConnectionError(text))) == expected


# Retry-After


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7),
        ({"RETRY-AFTER-MS": "1500.5", "retry-after": "60"}, 1.5005),
        ({"retry-after": format_datetime(NOW + timedelta(seconds=90), usegmt=True)}, 90),
        ({"retry-after": format_datetime(NOW - timedelta(seconds=90), usegmt=True)}, 0),
        ({"retry-after": "0"}, 0),
        ({"retry-after-ms": "0", "retry-after": "60"}, 60),
        ({"retry-after": "soon"}, 0),
        ({}, 0),
    ],
)
def test_wait_that_was_asked_for_is_read_from_headers(headers: dict[str, str], seconds: float) -> None:
    failure = classify(Answered(status=429, headers=headers), now=NOW)

    assert (failure.retry_after or timedelta()) == timedelta(seconds=seconds)
    assert failure.retryable


def test_too_long_a_wait_is_final_and_says_until_when() -> None:
    failure = classify(Answered("busy", status=429, headers={"retry-after": "3600"}), now=NOW)

    assert (failure.kind, failure.retryable) == (ErrorKind.RATE_LIMIT, False)
    assert failure.detail == "Possible again at 2030-01-02 04:04 UTC. busy"


# Providers


@pytest.mark.parametrize(
    ("text", "provider"),
    [
        ("openai-compat at azure", "OpenAI-compatible"),
        ("azure openai", "Azure"),
        ("openrouter: anthropic", "OpenRouter"),
        ("bedrock claude", "Bedrock"),
        ("vercel gateway to openai", "Vercel"),
        ("anthropic said", "Anthropic"),
        ("claude said", "Anthropic"),
        ("google said", "Google"),
        ("gemini said", "Google"),
        ("vertex said", "Google"),
        ("openai said", "OpenAI"),
        ("nobody said", None),
    ],
)
def test_provider_is_guessed_from_the_text_unless_it_is_known(text: str, provider: str | None) -> None:
    assert classify(RuntimeError(text)).provider == provider
    assert classify(RuntimeError(text), "Acme").provider == "Acme"


# Properties of all exceptions

_SIGNALS = (
    *("overloaded", "quota", "billing", "unauthorized", "forbidden", "rate limit", "provider_disabled", "timeout"),
    *("model not found", "maximum context length", "server error", "429", "503", "401", ":", "http", "stream id"),
    *("request interrupted", "previous response with id", "not found", "cancel", "received from peer"),
)


@given(
    st.lists(st.one_of(st.sampled_from(_SIGNALS), st.text(max_size=5)), max_size=8),
    st.one_of(st.none(), st.integers(0, 700)),
    st.one_of(st.none(), st.text(max_size=20), st.binary(max_size=20), st.dictionaries(st.text(), st.text())),
)
def test_everything_is_classified_and_always_the_same(words: list[str], status: int | None, body: object) -> None:
    failure = Answered(" ".join(words), status=status, body=body)

    first = classify(failure, "Acme", now=NOW)

    assert first == classify(failure, "Acme", now=NOW)
    assert first.message.endswith(".")
    assert first.detail is None or 0 < len(first.detail) <= 500
    assert error_classification.last_error(first).message == first.message
    assert not (first.retryable and first.context_overflow)
