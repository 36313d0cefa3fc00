"""The prompt as the `system` and `messages` of an Anthropic Messages request.

Every block is encoded here, once: its bytes go into the body and into the running hash that shows whether the prefix of
an earlier answer is unchanged. Cache marks are not hashed, because they move with every step. Messages that no later
message can change are settled, and cached for the next request of the chat.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.prompt_parts import Prompt, PromptMessage, PromptText
from rookery.llm.anthropic.blocks import Block, Kind, blocks_of
from rookery.llm.encoded_requests import EncodedRequest
from rookery.llm.wire import PromptInvalid

Json: TypeAlias = dict[str, Any]

# Fillers for what a request needs and a chat may lack: a first and a last user message.
OPENING = "(The conversation starts here.)"
GO_ON = "Continue."
# Chosen: the memory of a message besides its bytes.
_OBJECT_BYTES = 500

_encoder = msgspec.json.Encoder(decimal_format="number")


class Sent(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the request body, and facts about its prefixes.

    The prefix of an answer is everything that was sent before it. `breaks` counts the answers with thinking whose
    prefix has changed since they were generated. `broken_prefix` is the stored prefix hash of the newest answer, if its
    prefix has changed.
    """

    system: list[Raw]
    messages: list[Json]
    prefix_fp: bytes
    breaks: int
    broken_prefix: bytes | None
    has_thinking: bool


class _Row(msgspec.Struct, frozen=True):
    """A message of the prompt and its blocks.

    Adjacent rows of the same role are sent as one message, but an answer with signed thinking is always sent alone.
    `place` is the index among the prompt's messages without the system messages; -1 for a message that is inserted
    here (`OPENING`, `GO_ON`).
    """

    message: PromptMessage
    blocks: list[Block]
    place: int = -1

    def is_signed(self) -> bool:
        return self.has("thinking")

    def has(self, kind: Kind) -> bool:
        return any(block.kind == kind for block in self.blocks)

    def is_sure(self) -> bool:
        """Return whether at least one block is sent in any case.

        Blocks of provider-executed calls and results may be left out, depending on later messages.
        """
        return any(block.kind not in ("server_call", "server_result") for block in self.blocks)


class _Turn(msgspec.Struct, frozen=True):
    role: Literal["user", "assistant"]
    rows: list[_Row]

    def blocks(self) -> list[Block]:
        """The blocks in sending order: the API wants tool results before other user content."""
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
    past: EncodedRequest | None = None,
) -> Sent:
    """Return the system blocks and messages. `seed` is the rest of the prefix: the model and the tools.

    `plain` leaves out reasoning and everything the provider executed.
    """
    system, said = _divided(prompt)
    head, variant = _encoder.encode([seed, system]), (plain, keep_thinking)
    settled: _Settled | None = None if past is None else past.written.pop(variant, None)
    if settled is None or not settled.begins(head, said):
        settled = _Settled(head)
    rows, turns = _read(said, settled, plain=plain, keep_thinking=keep_thinking)
    if settled.count and turns is not None and not _holds_marks(turns):
        settled = _Settled(head)
        rows, turns = _read(said, settled, plain=plain, keep_thinking=keep_thinking)
    if turns is None:
        return build(prompt, seed=seed, mark=mark, plain=True, past=past)
    _check_ends(turns, is_start=not settled.count)
    _check_pairs(turns, settled.call_ids)
    marked = _marks(turns)
    border = _find_border(turns)
    settled.settle(said, rows, turns, border=border)
    if past is not None:
        past.written[variant] = settled
    last = settled.written.copy()
    last.add(turns[border:], marked, mark)
    return Sent(
        system=[_encode(block, mark if block is system[-1] else None) for block in system],
        messages=last.messages,
        prefix_fp=last.hash.digest(),
        breaks=last.breaks,
        broken_prefix=last.broken,
        has_thinking=last.has_thinking,
    )


def _divided(prompt: Prompt) -> tuple[list[Json], tuple[PromptMessage, ...]]:
    """Return the system blocks and the messages of the conversation."""
    messages = prompt.messages
    system = [message for message in messages if message.role is Role.SYSTEM]
    said = messages[len(system) :]
    if list(messages[: len(system)]) != system:
        said = tuple(message for message in messages if message.role is not Role.SYSTEM)
    texts = (
        "\n\n".join(part.text for part in message.parts if isinstance(part, PromptText) and part.text.strip())
        for message in system
    )
    return [{"type": "text", "text": text} for text in texts if text], said


# Cached messages


class _Settled:
    """The first messages of a chat's requests, as bytes. Cached for the next request of the chat.

    It holds `count` messages of the conversation. The message after them is an answer, and must be unchanged too, for
    the cache to be used: it ends the user turn before it, and may hold results of the provider's earlier calls.
    """

    __slots__ = ("_head", "_said", "call_ids", "count", "pairs", "written")

    def __init__(self, head: bytes) -> None:
        # As a hash: the head holds all tools and instructions.
        self._head = _digest(head)
        self._said: tuple[PromptMessage, ...] = ()
        self.count = 0
        self.call_ids: set[str] = set()
        self.pairs = _ServerPairs()
        self.written = _Writing(hashlib.blake2b(head, digest_size=16))

    @property
    def size_bytes(self) -> int:
        return self.written.size_bytes

    def begins(self, head: bytes, said: tuple[PromptMessage, ...]) -> bool:
        # The prompts of a chat share their messages, so this compares identities.
        return _digest(head) == self._head and said[: len(self._said)] == self._said

    def settle(
        self, said: tuple[PromptMessage, ...], rows: Iterable[_Row], turns: Sequence[_Turn], *, border: int
    ) -> None:
        """Add the turns before the border. `rows` are the rows of these turns."""
        if not border:
            return
        self.written.add(turns[:border], set(), {})
        self.call_ids.update(call_id for turn in turns[:border] for call_id in _ids(turn, "call"))
        self.count = turns[border].rows[0].place
        self._said = said[: self.count + 1]
        for row in rows:
            if row.place < self.count and row.message.role is Role.ASSISTANT:
                self.pairs.add(row.blocks)


def _find_border(turns: Sequence[_Turn]) -> int:
    """Return the number of settled turns: those before an answer after which the user wrote and was answered again.

    The last answers and the user messages between them carry cache marks, and may look different in the next request.
    Return 0 if no turn is settled.
    """
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    heard = max((number for number in range(answers[-1]) if turns[number].role == "user"), default=0) if answers else 0
    for number in reversed(answers):
        if 0 < number < heard and turns[number - 1].role == "user" and turns[number].rows[0].is_sure():
            return number
    return 0


def _holds_marks(turns: Sequence[_Turn]) -> bool:
    """Return whether these turns, which follow the settled ones, hold all blocks that get a cache mark."""
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    return bool(answers) and any(turn.role == "user" for turn in turns[: answers[-1]])


# Pairs of the provider's own tools


class _ServerPairs:
    """The valid pairs of provider-executed calls and results: a result is in the answer of its call, or in the next."""

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
        """Add the next answer. Return the identities of the blocks of the pairs that it completes."""
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
    said: Sequence[PromptMessage], settled: _Settled, *, plain: bool, keep_thinking: bool
) -> tuple[list[_Row], list[_Turn] | None]:
    """Return the rows after the settled ones, and their turns; None if only a plain history can be sent."""
    rows = [
        _Row(said[place], list(blocks_of(said[place], plain=plain, keep_thinking=keep_thinking)), place)
        for place in range(settled.count, len(said))
    ]
    repaired = _repair(rows, settled.pairs.copy())
    return rows, None if repaired is None else _turns(row for row in repaired if row.blocks)


def _repair(rows: Sequence[_Row], pairs: _ServerPairs) -> list[_Row] | None:
    """Return the rows with only valid pairs of provider-executed calls and results.

    None if that would change an answer whose thinking the provider still checks: then all reasoning has to be left out.
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
        repaired.append(_Row(row.message, kept, row.place))
    return repaired


def _may_stay_open(newest: _Row, *, is_last: bool) -> bool:
    """Return whether the provider will finish a call without a result in its next response."""
    if not newest.message.is_whole:
        return False
    return newest.has("call") or (is_last and newest.message.finish_reason == "pause")


# Turns


def _turns(rows: Iterable[_Row]) -> list[_Turn]:
    turns: list[_Turn] = []
    for row in rows:
        role: Literal["user", "assistant"] = "assistant" if row.message.role is Role.ASSISTANT else "user"
        last = turns[-1] if turns else None
        # Two answers of which one is signed stay separate: a signed answer must be sent back unchanged.
        is_signed = role == "assistant" and (row.is_signed() or (last is not None and last.rows[-1].is_signed()))
        if last is not None and last.role == role and not is_signed:
            last.rows.append(row)
        else:
            turns.append(_Turn(role, [row]))
    return turns


def _check_ends(turns: list[_Turn], *, is_start: bool) -> None:
    """Ensure that the request starts with the user and ends with the user, or with an answer that the provider
    paused."""
    if not turns:
        raise PromptInvalid("The prompt has no message besides system messages.")
    if is_start and turns[0].role == "assistant":
        turns.insert(0, _said(OPENING))
    if turns[-1].role == "user":
        return
    last = turns[-1].rows[-1]
    if last.message.finish_reason != "pause":
        raise PromptInvalid("The prompt ends with an answer of the model, and that answer was not paused.")
    if not (last.has("server_call") or last.has("server_result")):
        # Nothing is left of the paused answer: an answer at the end would be read as a prefill.
        turns.append(_said(GO_ON))


def _said(text: str) -> _Turn:
    message = PromptMessage(role=Role.USER, parts=(PromptText(text),))
    return _Turn("user", [_Row(message, [Block("plain", {"type": "text", "text": text})])])


def _check_pairs(turns: Sequence[_Turn], settled: Set[str]) -> None:
    """Ensure that every local call is answered in the message after it, every result answers one, and ids are
    unique."""
    seen: set[str] = set()
    waiting: list[str] = []
    for turn in turns:
        if turn.role == "assistant":
            calls = _ids(turn, "call")
            if len(set(calls)) < len(calls) or not seen.isdisjoint(calls) or not settled.isdisjoint(calls):
                raise PromptInvalid(f"A call id is used twice among {calls}.")
            seen.update(calls)
            waiting.extend(calls)
            continue
        results = _ids(turn, "result")
        if sorted(results) != sorted(waiting):
            raise PromptInvalid(f"The calls {waiting} are followed by results of {results}.")
        waiting.clear()
    if waiting:
        raise PromptInvalid(f"No results follow the calls {waiting}.")


def _ids(turn: _Turn, kind: Kind) -> list[str]:
    return [block.id for row in turn.rows for block in row.blocks if block.kind == kind]


# Bytes


def _marks(turns: Sequence[_Turn]) -> set[int]:
    """Return the identities of the blocks to mark: the end of this request, and the end of the one before it.

    With the second mark the provider finds the cached prefix however many blocks were added since.
    """
    answers = [number for number, turn in enumerate(turns) if turn.role == "assistant"]
    before = [turn for turn in turns[: answers[-1]] if turn.role == "user"] if answers else []
    marked = set()
    for turn in [*before[-1:], turns[-1]]:
        markable = [block for block in turn.blocks() if block.is_markable()]
        marked |= {id(block) for block in markable[-1:]}
    return marked


def _digest(head: bytes) -> bytes:
    return hashlib.blake2b(head, digest_size=16).digest()


class _Writing:
    """Writes messages as bytes, with the hash over their blocks. Counts the signed answers whose prefix has changed,
    and keeps the prefix of the newest answer if it has changed."""

    __slots__ = ("breaks", "broken", "has_thinking", "hash", "messages", "size_bytes")

    def __init__(self, hashed: hashlib.blake2b) -> None:
        self.messages: list[Json] = []
        self.hash = hashed
        self.breaks = 0
        self.broken: bytes | None = None
        self.has_thinking = False
        self.size_bytes = 0

    def copy(self) -> _Writing:
        copied = _Writing(self.hash.copy())
        copied.messages = self.messages.copy()
        copied.breaks, copied.broken, copied.has_thinking = self.breaks, self.broken, self.has_thinking
        return copied

    def add(self, turns: Iterable[_Turn], marked: Set[int], mark: Mapping[str, str]) -> None:
        for turn in turns:
            content: list[Raw] = []
            self.messages.append({"role": turn.role, "content": content})
            self.size_bytes += _OBJECT_BYTES
            # Row by row for answers, because each has its own prefix.
            is_answer = turn.role == "assistant"
            groups = [(row, row.blocks) for row in turn.rows] if is_answer else [(turn.rows[0], turn.blocks())]
            for row, blocks in groups:
                if is_answer:
                    self._meet(row)
                for block in blocks:
                    plain = _encode(block.json, None)
                    self.hash.update(turn.role.encode() + bytes(plain))
                    self.size_bytes += len(bytes(plain)) + _OBJECT_BYTES
                    content.append(_encode(block.json, mark) if id(block) in marked else plain)

    def _meet(self, answer: _Row) -> None:
        is_broken = answer.message.prefix_fp not in (None, self.hash.digest())
        self.broken = answer.message.prefix_fp if is_broken and answer.message.is_native else None
        is_signed = answer.is_signed()
        self.breaks += is_broken and is_signed
        self.has_thinking = self.has_thinking or is_signed


def _encode(block: Json, mark: Mapping[str, str] | None) -> Raw:
    return Raw(_encoder.encode({**block, "cache_control": mark} if mark else block))
