"""The terminal of the interactive session: its keys, pastes and history, the completion of input, and local files."""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

from prompt_toolkit.completion import CompleteEvent, Completer, Completion, ThreadedCompleter
from prompt_toolkit.document import Document
from prompt_toolkit.history import FileHistory, History, InMemoryHistory
from prompt_toolkit.input import Input, create_input
from prompt_toolkit.input.vt100 import Vt100Input
from prompt_toolkit.input.vt100_parser import Vt100Parser
from prompt_toolkit.key_binding.key_processor import KeyPress
from prompt_toolkit.keys import Keys
from prompt_toolkit.output import Output, create_output
from prompt_toolkit.output.vt100 import Vt100_Output

from rookery.cli.chat.block_renderer import neutralize

MAX_COMPLETIONS = 50
END_OF_PASTE = "\x1b[201~"

FindPrompts: TypeAlias = Callable[[str], Awaitable[Sequence[tuple[str, str]]]]

_MENTION = re.compile(r'(?<!\S)@(?:"([^"\n]+)"|(\S+))')
_OPEN_MENTION = re.compile(r'(?<!\S)@(?:"([^"]*)|([^\s"]*))$')


class PasteParser(Vt100Parser):
    """Reads a paste in time that is linear in its size, and keeps no more of it than `max_characters`.

    prompt_toolkit searches the whole paste for its end after each kibibyte, so a paste of 5 MB stops the session for
    20 seconds.
    """

    def __init__(self, pressed: Callable[[KeyPress], None], *, max_characters: int) -> None:
        self._max_characters = max_characters
        self._pieces: list[str] = []
        self._size = 0
        self._tail = ""  # the end of the data so far, which may be the beginning of the end mark
        super().__init__(pressed)

    def feed(self, data: str) -> None:
        if not self._in_bracketed_paste:
            super().feed(data)  # it calls this method again with what follows the start of a paste
            return
        data = self._tail + data
        at = data.find(END_OF_PASTE)
        if at < 0:
            held = len(END_OF_PASTE) - 1
            self._keep(data[:-held])
            self._tail = data[-held:]
            return
        self._keep(data[:at])
        text = "".join(self._pieces)
        self._pieces, self._size, self._tail, self._in_bracketed_paste = [], 0, "", False
        self.feed_key_callback(KeyPress(Keys.BracketedPaste, text))
        self.feed(data[at + len(END_OF_PASTE) :])

    def _keep(self, piece: str) -> None:
        if piece and self._size <= self._max_characters:
            self._pieces.append(piece)
            self._size += len(piece)


def terminal_input(*, max_paste: int) -> Input:
    """Return the keyboard. Of a paste, at most about `max_paste` characters are kept."""
    keyboard = create_input()
    if isinstance(keyboard, Vt100Input):
        # The list of keys is replaced at each read, so that its owner's callback is kept.
        keyboard.vt100_parser = PasteParser(keyboard.vt100_parser.feed_key_callback, max_characters=max_paste)
    return keyboard


class CommandCompleter(Completer):
    """Completes commands and saved prompts at the start of the input, and local files after `@`.

    `find_prompts` returns the names and the beginnings of saved prompts whose names begin with these characters.
    """

    def __init__(self, commands: Mapping[str, str], find_prompts: FindPrompts) -> None:
        self._commands = commands
        self._find_prompts = find_prompts
        # Folders may be slow to read.
        self._threaded = ThreadedCompleter(self)

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion, None]:
        async for completion in self._threaded.get_completions_async(document, complete_event):
            yield completion
        before = document.text_before_cursor
        if before.startswith("/") and " " not in before and "/" not in before[1:]:
            for name, beginning in await self._find_prompts(before[1:]):
                meta = neutralize(beginning).replace("\n", " ")
                yield Completion(f"/{name}", start_position=-len(before), display_meta=meta)

    def get_completions(self, document: Document, complete_event: CompleteEvent) -> Iterable[Completion]:
        before = document.text_before_cursor
        if before.startswith("/") and " " not in before:
            for usage, meaning in self._commands.items():
                name = usage.partition(" ")[0]
                if name.startswith(before):
                    yield Completion(name, start_position=-len(before), display_meta=meaning)
            return
        line = before.rpartition("\n")[2]
        if match := _OPEN_MENTION.search(line):
            word = match[1] if match[1] is not None else match[2]
            for name in local_files(word):
                # A quoted name stays open after a folder, so that the next part can be completed.
                mention = (
                    name if match[1] is None and " " not in name else f'"{name}{"" if name.endswith("/") else chr(34)}'
                )
                start = match.start() + 1 - len(line)
                yield Completion(mention, start_position=start, display=neutralize(name))
        elif before.startswith("/file "):
            word = before.removeprefix("/file ").lstrip()
            for name in local_files(word):
                yield Completion(name, start_position=-len(word), display=neutralize(name))


def mentioned(text: str) -> list[Path]:
    """Return the local files that a message names as `@PATH` or `@"PATH"`. A mark after the path is not part of it."""
    found = []
    for quoted, name in dict.fromkeys(_MENTION.findall(text)):
        for written in (quoted or name, name.rstrip(".,;:!?)")):
            # A name that is too long, or a home directory that does not exist.
            with suppress(OSError, RuntimeError):
                if (path := Path(written).expanduser()).is_file():
                    found.append(path)
                    break
    return found


def local_files(prefix: str) -> Iterable[str]:
    folder, _, start = prefix.rpartition("/")
    try:
        root = Path(folder or ("/" if prefix.startswith("/") else ".")).expanduser()
        found = sorted(each for each in root.iterdir() if each.name.startswith(start))
    except (OSError, RuntimeError):
        return []
    shown = [each for each in found if start.startswith(".") or not each.name.startswith(".")]
    head = f"{folder}/" if "/" in prefix else ""
    return [f"{head}{each.name}{'/' if each.is_dir() else ''}" for each in shown[:MAX_COMPLETIONS]]


def terminal_output() -> Output:
    """Return the terminal, without requests for the position of the cursor.

    The answers come late over a slow line, and some terminals never answer. Nothing here needs them.
    """
    output = create_output()
    if isinstance(output, Vt100_Output):
        output.enable_cpr = False
    return output


def history(path: Path | None) -> History:
    """Return the history of inputs, in a file that only its owner can read."""
    if path is None:
        return InMemoryHistory()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
    except OSError:
        return InMemoryHistory()
    return FileHistory(str(path))
