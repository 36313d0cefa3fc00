"""The request for a summary. `context_overflow` handles a conversation that is too long for the summarizing model.

The request is the prompt that the next model call would send, followed by an instruction to summarize. The prefix stays
the same, so the provider's cache and stored reasoning stay valid. A model of another provider gets a changed copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import msgspec

from rookery.domain.chat import tool_call_pairing
from rookery.domain.chat.errors import ChatError
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.chat.prompt import tool_output_text
from rookery.domain.chat.truncation import BYTES_PER_TOKEN, cut_text
from rookery.domain.content import attachments

INSTRUCTION = """\
Stop here and write a summary of this conversation. It will replace the conversation: the agent that continues,
most likely you, will know only the system instructions and what you write now. Do not call tools, do not continue the
task, do not address the user.

Cover, in this order, leaving out what is empty:

1. What the user demanded. Quote constraints, preferences and corrections word for word, and say who stated each one:
   the user, a file, or you. Never soften, generalize or merge them, and never turn a guess of yours into a demand.
2. The goal, as it stands now.
3. Decisions that were made, each with its reason.
4. The state of things: paths of files read or changed and what matters about them, commands and how they are run,
   interfaces, names, branches, identifiers, addresses.
5. Errors that occurred: the exact message, its cause, what fixed it. Say what failed in which situation; do not advise
   against a tool as such because one call of it failed.
6. What is done, what is in progress, what remains.
7. The action in flight: what was being done at the very moment this summary was asked for, and its next step.

Be dense: facts, not prose. Do not copy what can be had again (contents of files, outputs of commands); name where it
is. Copy what cannot be had again."""

CUT_SHORT = "\n\n[This summary was cut short; its end is missing.]"

# The number of newest results that are not cut after the summarizing model has refused the whole prompt.
_WHOLE_RESULTS = 10
_OLD_RESULT_BYTES = 2 * 1024
# The estimated size of an image, as in `compaction`.
_MEDIA_BYTES = 1600 * BYTES_PER_TOKEN


class SummaryFailed(ChatError):
    """Raised if the model's answer is not a usable summary. The conversation stays as it is."""


def summary_request(prompt: Prompt, *, hint: str = "") -> Prompt:
    """Return the prompt of a generation with the instruction to summarize at its end."""
    text = f"{INSTRUCTION}\n\n{hint.strip()}" if hint.strip() else INSTRUCTION
    request = PromptMessage(role=Role.USER, parts=(PromptText(text),))
    return Prompt((*prompt.messages, request))


def read_summary(texts: Iterable[str], *, finish_reason: str) -> str:
    """Return the summary in the texts of an answer. Raises `SummaryFailed` if the answer is not usable."""
    if finish_reason == "tool_calls":
        raise SummaryFailed("The model called a tool instead of summarizing the chat.")
    if finish_reason == "content_filter":
        # A refusal has text as well, which must not replace the conversation.
        raise SummaryFailed("The model declined to summarize the chat.")
    summary = "\n\n".join(text.strip() for text in texts if text.strip())
    if not summary:
        raise SummaryFailed("The model returned an empty summary.")
    return summary + CUT_SHORT if finish_reason == "length" else summary


def for_other_provider(prompt: Prompt, *, accepts: Callable[[str], bool]) -> Prompt:
    """Return a copy for a model of another provider, without data that only the chat's provider understands."""
    messages = (_translated(message, accepts) for message in prompt.messages)
    return Prompt(tool_call_pairing.repair(message for message in messages if message.parts))


def _translated(message: PromptMessage, accepts: Callable[[str], bool]) -> PromptMessage:
    parts = tuple(_translated_parts(message, accepts))
    if message.role is not Role.ASSISTANT:
        return msgspec.structs.replace(message, parts=parts)
    return msgspec.structs.replace(message, parts=parts, is_native=False, prefix_fp=None)


def _translated_parts(message: PromptMessage, accepts: Callable[[str], bool]) -> Iterator[PromptPart]:
    is_assistant = message.role is Role.ASSISTANT
    for part in message.parts:
        match part:
            case PromptReasoning():
                continue
            case PromptText(text=text):
                yield PromptText(text)
            case PromptCall(provider_executed=True):
                if is_assistant:
                    yield PromptText(f"[{part.name} was called with {bytes(part.input).decode()}]")
            case PromptResult(provider_executed=True):
                if is_assistant and part.text.strip():
                    yield PromptText(tool_output_text(part.name, part.text))
            case PromptCall():
                yield msgspec.structs.replace(part, meta=None)
            case PromptResult():
                yield msgspec.structs.replace(_without_media(part), meta=None)
            case PromptFile():
                yield part if accepts(part.media_type) else _placeholder(part)


# Prompts that are too long


def without_bulk(prompt: Prompt) -> Prompt:
    """Return the prompt without media and with old tool results cut."""
    results = sum(isinstance(part, PromptResult) for message in prompt.messages for part in message.parts)
    old = max(results - _WHOLE_RESULTS, 0)
    lighter: list[PromptMessage] = []
    for message in prompt.messages:
        parts: list[PromptPart] = []
        for part in message.parts:
            if isinstance(part, PromptFile):
                parts.append(_placeholder(part))
            elif isinstance(part, PromptResult):
                parts.append(_shortened(part) if old > 0 else _without_media(part))
                old -= 1
            else:
                parts.append(part)
        lighter.append(msgspec.structs.replace(message, parts=tuple(parts)))
    return Prompt(tuple(lighter))


def _placeholder(file: PromptFile) -> PromptText:
    return PromptText(attachments.omitted(file.media_type, file.name))


def _without_media(result: PromptResult) -> PromptResult:
    if result.media is None:
        return result
    named = "\n".join(filter(None, (result.text, attachments.omitted(result.media.media_type))))
    return msgspec.structs.replace(result, text=named, media=None)


def _shortened(result: PromptResult) -> PromptResult:
    result = _without_media(result)
    return msgspec.structs.replace(result, text=cut_text(result.text, _OLD_RESULT_BYTES))


def has_media(messages: Iterable[PromptMessage]) -> bool:
    """Return whether these messages have media. The size of media is a guess: a long document counts like an image."""
    return any(_is_media(part) for message in messages for part in message.parts)


def _is_media(part: PromptPart) -> bool:
    match part:
        case PromptFile():
            return not part.media_type.startswith("text/")
        case PromptResult():
            return part.media is not None
        case _:
            return False


def size_bytes(messages: Iterable[PromptMessage]) -> int:
    """Return the approximate size of the messages in a request. Media counts by its estimated tokens."""
    return sum(part_bytes(part) for message in messages for part in message.parts)


def part_bytes(part: PromptPart) -> int:
    match part:
        case PromptText(text=text) | PromptReasoning(text=text):
            return len(text.encode("utf-8", "replace"))
        case PromptCall():
            return len(part.name) + len(bytes(part.input))
        case PromptResult():
            return len(part.text.encode("utf-8", "replace")) + (_MEDIA_BYTES if part.media else 0)
        case PromptFile():
            return len(part.data) if part.media_type.startswith("text/") else _MEDIA_BYTES
