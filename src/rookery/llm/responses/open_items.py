"""The output items of a Responses stream while they are being written."""

from __future__ import annotations

from rookery.llm.responses import events

WEB_SEARCH = "web_search"


class Block:
    """A text of a message, or the text of a reasoning item, as far as it has been shown."""

    __slots__ = ("id", "is_refusal", "sent")

    def __init__(self, block_id: str, *, is_refusal: bool = False) -> None:
        self.id = block_id
        self.is_refusal = is_refusal
        self.sent = 0


class OpenItem:
    """An output item between `.added` and `.done`.

    `blocks` holds the texts of a message by content index. For reasoning it holds the summaries by their index and the
    raw reasoning text after them, all shown under one id.
    """

    __slots__ = ("blocks", "id", "is_started", "name", "phase", "sent", "type")

    def __init__(self, item: events.Item, index: int) -> None:
        self.type = item.type
        self.id = _key_of(item, index)
        self.name = _tool_name(item)
        self.phase = item.phase
        self.blocks: dict[int, Block] = {}
        self.is_started = False
        self.sent = 0


def _key_of(item: events.Item, index: int) -> str:
    """Return the id under which a call is shown and answered."""
    return item.call_id or item.id or f"item-{index}"


def _tool_name(item: events.Item) -> str:
    return WEB_SEARCH if item.type == "web_search_call" else item.name or item.type
