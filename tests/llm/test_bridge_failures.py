"""Exceptions of pydantic-ai and the packages below it, as errors for users and for the retry rule."""

from __future__ import annotations

import asyncio
import ssl
from datetime import timedelta
from typing import Any

import pytest
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelOverloadedError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import PromptReasoning, PromptText
from rookery.llm.types import ErrorKind, ProviderError, ReplayFault, ResponseStarted, TextDelta
from tests.llm.bridge_rig import (
    HELLO,
    KEY,
    PlayedModel,
    Refusing,
    asking,
    bridged,
    drain,
    error_of,
    finish_of,
    said,
    text,
    warnings_of,
)
from tests.llm.model_rig import Counted


async def refused(error: Exception) -> ProviderError:
    return error_of(await drain(bridged(PlayedModel([Refusing(error)]))))


def http(status: int, body: object = None, **fields: Any) -> ModelHTTPError:
    return ModelHTTPError(status, "played-1", body, **fields)


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (http(401), ErrorKind.AUTH, False),
        (http(403), ErrorKind.AUTH, False),
        (http(404, {"message": "no such model"}), ErrorKind.CONFIG, False),
        (http(400, {"message": "bad schema"}), ErrorKind.CONFIG, False),
        (http(429), ErrorKind.RATE_LIMIT, True),
        (http(500), ErrorKind.GENERIC, True),
        (http(503), ErrorKind.TIMEOUT, True),
        (http(529), ErrorKind.OVERLOADED, True),
        (http(402), ErrorKind.USAGE_LIMIT, False),
        (ModelQuotaExceededError("m", "no credit"), ErrorKind.USAGE_LIMIT, False),
        (ModelRateLimitError("m", "slow down"), ErrorKind.RATE_LIMIT, True),
        (ModelOverloadedError("m", "busy"), ErrorKind.OVERLOADED, True),
        (ModelUnavailableError("m", "gone"), ErrorKind.TIMEOUT, True),
        (ModelServerError("m", "oops"), ErrorKind.GENERIC, True),
        (ModelAuthenticationError("m", "who?"), ErrorKind.AUTH, False),
        (ModelNotFoundError("m", "what?"), ErrorKind.CONFIG, False),
        (ModelRequestRejectedError("m", "no"), ErrorKind.CONFIG, False),
        (ModelConnectionError("m", "refused", phase="connect"), ErrorKind.TIMEOUT, True),
        (ModelConnectionError("m", "reset", phase="read"), ErrorKind.TIMEOUT, True),
        (ModelTimeoutError("m", ""), ErrorKind.TIMEOUT, True),
        (ModelRequestTimeout("m", 5), ErrorKind.TIMEOUT, True),
        (ContentFilterError("not this"), ErrorKind.CONTENT_FILTER, False),
        (UnexpectedModelBehavior("half a chunk"), ErrorKind.GENERIC, True),
        (ModelAPIError("m", "not JSON"), ErrorKind.GENERIC, True),
        (UserError("cannot do this"), ErrorKind.CONFIG, False),
        (NotImplementedError("no video"), ErrorKind.CONFIG, False),
        (ConnectionResetError("reset"), ErrorKind.TIMEOUT, True),
        (TimeoutError(), ErrorKind.TIMEOUT, True),
        (TypeError("a fault in a package"), ErrorKind.GENERIC, False),
        (RuntimeError("who knows"), ErrorKind.GENERIC, True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
async def test_every_raised_exception_becomes_a_kind_of_error(
    error: Exception, kind: ErrorKind, retryable: bool
) -> None:
    told = await refused(error)

    assert (told.kind, told.retryable) == (kind, retryable)
    assert told.message.startswith(("Played", "The ", "No "))


async def test_long_prompts_are_known_by_the_category_where_the_words_are_strange() -> None:
    body = {"error": {"message": "The input token count (9) exceeds the most there can be (8)."}}
    error = ModelHTTPError.for_category(
        ModelContextWindowExceededError, status_code=400, model_name="m", body=body, headers={"x-request-id": "r1"}
    )

    told = await refused(error)

    assert (told.kind, told.status, told.code, told.request_id) == (ErrorKind.CONTEXT_OVERFLOW, 400, None, "r1")
    assert told.detail == "The input token count (9) exceeds the most there can be (8)."


async def test_codes_of_the_provider_are_told() -> None:
    error = ModelRateLimitError("m", "slow", provider_error_code="ThrottlingException", retry_after=7.0)

    told = await refused(error)

    assert (told.code, told.retry_after) == ("ThrottlingException", timedelta(seconds=7))


async def test_retry_after_of_the_headers_is_told() -> None:
    told = await refused(http(429, headers={"Retry-After-Ms": "1500"}))

    assert told.retry_after == timedelta(seconds=1.5)


async def test_envelope_of_a_cloud_is_read() -> None:
    body = {"Error": {"Code": "ValidationException", "Message": "prompt is too long: 9 tokens > 8 maximum"}}

    told = await refused(http(400, body))

    assert (told.kind, told.code) == (ErrorKind.CONTEXT_OVERFLOW, "ValidationException")
    assert (told.context_used, told.context_max) == (9, 8)


async def test_pages_are_not_shown() -> None:
    told = await refused(http(502, "<html><h1>Bad gateway</h1></html>"))

    assert (told.kind, told.detail) == (ErrorKind.TIMEOUT, None)


async def test_certificate_that_cannot_be_verified_is_a_setting() -> None:
    error = ModelConnectionError("m", "Connection error.", phase="connect")
    error.__cause__ = ssl.SSLCertVerificationError("self-signed certificate")

    told = await refused(error)

    assert (told.kind, told.retryable) == (ErrorKind.CONFIG, False)


class NoCredentialsError(Exception):
    """An exception like that of a cloud's package."""


class ReadTimeoutError(Exception):
    """An exception like that of an HTTP package."""


class InvalidConfigurationError(Exception):
    """An exception like that of a cloud's package."""


@pytest.mark.parametrize(
    ("error", "kind", "retryable"),
    [
        (NoCredentialsError("none found"), ErrorKind.AUTH, False),
        (ReadTimeoutError("too slow"), ErrorKind.TIMEOUT, True),
        (InvalidConfigurationError("no region"), ErrorKind.CONFIG, False),
    ],
)
async def test_exceptions_of_packages_are_known_by_their_names(
    error: Exception, kind: ErrorKind, retryable: bool
) -> None:
    told = await refused(error)

    assert (told.kind, told.retryable) == (kind, retryable)
    assert str(error) in str(told.detail)


@pytest.mark.parametrize(
    "error",
    [
        http(401, {"message": f"Incorrect API key provided: {KEY}."}),
        http(401, f"wrong key {KEY}"),
        ModelConnectionError("m", f"https://user:{KEY}@host.example/?key={KEY}"),
        UserError(f"cannot use {KEY}"),
        RuntimeError(f"headers: Bearer {KEY}"),
        ModelAuthenticationError("m", "bad", provider_error_code=KEY),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_key_is_never_shown(error: Exception) -> None:
    model = bridged(PlayedModel([Refusing(error)]))

    told = error_of(await drain(model))

    assert KEY not in repr(told)
    assert KEY not in repr(model)


async def test_error_in_the_middle_ends_the_stream() -> None:
    parts = await drain(bridged(PlayedModel([text("Half an"), http(529)])))

    assert TextDelta("text-1", "Half an") in parts
    assert error_of(parts).kind is ErrorKind.OVERLOADED


async def test_warnings_come_first_also_before_an_error() -> None:
    model = PlayedModel([Refusing(http(500))], ignores=frozenset({"top_k"}))

    parts = await drain(bridged(model), asking(top_k=1))

    assert set(warnings_of(parts)) == {"top_k"}
    assert error_of(parts).status == 500


async def test_cancelled_socket_is_a_broken_connection() -> None:
    told = await refused(_as_exception(asyncio.CancelledError()))

    assert (told.kind, told.retryable) == (ErrorKind.TIMEOUT, True)


def _as_exception(error: BaseException) -> Exception:
    """Return the value for `Refusing` to raise. The test needs one that is not an `Exception`."""
    return error  # type: ignore[return-value]


# Replay


STALE = http(400, {"message": "Invalid signature in thinking block"})
PROVEN = said(Role.ASSISTANT, PromptReasoning("Hm.", {"provider_name": "played", "signature": "s"}), PromptText("Yes."))


async def test_history_that_is_refused_is_sent_plainly_once() -> None:
    counted = Counted()
    model = PlayedModel([Refusing(STALE)], [text("Fine.")])

    parts = await drain(bridged(model, stats=counted), asking(HELLO, PROVEN, HELLO))

    assert finish_of(parts).usage.total == 13
    first, second = (len(asked.messages[1].parts) for asked in model.asked)
    assert (first, second) == (2, 1)
    assert counted.repaired == [("bridge", ReplayFault.UNPROVEN_REASONING)]


async def test_history_that_is_refused_twice_is_told() -> None:
    counted = Counted()
    model = PlayedModel([Refusing(STALE)], [Refusing(STALE)])

    parts = await drain(bridged(model, stats=counted), asking(HELLO, PROVEN, HELLO))

    assert error_of(parts).replay_fault is ReplayFault.UNPROVEN_REASONING
    assert len(model.asked) == 2
    assert counted.unrepaired == [("bridge", ReplayFault.UNPROVEN_REASONING)]


async def test_nothing_is_repaired_once_something_was_told() -> None:
    model = PlayedModel([text("Half"), STALE], [text("Fine.")])

    parts = await drain(bridged(model), asking(HELLO, PROVEN, HELLO))

    assert isinstance(parts[0], ResponseStarted)
    assert error_of(parts).replay_fault is ReplayFault.UNPROVEN_REASONING
    assert len(model.asked) == 1
