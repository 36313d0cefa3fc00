"""The checked arguments of `rookery admin run`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

import msgspec

from rookery.cli.chat import chat_actions as chat_commands
from rookery.cli.exit_codes import Exit, Refused
from rookery.domain.chat.messages import ChatId
from rookery.settings.value_types import DURATION

_HASH = re.compile(r"[0-9a-f]{64}")


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The checked command-line arguments. `agreed` are the hashes of MCP server entries that may run from now on."""

    prompt: str
    model: str | None = None
    chat_id: ChatId | None = None
    system: str | None = None
    timeout: timedelta | None = None
    quiet: bool = False
    has_workspace: bool = False
    agreed: tuple[str, ...] = ()


def read_request(
    prompt: str,
    *,
    model: str | None,
    chat: str | None,
    system: str | None,
    timeout: str | None,
    quiet: bool,
    has_workspace: bool = False,
    agreed: Sequence[str] = (),
) -> Request:
    """Check the arguments. `-` reads the prompt from stdin, before the event loop starts, so that Ctrl-C works."""
    if chat is not None and system is not None:
        raise Refused("--system is for new chats; the chat of --chat has its instructions already.", code=Exit.USAGE)
    if agreed and (chat is None or not has_workspace):
        raise Refused("--agree is about the workspace of a chat: it needs --chat and --workspace.", code=Exit.USAGE)
    if wrong := [each for each in agreed if not _HASH.fullmatch(each)]:
        raise Refused(f"--agree: {wrong[0]} is not the hash of an entry, which has 64 digits.", code=Exit.USAGE)
    return Request(
        prompt=chat_commands.read_prompt(prompt),
        model=model,
        chat_id=None if chat is None else _chat_id(chat),
        system=system,
        timeout=None if timeout is None else _duration(timeout),
        quiet=quiet,
        has_workspace=has_workspace,
        agreed=tuple(agreed),
    )


def _chat_id(text: str) -> ChatId:
    try:
        return ChatId(UUID(text))
    except ValueError:
        raise Refused(f"--chat: {text} is not the id of a chat.", code=Exit.USAGE) from None


def _duration(text: str) -> timedelta:
    try:
        duration: timedelta = DURATION.parse(text)
    except ValueError as error:
        raise Refused(f"--timeout: {text} {error}.", code=Exit.USAGE) from None
    if not duration:
        raise Refused("--timeout: must be greater than zero.", code=Exit.USAGE)
    return duration
