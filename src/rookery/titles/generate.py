"""Generation of short texts about chats: titles, turn labels and summaries.

Each call requests a small object, checks the answer by the rules in `domain.chat.titles`, and has a time limit.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol, TypeVar

import msgspec
from pydantic import BaseModel, Field

from rookery.domain.chat import titles
from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.complete_answers import ObjectResult, generate_object
from rookery.llm.types import Call, Capabilities, LanguageModel, Purpose, Usage

T = TypeVar("T", bound=BaseModel)

# Tokens that are added to the output limit of models that reason before they answer.
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
    "a decision`. Speak of the work, not of who does it. Do not repeat the title. A command that the user denied or "
    "that ended with an error code is not by itself a problem of the work. No full stop."
)
SUMMARY_RULES = (
    "Summarize the conversation below in at most six sentences and a thousand characters, in the third person: what it "
    "is about, what was done, what is open. No lists, no headings."
)


class Title(BaseModel):
    """The name of a chat."""

    title: str = Field(description="At most eight words.")


class Label(BaseModel):
    """The label of a turn: the state of the work at its end."""

    label: str = Field(description="Two to five words.")


class Summary(BaseModel):
    """The summary of a chat."""

    summary: str = Field(description="At most six sentences.")


class ShortText(msgspec.Struct, frozen=True):
    """A generated text; None if the answer failed the check. `usage` is set in both cases."""

    text: str | None
    usage: Usage


class Build(Protocol):
    """Makes the call for a prompt, with the options of the model config."""

    def __call__(self, prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call: ...


def plain_call(prompt: Prompt, *, purpose: Purpose, max_output_tokens: int) -> Call:
    """Return a call without options, for models without a config."""
    return Call(prompt=prompt, purpose=purpose, max_output_tokens=max_output_tokens)


async def make_title(model: LanguageModel, request: str, *, build: Build = plain_call) -> ShortText:
    """Return a title for a chat whose first message is `request`."""
    text = titles.head_and_tail(request, TITLE_INPUT)
    title_request = _TextRequest(TITLE_RULES, text, purpose=Purpose.TITLE, tokens=TITLE_TOKENS, seconds=TITLE_SECONDS)
    found = await _generate(
        model,
        title_request,
        Title,
        build=build,
        from_text=lambda said: Title(title=said) if _is_plain(said) and titles.clean_title(said) else None,
    )
    return ShortText(titles.clean_title(found.value.title), found.usage)


async def make_label(
    model: LanguageModel, *, title: str, state: str, last_answer: str, build: Build = plain_call
) -> ShortText:
    """Return a label for a turn that ended. The model is not called if the last answer is empty."""
    if not last_answer.strip():
        return ShortText(titles.FINISHED_LABEL, Usage())
    text = f"Title: {title}\nState: {state}\n\n{titles.head_and_tail(last_answer, LABEL_INPUT)}"
    request = _TextRequest(LABEL_RULES, text, purpose=Purpose.LABEL, tokens=LABEL_TOKENS, seconds=LABEL_SECONDS)
    found = await _generate(
        model,
        request,
        Label,
        build=build,
        from_text=lambda said: Label(label=said) if _is_plain(said) and titles.clean_label(said) else None,
    )
    return ShortText(titles.clean_label(found.value.label) or titles.FINISHED_LABEL, found.usage)


async def make_summary(model: LanguageModel, turns: list[tuple[str, str]], *, build: Build = plain_call) -> ShortText:
    """Return a summary of (speaker, text) pairs."""
    # This runs in a thread, because a chat may have thousands of turns.
    text = await asyncio.to_thread(titles.transcript, turns, per_turn=SUMMARY_PER_TURN, limit=SUMMARY_INPUT)
    request = _TextRequest(SUMMARY_RULES, text, purpose=Purpose.SUMMARY, tokens=SUMMARY_TOKENS, seconds=SUMMARY_SECONDS)
    found = await _generate(
        model,
        request,
        Summary,
        build=build,
        from_text=lambda said: Summary(summary=said) if _is_plain(said) and titles.clean_summary(said) else None,
    )
    return ShortText(titles.clean_summary(found.value.summary), found.usage)


def _is_plain(text: str) -> bool:
    """Return whether an answer is one line of plain text and not an invalid object."""
    return bool(text) and len(text.splitlines()) == 1 and text[0] not in "{[<`"


class _TextRequest(msgspec.Struct, frozen=True):
    rules: str
    text: str
    purpose: Purpose
    tokens: int
    seconds: float


async def _generate(
    model: LanguageModel, request: _TextRequest, schema: type[T], *, build: Build, from_text: Callable[[str], T | None]
) -> ObjectResult[T]:
    """Generate the object. Raise the errors of `generate_object`, or `TimeoutError`."""
    caps = model.caps
    effort = _least_effort(caps)
    prompt = Prompt(
        (
            PromptMessage(role=Role.SYSTEM, parts=(PromptText(request.rules),)),
            PromptMessage(role=Role.USER, parts=(PromptText(request.text),)),
        )
    )
    tokens = request.tokens + (THINKING_TOKENS if _thinks(caps, effort) else 0)
    call = build(prompt, purpose=request.purpose, max_output_tokens=tokens)
    # The config's options for sampling and reasoning are for answers and are replaced here.
    temperature = 0.0 if caps.sampling else None
    call = msgspec.structs.replace(call, temperature=temperature, top_p=None, top_k=None, effort=effort)
    async with asyncio.timeout(request.seconds):
        return await generate_object(model, call, schema, from_text=from_text)


def _least_effort(caps: Capabilities) -> Effort | None:
    """Return the lowest effort that the model supports, because short texts need no reasoning."""
    if caps.thinking.disabled or caps.thinking.between_tools:
        return Effort.NONE
    order = list(Effort)
    return min(caps.efforts, key=order.index, default=None)


def _thinks(caps: Capabilities, effort: Effort | None) -> bool:
    """Return whether the model may reason, which counts toward the output limit."""
    return caps.thinking.always_on or (caps.reasoning_model and effort is not Effort.NONE)
