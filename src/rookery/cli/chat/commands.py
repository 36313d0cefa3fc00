"""The commands of `rookery chat` by name. Each reads its arguments, finds the server and the token, and runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias
from uuid import UUID

from rookery.cli.chat import account, chat_actions, credentials, mcp_servers, permission_modes, prompt_loop
from rookery.cli.chat import approval_rules as chat_rules
from rookery.cli.chat import export as chat_export
from rookery.cli.chat import login as chat_login
from rookery.cli.chat.chat_actions import NewChat, Terminal
from rookery.cli.chat.credentials import Credentials, CredentialsFile
from rookery.cli.chat.error_messages import Attempt, failures
from rookery.cli.chat.mcp_servers import Answer
from rookery.cli.chat.terminal_screen import has_colour
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import AsyncRookery

Run: TypeAlias = Callable[[Coroutine[Any, Any, int], Output], int]
Act: TypeAlias = Callable[[Terminal], Awaitable[int]]

# Chosen: the user waits, and a missing server should be reported within a second.
RETRIES = 2
# Chosen: a third of the default for programs, because nothing is shown during a try.
TIMEOUT_SECONDS = 10.0


def new(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        prompt, piped = chat_actions.read_message(arguments.prompt, out)
        new_chat = _new_chat(arguments, piped)
        wait = not arguments.no_wait
        _act(attempt, arguments, out, run, lambda at: chat_actions.new(at, prompt, new_chat, wait=wait))
    return attempt.code


def send(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        prompt, piped = chat_actions.read_message(arguments.prompt, out)
        files: list[Path | tuple[str, bytes]] = [*_files(arguments), *piped]
        wait = not arguments.no_wait
        _act(
            attempt,
            arguments,
            out,
            run,
            lambda at: chat_actions.send(at, arguments.chat, prompt, busy=arguments.busy, wait=wait, files=files),
        )
    return attempt.code


def attach(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    if _has_terminal() and not arguments.lines and not arguments.watch:
        return _talk(arguments, out, reference=arguments.chat)
    with failures(out) as attempt:
        _act(attempt, arguments, out, run, lambda at: chat_actions.attach(at, arguments.chat, tail=arguments.tail))
    return attempt.code


def list_chats(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        _act(
            attempt, arguments, out, run, lambda at: chat_actions.list_chats(at, arguments.query, limit=arguments.limit)
        )
    return attempt.code


def list_models(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        _act(attempt, arguments, out, run, chat_actions.list_models)
    return attempt.code


def interrupt(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        _act(attempt, arguments, out, run, lambda at: chat_actions.interrupt(at, arguments.chat))
    return attempt.code


def list_agents(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        _act(attempt, arguments, out, run, lambda at: chat_actions.list_agents(at, arguments.chat))
    return attempt.code


def export(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        _act(attempt, arguments, out, run, lambda at: chat_export.export(at, arguments.chat))
    return attempt.code


def rules(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        given = None if arguments.file is None else chat_rules.read_file(arguments.file)
        _act(
            attempt,
            arguments,
            out,
            run,
            lambda at: chat_rules.rules(at, arguments.chat, server=arguments.server, given=given),
        )
    return attempt.code


def servers(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    given: list[tuple[Answer, str | None]] = [
        ("agree", arguments.agree),
        ("deny", arguments.deny),
        ("withdraw", arguments.withdraw),
    ]
    answer, name = next(((word, name) for word, name in given if name is not None), (None, None))
    with failures(out) as attempt:
        _act(
            attempt,
            arguments,
            out,
            run,
            lambda at: mcp_servers.servers(at, arguments.chat, answer=answer, name=name),
        )
    return attempt.code


def login(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    file = CredentialsFile(os.environ)
    with failures(out) as attempt:
        url = attempt.url = credentials.address(arguments.server or arguments.url, os.environ, file)
        is_setup = _asked(run, out, chat_login.is_setup_needed(url))
        answers = chat_login.ask(
            is_setup=is_setup,
            name=arguments.user,
            token_stdin=arguments.token_stdin,
            password_stdin=arguments.password_stdin,
        )
        for secret in (answers.token, answers.password, answers.setup_token):
            out.secrets.add("login", secret or "")
        attempt.has_token = True
        attempt.code = run(chat_login.login(url, answers, file=file, out=out), out)
    return attempt.code


def logout(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    file = CredentialsFile(os.environ)
    with failures(out) as attempt:
        url = attempt.url = credentials.address(arguments.server or arguments.url, os.environ, file)
        attempt.code = run(chat_login.logout(url, file=file, out=out), out)
    return attempt.code


def password(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        revoke = {"revoke": True, "keep": False, None: None}[arguments.tokens]
        change = account.ask_password(revoke_tokens=revoke)
        for secret in (change.current, change.new):
            out.secrets.add("password", secret)
        _act(attempt, arguments, out, run, lambda at: account.change_password(at, change))
    return attempt.code


def accesses(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        _act(attempt, arguments, out, run, lambda at: account.list_accesses(at, limit=arguments.limit))
    return attempt.code


def talk(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    return _talk(arguments, out, reference=None)


COMMANDS: Mapping[str, Callable[[argparse.Namespace, Output, Run], int]] = {
    "talk": talk,
    "new": new,
    "send": send,
    "attach": attach,
    "list": list_chats,
    "models": list_models,
    "interrupt": interrupt,
    "agents": list_agents,
    "rules": rules,
    "servers": servers,
    "export": export,
    "login": login,
    "logout": logout,
    "password": password,
    "accesses": accesses,
}


def _act(attempt: Attempt, arguments: argparse.Namespace, out: Output, run: Run, act: Act) -> None:
    """Run the command at the chosen server."""
    attempt.lines = arguments.lines
    found = _found(attempt, arguments, out)

    async def acting() -> int:
        async with AsyncRookery(found.url, token=found.token, timeout=TIMEOUT_SECONDS, max_retries=RETRIES) as client:
            return await act(chat_actions.terminal(client, out, os.environ, lines=arguments.lines))

    attempt.code = run(acting(), out)


def _found(attempt: Attempt, arguments: argparse.Namespace, out: Output) -> Credentials:
    found = credentials.find(arguments.url, os.environ, CredentialsFile(os.environ))
    attempt.url, attempt.has_token = found.url, found.token is not None
    attempt.is_token_from_environment = found.is_from_environment
    if found.token is not None:
        out.secrets.add("token", found.token)
    return found


def _talk(arguments: argparse.Namespace, out: Output, *, reference: str | None) -> int:
    """Run the prompt loop at a terminal. The event loop runs only while there is output to show."""
    with failures(out) as attempt:
        if not _has_terminal():
            raise Refused("There is no terminal. Use `rookery chat new PROMPT`.", code=Exit.USAGE)
        found = _found(attempt, arguments, out)
        new_chat = _new_chat(arguments)
        if not _is_plain(arguments):
            session = _inline(arguments, out, found, new_chat, reference)
            attempt.code = asyncio.run(session)
            return attempt.code
        client = AsyncRookery(found.url, token=found.token, timeout=TIMEOUT_SECONDS, max_retries=RETRIES)
        with asyncio.Runner() as runner:
            try:
                at = chat_actions.terminal(client, out, os.environ)
                chat_id = runner.run(_begin(at, reference, tail=getattr(arguments, "tail", 0)))
                loop = prompt_loop.PromptLoop(at, runner, new_chat=new_chat, chat_id=chat_id)
                attempt.code = loop.run(prompt_loop.read_line)
            finally:
                runner.run(client.close())
    return attempt.code


async def _inline(
    arguments: argparse.Namespace, out: Output, found: Credentials, new_chat: NewChat, reference: str | None
) -> int:
    # Imported late: only this session needs prompt_toolkit, and every command would start later.
    from rookery.cli.chat.inline_session import InlineSession

    async with AsyncRookery(found.url, token=found.token, timeout=TIMEOUT_SECONDS, max_retries=RETRIES) as client:
        session = InlineSession(
            client,
            out,
            new_chat=new_chat,
            has_color=has_colour(os.environ, is_terminal=True),
            history_path=CredentialsFile(os.environ).path.with_name("history"),
        )
        return await session.run(reference, tail=getattr(arguments, "tail", 10))


def _is_plain(arguments: argparse.Namespace) -> bool:
    """Return whether to print lines only and redraw nothing: for screen readers and simple terminals."""
    return bool(arguments.plain or os.environ.get("ROOKERY_PLAIN") or os.environ.get("TERM", "dumb") == "dumb")


def _new_chat(arguments: argparse.Namespace, piped: Sequence[tuple[str, bytes]] = ()) -> NewChat:
    return NewChat(
        model=arguments.model,
        workspace=arguments.workspace,
        plan_mode=arguments.plan,
        permission_mode=permission_modes.NAMES[arguments.mode or "auto"],
        files=(*_files(arguments), *piped),
    )


def _files(arguments: argparse.Namespace) -> tuple[Path, ...]:
    files = tuple(Path(os.path.expanduser(name)) for name in arguments.files or ())
    for path in files:
        chat_actions.check_file(path)
    return files


async def _begin(at: Terminal, reference: str | None, *, tail: int) -> UUID | None:
    """Check the server before the user types a message. Return the chat to continue, if the arguments name one."""
    user = await at.client.me()
    at.screen.lines(f"At {at.client.base_url} as {user.username}.")
    if reference is None:
        return None
    chat_id = await chat_actions.find_chat(at.client, reference)
    await chat_actions.catch_up(at, chat_id, tail=tail)
    return chat_id


def _asked(run: Run, out: Output, question: Coroutine[Any, Any, bool]) -> bool:
    """Return a yes-or-no answer of the server, before the user is prompted."""

    async def asked() -> int:
        return int(await question)

    return bool(run(asked(), out))


def _has_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))
