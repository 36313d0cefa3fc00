"""`rookery chat export`: a whole chat as Markdown for users, or as JSON for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from uuid import UUID

import msgspec

from rookery.cli.chat import chat_actions
from rookery.cli.chat.chat_actions import Terminal
from rookery.cli.exit_codes import Exit
from rookery.client import Chat, Message, Part

PAGE = 200


async def export(at: Terminal, reference: str) -> int:
    """Print a chat with all its messages."""
    chat_id: UUID = await chat_actions.find_chat(at.client, reference)
    found = await at.client.chats.get(chat_id)
    messages = [message async for message in at.client.messages.iterate(chat_id, page_size=PAGE)]
    # The text is escaped, because control sequences in tool output must not take effect on a terminal.
    at.screen.text(markdown(found, messages))
    at.out.result({"chat": found, "messages": messages})
    return Exit.OK


def markdown(found: Chat, messages: Sequence[Message]) -> str:
    """Return Markdown: headings by speaker; tool calls with their arguments and results as code."""
    blocks = [f"# {found.title}"]
    speaker = ""
    for message in messages:
        # Tool results belong to the assistant that called the tools.
        who = "User" if message.role == "user" else "Assistant" if message.role in ("assistant", "tool") else "System"
        if who != speaker:
            blocks.append(f"## {who}")
            speaker = who
        blocks.extend(block for part in message.content for block in _blocks(part))
    return "\n\n".join(blocks) + "\n"


def _blocks(part: Part) -> Iterator[str]:
    match part.type:
        case "text":
            yield part.text or ""
        case "tool-call":
            yield f"`{part.tool_name}`\n\n{_code(part.args)}"
        case "tool-result":
            verb = "failed" if part.is_error else "answered"
            yield f"`{part.tool_name}` {verb}:\n\n{_code(part.result)}"
        case "file":
            yield f"[file: {part.name or 'without a name'}]"
        case "file-reference":
            where = f"`{part.file_name}`, lines {part.start_line} to {part.end_line}"
            yield f"{where}:\n\n{_fenced(part.content or '', '')}"
        case "source":
            yield f"Source: [{part.title or part.url}]({part.url})"


def _code(value: object) -> str:
    return _fenced(msgspec.json.format(msgspec.json.encode(value), indent=2).decode(), "json")


def _fenced(text: str, language: str) -> str:
    """Return a fence that is longer than any fence in the text, so that quoted text cannot end it."""
    longest = max((len(run) for run in _runs_of_backticks(text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}{language}\n{text}\n{fence}"


def _runs_of_backticks(text: str) -> Iterator[str]:
    run = ""
    for character in f"{text} ":
        if character == "`":
            run += character
        elif run:
            yield run
            run = ""
