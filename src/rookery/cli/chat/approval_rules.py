"""`rookery chat rules`: the approval rules of the user, of one chat, or of the server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from rookery.cli.chat import chat_actions
from rookery.cli.chat.chat_actions import Terminal
from rookery.cli.exit_codes import Exit, Refused
from rookery.client import ApprovalSettings, Rule

MAX_BYTES = 1024 * 1024

T = TypeVar("T", bound=msgspec.Struct)


def read_file(name: str) -> bytes:
    """Return the new rules; `-` reads them from stdin."""
    try:
        if name == "-":
            data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_BYTES + 1)
        else:
            with Path(name).open("rb") as file:
                data = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise Refused(f"{name} cannot be read: {error.strerror}.", code=Exit.USAGE) from None
    if len(data) > MAX_BYTES:
        raise Refused("These rules are longer than 1 MiB.", code=Exit.USAGE)
    return data


async def rules(at: Terminal, reference: str | None, *, server: bool, given: bytes | None) -> int:
    """Replace the rules if new ones are given, then show them."""
    if server:
        return await _of_server(at, given)
    if reference is None:
        account = at.client.account
        found = await (account.approval_rules() if given is None else account.set_approval_rules(_read_rules(given)))
    else:
        chats, chat_id = at.client.chats, await chat_actions.find_chat(at.client, reference)
        if given is None:
            found = await chats.approval_rules(chat_id)
        else:
            found = await chats.set_approval_rules(chat_id, _read_rules(given))
    _show(at, found)
    at.out.result({"rules": found})
    return Exit.OK


async def _of_server(at: Terminal, given: bytes | None) -> int:
    account = at.client.account
    if given is None:
        found = await account.approval_settings()
    else:
        found = await account.set_approval_settings(_read_settings(given))
    _show(at, found.rules)
    waits = f"closed after {found.timeout_seconds} s" if found.timeout_seconds else "open until they are answered"
    always = "may" if found.allow_always else "may not"
    at.out.line(f"Any other call: {found.default}. Questions are {waits}; users {always} answer them permanently.")
    at.out.result(found)
    return Exit.OK


def _show(at: Terminal, found: tuple[Rule, ...]) -> None:
    if not found:
        at.out.line("There are no rules.")
        return
    rows = [[rule.action, rule.tool, _matched(rule), rule.reason] for rule in found]
    at.out.table(["action", "tool", "match", "reason"], rows)
    for place, rule in enumerate(found, 1):
        if rule.problem:
            counts = "applies to every call of its tool" if rule.action in ("deny", "ask") else "permits nothing"
            at.out.line(f"Rule {place} is not valid, so it {counts}. {rule.problem}")


def _matched(rule: Rule) -> str:
    return ", ".join(f"{path}: {pattern}" for path, pattern in rule.match.items()) or "any arguments"


def _read_rules(given: bytes) -> tuple[Rule, ...]:
    with _told("a list of rules"):
        return tuple(_strictly(each, Rule) for each in msgspec.json.decode(given, type=list[dict[str, Any]]))


def _read_settings(given: bytes) -> ApprovalSettings:
    with _told("an object with `default` and `rules`"):
        found = msgspec.json.decode(given, type=dict[str, Any])
        for rule in msgspec.convert(found.get("rules", []), list[dict[str, Any]]):
            _strictly(rule, Rule)
        return _strictly(found, ApprovalSettings)


def _strictly(value: dict[str, Any], kind: type[T]) -> T:
    """Refuse unknown fields. A misspelled field would widen the rule that it should narrow."""
    if unknown := value.keys() - set(kind.__struct_fields__):
        raise msgspec.ValidationError(f"unknown field `{min(unknown)}`")
    return msgspec.convert(value, kind)


@contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(f"This is not {what} as JSON: {error}.", code=Exit.USAGE) from None
