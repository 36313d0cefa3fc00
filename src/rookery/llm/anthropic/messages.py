"""The fields `system` and `messages` of an Anthropic Messages request, made from a prompt.

Every block is encoded once. Its bytes go into the body and into a running hash, which shows whether the prefix of an
earlier answer is unchanged. Cache marks are not hashed, because they move with every step. The encoded messages that no
later message can change are cached for the next request of the chat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import Prompt, PromptMessage, PromptText
from rookery.llm.anthropic.blocks import Block, Kind, blocks_of
from rookery.llm.chat_caches import EncodedRequest
from rookery.llm.wire import PromptInvalid

Json: TypeAlias = dict[str, Any]

# Texts of user messages that are inserted if the request would begin or end with an answer.
OPENING = "(The conversation starts here.)"
GO_ON = "Continue."
# The estimated memory of a message besides its bytes.
_OBJECT_BYTES = 500

_encoder = msgspec.json.Encoder(decimal_format="number")


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The encoded system blocks and messages, and facts about their prefixes.

    The prefix of an answer is everything that was sent before it. `breaks` is the number of answers with thinking whose
    prefix has changed. `broken_prefix` is the prefix hash of the newest answer if its prefix has changed.
    """

    system: list[Raw]
    messages: list[Json]
    prefix_fp: bytes
    breaks: int
    broken_prefix: bytes | None
    has_thinking: bool


class _Row(msgspec.Struct, frozen=True):
    """A message of the prompt and its blocks.

    `index` is its index among the messages of the conversation; -1 for an inserted message (`OPENING`, `GO_ON`).
    """

    message: PromptMessage
    blocks: list[Block]
    index: int = -1

    def is_signed(self) -> bool:
        return self.has("thinking")

    def has(self, kind: Kind) -> bool:
        return any(block.kind == kind for block in self.blocks)

    def is_always_sent(self) -> bool:
        """Return whether at least one block is always sent.

        Blocks of provider-executed calls and results may be left out, depending on later messages.
        """
        return any(block.kind not in ("server_call", "server_result") for block in self.blocks)


class _MessageGroup(msgspec.Struct, frozen=True):
    """Adjacent rows of one role, which are sent as one message. An answer with signed thinking is always alone."""

    role: Literal["user", "assistant"]
    rows: list[_Row]

    def blocks(self) -> list[Block]:
        """Return the blocks in the order of the request. The API requires tool results before other user content."""
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
    previous: EncodedRequest | None = None,
) -> Sent:
    """Return the system blocks and messages. `seed` is the rest of the prefix: the model and the tools.

    With `plain`, reasoning and provider-executed calls and results are left out.
    """
    system, conversation = _split_system(prompt)
    head, variant = _encoder.encode([seed, system]), (plain, keep_thinking)
    cached: _CachedPrefix | None = None if previous is None else previous.written.pop(variant, None)
    if cached is None or not cached.is_prefix_of(head, conversation):
        cached = _CachedPrefix(head)
    rows, groups = _read(conversation, cached, plain=plain, keep_thinking=keep_thinking)
    if cached.count and groups is not None and not _contains_marks(groups):
        cached = _CachedPrefix(head)
        rows, groups = _read(conversation, cached, plain=plain, keep_thinking=keep_thinking)
    if groups is None:
        return build(prompt, seed=seed, mark=mark, plain=True, previous=previous)
    _check_ends(groups, is_start=not cached.count)
    _check_pairs(groups, cached.call_ids)
    marked = _marks(groups)
    border = _find_border(groups)
    cached.extend(conversation, rows, groups, border=border)
    if previous is not None:
        previous.written[variant] = cached
    last = cached.written.copy()
    last.add(groups[border:], marked, mark)
    return Sent(
        system=[_encode(block, mark if block is system[-1] else None) for block in system],
        messages=last.messages,
        prefix_fp=last.hash.digest(),
        breaks=last.breaks,
        broken_prefix=last.broken,
        has_thinking=last.has_thinking,
    )


def _split_system(prompt: Prompt) -> tuple[list[Json], tuple[PromptMessage, ...]]:
    """Return the system blocks and the messages of the conversation."""
    messages = prompt.messages
    system = [message for message in messages if message.role is Role.SYSTEM]
    conversation = messages[len(system) :]
    if list(messages[: len(system)]) != system:
        conversation = tuple(message for message in messages if message.role is not Role.SYSTEM)
    texts = (
        "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText) and part.text.strip())
        for message in system
    )
    return [{"type": "text", "text": text} for text in texts if text], conversation


# Cached messages


class _CachedPrefix:
    """The encoded first messages of a chat, cached for its next request.

    It contains `count` messages of the conversation. The message after them is an answer. It must be unchanged as well,
    because it may contain results of the provider's earlier calls.
    """

    __slots__ = ("_conversation", "_head", "call_ids", "count", "pairs", "written")

    def __init__(self, head: bytes) -> None:
        # Stored as a hash, because the head contains all tools and instructions.
        self._head = _digest(head)
        self._conversation: tuple[PromptMessage, ...] = ()
        self.count = 0
        self.call_ids: set[str] = set()
        self.pairs = _ServerPairs()
        self.written = _EncodedMessages(hashlib.blake2b(head, digest_size=16))

    @property
    def size_bytes(self) -> int:
        return self.written.size_bytes

    def is_prefix_of(self, head: bytes, conversation: tuple[PromptMessage, ...]) -> bool:
        # This is fast, because the prompts of a chat share their message objects.
        return _digest(head) == self._head and conversation[: len(self._conversation)] == self._conversation

    def extend(
        self,
        conversation: tuple[PromptMessage, ...],
        rows: Iterable[_Row],
        groups: Sequence[_MessageGroup],
        *,
        border: int,
    ) -> None:
        """Add the groups that lie before the border. `rows` includes their rows."""
        if not border:
            return
        self.written.add(groups[:border], set(), {})
        self.call_ids.update(call_id for group in groups[:border] for call_id in _ids(group, "call"))
        self.count = groups[border].rows[0].index
        self._conversation = conversation[: self.count + 1]
        for row in rows:
            if row.index < self.count and row.message.role is Role.ASSISTANT:
                self.pairs.add(row.blocks)


def _find_border(groups: Sequence[_MessageGroup]) -> int:
    """Return the number of groups that can be cached; 0 if there are none.

    A group can be cached if it is before an answer that is followed by a user message and another answer. Later groups
    contain cache marks and may be encoded differently in the next request.
    """
    answers = [number for number, group in enumerate(groups) if group.role == "assistant"]
    last_user = (
        max((number for number in range(answers[-1]) if groups[number].role == "user"), default=0) if answers else 0
    )
    for number in reversed(answers):
        if 0 < number < last_user and groups[number - 1].role == "user" and groups[number].rows[0].is_always_sent():
            return number
    return 0


def _contains_marks(groups: Sequence[_MessageGroup]) -> bool:
    """Return whether these groups, which follow the cached ones, contain all blocks that get a cache mark."""
    answers = [number for number, group in enumerate(groups) if group.role == "assistant"]
    return bool(answers) and any(group.role == "user" for group in groups[: answers[-1]])


# Pairs of the provider's own tools


class _ServerPairs:
    """Finds the valid pairs of provider-executed calls and results.

    A result is in the answer of its call or in the next one.
    """

    __slots__ = ("_answered", "_answers", "_calls")

    def __init__(self) -> None:
        self._answers = 0
        self._calls: dict[str, tuple[int, Block]] = {}
        self._answered: set[str] = set()

    def copy(self) -> _ServerPairs:
        copied = _ServerPairs()
        copied._answers, copied._calls, copied._answered = self._answers, self._calls.copy(), self._answered.copy()
        return copied

    def add(self, blocks: Iterable[Block]) -> set[int]:
        """Add the next answer. Return the `id()` of the blocks whose pairs it completes."""
        valid: set[int] = set()
        number = self._answers
        self._answers += 1
        for block in blocks:
            if block.kind == "server_call":
                self._calls.setdefault(block.id, (number, block))
            elif block.kind == "server_result" and block.id in self._calls and block.id not in self._answered:
                asked, call = self._calls[block.id]
                if number - asked <= 1:
                    self._answered.add(block.id)
                    valid |= {id(call), id(block)}
        return valid


def _read(
    conversation: Sequence[PromptMessage], cached: _CachedPrefix, *, plain: bool, keep_thinking: bool
) -> tuple[list[_Row], list[_MessageGroup] | None]:
    """Return the rows after the cached ones, and their groups. The groups are None if the history must be plain."""
    rows = [
        _Row(conversation[index], list(blocks_of(conversation[index], plain=plain, keep_thinking=keep_thinking)), index)
        for index in range(cached.count, len(conversation))
    ]
    repaired = _repair(rows, cached.pairs.copy())
    return rows, None if repaired is None else _group_rows(row for row in repaired if row.blocks)


def _repair(rows: Sequence[_Row], pairs: _ServerPairs) -> list[_Row] | None:
    """Return the rows with only valid pairs of provider-executed calls and results.

    Return None if that would change an answer whose thinking the provider checks. All reasoning must then be left out.
    """
    answers = [row for row in rows if row.message.role is Role.ASSISTANT]
    valid: set[int] = set()
    for answer in answers:
        valid |= pairs.add(answer.blocks)
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
                    kept.append(Block("plain", {"type": "text", "text": block.text}))
            elif block.kind != "server_call" or id(block) in valid or (row is newest and is_open):
                kept.append(block)
        repaired.append(_Row(row.message, kept, row.index))
    return repaired


def _may_stay_open(newest: _Row, *, is_last: bool) -> bool:
    """Return whether the provider may give the result of an open call in its next response."""
    if not newest.message.is_whole:
        return False
    return newest.has("call") or (is_last and newest.message.finish_reason == "pause")


# Turns


def _group_rows(rows: Iterable[_Row]) -> list[_MessageGroup]:
    groups: list[_MessageGroup] = []
    for row in rows:
        role: Literal["user", "assistant"] = "assistant" if row.message.role is Role.ASSISTANT else "user"
        last = groups[-1] if groups else None
        # An answer with signed thinking must be sent back unchanged, so it is not joined with another answer.
        is_signed = role == "assistant" and (row.is_signed() or (last is not None and last.rows[-1].is_signed()))
        if last is not None and last.role == role and not is_signed:
            last.rows.append(row)
        else:
            groups.append(_MessageGroup(role, [row]))
    return groups


def _check_ends(groups: list[_MessageGroup], *, is_start: bool) -> None:
    """Ensure that the request begins with a user message, and ends with a user message or a paused answer."""
    if not groups:
        raise PromptInvalid("The prompt has no message besides system messages.")
    if is_start and groups[0].role == "assistant":
        groups.insert(0, _user_group(OPENING))
    if groups[-1].role == "user":
        return
    last = groups[-1].rows[-1]
    if last.message.finish_reason != "pause":
        raise PromptInvalid("The prompt ends with an answer of the model, and that answer was not paused.")
    if not (last.has("server_call") or last.has("server_result")):
        # The provider's open calls were left out, so the provider would take the answer for a prefill.
        groups.append(_user_group(GO_ON))


def _user_group(text: str) -> _MessageGroup:
    message = PromptMessage(role=Role.USER, parts=(PromptText(text),))
    return _MessageGroup("user", [_Row(message, [Block("plain", {"type": "text", "text": text})])])


def _check_pairs(groups: Sequence[_MessageGroup], cached: Set[str]) -> None:
    """Raise `PromptInvalid` unless call ids are unique and each call has its result in the next message."""
    seen: set[str] = set()
    waiting: list[str] = []
    for group in groups:
        if group.role == "assistant":
            calls = _ids(group, "call")
            if len(set(calls)) < len(calls) or not seen.isdisjoint(calls) or not cached.isdisjoint(calls):
                raise PromptInvalid(f"A call id is used twice among {calls}.")
            seen.update(calls)
            waiting.extend(calls)
            continue
        results = _ids(group, "result")
        if sorted(results) != sorted(waiting):
            raise PromptInvalid(f"The calls {waiting} are followed by results of {results}.")
        waiting.clear()
    if waiting:
        raise PromptInvalid(f"No results follow the calls {waiting}.")


def _ids(group: _MessageGroup, kind: Kind) -> list[str]:
    return [block.id for row in group.rows for block in row.blocks if block.kind == kind]


# Bytes


def _marks(groups: Sequence[_MessageGroup]) -> set[int]:
    """Return the `id()` of the blocks that get a cache mark: the ends of this request and of the previous one.

    With the second mark, the provider finds its cached prefix even if many blocks were added since.
    """
    answers = [number for number, group in enumerate(groups) if group.role == "assistant"]
    before = [group for group in groups[: answers[-1]] if group.role == "user"] if answers else []
    marked = set()
    for group in [*before[-1:], groups[-1]]:
        markable = [block for block in group.blocks() if block.is_markable()]
        marked |= {id(block) for block in markable[-1:]}
    return marked


def _digest(head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=16).digest()


class _EncodedMessages:
    """Encodes messages, and hashes their blocks.

    `breaks` is the number of answers with signed thinking whose prefix has changed. `broken` is the prefix hash of the
    newest answer if its prefix has changed.
    """

    __slots__ = ("breaks", "broken", "has_thinking", "hash", "messages", "size_bytes")

    def __init__(self, hashed: hashlib.blake2b) -> None:
        self.messages: list[Json] = []
        self.hash = hashed
        self.breaks = 0
        self.broken: bytes | None = None
        self.has_thinking = False
        self.size_bytes = 0

    def copy(self) -> _EncodedMessages:
        copied = _EncodedMessages(self.hash.copy())
        copied.messages = self.messages.copy()
        copied.breaks, copied.broken, copied.has_thinking = self.breaks, self.broken, self.has_thinking
        return copied

    def add(self, groups: Iterable[_MessageGroup], marked: Set[int], mark: Mapping[str, str]) -> None:
        for group in groups:
            content: list[Raw] = []
            self.messages.append({"role": group.role, "content": content})
            self.size_bytes += _OBJECT_BYTES
            # Each answer has its own prefix.
            is_answer = group.role == "assistant"
            answer_rows = [(row, row.blocks) for row in group.rows] if is_answer else [(group.rows[0], group.blocks())]
            for row, blocks in answer_rows:
                if is_answer:
                    self._check_prefix(row)
                for block in blocks:
                    plain = _encode(block.json, None)
                    self.hash.update(group.role.encode() + bytes(plain))
                    self.size_bytes += len(bytes(plain)) + _OBJECT_BYTES
                    content.append(_encode(block.json, mark) if id(block) in marked else plain)

    def _check_prefix(self, answer: _Row) -> None:
        is_broken = answer.message.prefix_fp not in (None, self.hash.digest())
        self.broken = answer.message.prefix_fp if is_broken and answer.message.is_native else None
        is_signed = answer.is_signed()
        self.breaks += is_broken and is_signed
        self.has_thinking = self.has_thinking or is_signed


def _encode(block: Json, mark: Mapping[str, str] | None) -> Raw:
    return Raw(_encoder.encode({**block, "cache_control": mark} if mark else block))
