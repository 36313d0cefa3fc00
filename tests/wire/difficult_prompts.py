"""Small prompts that every wire must be able to send: difficult cases of real chats.

    for name, call in calls("anthropic").items(): ...

Provider metadata (`meta`) differs by wire, so a prompt is made for one wire. All prompts have the form that
`chat.prompt` gives them: repaired pairs, foreign parts as text, system messages first.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any, TypeAlias

from msgspec import Raw

from rookery.domain.chat.messages import Effort, Role
from rookery.domain.chat.model_prompt import (
    Meta,
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.types import Call, JsonFormat, Tool, WebSearch

Json: TypeAlias = Any

# The smallest image: one transparent pixel.
PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5ErkJggg=="
)
PDF = b"%PDF-1.4\n%%EOF\n"

READ = Tool(
    name="read_file",
    description="Read a file of the workspace.",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]},
)
LIST = Tool(name="list_chats", description="List the chats.", input_schema={"type": "object"})
SEARCH = WebSearch(allowed_domains=("example.org",), max_uses=3)

# The metadata that each wire stores with reasoning for a replay.
REASONING_META: Mapping[str, Meta] = {
    "anthropic": {"signature": "c2lnbmF0dXJl"},
    "responses": {
        "item_id": "rs_1",
        "encrypted_content": "ZW5jcnlwdGVk",
        "summary": [{"type": "summary_text", "text": "I should look at the file first."}],
    },
    "completions": {"reasoning_field": "reasoning_content"},
}
CALL_META: Mapping[str, Meta | None] = {
    "anthropic": None,
    "responses": {"item_id": "fc_1"},
    "completions": None,
}
TEXT_META: Mapping[str, Meta | None] = {
    "anthropic": None,
    "responses": {"item_id": "msg_1", "phase": "commentary"},
    "completions": None,
}
# A provider's own search: its call and its result on the wire.
SEARCH_META: Mapping[str, tuple[Meta, Meta]] = {
    "anthropic": (
        {
            "raw": {
                "type": "server_tool_use",
                "id": "srvtoolu_1",
                "name": "web_search",
                "input": {"query": "rooks"},
            }
        },
        {
            "raw": {
                "type": "web_search_tool_result",
                "tool_use_id": "srvtoolu_1",
                "content": [
                    {
                        "type": "web_search_result",
                        "url": "https://example.org/rooks",
                        "title": "Rooks",
                        "encrypted_content": "ZW5jcnlwdGVk",
                        "page_age": "2 days ago",
                    }
                ],
            }
        },
    ),
    "responses": (
        {
            "item_id": "ws_1",
            "raw": {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "rooks", "queries": ["rooks"]},
            },
        },
        {
            "raw": {
                "type": "web_search_call",
                "id": "ws_1",
                "status": "completed",
                "action": {"type": "search", "query": "rooks", "queries": ["rooks"]},
            }
        },
    ),
    "completions": ({}, {}),
}


def system(text: str) -> PromptMessage:
    return PromptMessage(role=Role.SYSTEM, parts=(PromptText(text),))


def user(*parts: PromptPart | str) -> PromptMessage:
    return PromptMessage(role=Role.USER, parts=_parts(parts))


def assistant(*parts: PromptPart | str, **fields: Json) -> PromptMessage:
    return PromptMessage(role=Role.ASSISTANT, parts=_parts(parts), **fields)


def tool(*parts: PromptPart) -> PromptMessage:
    return PromptMessage(role=Role.TOOL, parts=parts)


def call(call_id: str, name: str = "read_file", input: str = '{"path": "README.md"}', **fields: Json) -> PromptCall:
    return PromptCall(call_id, name, Raw(input), **fields)


def result(call_id: str, text: str = "# Rookery", *, name: str = "read_file", **fields: Json) -> PromptResult:
    return PromptResult(call_id, name, text, **fields)


def image(media_type: str = "image/png") -> PromptMedia:
    return PromptMedia(media_type, base64.b64encode(PNG).decode())


def searched(wire: str) -> tuple[PromptCall, PromptResult]:
    """Return a finished search that the provider executed."""
    call_meta, result_meta = SEARCH_META[wire]
    started = PromptCall("srvtoolu_1", "web_search", Raw('{"query": "rooks"}'), True, call_meta)
    found = PromptResult(
        "srvtoolu_1", "web_search", "Rooks https://example.org/rooks", provider_executed=True, meta=result_meta
    )
    return started, found


def prompts(wire: str) -> dict[str, Prompt]:
    """Return every prompt by name, with the metadata of this wire."""
    brief = system("Be brief.")
    thought = PromptReasoning("I should look at the file first.", REASONING_META[wire])
    first = call("call_1", meta=CALL_META[wire])
    said = PromptText("I will look.", TEXT_META[wire])
    return {
        "text chat": Prompt((brief, user("Hello."), assistant("Hi, what can I do?"), user("Nothing."))),
        "several system messages": Prompt((brief, system("You work in /home."), user("Where are you?"))),
        "files": Prompt(
            (
                user(
                    "What is in these?",
                    PromptFile("image/png", PNG, "dot.png"),
                    PromptFile("application/pdf", PDF, "Report (final)_v2.pdf"),
                ),
            )
        ),
        "tools": Prompt((brief, user("Read it."), assistant(said, first), tool(result("call_1")))),
        "tool error": Prompt(
            (user("Read it."), assistant(first), tool(result("call_1", '{"error":"no such file"}', is_error=True)))
        ),
        "parallel tools with image results": Prompt(
            (
                user("Look at both."),
                assistant(first, call("call_2", "read_file", '{"path": "dot.png"}')),
                tool(result("call_1")),
                tool(result("call_2", "dot.png", media=image())),
                user("And tell me what you see."),
            )
        ),
        "image result without text": Prompt(
            (user("Look."), assistant(first), tool(result("call_1", "", media=image())))
        ),
        "thinking": Prompt(
            (
                brief,
                user("Read it."),
                assistant(thought, said, first),
                tool(result("call_1")),
                assistant("It is the readme."),
                user("Thanks."),
            )
        ),
        "thinking before open calls": Prompt(
            (brief, user("Read it."), assistant(thought, first), tool(result("call_1")))
        ),
        "provider tools": Prompt(
            (user("What are rooks?"), assistant(thought, *searched(wire), "They are birds."), user("Thanks."))
        ),
        "interrupted": Prompt(
            (
                user("Read it."),
                assistant(PromptReasoning("I should"), "Let me", first, is_whole=False, finish_reason="interrupted"),
                tool(result("call_1", '{"error":"interrupted before this call finished"}', is_error=True)),
                user("Go on."),
            )
        ),
        "foreign rows": Prompt(
            (
                user("What are rooks?"),
                assistant("Rooks https://example.org/rooks", "They are birds.", is_native=False),
                user("Read it."),
                assistant(call("call_1"), is_native=False),
                tool(result("call_1")),
                user("And?"),
            )
        ),
        "text that needs escapes": Prompt((user('quotes " and \\ and \u2028 and \U0001f426 and \x00'),)),
    }


def calls(wire: str) -> dict[str, Call]:
    """Return every prompt as a call with tools, and calls that are special for another reason than their prompt."""
    made = {name: Call(prompt=prompt, tools=(READ, LIST)) for name, prompt in prompts(wire).items()}
    plain = prompts(wire)["text chat"]
    return made | {
        "no tools": Call(prompt=plain),
        "no tool may be used": Call(prompt=plain, tools=(READ,), tool_choice="none"),
        "some tool must be used": Call(prompt=plain, tools=(READ,), tool_choice="required"),
        "this tool must be used": Call(prompt=plain, tools=(READ,), tool_choice="read_file"),
        "web search": Call(prompt=plain, tools=(READ,), web_search=SEARCH),
        "effort": Call(prompt=plain, effort=Effort.HIGH),
        "no effort": Call(prompt=plain, effort=Effort.NONE),
        "sampling": Call(prompt=plain, temperature=0.5, top_p=0.9, top_k=40, presence_penalty=0.1),
        "json": Call(
            prompt=plain,
            format=JsonFormat("title", {"type": "object", "properties": {}, "additionalProperties": False}),
        ),
        "plain history": Call(prompt=prompts(wire)["provider tools"], plain_history=True),
        "stale thinking": Call(prompt=prompts(wire)["thinking"], drop_stale_thinking=True),
    }


def _parts(parts: tuple[PromptPart | str, ...]) -> tuple[PromptPart, ...]:
    return tuple(PromptText(part) if isinstance(part, str) else part for part in parts)
