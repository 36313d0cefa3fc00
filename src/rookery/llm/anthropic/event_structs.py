"""Structs and decoders for the events of an Anthropic Messages stream, with the fields that are used.

A missing field is None, which means that the value of an earlier event remains valid. Unknown fields are ignored.
"""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType


class Delta(msgspec.Struct, gc=False):
    """A delta of any kind. One struct for all kinds, so that an unknown kind can be decoded."""

    type: str
    text: str = ""
    thinking: str = ""
    partial_json: str = ""
    signature: str = ""
    citation: Raw | UnsetType = UNSET


class Named(msgspec.Struct):
    type: str = ""


class BlockDelta(msgspec.Struct, gc=False):
    index: int
    delta: Delta


class BlockStart(msgspec.Struct):
    index: int
    content_block: Raw


class BlockStop(msgspec.Struct):
    index: int


class CacheCreation(msgspec.Struct):
    ephemeral_1h_input_tokens: int | None = None


class OutputDetails(msgspec.Struct):
    thinking_tokens: int | None = None


class ServerTools(msgspec.Struct):
    web_search_requests: int | None = None


class Pass(msgspec.Struct):
    type: str = ""
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Usage(msgspec.Struct):
    input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    output_tokens: int | None = None
    output_tokens_details: OutputDetails | None = None
    server_tool_use: ServerTools | None = None
    iterations: tuple[Pass, ...] | None = None


class Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: Any = None
    stop_reason: str | None = None
    usage: Usage | None = None


class MessageStart(msgspec.Struct):
    message: Message


class StopDetails(msgspec.Struct):
    category: str | None = None
    explanation: str | None = None


class Stop(msgspec.Struct):
    stop_reason: str | None = None
    stop_details: StopDetails | None = None


class MessageDelta(msgspec.Struct):
    delta: Stop
    usage: Usage | None = None


class Whole(msgspec.Struct):
    """A complete message, from a server that does not stream."""

    type: str = ""
    id: str | None = None
    model: str | None = None
    content: tuple[Raw, ...] = ()
    stop_reason: str | None = None
    stop_details: StopDetails | None = None
    usage: Usage | None = None


decode_delta = msgspec.json.Decoder(BlockDelta).decode
decode_start = msgspec.json.Decoder(BlockStart).decode
decode_stop = msgspec.json.Decoder(BlockStop).decode
decode_message_start = msgspec.json.Decoder(MessageStart).decode
decode_message_delta = msgspec.json.Decoder(MessageDelta).decode
decode_named = msgspec.json.Decoder(Named).decode
decode_whole = msgspec.json.Decoder(Whole).decode
decode_block = msgspec.json.Decoder(dict[str, Any], float_hook=Decimal).decode
decode_any = msgspec.json.Decoder(float_hook=Decimal).decode
UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArithmeticError)
