"""The frames of a link, as binary msgpack. Within one protocol number only optional fields may be added."""

from __future__ import annotations

from uuid import UUID

import msgspec

from rookery.live.deltas import PartEvent

PROTOCOL = 1
PATH = "/internal/v1/parts"


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """The first frame of both sides. A link between different protocols is closed.

    `reads_batches`: the sender of this frame understands `Batch`.
    """

    protocol: int
    replica_id: UUID
    version: str = ""
    reads_batches: bool = False


class Select(msgspec.Struct, frozen=True, tag="select"):
    """Select an episode. The same `sid` again replaces the earlier selection.

    `generation` counts the selections of a `sid`, to recognize frames of an earlier one that are still in transit.
    """

    sid: int
    chat_id: UUID
    history_version: int
    generation_attempt: int
    from_seq: int = 1
    generation: int = 0


class Drop(msgspec.Struct, frozen=True, tag="drop"):
    sid: int


class Parts(msgspec.Struct, frozen=True, tag="parts"):
    sid: int
    parts: list[PartEvent]
    generation: int = 0


class Batch(msgspec.Struct, frozen=True, tag="batch"):
    """The parts of several selections. All that a tick has brought is one frame."""

    items: list[Parts]


class End(msgspec.Struct, frozen=True, tag="end"):
    """The end of this selection: `closed`, `truncated`, `evicted` or `draining`."""

    sid: int
    last_seq: int
    reason: str
    generation: int = 0


FromViewer = Hello | Select | Drop
FromOwner = Hello | Parts | Batch | End

_encoder = msgspec.msgpack.Encoder()
_from_viewer: msgspec.msgpack.Decoder[FromViewer] = msgspec.msgpack.Decoder(FromViewer)
_from_owner: msgspec.msgpack.Decoder[FromOwner] = msgspec.msgpack.Decoder(FromOwner)


def encode(frame: FromViewer | FromOwner) -> bytes:
    return _encoder.encode(frame)


def decode_from_viewer(data: bytes) -> FromViewer:
    return _from_viewer.decode(data)


def decode_from_owner(data: bytes) -> FromOwner:
    return _from_owner.decode(data)
