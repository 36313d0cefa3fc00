"""`rookery bench load`: checks the arguments, finds the server and the tokens, runs the load, cleans up and reports."""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import resource
import secrets
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from random import SystemRandom
from uuid import UUID

import msgspec

from rookery.cli.bench import report
from rookery.cli.bench.arguments import Run
from rookery.cli.bench.load import KINDS, Load, MadeChat, Plan
from rookery.cli.chat import credentials
from rookery.cli.chat.credentials import CredentialsFile
from rookery.cli.chat.error_messages import failures
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import AsyncRookery, Conflict, NotFound, RateLimited, RookeryError
from rookery.client.http import require_token
from rookery.client.models import Model

MAX_USERS = 10_000
MAX_MINUTES = 24 * 60
MAX_MESSAGES = 1000
MAX_TEXT_CHARS = 20_000
MAX_SECONDS = 3600.0
# Limits of the server for each user: docs/api/README.md, "Rate limits", and docs/api/streams.md.
STREAMS_PER_TOKEN, REQUESTS_PER_MINUTE = 64, 512
TIMEOUT_SECONDS = 30.0
# A client keeps 20 connections open. With more users, requests would open new connections all the time.
USERS_PER_CLIENT = 20
BUSY_CPU_SHARE = 0.8
PROGRESS_SECONDS, PROGRESS_SECONDS_OF_A_LOG = 1.0, 15.0
CLEANUP_SECONDS = 120.0
CLEANUP_AT_ONCE = 8
CLEANUP_TRIES = 5
DEFAULT_RAMP_SHARE = 0.1

LABELS = {
    "create": "create a chat",
    "open": "open its stream",
    "send": "send a message",
    "running": "send to running",
    "first_token": "send to first token",
    "rest": "send to rest",
    "resume": "resume a lost stream",
}


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """Milliseconds; null if nothing was measured."""

    count: int
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    worst_ms: float | None


class Generator(msgspec.Struct, frozen=True, kw_only=True):
    """The load generator itself. If it is busy, the times include its delays."""

    cpu_share: float
    lag_p99_ms: float | None


class Chats(msgspec.Struct, frozen=True, kw_only=True):
    created: int
    deleted: int
    left: int
    label: str


class LoadReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document of `--json`. `unfinished` turns were running when the load ended."""

    url: str
    model: str
    users: int
    seconds: float
    is_complete: bool
    turns: int
    turns_per_second: float
    unfinished: int
    times: dict[str, Times]
    errors: dict[str, int]
    rate_limited: dict[str, int]
    rate_limited_seconds: float
    resumes: int
    generator: Generator
    chats: Chats


def start(arguments: argparse.Namespace, out: Output, run: Run) -> int:
    with failures(out) as attempt:
        _check(arguments)
        found = credentials.find(arguments.url, os.environ, CredentialsFile(os.environ))
        attempt.url, attempt.is_token_from_environment = found.url, found.is_from_environment
        given = _read_tokens(arguments.tokens) if arguments.tokens else [found.token] if found.token else []
        attempt.has_token = bool(given)
        for token in given:
            out.secrets.add("token", token)
        if not given:
            raise Refused(
                f"You are not logged in at {found.url}. Run `rookery chat login {found.url}`.", code=Exit.NOT_ALLOWED
            )
        _raise_file_limit(arguments.users)
        _warn_about_limits(arguments, len(given), out)
        attempt.code = run(_run(arguments, found.url, given, out), out)
    return attempt.code


async def _run(arguments: argparse.Namespace, url: str, given: Sequence[str], out: Output) -> int:
    label = secrets.token_hex(4)
    async with _clients(url, given, arguments.users) as clients:
        for client in clients[: len(given)]:
            await client.me()  # a wrong token is reported before anything is created
        model = await _find_model(clients[0], url, arguments.model)
        out.progress(f"{arguments.users} users of {url}, model {model.model}")
        plan = _plan(arguments, model.id, label)
        load = Load(plan, clients, rng=SystemRandom())
        is_complete, left = True, deque[MadeChat]()
        fatal: RookeryError | None = None
        try:
            await _with_progress(load, out)
        except asyncio.CancelledError:
            # Ctrl-C: clean up, and print the report so far. Another Ctrl-C ends the command.
            is_complete = False
            task = asyncio.current_task()
            assert task is not None
            task.uncancel()
        except RookeryError as error:
            is_complete, fatal = False, error
        left = deque(load.chats)
        if not arguments.keep:
            out.progress(f"deleting {len(left)} chats with the label load:{label}")
            await _clean_up(left)
        document = _report(load, url, model.model, label, left=len(left), is_complete=is_complete)
        _show(document, out, is_kept=arguments.keep)
        out.result(document)
        if fatal is not None:
            out.error("The load ended early, because the server refused a token:")
            raise fatal
    if not is_complete:
        return Exit.INTERRUPTED
    return Exit.FAILED if load.errors or not load.turns else Exit.OK


async def _with_progress(load: Load, out: Output) -> None:
    async def tell() -> None:
        pause = PROGRESS_SECONDS if out.stderr_is_terminal else PROGRESS_SECONDS_OF_A_LOG
        while True:
            await asyncio.sleep(pause)
            left = max(load.plan.seconds - load.seconds, 0.0)
            out.progress(
                f"{report.seconds(left)} left: {load.users} of {load.plan.users} users, {load.turns} turns, "
                f"{sum(load.errors.values())} errors"
            )

    telling = asyncio.create_task(tell())
    try:
        await load.run()
    finally:
        telling.cancel()
        await asyncio.gather(telling, return_exceptions=True)


@asynccontextmanager
async def _clients(url: str, given: Sequence[str], users: int) -> AsyncIterator[list[AsyncRookery]]:
    """Open clients, the first of each token first. Each retries nothing, so that every error is counted."""
    async with AsyncExitStack() as stack:
        count = max(math.ceil(users / USERS_PER_CLIENT), len(given))
        yield [
            await stack.enter_async_context(
                AsyncRookery(url, token=given[number % len(given)], timeout=TIMEOUT_SECONDS, max_retries=0)
            )
            for number in range(count)
        ]


async def _find_model(client: AsyncRookery, url: str, name: str | None) -> Model:
    """Return the named model, or the default of the server, so that the user sees what is used."""
    if name is not None:
        found = await client.models.find(name)
        if found is None:
            raise Refused(
                f"There is no model {name}. `rookery chat models` lists those that can be used.", code=Exit.USAGE
            )
        return found
    known = [model for provider in await client.models.list() for model in provider.models]
    if not known:
        raise Refused(f"The server at {url} has no model. Add one first.")
    return next((model for model in known if model.is_default), known[0])


# Arguments


def _check(arguments: argparse.Namespace) -> None:
    _within("--users", arguments.users, 1, MAX_USERS)
    _within("--minutes", arguments.minutes, 0.01, MAX_MINUTES)
    _within("--think", arguments.think, 0, MAX_SECONDS)
    _within("--messages", arguments.messages, 1, MAX_MESSAGES)
    _within("--timeout", arguments.timeout, 1, MAX_SECONDS)
    if arguments.ramp is not None:
        _within("--ramp", arguments.ramp, 0, MAX_SECONDS)
        if arguments.ramp >= arguments.minutes * 60:
            raise Refused("--ramp must be shorter than --minutes.", code=Exit.USAGE)
    if not arguments.text.strip() or len(arguments.text) > MAX_TEXT_CHARS:
        raise Refused(f"--text must have 1 to {MAX_TEXT_CHARS:,} characters.", code=Exit.USAGE)


def _within(flag: str, value: float, least: float, most: float) -> None:
    # NaN is not within any range.
    if not least <= value <= most:
        raise Refused(f"{flag} is a number from {least:g} to {int(most):,}, not {value:g}.", code=Exit.USAGE)


def _plan(arguments: argparse.Namespace, model_id: UUID, label: str) -> Plan:
    seconds = arguments.minutes * 60
    return Plan(
        users=arguments.users,
        seconds=seconds,
        ramp_seconds=seconds * DEFAULT_RAMP_SHARE if arguments.ramp is None else arguments.ramp,
        think_seconds=arguments.think,
        messages=arguments.messages,
        text=arguments.text,
        timeout_seconds=arguments.timeout,
        model_id=model_id,
        label=label,
    )


def _read_tokens(name: str) -> list[str]:
    path = Path(os.path.expanduser(name))
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {getattr(error, 'strerror', None) or error}.", code=Exit.USAGE) from None
    found = list(dict.fromkeys(line for line in lines if line and not line.startswith("#")))
    if not found:
        raise Refused(f"{path} has no token. Write one per line.", code=Exit.USAGE)
    for number, token in enumerate(found, start=1):
        try:
            require_token(token)
        except ValueError as error:
            raise Refused(f"{path}, token {number}: {error}", code=Exit.USAGE) from None
    return found


def _raise_file_limit(users: int) -> None:
    """Each user needs a connection for its stream, and some for requests."""
    needed = users * 2 + 200
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= needed or soft == resource.RLIM_INFINITY:
        return
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise Refused(
            f"{users} users need {needed} open files, and this shell allows {hard}. Raise it with `ulimit -Hn`, "
            "or use fewer users."
        )
    resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def _warn_about_limits(arguments: argparse.Namespace, count: int, out: Output) -> None:
    """A server limits each user. One account cannot have the load of hundreds."""
    streams = math.ceil(arguments.users / STREAMS_PER_TOKEN)
    requests = math.ceil(arguments.users * 60 / max(arguments.think, 1.0) / REQUESTS_PER_MINUTE)
    if count < max(streams, requests):
        out.warning(
            f"a server allows {STREAMS_PER_TOKEN} streams and {REQUESTS_PER_MINUTE} requests per minute for each "
            f"account. {arguments.users} users need about {max(streams, requests)} accounts: see --tokens. "
            "Refusals are counted apart."
        )


# Cleanup


async def _clean_up(left: deque[MadeChat]) -> None:
    """Delete the chats, and remove them from `left`."""
    failed: list[MadeChat] = []

    async def work() -> None:
        while left:
            made = left.popleft()
            is_deleted = False
            try:
                is_deleted = await _delete(made)
            finally:
                if not is_deleted:
                    failed.append(made)

    with suppress(TimeoutError):
        async with asyncio.timeout(CLEANUP_SECONDS), asyncio.TaskGroup() as group:
            for _ in range(min(CLEANUP_AT_ONCE, len(left))):
                group.create_task(work())
    left.extend(failed)


async def _delete(made: MadeChat) -> bool:
    """Delete a chat. Only an archived chat can be deleted, and only a chat at rest can be archived."""
    chats = made.client.chats
    for attempt in range(CLEANUP_TRIES):
        try:
            await chats.archive(made.chat_id)
            await chats.delete(made.chat_id)
            return True
        except NotFound:
            return True
        except Conflict:
            with suppress(RookeryError):
                await chats.interrupt(made.chat_id)
            await asyncio.sleep(0.2 * 2**attempt)
        except RateLimited as error:
            await asyncio.sleep(error.retry_after or 1.0)
        except RookeryError:
            await asyncio.sleep(0.2 * 2**attempt)
    return False


# The report


def _report(load: Load, url: str, model: str, label: str, *, left: int, is_complete: bool) -> LoadReport:
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1000, 1)

    times = {}
    for kind in KINDS:
        found = load.times[kind]
        times[kind] = Times(
            count=found.count,
            p50_ms=ms(found.at(50)),
            p95_ms=ms(found.at(95)),
            p99_ms=ms(found.at(99)),
            worst_ms=ms(found.worst) if found.count else None,
        )
    created = len(load.chats)
    return LoadReport(
        url=url,
        model=model,
        users=load.users,
        seconds=round(load.seconds, 1),
        is_complete=is_complete,
        turns=load.turns,
        turns_per_second=round(load.turns / max(load.seconds, 1e-9), 2),
        unfinished=load.unfinished,
        times=times,
        errors=dict(load.errors.most_common()),
        rate_limited=dict(load.limited.most_common()),
        rate_limited_seconds=round(load.limited_seconds, 1),
        resumes=times["resume"].count,
        generator=Generator(cpu_share=round(load.cpu_share, 3), lag_p99_ms=ms(load.lag.at(99))),
        chats=Chats(created=created, deleted=created - left, left=left, label=f"load:{label}"),
    )


def _show(found: LoadReport, out: Output, *, is_kept: bool) -> None:
    def shown(value: float | None) -> str:
        return "-" if value is None else report.seconds(value / 1000)

    rows = [
        [LABELS[kind], f"{each.count:,}", *map(shown, (each.p50_ms, each.p95_ms, each.p99_ms, each.worst_ms))]
        for kind, each in found.times.items()
    ]
    report.table(out, ["Time", "Count", "p50", "p95", "p99", "Worst"], rows)
    out.line()
    out.line(
        f"{found.users} users, {found.seconds:g} s, {found.turns:,} turns, {found.turns_per_second:g} per second, "
        f"{found.unfinished} unfinished."
    )
    for kind, count in found.errors.items():
        out.line(f"Error, {count:,} times: {kind}.")
    if not found.errors:
        out.line("No errors.")
    for kind, count in found.rate_limited.items():
        out.line(f"Refused by a limit, {count:,} times: {kind}.")
    if found.rate_limited:
        out.line(f"Users waited {report.seconds(found.rate_limited_seconds)} in all because of limits.")
    lag = "" if found.generator.lag_p99_ms is None else f", late by {shown(found.generator.lag_p99_ms)} (p99)"
    out.line(f"The load generator used {found.generator.cpu_share:.0%} of a core{lag}.")
    if found.generator.cpu_share > BUSY_CPU_SHARE:
        out.line("It was too busy: its own delays are in the times. Use fewer users, or several machines.")
    if found.chats.left:
        why = "kept" if is_kept else "not deleted"
        out.line(f"{found.chats.left:,} chats were {why}. They have the label {found.chats.label}.")
    if not found.is_complete:
        out.line("The load was stopped early.")
