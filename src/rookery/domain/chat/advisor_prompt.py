"""The advisor's prompt: the messages of the agent that asks, without tool calls and cut to size, then the question.

The advisor has no tools, so tool calls and results are converted to text. The open call to the advisor itself is left
out, because it has no result yet.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from rookery.domain.chat import default_prompt
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.content.attachments import cut_utf8

MAX_QUESTION_CHARS = 2000
MAX_SYSTEM_BYTES = 12_000
MAX_MESSAGES = 20
MAX_MESSAGE_BYTES = 12_000
# The limit for the input or the result of one tool call in its note.
MAX_NOTE_BYTES = 2000

INSTRUCTIONS = """\
You advise another agent, not its user. The messages below are the end of that agent's work; the last message is its
question to you.
You have no tools, and nothing that you say happens by itself. Claim no actions.
Begin with a recommendation. Then give the trade-offs that decide it. Then say what would change your mind.
Use at most 400 words unless the question asks for more. If the context is too thin for advice, say so."""


_LEFT_OUT = PromptMessage(role=Role.USER, parts=(PromptText("[The beginning of the conversation is left out.]"),))


def advisor_prompt(snapshot: Prompt, question: str, *, call_id: str) -> Prompt:
    """Return the advisor's prompt. `call_id` is the open call to the advisor; this call is left out.

    `snapshot` is the prompt of the step that called the advisor, with that step's own text and reasoning at its end.
    """
    system = [message for message in snapshot.messages if message.role is Role.SYSTEM]
    others = [message for message in snapshot.messages if message.role is not Role.SYSTEM]
    return Prompt(
        (
            *_kept_system(system),
            _system(INSTRUCTIONS),
            *_kept_others(_as_text(others, call_id=call_id)),
            PromptMessage(role=Role.USER, parts=(PromptText(question),)),
        )
    )


def trimmed_question(question: str) -> str:
    """Return the question without outer spaces, cut to its limit; empty if it is blank."""
    return question.strip()[:MAX_QUESTION_CHARS]


def _kept_system(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Return the newest system messages that fit, in their original order. Messages that are too large are skipped."""
    room, kept = MAX_SYSTEM_BYTES, []
    for message in reversed(messages):
        text = "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText))
        text = text.replace(default_prompt.ADVISOR, "").strip()
        if not text:
            continue
        shortened = _system(text)
        size = _json_bytes(shortened)
        if size <= room:
            room -= size
            kept.append(shortened)
    return kept[::-1]


def _kept_others(messages: Sequence[PromptMessage]) -> list[PromptMessage]:
    """Return the longest run of newest messages that fits.

    It begins with a user message, because the wires require that.
    """
    room = MAX_MESSAGE_BYTES - _json_bytes(_LEFT_OUT)
    kept: list[PromptMessage] = []
    for message in reversed(messages):
        size = _json_bytes(message)
        if size > room or len(kept) == MAX_MESSAGES - 1:
            break
        room -= size
        kept.append(message)
    if kept and kept[-1].role is Role.ASSISTANT:
        kept.append(_LEFT_OUT)
    return kept[::-1]


def _as_text(messages: Sequence[PromptMessage], *, call_id: str) -> list[PromptMessage]:
    """Return the messages with tool calls and results as notes in user messages, and with reasoning as text."""
    calls: dict[str, PromptCall] = {}
    told: list[PromptMessage] = []
    for message in messages:
        texts: list[PromptText] = []
        notes: list[PromptText] = []
        for part in message.parts:
            match part:
                case PromptText(text=text) if text.strip():
                    texts.append(PromptText(text))
                case PromptReasoning(text=text) if text.strip():
                    texts.append(PromptText(f"[reasoning] {text}"))
                case PromptCall():
                    calls[part.id] = part
                case PromptResult(id=result_id) if result_id != call_id:
                    notes.append(PromptText(_note(part, calls.get(result_id))))
                case PromptFile(media_type=media_type, name=name):
                    texts.append(PromptText(f"[file {name or ''} ({media_type})]"))
                case _:
                    continue
        role = Role.ASSISTANT if message.role is Role.ASSISTANT else Role.USER
        if texts:
            told.append(PromptMessage(role=role, parts=tuple(texts)))
        if notes:
            told.append(PromptMessage(role=Role.USER, parts=tuple(notes)))
    return told


def _note(result: PromptResult, call: PromptCall | None) -> str:
    got = _cut(result.text)
    if result.media is not None:
        got = f"{result.media.media_type} {got}".strip()
    failed = " (an error)" if result.is_error else ""
    if call is None:
        return f"[parent used {result.name}, got{failed}: {got}]"
    given = _cut(bytes(call.input).decode("utf-8", "replace"))
    return f"[parent used {result.name}, input {given}, got{failed}: {got}]"


def _cut(text: str) -> str:
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_NOTE_BYTES:
        return text
    return f"{cut_utf8(data, MAX_NOTE_BYTES).decode()} ... ({len(data)} bytes)"


def _system(text: str) -> PromptMessage:
    return PromptMessage(role=Role.SYSTEM, parts=(PromptText(text),))


def _json_bytes(message: PromptMessage) -> int:
    said = [part.text for part in message.parts if isinstance(part, PromptText)]
    return len(msgspec.json.encode({"role": message.role, "content": said}))
