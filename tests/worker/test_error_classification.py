"""Classification of step failures: the kind, the user's message, and the stored form."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from rookery.domain.chat.messages import MessageId
from rookery.domain.chat.prompt import UnreadableRow
from rookery.domain.chat.summary_prompt import SummaryFailed
from rookery.llm import errors
from rookery.llm.errors import CallFailed, TransportError, TransportFault
from rookery.llm.types import ErrorKind, ProviderError, ReplayFault, Usage
from rookery.llm.wire import PromptInvalid
from rookery.models.key_ring import SecretsError
from rookery.runtime.clock import DeadlineExceeded
from rookery.store.models.errors import ModelUnusable, NoDefaultModel, SpendLimitReached, Unusable
from rookery.worker import error_classification
from rookery.worker.error_classification import Classified, StepFailed, classify
from tests.worker.library_errors import AGAIN, OVERFLOW, UNKNOWN, Answered, verdict

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


# Messages


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (Answered(status=529), "Acme has no capacity right now."),
        (Answered(status=429), "Acme accepts no more requests for now."),
        (Answered(status=503), "Acme cannot be reached at the moment."),
        (DeadlineExceeded("summary", 5), "The request took too long and was stopped."),
        (Answered("stream closed before its end"), "Acme ended the stream before the answer was complete."),
        (Answered(status=401), "Acme refused our credentials. Check key and permissions."),
        (
            Answered("invalid model"),
            "Acme does not accept this model configuration. Check model and provider settings.",
        ),
        (Answered(status=402), "The account at Acme has reached its limit. Add credit, or ask an administrator."),
        (Answered("provider_disabled"), "Acme is switched off on this server."),
        (Answered(status=418), "Acme reported an unexpected error."),
        (Answered(status=500), "Acme reported an unexpected error."),
        (
            Answered("no tool output found for function call"),
            "The conversation state no longer matches the provider's. This is not a billing or configuration problem.",
        ),
        (Answered("chat interrupted"), "The request was canceled."),
        (KeyError("bug"), "The chat request failed unexpectedly."),
    ],
)
def test_people_read_what_happened(failure: BaseException, message: str) -> None:
    assert classify(failure, "Acme").message == message


def test_provider_without_a_name_is_the_ai_provider() -> None:
    assert classify(Answered(status=529)).message == "The AI provider has no capacity right now."
    assert error_classification.of_kind(ErrorKind.MISSING_KEY).message.startswith("No API key for the AI provider.")
    assert classify(Answered(status=529), "acme").message == "acme has no capacity right now."


@pytest.mark.parametrize(
    ("kind", "category", "message", "retryable"),
    [
        (ErrorKind.STREAM_SILENCE_TIMEOUT, None, "Acme stopped sending data.", True),
        (ErrorKind.MISSING_KEY, None, "No API key for Acme. Add one and send the message again.", False),
        (ErrorKind.CONTENT_FILTER, None, "Acme blocked this answer under its content policy.", False),
        (ErrorKind.CONTENT_FILTER, "bio", "Acme blocked this answer under its content policy (bio).", False),
    ],
)
def test_some_kinds_are_set_directly(kind: ErrorKind, category: str | None, message: str, retryable: bool) -> None:
    failure = error_classification.of_kind(kind, "Acme", category=category, detail="said\nso")

    assert (failure.kind, failure.message, failure.retryable, failure.detail) == (kind, message, retryable, "said so")


def test_every_kind_has_a_message() -> None:
    for kind in ErrorKind:
        assert "{" not in error_classification.of_kind(kind, "Acme").message


# Detail


@pytest.mark.parametrize(
    ("failure", "detail"),
    [
        (Answered("x", body={"error": {"message": "why"}}), "why"),
        (Answered("x", body={"message": "why"}), "why"),
        (Answered("x", body={"error": "Bad Request", "message": "why"}), "why"),
        (Answered("x", body={"error": "why"}), "why"),
        (Answered("x", body=b'{"error": {"message": "why"}}'), "why"),
        (Answered("x", body='{"error": "Bad Request", "message": "why"}'), "why"),
        (Answered("x", body="why\nmore", headers={"Content-Type": "text/plain; charset=utf-8"}), "why"),
        (Answered("x", body="<html>no</html>", headers={"content-type": "text/html"}), "x"),
        (Answered("x", body=b"<html>no</html>"), "x"),
        (Answered("x", body=b"[1]"), "x"),
        (Answered("x", body=7), "x"),
        (Answered('POST "https://a.example/v1": 400 Bad Request {"error": {"message": "why"}}'), "why"),
        (Answered("x", body={"message": 'GET "https://a.example": 400 {"message": "why"}'}), "why"),
        (
            Answered('POST "https://a.example/v1": 400 {"strange": 1}'),
            'POST "https://a.example/v1": 400 {"strange": 1}',
        ),
        (Answered("  two\n\tlines "), "two lines"),
        (Answered("at https://me:secret@a.example/p?key=1#f now"), "at https://a.example/p now"),
        (Answered("key sk-abcdefghijklmnop is bad"), "key [REDACTED] is bad"),
        (Answered(""), None),
    ],
)
def test_detail_is_what_the_provider_said_or_a_clean_text(failure: Answered, detail: str | None) -> None:
    assert classify(failure).detail == detail


def test_detail_has_an_end() -> None:
    detail = classify(RuntimeError("x" * 600)).detail

    assert detail is not None
    assert (len(detail), detail[-1]) == (500, "…")


def test_body_beyond_all_reason_is_not_read() -> None:
    fits, huge = (json.dumps({"error": {"message": "x" * size}}) for size in (65_000, 66_000))

    assert classify(Answered("too much", body=fits)).detail == "x" * 499 + "…"
    assert classify(Answered("too much", body=huge)).detail == "too much"


@pytest.mark.parametrize("status", [401, 403])
def test_text_about_refused_credentials_is_never_shown(status: int) -> None:
    assert classify(Answered("header was: Key 12345", status=status)).detail is None
    assert classify(Answered("header", status=status, body={"message": "Bad key."})).detail == "Bad key."


def test_history_mismatch_shows_no_items_of_the_provider() -> None:
    failure = classify(RuntimeError("Item 'fc_77' was provided without its required 'reasoning' item: 'rs_77'."))

    assert failure.detail == "history_mismatch"
    assert "77" not in failure.message


class Hostile(Exception):
    """An error that raises whenever it is used."""

    def __str__(self) -> str:
        raise ValueError("no")

    @property
    def body(self) -> object:
        raise RuntimeError("not read yet")


def test_exception_that_fails_itself_is_classified() -> None:
    failure = classify(Hostile())

    assert (verdict(failure), failure.detail) == (UNKNOWN, "Hostile")


# Errors that are already classified


def provider_error(**changes: object) -> ProviderError:
    error = ProviderError(
        kind=ErrorKind.RATE_LIMIT, message="Acme limits requests. Try later.", retryable=True, provider="Acme"
    )
    return msgspec.structs.replace(error, **changes)


def test_judgement_of_the_client_is_kept() -> None:
    error = provider_error(detail="slow down", status=418, retry_after=timedelta(seconds=3))

    assert classify(error) == Classified(
        kind=ErrorKind.RATE_LIMIT,
        message="Acme limits requests. Try later.",
        retryable=True,
        detail="slow down",
        provider="Acme",
        status_code=418,
        retry_after=timedelta(seconds=3),
    )


def test_exception_that_carries_a_judgement_is_not_judged_again() -> None:
    error = provider_error()
    failed = CallFailed(error, Usage())
    wrapped = RuntimeError("unauthorized")
    wrapped.__cause__ = failed

    assert classify(failed) == classify(wrapped) == classify(error)
    assert classify(ExceptionGroup("several", [failed])) == classify(error)


def test_context_of_an_exception_is_not_its_cause() -> None:
    bug = KeyError("bug")
    bug.__context__ = CallFailed(provider_error(), Usage())

    assert verdict(classify(bug)) == UNKNOWN


def test_failure_that_was_set_directly_is_kept() -> None:
    failure = error_classification.of_kind(ErrorKind.MISSING_KEY)

    assert classify(StepFailed(failure)) == failure
    assert classify(StepFailed(failure), "Acme") == msgspec.structs.replace(failure, provider="Acme")
    assert str(StepFailed(failure)) == failure.message


def test_configured_provider_beats_the_one_in_the_error() -> None:
    assert classify(provider_error(), "Other").provider == "Other"


@pytest.mark.parametrize(
    ("code", "detail"),
    [("previous_response_not_found", "x"), (None, "Previous response with id 'resp_1' not found.")],
)
def test_broken_chain_is_found_in_errors_of_clients_too(code: str | None, detail: str) -> None:
    error = errors.classify("Acme", 400, codes=(code,), text=detail)

    failure = classify(error)

    assert (verdict(failure), failure.chain_broken) == (AGAIN, True)


@pytest.mark.parametrize("fault", ReplayFault)
def test_history_that_could_not_be_repaired_is_a_mismatch(fault: ReplayFault) -> None:
    error = provider_error(kind=ErrorKind.GENERIC, retryable=False, replay_fault=fault, detail="item rs_77")

    failure = classify(error)

    assert (verdict(failure), failure.detail) == (UNKNOWN, "history_mismatch")
    assert failure.message.startswith("The conversation state no longer matches")


@pytest.mark.parametrize(
    "error",
    [
        errors.classify("Acme", 400, codes=("context_length_exceeded",)),
        errors.classify("Acme", 413),
        errors.classify("Acme", 400, text="context length exceeded"),
    ],
)
def test_prompt_that_is_too_long_may_be_helped_by_a_summary(error: ProviderError) -> None:
    failure = classify(error)

    assert (verdict(failure), failure.context_overflow) == (OVERFLOW, True)
    assert "Compact" in failure.message


def test_flags_are_off_otherwise() -> None:
    failure = classify(provider_error())

    assert not failure.context_overflow
    assert not failure.chain_broken


# Our own errors


@pytest.mark.parametrize(
    ("failure", "kind", "retryable"),
    [
        (DeadlineExceeded("step", 5), ErrorKind.TIMEOUT, False),
        (TransportError(TransportFault.CONNECT, "x"), ErrorKind.TIMEOUT, True),
        (TransportError(TransportFault.CERTIFICATE, "x"), ErrorKind.CONFIG, False),
        (PromptInvalid("timeout"), ErrorKind.GENERIC, False),
        (ModelUnusable(Unusable.UNKNOWN), ErrorKind.CONFIG, False),
        (ModelUnusable(Unusable.DISABLED), ErrorKind.CONFIG, False),
        (ModelUnusable(Unusable.PROVIDER_DISABLED), ErrorKind.PROVIDER_DISABLED, False),
        (ModelUnusable(Unusable.MISSING_API_KEY), ErrorKind.MISSING_KEY, False),
        (ModelUnusable(Unusable.USER_API_KEY_REQUIRED), ErrorKind.MISSING_KEY, False),
        (NoDefaultModel(), ErrorKind.CONFIG, False),
        (NoDefaultModel(Unusable.MISSING_API_KEY), ErrorKind.MISSING_KEY, False),
        (SpendLimitReached(spent_micros=2, limit_micros=1, resets_at=NOW), ErrorKind.USAGE_LIMIT, False),
        (SecretsError("The key ring is gone: timeout."), ErrorKind.CONFIG, False),
        (SummaryFailed("The model returned an empty summary."), ErrorKind.GENERIC, False),
        (UnreadableRow(MessageId(7), "timeout"), ErrorKind.GENERIC, False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else str(value),
)
def test_our_own_errors_are_known_by_type_and_not_by_their_words(
    failure: Exception, kind: ErrorKind, retryable: bool
) -> None:
    assert verdict(classify(failure, "Acme")) == (kind, retryable)


def test_our_own_errors_speak_for_themselves() -> None:
    failure = classify(SummaryFailed("The model returned an empty summary."), "Acme")

    assert (failure.message, failure.detail) == ("The model returned an empty summary.", None)
    assert classify(ModelUnusable(Unusable.DISABLED)).message == Unusable.DISABLED.sentence


# Stored forms


def test_last_error_holds_everything_people_need() -> None:
    stored = error_classification.last_error(classify(Answered("x", status=401, body={"message": "Bad key."}), "Acme"))

    assert msgspec.to_builtins(stored) == {
        "message": "Acme refused our credentials. Check key and permissions.",
        "retryable": False,
        "detail": "Bad key.",
        "kind": "auth",
        "provider": "Acme",
        "status_code": 401,
    }


def test_retry_state_says_when_and_names_no_remedy() -> None:
    error = provider_error(status=429)

    stored = error_classification.retry_state(classify(error), attempt=1, delay=timedelta(seconds=1.1), now=NOW)

    assert msgspec.to_builtins(stored) == {
        "attempt": 1,
        "delay_ms": 1100,
        "error": "Acme accepts no more requests for now.",
        "retrying_at": "2030-01-02T03:04:06.100000Z",
        "kind": "rate_limit",
        "provider": "Acme",
        "status_code": 429,
    }


def test_wait_beyond_the_servers_patience_is_final() -> None:
    failure = classify(provider_error(retry_after=timedelta(minutes=5), detail="slow down"))

    final = error_classification.without_retry(failure, now=NOW)

    assert not final.retryable
    assert final.detail == "Possible again at 2030-01-02 03:09 UTC. slow down"


@pytest.mark.parametrize(
    ("status", "codes", "text", "is_limit"),
    [
        (413, (), "Request Entity Too Large", True),
        (413, ("request_too_large",), "Request exceeds the maximum size", True),
        (None, ("request_too_large",), "Request exceeds the maximum size", True),
        (400, ("string_too_long",), "Invalid input: string too long.", True),
        (400, ("context_length_exceeded",), "Your input exceeds the context window of this model.", False),
    ],
)
def test_limit_of_bytes_is_told_from_a_window_that_is_full(
    status: int | None, codes: tuple[str, ...], text: str, is_limit: bool
) -> None:
    failure = error_classification.classify(errors.classify("Acme", status, codes=codes, text=text))

    assert (failure.context_overflow, failure.byte_limit) == (True, is_limit)
