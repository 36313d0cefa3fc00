"""The checked arguments of `rookery admin run`, and the prompt, which may come from stdin."""

from __future__ import annotations

import sys
from datetime import timedelta
from uuid import UUID

import msgspec

from rookery.cli.admin.input import Refused
from rookery.cli.exit_codes import Exit
from rookery.domain.chat.messages import ChatId
from rookery.settings.values import DURATION

MAX_PROMPT_BYTES = 256 * 1024


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """The checked command-line arguments."""

    prompt: str
    model: str | None = None
    chat_id: ChatId | None = None
    system: str | None = None
    timeout: timedelta | None = None
    quiet: bool = False
    has_workspace: bool = False


def read_request(
    prompt: str,
    *,
    model: str | None,
    chat: str | None,
    system: str | None,
    timeout: str | None,
    quiet: bool,
    has_workspace: bool = False,
) -> Request:
    """Check the arguments. `-` reads the prompt from stdin, before an event loop would block Ctrl-C."""
    if chat is not None and system is not None:
        raise Refused("--system is for new chats; the chat of --chat has its instructions already.", code=Exit.USAGE)
    return Request(
        prompt=_checked_prompt(_piped() if prompt == "-" else prompt),
        model=model,
        chat_id=None if chat is None else _chat_id(chat),
        system=system,
        timeout=None if timeout is None else _duration(timeout),
        quiet=quiet,
        has_workspace=has_workspace,
    )


def _piped() -> str:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_PROMPT_BYTES + 1)
    if len(data) > MAX_PROMPT_BYTES:
        raise _too_long()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Refused(f"The prompt on stdin is not UTF-8 text (byte {error.start}).", code=Exit.USAGE) from None


def _checked_prompt(text: str) -> str:
    prompt = text.strip()
    if not prompt:
        raise Refused("The prompt is empty. Say what to do, or pipe it in with `-`.", code=Exit.USAGE)
    if len(prompt.encode("utf-8", "replace")) > MAX_PROMPT_BYTES:
        raise _too_long()
    return prompt


def _too_long() -> Refused:
    return Refused(f"The prompt is longer than {MAX_PROMPT_BYTES // 1024} KiB.", code=Exit.USAGE)


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
