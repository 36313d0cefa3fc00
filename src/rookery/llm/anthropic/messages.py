"""A prompt as the `system` and `messages` of an Anthropic Messages request.

Every block is encoded here, once: its bytes go into the body and into the running hash that tells whether the prefix of
an earlier answer is still the same. Cache marks are not hashed, because they move with every step.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from rookery.chat.messages import Role
from rookery.chat.prompt_parts import (
    Meta,
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.llm.wire import PromptInvalid

Json: TypeAlias = dict[str, Any]

# What a request needs and a chat does not have: a first word of the user, and a last one.
OPENING = "(The conversation starts here.)"
GO_ON = "Continue."

IMAGE_TYPES = ("image/png", "image/jpeg", "image/gif", "image/webp")
_DOCUMENT_TITLE = re.compile(r"[^A-Za-z0-9\-()\[\]]+")

_encoder = msgspec.json.Encoder(decimal_format="number")
# For blocks that come back from the database, which does not keep the order of keys.
_sorted_encoder = msgspec.json.Encoder(decimal_format="number", order="sorted")


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """What goes into the body, and what was found on the way.

    `breaks` counts the answers with thinking whose prefix is not what it was when they were given; `broken_prefix` is
    what the newest answer was given for, if that is no longer its prefix.
    """

    system: list[Raw]
    messages: list[Json]
    prefix_fp: bytes
    breaks: int
    broken_prefix: bytes | None
    has_thinking: bool


Kind: TypeAlias = Literal["plain", "thinking", "call", "result", "server_call", "server_result", "unknown"]


class _Block(msgspec.Struct, frozen=True):
    """One content block. `id` pairs calls and results; `text` is what remains of a result that lost its call."""

    kind: Kind
    json: Json
    id: str = ""
    text: str = ""

    def is_markable(self) -> bool:
        if self.kind in ("thinking", "unknown"):
            return False
        return self.kind != "result" or bool(self.json["content"])


class _Row(msgspec.Struct, frozen=True):
    """A message of the prompt and its blocks. Rows of one side that stand together become one message."""

    message: PromptMessage
    blocks: list[_Block]

    def is_signed(self) -> bool:
        return self.has("thinking")

    def has(self, kind: Kind) -> bool:
        return any(block.kind == kind for block in self.blocks)


class _Turn(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    rows: list[_Row]

    def blocks(self) -> list[_Block]:
        """In sending order: the API wants the results of tools before anything else a user says."""
        found = [block for row in self.rows for block in row.blocks]
        if self.role == "assistant":
            return found
        return sorted(found, key=lambda block: block.kind != "result")


def build(
    prompt: Prompt,
    *,
    seed: Any,
    mark: Mapping[str, str],
    plain: bool = False,
    keep_thinking: bool = True,
) -> Sent:
    """System blocks and messages. `seed` is what else belongs to the prefix: the model and the tools.

    `plain` leaves out reasoning and everything the provider executed itself.
    """
    rows = [
        _Row(message, list(_blocks(message, plain=plain, keep_thinking=keep_thinking)))
        for message in prompt.messages
        if message.role is not Role.SYSTEM
    ]
    repaired = _repair(rows)
    if repaired is None:
        return build(prompt, seed=seed, mark=mark, plain=True)
    turns = _turns(row for row in repaired if row.blocks)
    _check_ends(turns)
    _check_pairs(turns)
    system = _system(prompt)
    hashed = hashlib.blake2b(_encoder.encode([seed, system]), digest_size=16)
    messages, breaks, broken = _encoded(turns, hashed, _marks(turns), mark)
    return Sent(
        system=[_encode(block, mark if block is system[-1] else None) for block in system],
        messages=messages,
        prefix_fp=hashed.digest(),
        breaks=breaks,
        broken_prefix=broken,
        has_thinking=any(row.is_signed() for turn in turns for row in turn.rows),
    )


def _system(prompt: Prompt) -> list[Json]:
    texts = (
        "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText) and part.text.strip())
        for message in prompt.messages
        if message.role is Role.SYSTEM
    )
    return [{"type": "text", "text": text} for text in texts if text]


# Parts to blocks


def _blocks(message: PromptMessage, *, plain: bool, keep_thinking: bool) -> Iterator[_Block]:
    # What the provider executed itself it takes back from any of its models; the rest only the same family does.
    is_faithful = message.is_native and not plain
    for part in message.parts:
        match part:
            case PromptText() | PromptReasoning() if (raw := _raw(part.meta)) is not None:
                if is_faithful:
                    yield _Block("unknown", _stable(raw))
            case PromptText():
                if part.text.strip():
                    yield _Block("plain", {"type": "text", "text": part.text})
            case PromptReasoning():
                if is_faithful and message.is_whole and keep_thinking:
                    yield from _thinking(part)
            case PromptFile():
                if message.role is not Role.ASSISTANT:
                    yield _Block("plain", _file(part))
            case PromptCall() | PromptResult() if part.provider_executed:
                if not plain:
                    yield from _server_block(part)
            case PromptCall():
                block = {"type": "tool_use", "id": part.id, "name": part.name, "input": part.input}
                yield _Block("call", block, part.id)
            case PromptResult():
                yield _Block("result", _result(part), part.id)


def _raw(meta: Meta | None) -> Json | None:
    raw = (meta or {}).get("raw")
    return raw if isinstance(raw, dict) and isinstance(raw.get("type"), str) else None


def _stable(raw: Json) -> Json:
    """A kept block with its keys in a fixed order. Only the outermost level stays open, for the cache mark."""
    return {
        key: raw[key] if isinstance(raw[key], str) else Raw(_sorted_encoder.encode(raw[key])) for key in sorted(raw)
    }


def _thinking(part: PromptReasoning) -> Iterator[_Block]:
    meta = part.meta or {}
    if signature := meta.get("signature"):
        yield _Block("thinking", {"type": "thinking", "thinking": part.text, "signature": signature})
    elif data := meta.get("redacted_data"):
        yield _Block("thinking", {"type": "redacted_thinking", "data": data})


def _server_block(part: PromptCall | PromptResult) -> Iterator[_Block]:
    """From the block that was kept. A result without one has no pair, and becomes text where pairs are repaired."""
    raw = _raw(part.meta) or {}
    kind = str(raw.get("type"))
    if isinstance(part, PromptResult):
        call_id = raw.get("tool_use_id") if kind.endswith("_tool_result") else None
        yield _Block("server_result", _stable(raw), str(call_id or ""), part.text)
    elif kind.endswith("_tool_use") and isinstance(raw.get("input"), dict) and raw.get("id"):
        yield _Block("server_call", _stable(raw), str(raw["id"]))


def _file(file: PromptFile) -> Json:
    media_type = file.media_type.partition(";")[0].strip().lower().replace("image/jpg", "image/jpeg")
    if media_type in IMAGE_TYPES:
        return _image(media_type, _base64(file.data))
    title = _DOCUMENT_TITLE.sub(" ", file.name or "").strip() or "Document"
    if media_type == "application/pdf":
        source = {"type": "base64", "media_type": media_type, "data": _base64(file.data)}
        return {"type": "document", "source": source, "title": title}
    if media_type.startswith("text/"):
        text = file.data.decode("utf-8", "replace")
        return {
            "type": "document",
            "source": {"type": "text", "media_type": "text/plain", "data": text},
            "title": title,
        }
    return {"type": "text", "text": f'<attachment-omitted name="{title}" type="{media_type}"/>'}


def _image(media_type: str, data: str) -> Json:
    return {"type": "image", "source": {"type": "base64", "media_type": media_type, "data": data}}


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _result(part: PromptResult) -> Json:
    block: Json = {"type": "tool_result", "tool_use_id": part.id, "content": _result_content(part)}
    if part.is_error:
        block["is_error"] = True
    return block


def _result_content(part: PromptResult) -> str | list[Json]:
    if not isinstance(part.media, PromptMedia) or part.media.media_type not in IMAGE_TYPES:
        return part.text
    image = _image(part.media.media_type, part.media.data)
    return [image, {"type": "text", "text": part.text}] if part.text.strip() else [image]


# Pairs of the provider's own tools


def _repair(rows: Sequence[_Row]) -> list[_Row] | None:
    """The rows with only valid pairs of provider-executed calls and results.

    None when that would change an answer whose thinking the provider still checks: then all of it has to go.
    """
    answers = [row for row in rows if row.message.role is Role.ASSISTANT]
    valid = _valid_pairs(answers)
    newest = answers[-1] if answers else None
    is_open = newest is not None and _may_stay_open(newest, is_last=newest is rows[-1])
    repaired = []
    for row in rows:
        kept = []
        for block in row.blocks:
            if block.kind == "server_result" and id(block) not in valid:
                if row is newest and row.is_signed():
                    return None
                if block.text.strip():
                    kept.append(_Block("plain", {"type": "text", "text": block.text}))
            elif block.kind != "server_call" or id(block) in valid or (row is newest and is_open):
                kept.append(block)
        repaired.append(_Row(row.message, kept))
    return repaired


def _valid_pairs(answers: Sequence[_Row]) -> set[int]:
    """The identities of the blocks of valid pairs: the result follows its call, at most one answer later."""
    valid: set[int] = set()
    calls: dict[str, tuple[int, _Block]] = {}
    answered: set[str] = set()
    for number, row in enumerate(answers):
        for block in row.blocks:
            if block.kind == "server_call":
                calls.setdefault(block.id, (number, block))
            elif block.kind == "server_result" and block.id in calls and block.id not in answered:
                asked, call = calls[block.id]
                if number - asked <= 1:
                    answered.add(block.id)
                    valid |= {id(call), id(block)}
    return valid


def _may_stay_open(newest: _Row, *, is_last: bool) -> bool:
    """Whether the provider itself will finish a call that has no result yet: it does so in its next response."""
    if not newest.message.is_whole:
        return False
    return newest.has("call") or (is_last and newest.message.finish_reason == "pause")


# Turns


def _turns(rows: Iterable[_Row]) -> list[_Turn]:
    turns: list[_Turn] = []
    for row in rows:
        role: Literal["user", "assistant"] = "assistant" if row.message.role is Role.ASSISTANT else "user"
        last = turns[-1] if turns else None
        # Two answers of which one is signed stay apart: what was signed must come back as it was.
        is_signed = role == "assistant" and (row.is_signed() or (last is not None and last.rows[-1].is_signed()))
        if last is not None and last.role == role and not is_signed:
            last.rows.append(row)
        else:
            turns.append(_Turn(role, [row]))
    return turns


def _check_ends(turns: list[_Turn]) -> None:
    """A request starts with the user and ends with the user, or with an answer that the provider paused."""
    if not turns:
        raise PromptInvalid("The prompt has no message besides system messages.")
    if turns[0].role == "assistant":
        turns.insert(0, _said(OPENING))
    if turns[-1].role == "user":
        return
    last = turns[-1].rows[-1]
    if last.message.finish_reason != "pause":
        raise PromptInvalid("The prompt ends with an answer of the model, and that answer was not paused.")
    if not (last.has("server_call") or last.has("server_result")):
        # Nothing is left of what was paused: an answer at the end would be taken for words put into the model's mouth.
        turns.append(_said(GO_ON))


def _said(text: str) -> _Turn:
    message = PromptMessage(role=Role.USER, parts=(PromptText(text),))
    return _Turn("user", [_Row(message, [_Block("plain", {"type": "text", "text": text})])])


def _check_pairs(turns: Sequence[_Turn]) -> None:
    """Every local call is answered in the message after it, every result answers one, every id is used once."""
    seen: set[str] = set()
    waiting: list[str] = []
    for turn in turns:
        blocks = turn.blocks()
        if turn.role == "assistant":
            calls = [block.id for block in blocks if block.kind == "call"]
            if len(set(calls)) < len(calls) or seen.intersection(calls):
                raise PromptInvalid(f"A call id is used twice among {calls}.")
            seen.update(calls)
            waiting.extend(calls)
            continue
        results = [block.id for block in blocks if block.kind == "result"]
        if sorted(results) != sorted(waiting):
            raise PromptInvalid(f"The calls {waiting} are followed by results of {results}.")
        waiting.clear()
    if waiting:
        raise PromptInvalid(f"No results follow the calls {waiting}.")


# Bytes


def _marks(turns: Sequence[_Turn]) -> set[int]:
    """The identities of the blocks to mark: where this request ends, and where the one before it ended.

    The latter so that the provider finds the cached prefix however many blocks came since.
    """
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    before = [turn for turn in turns[: answers[-1]] if turn.role == "user"] if answers else []
    marked = set()
    for turn in [*before[-1:], turns[-1]]:
        markable = [block for block in turn.blocks() if block.is_markable()]
        marked |= {id(block) for block in markable[-1:]}
    return marked


def _encoded(
    turns: Sequence[_Turn], hashed: hashlib.blake2b, marked: set[int], mark: Mapping[str, str]
) -> tuple[list[Json], int, bytes | None]:
    """The messages as sent, how many signed answers had another prefix when they were given, and the newest's if it
    had."""
    messages: list[Json] = []
    breaks = 0
    broken: bytes | None = None
    for turn in turns:
        content: list[Raw] = []
        messages.append({"role": turn.role, "content": content})
        # Row by row for answers, because each has a prefix of its own.
        is_answer = turn.role == "assistant"
        groups = [(row, row.blocks) for row in turn.rows] if is_answer else [(turn.rows[0], turn.blocks())]
        for row, blocks in groups:
            if is_answer:
                is_broken = row.message.prefix_fp not in (None, hashed.digest())
                broken = row.message.prefix_fp if is_broken and row.message.is_native else None
                breaks += is_broken and row.is_signed()
            for block in blocks:
                plain = _encode(block.json, None)
                hashed.update(turn.role.encode() + bytes(plain))
                content.append(_encode(block.json, mark) if id(block) in marked else plain)
    return messages, breaks, broken


def _encode(block: Json, mark: Mapping[str, str] | None) -> Raw:
    return Raw(_encoder.encode({**block, "cache_control": mark} if mark else block))
