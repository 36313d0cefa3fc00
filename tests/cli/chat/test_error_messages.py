"""Error messages and exit codes of `rookery chat`."""

from __future__ import annotations

import json
from io import StringIO

import pytest

from rookery.cli.chat import error_messages
from rookery.cli.chat.error_messages import failures
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import errors
from rookery.client.errors import ApiError, ErrorBody, RookeryError
from rookery.client.http import REFUSED

HERE = "http://127.0.0.1:7117"


def api(kind: type[ApiError], status: int, code: str = "code") -> ApiError:
    return kind(status, ErrorBody(code, "No.", request_id="r-1"))


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (errors.Unreachable(HERE, REFUSED), Exit.UNREACHABLE, f"at {HERE}. Start it with `rookery serve`."),
        (api(errors.SetupRequired, 503), Exit.NOT_ALLOWED, f"has no account yet. `rookery chat login {HERE}` makes"),
        (api(errors.Unauthenticated, 401, "token_expired"), Exit.NOT_ALLOWED, "does not accept the token: it is wrong"),
        (api(errors.Unauthenticated, 401, "invalid_credentials"), Exit.NOT_ALLOWED, "No."),
        (api(errors.Forbidden, 403), Exit.NOT_ALLOWED, "No."),
        (errors.LoggedOut(4401, "bye"), Exit.NOT_ALLOWED, "revoked or has expired"),
        (errors.ChatDeleted(4404, "The chat is gone."), Exit.FAILED, "The chat is gone."),
        (api(errors.Invalid, 400), Exit.USAGE, "No."),
        (api(errors.Conflict, 409), Exit.FAILED, "No."),
        (api(errors.ServerError, 500), Exit.FAILED, "No. (request r-1)"),
        (errors.TimedOut("GET /x", 30), Exit.FAILED, f"The server at {HERE} did not answer within 30 s."),
    ],
)
def test_error_has_a_sentence_and_an_exit_code(error: RookeryError, code: Exit, text: str) -> None:
    found, said = error_messages.explain(error, HERE, has_token=True)

    assert found == code
    assert text in said


def test_server_on_another_port_is_started_there() -> None:
    url = "http://127.0.0.1:8000"

    _, said = error_messages.explain(errors.Unreachable(url, REFUSED), url, has_token=True)

    assert said == f"Nothing answers at {url}. Start it with `rookery serve --listen 127.0.0.1:8000`."


def test_server_that_speaks_otherwise_is_not_to_be_started() -> None:
    url = "https://127.0.0.1:8000"

    _, said = error_messages.explain(errors.Unreachable(url, "wrong version number"), url, has_token=True)

    assert said == f"Nothing answers at {url}: wrong version number."


def test_server_elsewhere_is_not_for_this_machine_to_start() -> None:
    url = "https://rookery.example.org"

    _, said = error_messages.explain(errors.Unreachable(url, "no route to host"), url, has_token=True)

    assert said == f"Nothing answers at {url}: no route to host."


def test_user_without_a_token_is_told_to_log_in() -> None:
    error = api(errors.Unauthenticated, 401, "unauthenticated")

    _, said = error_messages.explain(error, HERE, has_token=False)

    assert said == f"You are not logged in at {HERE}. Run `rookery chat login {HERE}`."


def test_logging_in_does_not_help_where_the_environment_wins() -> None:
    error = api(errors.Unauthenticated, 401, "unauthenticated")

    _, said = error_messages.explain(error, HERE, has_token=True, is_token_from_environment=True)

    assert "the token in ROOKERY_TOKEN. Set another, or unset it" in said


def test_programs_get_a_document_or_a_line() -> None:
    documents: list[object] = []
    for lines in (False, True):
        stdout = StringIO()
        out = Output(stdout, StringIO(), json=not lines)
        with failures(out) as attempt:
            attempt.lines = lines
            raise api(errors.Conflict, 409, "chat_archived")
        out.finish()
        documents.append(json.loads(stdout.getvalue()))
        assert attempt.code == Exit.FAILED

    error = {"exit_code": 1, "message": "No.", "code": "chat_archived", "request_id": "r-1"}
    assert documents == [{"error": error}, {"error": error}]


def test_refusal_keeps_its_own_exit_code() -> None:
    stderr = StringIO()
    with failures(Output(StringIO(), stderr)) as attempt:
        raise Refused("Not so.", code=Exit.USAGE)

    assert (attempt.code, stderr.getvalue()) == (Exit.USAGE, "rookery: Not so.\n")
