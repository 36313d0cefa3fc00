"""The arguments of `rookery chat`. The code that runs them is imported when it is needed.

These commands are clients. The settings of a server do not apply to them, so they have none of its flags.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from rookery.cli.parser import rare_command

if TYPE_CHECKING:
    from rookery.cli.output import Output

# Runs a coroutine on an event loop, with the log on stderr; returns its exit code.
Run: TypeAlias = "Callable[[Coroutine[Any, Any, int], Output], int]"
Command: TypeAlias = "Callable[[argparse.Namespace, Output], int]"


def add_to(commands: Any, run: Run) -> None:
    summary = "chat with agents of a running server"
    text = "Chat with agents of a running server. Without a command, it opens an input."
    top = commands.add_parser("chat", help=summary, description=text, allow_abbrev=False)
    top.add_argument("--url", help="the server (default: ROOKERY_URL or the last login)")
    top.add_argument("--model", metavar="MODEL", help="the model of new chats")
    _add_new_chat(top)
    top.add_argument("--plain", action="store_true", help="print lines only, for screen readers")
    top.set_defaults(run=_command("talk", run), json=False, lines=False)
    tasks = top.add_subparsers(title="commands", metavar="COMMAND", required=False)

    new = _add(tasks, "new", run, "start a chat with a message and show the answer", lines=True)
    _add_prompt(new)
    new.add_argument("--model", metavar="MODEL", default=argparse.SUPPRESS, help="the model of the chat")
    _add_new_chat(new, default=argparse.SUPPRESS)
    send = _add(tasks, "send", run, "send a message to a chat and show the answer", lines=True)
    _add_chat(send)
    _add_prompt(send)
    _add_files(send, default=argparse.SUPPRESS)
    send.add_argument(
        "--busy",
        choices=("queue", "steer", "interrupt"),
        default="queue",
        help="during a turn: wait for its end (queue, the default), be read at its next step (steer), "
        "or stop it and run next (interrupt)",
    )
    attach = _add(tasks, "attach", run, "show a chat and continue it", lines=True)
    _add_chat(attach)
    attach.add_argument(
        "--tail", type=int, default=10, metavar="N", help="number of messages to show first (default: 10)"
    )
    attach.add_argument("--plain", action="store_true", default=argparse.SUPPRESS, help="print lines only")
    attach.add_argument("--watch", action="store_true", help="only show it, and end with its turn")
    shown = _add(tasks, "list", run, "list your chats, the most recently active first")
    shown.add_argument("query", nargs="?", metavar="QUERY", help="words, or terms such as status:running, folder:Work")
    shown.add_argument("--limit", type=int, default=20, metavar="N", help="number of entries (default: 20)")
    _add(tasks, "models", run, "list the models that you can use")
    _add_chat(_add(tasks, "interrupt", run, "stop the turn of a chat; the answer so far is kept"))
    _add_chat(_add(tasks, "agents", run, "list the subagents of a chat, with their activity and cost"))
    rules = _add(tasks, "rules", run, "show or replace approval rules: yours, a chat's, or the server's")
    whose = rules.add_mutually_exclusive_group()
    whose.add_argument("--chat", metavar="CHAT", help="the rules of this chat and its subagents")
    whose.add_argument("--server", action="store_true", help="the rules of the server; administrators change them")
    rules.add_argument(
        "--set", dest="file", metavar="FILE", help="replace the rules with this JSON file; - reads stdin"
    )
    servers = _add(tasks, "servers", run, "list the MCP servers of a chat's workspace; allow or deny one")
    _add_chat(servers)
    said = servers.add_mutually_exclusive_group()
    said.add_argument("--agree", metavar="SERVER", help="allow it to run with the shown command")
    said.add_argument("--deny", metavar="SERVER", help="deny it")
    said.add_argument(
        "--withdraw", metavar="SERVER", help="withdraw the answer; the server stops, and you are asked again"
    )
    _add_chat(_add(tasks, "export", run, "print a whole chat as Markdown or JSON"))
    login = _add(tasks, "login", run, "log in to a server and store a token for it")
    login.add_argument("server", nargs="?", metavar="URL", help="the server, the same as --url")
    login.add_argument("--user", metavar="NAME", help="email address or username; prompted for if missing")
    how = login.add_mutually_exclusive_group()
    how.add_argument("--token-stdin", action="store_true", help="read an API token from stdin")
    how.add_argument("--password-stdin", action="store_true", help="read the password from stdin; needs --user")
    password = _add(tasks, "password", run, "change your password; all other sessions end")
    password.add_argument(
        "--tokens", choices=("revoke", "keep"), help="whether to revoke your other API tokens; prompted for if missing"
    )
    accesses = _add(tasks, "accesses", run, "show the times when administrators read your chats or reset your password")
    accesses.add_argument("--limit", type=int, default=20, metavar="N", help="number of entries (default: 20)")
    logout = _add(tasks, "logout", run, "log out of a server and revoke its token")
    logout.add_argument("server", nargs="?", metavar="URL", help="the server, the same as --url")
    for name in ("agents", "rules", "servers", "password", "accesses"):
        rare_command(tasks, name)


def _command(name: str, run: Run) -> Command:
    def start(arguments: argparse.Namespace, out: Output) -> int:
        from rookery.cli.chat import commands

        return commands.COMMANDS[name](arguments, out, run)

    return start


def _add(tasks: Any, name: str, run: Run, summary: str, *, lines: bool = False) -> argparse.ArgumentParser:
    """Add a command.

    With `lines`, --json prints each event as one line when it arrives, not one document at the end.
    """
    command: argparse.ArgumentParser = tasks.add_parser(
        name, help=summary, description=_sentence(summary), allow_abbrev=False
    )
    command.set_defaults(run=_command(name, run))
    # Accepted before and after the command. A default here would override the value that is given before it.
    command.add_argument("--url", default=argparse.SUPPRESS, help="the server (default: ROOKERY_URL or the last login)")
    if lines:
        command.add_argument("--json", dest="lines", action="store_true", help="print events as JSON, one per line")
    else:
        command.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    return command


def _add_prompt(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompt", metavar="PROMPT", help="the message; - reads it from stdin")
    command.add_argument("--no-wait", action="store_true", help="do not wait for the answer")


def _add_new_chat(command: argparse.ArgumentParser, **options: Any) -> None:
    """Add the options of a new chat. They may stand before or after the command, so only one of both has a default."""
    command.add_argument("--workspace", metavar="NAME", help="the workspace of the new chat: its name or id", **options)
    command.add_argument("--plan", action="store_true", help="let the agent plan, and change nothing", **options)
    command.add_argument(
        "--mode",
        choices=("ask", "auto", "read-only"),
        metavar="MODE",
        help="ask, auto (follow the rules; default), or read-only",
        **options,
    )
    _add_files(command, **options)


def _add_files(command: argparse.ArgumentParser, **options: Any) -> None:
    command.add_argument(
        "--file", dest="files", action="append", metavar="PATH", help="attach a file; can be repeated", **options
    )


def _add_chat(command: argparse.ArgumentParser) -> None:
    command.add_argument("chat", metavar="CHAT", help="its id, or the first characters of the id")


def _sentence(summary: str) -> str:
    return f"{summary[0].upper()}{summary[1:]}."
