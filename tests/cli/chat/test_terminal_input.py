"""Pastes, completion and files that a message names."""

from __future__ import annotations

from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys

from rookery.cli.chat.terminal_input import CommandCompleter, PasteParser, mentioned


def keys(typed: str, size: int, *, max_characters: int = 1000) -> list[tuple[str, str]]:
    found: list[KeyPress] = []
    parser = PasteParser(found.append, max_characters=max_characters)
    for at in range(0, len(typed), size):
        parser.feed(typed[at : at + size])
    return [(str(key.key), key.data) for key in found]


@pytest.mark.parametrize("size", [1, 2, 5, 7, 1000])
def test_paste_is_found_however_its_bytes_are_read(size: int) -> None:
    typed = "a\x1b[200~one\x1b[20\ntwo\x1b[201~b\x1b[200~\x1b[201~c"

    paste = str(Keys.BracketedPaste)
    assert keys(typed, size) == [("a", "a"), (paste, "one\x1b[20\ntwo"), ("b", "b"), (paste, ""), ("c", "c")]


def test_paste_without_end_is_bounded() -> None:
    parser = PasteParser(lambda _: None, max_characters=100)
    parser.feed("\x1b[200~")
    for _ in range(1000):
        parser.feed("x" * 50)

    assert sum(map(len, parser._pieces)) <= 150


async def found_prompts(prefix: str) -> list[tuple[str, str]]:
    prompts = [("review", "Review this.\x1b[2J\nPlease."), ("retry-tests", "Run {{command}} again.")]
    return [each for each in prompts if each[0].startswith(prefix)]


async def completions(text: str) -> list[str]:
    completer = CommandCompleter({"/stop": "", "/steer TEXT": ""}, found_prompts)
    found = completer.get_completions_async(Document(text), CompleteEvent())
    return [text[: len(text) + each.start_position] + each.text async for each in found]


async def test_saved_prompts_are_completed_after_commands_with_safe_texts() -> None:
    assert await completions("/") == ["/stop", "/steer", "/review", "/retry-tests"]
    assert await completions("/ret") == ["/retry-tests"]
    assert await completions("/review now") == []
    completer = CommandCompleter({}, found_prompts)
    (only,) = [each async for each in completer.get_completions_async(Document("/rev"), CompleteEvent())]
    assert "\x1b" not in only.display_meta_text
    assert "\n" not in only.display_meta_text


async def test_files_are_completed_with_quotes_where_they_are_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "c d.txt").write_text("")
    (tmp_path / "plain.txt").write_text("")
    monkeypatch.chdir(tmp_path)

    assert await completions("/st") == ["/stop", "/steer"]
    assert await completions("see @pl") == ["see @plain.txt"]
    assert await completions("see @a") == ['see @"a b/']
    assert await completions('see @"a b/c') == ['see @"a b/c d.txt"']
    assert await completions("/file a") == ["/file a b/"]


def test_named_files_may_be_quoted_or_followed_by_a_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("a.txt", "b c.txt"):
        (tmp_path / name).write_text("")
    monkeypatch.chdir(tmp_path)

    assert mentioned('Read @a.txt, @"b c.txt" and @missing; mail ann@a.txt') == [Path("a.txt"), Path("b c.txt")]
