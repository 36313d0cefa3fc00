"""Generation of short texts about a chat: titles, turn labels, summaries.

Each call asks for a small object, checks the answer by the rules in `domain.chat.titles`, and is bounded in time. A
failing or verbose model is not an error: the caller keeps the old text.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
from pydantic import BaseModel, Field

from rookery.domain.chat import titles
from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.prompt_parts import Prompt, PromptMessage, PromptText
from rookery.llm.generate import ObjectResult, generate_object
from rookery.llm.types import Call, Capabilities, LanguageModel, Purpose, Usage

T = TypeVar("T", bound=BaseModel)

# A model that always reasons spends tokens before it answers.
THINKING_TOKENS = 4096
TITLE_SECONDS, LABEL_SECONDS, SUMMARY_SECONDS = 30.0, 30.0, 60.0
TITLE_TOKENS, LABEL_TOKENS, SUMMARY_TOKENS = 256, 64, 512
TITLE_INPUT, LABEL_INPUT = 6000, 6000
SUMMARY_PER_TURN, SUMMARY_INPUT = 4000, 16_000

TITLE_RULES = (
    "Name the request below in at most eight words, in its own language and in sentence case. Keep identifiers, file "
    "names and product names as they are. Never answer the request and never quote it."
)
LABEL_RULES = (
    "Say in two to five words how the work described below stands now, for example `Login test fixed` or `Waiting for "
    "a decision`. Speak of the work, not of who does it. No full stop."
)
SUMMARY_RULES = (
    "Summarise the conversation below in at most six sentences and a thousand characters, in the third person: what it "
    "is about, what was done, what is open. No lists, no headings."
)


class Title(BaseModel):
    """The name of a chat."""

    title: str = Field(description="At most eight words.")


class Label(BaseModel):
    """How a turn ended."""

    label: str = Field(description="Two to five words.")


class Summary(BaseModel):
    """What a chat is about."""

    summary: str = Field(description="At most six sentences.")


class Quick(msgspec.Struct, frozen=True):
    """A text that passed its check, or None; `usage` is the cost in either case."""

    text: str | None
    usage: Usage


class Build(Protocol):
    """Makes the call. Turns use the same function, with all options of the model's config."""

    def __call__(self, prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call: ...


def plain_call(prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call:
    """Make a call for models without a config."""
    return Call(prompt=prompt, purpose=purpose, max_output_tokens=max_output_tokens)


async def make_title(model: LanguageModel, request: str, *, build: Build = plain_call) -> Quick:
    """Return a title for a chat with this text."""
    text = titles.head_and_tail(request, TITLE_INPUT)
    asking = _Asking(TITLE_RULES, text, purpose=Purpose.TITLE, tokens=TITLE_TOKENS, seconds=TITLE_SECONDS)
    found = await _ask(
        model,
        asking,
        Title,
        build=build,
        from_text=lambda said: Title(title=said) if _is_plain(said) and titles.clean_title(said) else None,
    )
    return Quick(titles.clean_title(found.value.title), found.usage)


async def make_label(
    model: LanguageModel, *, title: str, state: str, last_answer: str, build: Build = plain_call
) -> Quick:
    """Return a label for a turn that ended. Without enough text, the model is not called."""
    if not last_answer.strip():
        return Quick(titles.FINISHED_LABEL, Usage())
    text = f"Title: {title}\nState: {state}\n\n{titles.head_and_tail(last_answer, LABEL_INPUT)}"
    asking = _Asking(LABEL_RULES, text, purpose=Purpose.LABEL, tokens=LABEL_TOKENS, seconds=LABEL_SECONDS)
    found = await _ask(
        model,
        asking,
        Label,
        build=build,
        from_text=lambda said: Label(label=said) if _is_plain(said) and titles.clean_label(said) else None,
    )
    return Quick(titles.clean_label(found.value.label) or titles.FINISHED_LABEL, found.usage)


async def make_summary(model: LanguageModel, turns: list[tuple[str, str]], *, build: Build = plain_call) -> Quick:
    """Return a summary of (speaker, text) pairs; None when it exceeds its bounds, so that the old one stays."""
    # In a thread: a chat may have thousands of turns.
    text = await asyncio.to_thread(titles.transcript, turns, per_turn=SUMMARY_PER_TURN, limit=SUMMARY_INPUT)
    asking = _Asking(SUMMARY_RULES, text, purpose=Purpose.SUMMARY, tokens=SUMMARY_TOKENS, seconds=SUMMARY_SECONDS)
    found = await _ask(
        model,
        asking,
        Summary,
        build=build,
        from_text=lambda said: Summary(summary=said) if _is_plain(said) and titles.clean_summary(said) else None,
    )
    return Quick(titles.clean_summary(found.value.summary), found.usage)


def _is_plain(text: str) -> bool:
    """Return whether an answer is one line of plain text, and not a malformed object."""
    return bool(text) and len(text.splitlines()) == 1 and text[0] not in "{[<`"


class _Asking(msgspec.Struct, frozen=True):
    rules: str
    text: str
    purpose: Purpose
    tokens: int
    seconds: float


async def _ask(
    model: LanguageModel, asking: _Asking, schema: type[T], *, build: Build, from_text: Callable[[str], T | None]
) -> ObjectResult[T]:
    """Ask for the object within the time. Raises what `generate_object` raises, and TimeoutError."""
    caps = model.caps
    effort = _least_effort(caps)
    prompt = Prompt(
        (
            PromptMessage(role=Role.SYSTEM, parts=(PromptText(asking.rules),)),
            PromptMessage(role=Role.USER, parts=(PromptText(asking.text),)),
        )
    )
    tokens = asking.tokens + (THINKING_TOKENS if _thinks(caps, effort) else 0)
    call = build(prompt, purpose=asking.purpose, max_output_tokens=tokens)
    # A config's options for sampling and reasoning are meant for answers; a short text needs neither.
    temperature = 0.0 if caps.sampling else None
    call = msgspec.structs.replace(call, temperature=temperature, top_p=None, top_k=None, effort=effort)
    async with asyncio.timeout(asking.seconds):
        return await generate_object(model, call, schema, from_text=from_text)


def _least_effort(caps: Capabilities) -> Effort | None:
    """Return the lowest effort the model supports, none if possible: short texts need no reasoning."""
    if caps.thinking.disabled or caps.thinking.between_tools:
        return Effort.NONE
    order = list(Effort)
    return min(caps.efforts, key=order.index, default=None)


def _thinks(caps: Capabilities, effort: Effort | None) -> bool:
    """Return whether the model may still reason, which has to fit into the same limit as its answer."""
    return caps.thinking.always_on or (caps.reasoning_model and effort is not Effort.NONE)
