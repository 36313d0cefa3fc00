"""Login from a terminal: the password is exchanged for a token. The token is stored; the password is not.

Secrets are prompted for or read from stdin, never taken from the arguments, because arguments appear in the process
list and in the shell's history.
"""

from __future__ import annotations

import getpass
import socket
import sys
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from rookery.cli.chat.credentials import CredentialsFile, Login
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import AsyncRookery, NotFound, Unauthenticated, errors
from rookery.client.http import require_token
from rookery.client.models import AccessNotice, Me, User

MAX_SECRET_BYTES = 4096
MAX_NAME_CHARS = 64


class Answers(msgspec.Struct, frozen=True, kw_only=True):
    """The user's credentials: a token, or a name and a password, or the data of a first account."""

    token: str | None = None
    login: str = ""
    password: str = ""
    setup_token: str | None = None


def ask(*, is_setup: bool, name: str | None, token_stdin: bool, password_stdin: bool) -> Answers:
    """Prompt for missing credentials. This runs before the event loop, in which Ctrl-C would not end the prompt."""
    if token_stdin:
        return Answers(token=_piped_token())
    if password_stdin and name is None:
        raise Refused("--password-stdin needs --user, the account of the password.", code=Exit.USAGE)
    if not password_stdin and not sys.stdin.isatty():
        raise Refused(
            "There is no terminal. Pipe a token in with --token-stdin, or a password with --password-stdin.",
            code=Exit.USAGE,
        )
    setup_token = _setup_token() if is_setup else None
    login = name or _asked("Email address: " if is_setup else "Email address or username: ").strip()
    if password_stdin:
        return Answers(login=login, password=_piped("password"), setup_token=setup_token)
    password = _asked("Password: ", getpass.getpass)
    if is_setup and _asked("Repeat the password: ", getpass.getpass) != password:
        raise Refused("The two passwords differ.", code=Exit.USAGE)
    return Answers(login=login, password=password, setup_token=setup_token)


async def is_setup_needed(url: str) -> bool:
    async with AsyncRookery(url) as client:
        return await client.account.is_setup_needed()


async def login(url: str, answers: Answers, *, file: CredentialsFile, out: Output) -> int:
    """Get a token for the server, check it, and store it."""
    kept, me = await _given(url, answers.token) if answers.token is not None else await _made(url, answers)
    file.add(url, kept)
    out.line(f"Logged in at {url} as {kept.user}. The token is in {file.path}.")
    if me.access_notice is not None:
        out.line(
            f"{notice_text(me.access_notice)} `rookery chat accesses` shows the details, and dismisses this notice."
        )
    out.result({"url": url, "user": kept.user, "credentials": str(file.path), "access_notice": me.access_notice})
    return Exit.OK


async def logout(url: str, *, file: CredentialsFile, out: Output) -> int:
    """Delete the token, and revoke it at the server if that is reachable."""
    known = file.remove(url)
    if known is None:
        raise Refused(f"You are not logged in at {url}.")
    if known.token_id is None:
        # The user provided this token and may use it elsewhere, so it is not revoked.
        revoked, more = False, " The token was not created here, and stays valid."
    else:
        revoked = await _revoke(url, known.token, known.token_id)
        more = "" if revoked else " The server could not be asked to revoke the token; it is valid until it expires."
    out.line(f"Logged out at {url}.{more}")
    out.result({"url": url, "revoked": revoked})
    return Exit.OK


def notice_text(notice: AccessNotice) -> str:
    """Describe the actions of administrators since the last notice, in a sentence."""
    did = []
    if notice.password_resets:
        did.append("reset your password" + (f" {notice.password_resets} times" if notice.password_resets > 1 else ""))
    if notice.reads:
        did.append(f"read your chats ({notice.reads} {'request' if notice.reads == 1 else 'requests'})")
    when = f"{notice.last_at:%Y-%m-%d %H:%M} UTC"
    return f"Notice: an administrator has {' and '.join(did)}, last at {when}."


async def _given(url: str, token: str) -> tuple[Login, Me]:
    async with AsyncRookery(url, token=token) as client:
        user = await client.me()
    return Login(token=token, user=user.username), user


async def _made(url: str, answers: Answers) -> tuple[Login, Me]:
    async with AsyncRookery(url) as client:
        user = await _enter(client, answers)
        me = await client.me()
        made = await client.tokens.create(_token_name())
        # The session is no longer needed; the token is stored.
        await client.account.logout()
    return Login(token=made.token, token_id=str(made.id), user=user.username), me


async def _enter(client: AsyncRookery, answers: Answers) -> User:
    if answers.setup_token is None:
        return await client.account.login(answers.login, answers.password)
    return await client.account.set_up(answers.setup_token, email=answers.login, password=answers.password)


async def _revoke(url: str, token: str, token_id: str) -> bool:
    async with AsyncRookery(url, token=token, max_retries=0) as client:
        try:
            await client.tokens.delete(token_id)
        except (Unauthenticated, NotFound):
            return True  # the token is no longer valid
        except errors.RookeryError:
            return False
    return True


def _token_name() -> str:
    """Return a token name. Names are unique per user. The time distinguishes two logins on one machine."""
    stamp = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S")
    return f"{socket.gethostname()[: MAX_NAME_CHARS - len(stamp) - 15]}, terminal, {stamp}"


def _setup_token() -> str:
    """Prompt for the setup token. The user may paste the token, or the whole address that was printed with it."""
    question = "This server has no account yet. Setup token (printed when it started): "
    given = _asked(question, getpass.getpass).strip()
    return given.rpartition("#")[2].removeprefix("token=")


def _asked(question: str, ask: Callable[[str], str] = input) -> str:
    """Prompt for input. If the user cancels the prompt, the next message starts on its own line."""
    try:
        answer = ask(question)
    except (EOFError, KeyboardInterrupt) as leaving:
        sys.stderr.write("\n")
        if isinstance(leaving, KeyboardInterrupt):
            raise
        answer = ""
    if not answer.strip():
        raise Refused("Nothing was typed.", code=Exit.USAGE)
    return answer


def _piped_token() -> str:
    token = _piped("token").strip()
    try:
        require_token(token)
    except ValueError as error:
        raise Refused(str(error), code=Exit.USAGE) from None
    return token


def _piped(what: str) -> str:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_SECRET_BYTES + 1)
    # `echo` and editors add one line end. The server refuses other unusual input.
    text = data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    if not text or len(data) > MAX_SECRET_BYTES:
        raise Refused(f"There is no {what} on stdin. Pipe it in: rookery chat login ... < FILE", code=Exit.USAGE)
    return text
