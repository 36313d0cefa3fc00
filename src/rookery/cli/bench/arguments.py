"""The arguments of `rookery bench`. The code that runs them is imported when it is needed."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from rookery.cli.parser import rare

if TYPE_CHECKING:
    from rookery.cli.output import Output

# Runs a coroutine on an event loop, with the log on stderr; returns its exit code.
Run: TypeAlias = "Callable[[Coroutine[Any, Any, int], Output], int]"
Command: TypeAlias = "Callable[[argparse.Namespace, Output], int]"


def add_to(commands: Any, run: Run) -> None:
    summary = "measure this machine, or put load on a server"
    text = (
        "Measure what Rookery costs on this machine, next to a bare server that does the least possible. It takes two "
        "minutes, uses its own temporary server and database, and removes both."
    )
    top = commands.add_parser("bench", help=summary, description=text, allow_abbrev=False)
    top.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    top.add_argument("--quick", action="store_true", help="measure for half a minute; the figures are rough")
    top.set_defaults(run=_bench(run))
    tasks = top.add_subparsers(title="commands", metavar="COMMAND", required=False)
    _add_load(tasks, run)


def _add_load(tasks: Any, run: Run) -> None:
    text = (
        "Send the messages of many users to a server, and report how long it takes. The chats are deleted at the end. "
        "The server must have a model that answers; a real one costs money."
    )
    load = tasks.add_parser(
        "load", help="put the load of many users on a running server", description=text, allow_abbrev=False
    )
    load.add_argument("--url", help="the server (default: ROOKERY_URL or the last login)")
    load.add_argument("--users", type=int, required=True, metavar="N", help="number of users at the same time")
    load.add_argument("--minutes", type=float, required=True, metavar="M", help="duration with the ramp, in minutes")
    load.add_argument("--model", metavar="MODEL", help="the model of the chats (default: that of the server)")
    load.add_argument(
        "--think", type=float, default=5.0, metavar="S", help="mean pause before the next message (default: 5 s)"
    )
    load.add_argument("--ramp", type=float, metavar="S", help="seconds until all users are there (default: a tenth)")
    load.add_argument("--tokens", metavar="FILE", help="spread the users over the tokens in this file, one per line")
    load.add_argument("--keep", action="store_true", help="keep the chats")
    load.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document")
    rare(
        load.add_argument(
            "--messages", type=int, default=10, metavar="N", help="messages of a user before a new chat (default: 10)"
        )
    )
    rare(load.add_argument("--text", default="Hello. This is a load test.", help="the text of each message"))
    rare(
        load.add_argument(
            "--timeout", type=float, default=120.0, metavar="S", help="longest wait for an answer (default: 120 s)"
        )
    )
    load.set_defaults(run=_load(run))


def _bench(run: Run) -> Command:
    def start(arguments: argparse.Namespace, out: Output) -> int:
        from rookery.cli.bench import bench
        from rookery.cli.chat.error_messages import failures

        with failures(out) as attempt:
            attempt.code = run(bench.run(out, is_quick=arguments.quick), out)
        return attempt.code

    return start


def _load(run: Run) -> Command:
    def start(arguments: argparse.Namespace, out: Output) -> int:
        from rookery.cli.bench import load_command

        return load_command.start(arguments, out, run)

    return start
