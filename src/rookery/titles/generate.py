"""Short texts about a chat, made by a model: titles, turn labels, summaries.

Each asks for a small object, checks the answer by the rules in `chat.titles`, and is bounded in time. A model that
fails or babbles is not an event: the caller keeps what it had.
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

# A model that always thinks spends tokens before it answers.
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
    """A text that passed its check, or None; `usage` is what it cost either way."""

    text: str | None
    usage: Usage


class Build(Protocol):
    """Makes the call: the one function that makes those of turns, with everything the model's config says."""

    def __call__(self, prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call: ...


def plain_call(prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call:
    """For models without a config."""
    return Call(prompt=prompt, purpose=purpose, max_output_tokens=max_output_tokens)


async def make_title(model: LanguageModel, request: str, *, build: Build = plain_call) -> Quick:
    """A title for a chat that starts, or goes on, like this."""
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
    """A label for a turn that ended. Without any text to speak of, the model is not asked."""
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
    """A summary of (who, what) pairs; None when it does not keep to its bounds, and the old one stays."""
    # Beside the event loop: a chat may have thousands of turns.
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
    """Whether an answer is one line of words, and not something that was meant to be an object."""
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
    """Ask for the object within the time; raises what `generate_object` raises, and TimeoutError."""
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
    # What a config says about wording and thinking is meant for answers; a short text needs neither.
    temperature = 0.0 if caps.sampling else None
    call = msgspec.structs.replace(call, temperature=temperature, top_p=None, top_k=None, effort=effort)
    async with asyncio.timeout(asking.seconds):
        return await generate_object(model, call, schema, from_text=from_text)


def _least_effort(caps: Capabilities) -> Effort | None:
    """Short texts need no thought: none where that can be had, else the lowest effort the model knows."""
    if caps.thinking.disabled or caps.thinking.between_tools:
        return Effort.NONE
    order = list(Effort)
    return min(caps.efforts, key=order.index, default=None)


def _thinks(caps: Capabilities, effort: Effort | None) -> bool:
    """Whether the model may think all the same, which has to fit into the same limit as its answer."""
    return caps.thinking.always_on or (caps.reasoning_model and effort is not Effort.NONE)
