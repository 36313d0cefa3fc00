"""Approval of tool calls at the terminal: the open questions of a chat, their text, and the parsing of answers."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any
from uuid import UUID

import msgspec

from rookery.client import ApprovalAnswer, AsyncRookery, Chat, RookeryError
from rookery.client.models import ActionCall, Elicitation, FormField

APPROVAL = "approval"
HOW = "y: yes; n: no, with an optional reason (n not today); a: always in this chat"
HOW_ON_HOLD = "y: continue; n: not this call, with what to do instead (n use make test). /stop ends the turn"
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


class FamilyChange(msgspec.Struct, frozen=True):
    """A change of a chat in the list of chats, or of the open questions of its subagents; None if unchanged."""

    chat: Chat | None = None
    questions: list[Asked] | None = None


async def watch_family(client: AsyncRookery, chat_id: UUID) -> AsyncIterator[FamilyChange]:
    """Yield the chat and the open questions of its subagents, whenever they may have changed."""
    waiting: set[UUID] = set()
    async with client.chats.watch() as watch:
        async for event in watch:
            changed = event.chat
            if changed is not None and changed.id == chat_id:
                yield FamilyChange(chat=changed)
            is_about_children = changed is None or (
                changed.root_chat_id == chat_id and (changed.needs_user == APPROVAL or changed.id in waiting)
            )
            if is_about_children and event.type != "disconnected":
                root = await client.chats.get(chat_id)
                found = await _of_children(client, root.children)
                waiting = {each.chat_id for each in found}
                yield FamilyChange(root, found)


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
        if call.get("brake"):
            yield _visible(call["brake"])
        if call.get("elicitation"):
            yield from elicitation_lines(msgspec.convert(call["elicitation"], Elicitation))


def subagent_question_lines(title: str, calls: Sequence[ActionCall]) -> Iterator[str]:
    """Yield the lines of a subagent's question, with its title."""
    yield f"A subagent ({_visible(title)}) waits for an answer."
    for call in calls:
        shown = {"tool_name": call.tool_name, "args": call.args, "brake": call.brake}
        if call.elicitation is not None:
            shown["elicitation"] = msgspec.to_builtins(call.elicitation)
        yield from question_lines([shown])


def elicitation_lines(asked: Elicitation) -> Iterator[str]:
    """Yield the questions of an MCP server: their text, and the address to open."""
    for question in asked.questions:
        yield from _lines(f"{asked.server} asks", question.message)
        if question.url:
            yield f"  Open this address, and come back: {_visible(question.url)}"


def ask(calls: Sequence[ActionCall], read_line: ReadLine) -> list[ApprovalAnswer]:
    """Return one answer for each call, in their order."""
    return [_ask(call, read_line) for call in calls]


def _ask_server_question(call: ActionCall, asked: Elicitation, read_line: ReadLine) -> ApprovalAnswer:
    """Read the values of a server's form, field by field. `n` at the first question declines."""
    try:
        word, _, reason = read_line(f"Answer {_visible(asked.server)}? [y/n] ").strip().partition(" ")
        if word.lower() in ("n", "no"):
            return ApprovalAnswer(tool_call_id=call.tool_call_id, decision="deny", reason=reason.strip())
        responses = {
            question.id: {
                field.name: value for field in question.fields if (value := _read_field(field, read_line)) is not None
            }
            for question in asked.questions
            if question.fields
        }
    except (EOFError, KeyboardInterrupt):
        raise Undecided from None
    return ApprovalAnswer(tool_call_id=call.tool_call_id, decision="approve", responses=responses)


def _read_field(field: FormField, read_line: ReadLine) -> Any:
    """Return the value that the user types for a field; None for the default, or to leave it out."""
    while True:
        line = read_line(_field_prompt(field)).strip()
        if not line:
            if not field.required or field.default is not None:
                return None
            continue
        value = field_value(field, line)
        if value is not None:
            return value


def field_value(field: FormField, text: str) -> Any:
    """Return the value of a form field that the typed text stands for; None if the text is not valid for the field."""
    match field.kind:
        case "boolean":
            return {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(text.lower())
        case "number" | "integer":
            try:
                return int(text) if field.kind == "integer" else float(text)
            except ValueError:
                return None
        case "choice":
            return _option(field, text)
        case "choices":
            chosen = [_option(field, each.strip()) for each in text.split(",") if each.strip()]
            return None if None in chosen else chosen
        case _:
            return text


def form_hint(asked: Elicitation) -> str:
    """Return how a form is answered in one line."""
    names = [_visible(field.name) for question in asked.questions for field in question.fields]
    if not names:
        return "done"
    return f"y {names[0]}" if len(names) == 1 else "y " + "; ".join(f"{name}=..." for name in names)


def typed_responses(asked: Elicitation, text: str) -> dict[str, dict[str, Any]]:
    """Return the values in one line: `NAME=VALUE; NAME=VALUE`, or only the value if there is one field."""
    fields = [(question.id, field) for question in asked.questions for field in question.fields]
    responses: dict[str, dict[str, Any]] = {question.id: {} for question in asked.questions if question.fields}
    if len(fields) == 1:
        values = {fields[0][1].name: text.strip()}
    else:
        pairs = (each.partition("=") for each in text.split(";") if "=" in each)
        values = {name.strip(): value.strip() for name, _, value in pairs}
    for question_id, field in fields:
        if field.name in values and (value := field_value(field, values[field.name])) is not None:
            responses[question_id][field.name] = value
    return responses


def _option(field: FormField, text: str) -> str | None:
    """Return the option with this number, value or title."""
    if text.isascii() and text.isdigit() and 0 < int(text) <= len(field.options):
        return field.options[int(text) - 1].value
    found = (each.value for each in field.options if text.casefold() in (each.value.casefold(), each.title.casefold()))
    return next(found, None)


def _field_prompt(field: FormField) -> str:
    lines = [_visible(field.description)] if field.description else []
    lines += [f"  {place}. {_visible(each.title or each.value)}" for place, each in enumerate(field.options, start=1)]
    hints = {"boolean": " [y/n]", "choices": " (numbers, with commas between)", "choice": " (a number)"}
    default = "" if field.default is None else f" [{_visible(str(field.default))}]"
    name = _visible(field.title or field.name)
    return "\n".join([*lines, f"{name}{hints.get(field.kind, '')}{default}: "])


def _ask(call: ActionCall, read_line: ReadLine) -> ApprovalAnswer:
    if call.elicitation is not None:
        return _ask_server_question(call, call.elicitation, read_line)
    is_on_hold = call.brake is not None
    name = _visible(call.tool_name)
    question = f"Continue with {name}? [y/n] " if is_on_hold else f"Run {name}? [y/n/a] "
    prompt = question
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
            case "a" | "always" if not is_on_hold:
                return ApprovalAnswer(tool_call_id=call.tool_call_id, decision="approve", always="chat")
        prompt = f"{HOW_ON_HOLD if is_on_hold else HOW}. {question}"


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
