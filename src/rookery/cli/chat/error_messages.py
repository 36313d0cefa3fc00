"""Error messages of the terminal client: one sentence that says what to do next, and an exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import msgspec

from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import errors
from rookery.client.errors import ApiError, RookeryError
from rookery.client.http import REFUSED, is_loopback

DEFAULT_PORT = 7117


class Attempt:
    """A running command: its server, as soon as it is known, and its exit code."""

    def __init__(self) -> None:
        self.url = ""
        self.has_token = False
        self.is_token_from_environment = False
        self.lines = False  # whether programs read the output, line by line
        self.code: int = Exit.OK


@contextmanager
def failures(out: Output) -> Iterator[Attempt]:
    """Convert exceptions of the client to one line for users, an error for programs, and an exit code."""
    attempt = Attempt()
    try:
        yield attempt
    except Refused as error:
        attempt.code = tell(out, error.code, str(error), lines=attempt.lines)
    except RookeryError as error:
        code, text = explain(
            error,
            attempt.url,
            has_token=attempt.has_token,
            is_token_from_environment=attempt.is_token_from_environment,
        )
        more = {"code": error.code, "request_id": error.request_id} if isinstance(error, ApiError) else {}
        attempt.code = tell(out, code, text, lines=attempt.lines, **more)


def tell(out: Output, exit_code: Exit, text: str, *, lines: bool = False, **more: object) -> int:
    document = {"error": {"exit_code": int(exit_code), "message": text, **more}}
    out.error(text)
    out.result(document)
    if lines:
        out.text(msgspec.json.encode(document).decode() + "\n")
    return exit_code


def explain(
    error: RookeryError, url: str, *, has_token: bool, is_token_from_environment: bool = False
) -> tuple[Exit, str]:
    """Return the exit code and the message."""
    log_in = f"`rookery chat login {url}`"
    match error:
        case errors.Unreachable():
            return Exit.UNREACHABLE, _unreachable(error, url)
        case errors.SetupRequired():
            return (
                Exit.NOT_ALLOWED,
                f"The server at {url} has no account yet. {log_in} makes the first one.",
            )
        case errors.Unauthenticated() if not has_token:
            return Exit.NOT_ALLOWED, f"You are not logged in at {url}. Run {log_in}."
        case errors.Unauthenticated() if error.code != "invalid_credentials":
            return Exit.NOT_ALLOWED, _not_accepted(url, log_in, is_from_environment=is_token_from_environment)
        case errors.LoggedOut():
            return Exit.NOT_ALLOWED, f"The token for {url} was revoked or has expired. Run {log_in}."
        case errors.TimedOut():
            text = f"The server at {url} did not answer within {error.seconds:g} s."
            return Exit.FAILED, f"{text} It is busy, or another program listens there."
        case errors.Unauthenticated() | errors.Forbidden() | errors.AccessWithdrawn():
            return Exit.NOT_ALLOWED, str(error)
        case errors.Invalid():
            return Exit.USAGE, str(error)
        case errors.ServerError(request_id=str(request_id)):
            return Exit.FAILED, f"{error} (request {request_id})"
    return Exit.FAILED, str(error)


def _not_accepted(url: str, log_in: str, *, is_from_environment: bool) -> str:
    if not is_from_environment:
        return f"The server at {url} does not accept the token: it is wrong, revoked or expired. Run {log_in}."
    # The variable takes precedence over a stored login, so a login alone would change nothing.
    return f"The server at {url} does not accept the token in ROOKERY_TOKEN. Set another, or unset it and run {log_in}."


def _unreachable(error: errors.Unreachable, url: str) -> str:
    # Any other failure means that a program listens at this address, for example a server without TLS at an https
    # address.
    if not is_loopback(url) or error.reason != REFUSED:
        return str(error)
    port = urlsplit(url).port
    command = "rookery serve" if port in (None, DEFAULT_PORT) else f"rookery serve --listen 127.0.0.1:{port}"
    return f"Nothing answers at {url}. Start it with `{command}`."
