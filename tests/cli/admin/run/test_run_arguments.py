"""The arguments of `rookery admin run`."""

from __future__ import annotations

import sys
from datetime import timedelta
from io import BytesIO, TextIOWrapper
from typing import Any
from uuid import uuid4

import pytest

from rookery.cli.admin.run.run_arguments import Request, read_request
from rookery.cli.chat.chat_actions import MAX_PROMPT_BYTES
from rookery.cli.exit_codes import Exit, Refused
from rookery.domain.chat.messages import ChatId


def asked(prompt: str = "hello", **given: Any) -> Request:
    arguments = {"model": None, "chat": None, "system": None, "timeout": None, "quiet": False, **given}
    return read_request(prompt, **arguments)


def test_request_is_read_from_its_arguments() -> None:
    chat_id = uuid4()

    request = asked("  hello\n", model="m", chat=str(chat_id), timeout="30m", quiet=True)

    assert request == Request(
        prompt="hello", model="m", chat_id=ChatId(chat_id), timeout=timedelta(minutes=30), quiet=True
    )


def test_prompt_is_read_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO("a long\nprompt: ü\n".encode())))

    assert asked("-").prompt == "a long\nprompt: ü"


@pytest.mark.parametrize(
    ("prompt", "given", "said"),
    [
        (" \n", {}, "The prompt is empty."),
        ("x" * (MAX_PROMPT_BYTES + 1), {}, "longer than 256 KiB"),
        ("hello", {"chat": "7"}, "--chat: 7 is not the id of a chat."),
        ("hello", {"timeout": "soon"}, "--timeout: soon is not a duration"),
        ("hello", {"timeout": "0"}, "--timeout: must be greater"),
        ("hello", {"chat": str(uuid4()), "system": "Be kind."}, "--system is for new chats"),
        ("hello", {"agreed": ["a" * 64]}, "it needs --chat and --workspace"),
        ("hello", {"agreed": ["a" * 8], "chat": str(uuid4()), "has_workspace": True}, "is not the hash of an entry"),
    ],
)
def test_request_that_makes_no_sense_is_refused(prompt: str, given: dict[str, str], said: str) -> None:
    with pytest.raises(Refused) as refused:
        asked(prompt, **given)

    assert said in str(refused.value)
    assert refused.value.code == Exit.USAGE


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "The prompt is empty."),
        (b"ab\xff", "not UTF-8 text (byte 2)"),
        (b"x" * (MAX_PROMPT_BYTES + 1), "longer than 256 KiB"),
    ],
)
def test_prompt_on_stdin_that_cannot_be_one_is_refused(monkeypatch: pytest.MonkeyPatch, data: bytes, said: str) -> None:
    monkeypatch.setattr(sys, "stdin", TextIOWrapper(BytesIO(data)))

    with pytest.raises(Refused) as refused:
        asked("-")

    assert said in str(refused.value)
