"""Approval of tool calls at the terminal: the open questions of a chat, their text, and the parsing of answers."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from rookery.client import ApprovalAnswer, AsyncRookery, Chat, RookeryError
from rookery.client.models import ActionCall

APPROVAL = "approval"
HOW = "y: yes; n: no, with an optional reason (n not today); a: always in this chat"
# Chosen: enough to understand a command. The rest is in the chat.
MAX_LINES = 40

ReadLine = Callable[[str], str]


class Undecided(Exception):
    """Raised when the user does not answer. The question stays open."""


class Asked(msgspec.Struct, frozen=True):
    """The open questions of one chat. `title` is set for a subagent, whose questions have not been shown yet."""

    chat_id: UUID
    calls: tuple[ActionCall, ...]
    title: str | None = None


async def find_questions(client: AsyncRookery, chat_id: UUID) -> list[Asked]:
    """Return the questions of the chat and of its subagents."""
    root = await client.chats.get(chat_id)
    own = [Asked(root.id, root.action.tool_calls)] if root.action and root.action.kind == APPROVAL else []
    return [*own, *await _of_children(client, root.children)]


async def wait_for_subagent_questions(
    client: AsyncRookery, chat_id: UUID, *, on_rest: Callable[[UUID], Awaitable[None]]
) -> list[Asked]:
    """Wait for questions of subagents. Return an empty list if the chat list cannot be watched.

    Call `on_rest` with each subagent that comes to rest, more than once if it changes afterwards.
    """
    try:
        async with client.chats.watch() as watch:
            async for event in watch:
                child = event.chat
                if child is not None and child.root_chat_id == chat_id and child.status in ("waiting", "error"):
                    await on_rest(child.id)
                is_about_us = event.chat is None or (
                    event.chat.root_chat_id == chat_id and event.chat.needs_user == APPROVAL
                )
                if is_about_us and event.type != "disconnected":
                    found = await _of_children(client, (await client.chats.get(chat_id)).children)
                    if found:
                        return found
    except RookeryError:
        pass
    return []


async def _of_children(client: AsyncRookery, children: Sequence[Chat]) -> list[Asked]:
    found = []
    for child in children:
        if child.needs_user == APPROVAL:
            action = (await client.chats.get(child.id)).action
            # The question may have been answered between the two reads.
            if action is not None and action.kind == APPROVAL:
                found.append(Asked(child.id, action.tool_calls, child.title))
    return found


def question_lines(calls: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the lines of a question from a stream event: every call with its exact arguments."""
    for call in calls:
        yield f"Asked to run {_visible(call['tool_name'])}:"
        shown = [line for name, value in _arguments(call["args"]) for line in _lines(name, value)]
        yield from shown[:MAX_LINES]
        if len(shown) > MAX_LINES:
            yield f"  ... {len(shown) - MAX_LINES} more lines; the chat shows all of them"


def subagent_question_lines(title: str, calls: Sequence[ActionCall]) -> Iterator[str]:
    """Yield the lines of a subagent's question, with its title."""
    yield f"A subagent ({_visible(title)}) waits for an answer."
    yield from question_lines([{"tool_name": call.tool_name, "args": call.args} for call in calls])


def ask(calls: Sequence[ActionCall], read_line: ReadLine) -> list[ApprovalAnswer]:
    """Return one answer for each call, in their order."""
    return [_ask(call, read_line) for call in calls]


def _ask(call: ActionCall, read_line: ReadLine) -> ApprovalAnswer:
    prompt = f"Run {_visible(call.tool_name)}? [y/n/a] "
    while True:
        try:
            line = read_line(prompt).strip()
        except (EOFError, KeyboardInterrupt):
            raise Undecided from None
        word, _, reason = line.partition(" ")
        match word.lower():
            case "y" | "yes":
                return ApprovalAnswer(tool_call_id=call.tool_call_id, decision="approve")
            case "n" | "no":
                return ApprovalAnswer(tool_call_id=call.tool_call_id, decision="deny", reason=reason.strip())
            case "a" | "always":
                return ApprovalAnswer(tool_call_id=call.tool_call_id, decision="approve", always="chat")
        prompt = f"{HOW}. Run {_visible(call.tool_name)}? [y/n/a] "


def _arguments(args: object) -> Iterator[tuple[str, object]]:
    if isinstance(args, Mapping):
        yield from ((str(name), value) for name, value in args.items())
    else:
        yield "arguments", args


def _lines(name: str, value: object) -> Iterator[str]:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    first, *rest = text.split("\n")
    yield f"  {_visible(name)}: {_visible(first)}"
    yield from (f"    {_visible(line)}" for line in rest)


def _visible(text: str) -> str:
    """Escape control and format characters, which could hide or reorder the displayed text of a tool call."""
    return "".join(_written(each) if unicodedata.category(each) in ("Cf", "Cc", "Zl", "Zp") else each for each in text)


def _written(character: str) -> str:
    return f"\\u{ord(character):04x}"
