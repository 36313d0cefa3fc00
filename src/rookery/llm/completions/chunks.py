"""Structs for the chunks of Chat Completions servers, with the fields that are used.

Complete answers use the same structs; they have `message` in place of `delta`. All fields are optional, because every
field is missing on some server.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rookery.llm.types import Usage

Json: TypeAlias = Any


class Function(msgspec.Struct):
    """A function call. `arguments` should be JSON text, but some servers send an object."""

    name: str | None = None
    arguments: str | dict[str, Json] | None = None


class CallDelta(msgspec.Struct):
    index: int | None = None
    id: str | None = None
    function: Function | None = None
    extra_content: dict[str, Json] | None = None


class UrlCitation(msgspec.Struct):
    url: str | None = None
    title: str | None = None


class Annotation(msgspec.Struct):
    """A citation. Servers send it nested or flat."""

    url_citation: UrlCitation | None = None
    url: Json = None
    title: Json = None


class ContentPart(msgspec.Struct):
    """An item of content that is a list: text, or thinking, which is itself a list of texts."""

    text: str | None = None
    thinking: list[ContentPart] | str | None = None


class Delta(msgspec.Struct, gc=False):
    content: str | list[ContentPart] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    reasoning_details: list[dict[str, Json]] | None = None
    refusal: str | None = None
    tool_calls: list[CallDelta] | None = None
    function_call: Function | None = None
    annotations: list[Annotation] | None = None
    executed_tools: Json = None  # Groq: tools that the provider ran


class PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None
    cache_write_tokens: int | None = None


class CompletionDetails(msgspec.Struct):
    reasoning_tokens: int | None = None


class ChunkUsage(msgspec.Struct):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: PromptDetails | None = None
    completion_tokens_details: CompletionDetails | None = None
    prompt_cache_hit_tokens: int | None = None
    cache_write_tokens: int | None = None
    num_search_queries: Json = None  # Perplexity
    server_tool_use: Json = None  # OpenRouter


class Choice(msgspec.Struct, gc=False):
    index: int | None = None
    delta: Delta | None = None
    message: Delta | None = None
    finish_reason: str | None = None
    usage: ChunkUsage | None = None


class GroqExtras(msgspec.Struct):
    usage: ChunkUsage | None = None


class Chunk(msgspec.Struct, gc=False):
    """A chunk or a complete answer. An error inside a stream has `error` or `object: "error"`."""

    id: str | None = None
    model: str | None = None
    object: str | None = None
    choices: list[Choice] | None = None
    usage: ChunkUsage | None = None
    x_groq: GroqExtras | None = None
    error: dict[str, Json] | str | None = None
    citations: Json = None  # Perplexity: addresses
    search_results: Json = None  # Perplexity: the same, with titles


chunk_decoder = msgspec.json.Decoder(Chunk)


def usage_of(chunk: Chunk) -> ChunkUsage | None:
    """Return the usage, which is in the chunk, in the choice (Moonshot), or in the extras (Groq)."""
    if chunk.usage is not None:
        return chunk.usage
    if chunk.choices and chunk.choices[0].usage is not None:
        return chunk.choices[0].usage
    return chunk.x_groq.usage if chunk.x_groq is not None else None


def normal_usage(raw: ChunkUsage) -> Usage | None:
    """Return the usage in the common form; None if the server reported only zeros."""
    prompt, completion = raw.prompt_tokens or 0, raw.completion_tokens or 0
    if not prompt and not completion:
        return None
    details = raw.prompt_tokens_details or PromptDetails()
    cached = _first(details.cached_tokens, raw.prompt_cache_hit_tokens)
    written = _first(details.cache_write_tokens, raw.cache_write_tokens)
    reasoning = raw.completion_tokens_details.reasoning_tokens if raw.completion_tokens_details else None
    total = raw.total_tokens or prompt + completion
    if reasoning and total == prompt + completion + reasoning:
        # xAI counts reasoning in addition to the completion. All other servers include it.
        completion += reasoning
    return Usage(
        input=max(0, prompt - (cached or 0) - (written or 0)),
        cache_read=cached,
        cache_write=written,
        output=completion,
        reasoning=reasoning,
        total=total,
        context_tokens=prompt,
    )


def reported_searches(raw: ChunkUsage) -> int | None:
    """Return the number of web searches that the server reports."""
    tools = raw.server_tool_use if isinstance(raw.server_tool_use, dict) else {}
    reported = _first(raw.num_search_queries, tools.get("web_search_requests"))
    return reported if isinstance(reported, int) and reported > 0 else None


def found_sources(*lists: Json) -> list[tuple[str, str | None]]:
    """Return (URL, title) pairs from lists of texts or objects. Other items are ignored."""
    found: list[tuple[str, str | None]] = []
    for each in lists:
        for item in each if isinstance(each, list) else ():
            fields = item if isinstance(item, dict) else {"url": item}
            url, title = fields.get("url"), fields.get("title")
            if isinstance(url, str) and url:
                found.append((url, title if isinstance(title, str) else None))
    return found


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)
