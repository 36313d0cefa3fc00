"""The output of a command: lines and tables for users, or one JSON document for programs.

In JSON mode stdout carries only that document; text for users goes to stderr or is dropped.
"""

from __future__ import annotations

import os
import shutil
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

import msgspec

from rookery.telemetry.redaction import SecretRegistry, hide_secrets, printable

_CLEAR_LINE = "\r\x1b[2K"


class OutputClosed(Exception):
    """Raised when stdout is closed.

    Without a reason, its reader has closed it, as `head` does; this is not an error.
    """

    def __init__(self, reason: str = "") -> None:
        self.reason = reason
        super().__init__(reason)


class Output:
    """Everything a command prints. `finish` writes the JSON document, once, at the end.

    `secrets` are hidden in everything on stderr. `show_tracebacks` is set at log level debug. With `has_log_beside`,
    the log also writes to stderr. Progress is then printed in whole lines, because a log line would otherwise start
    behind it.
    """

    def __init__(self, stdout: TextIO, stderr: TextIO, *, json: bool = False) -> None:
        self._stdout = stdout
        self._stderr = stderr
        self._document: object = None
        self._has_progress = False
        self.json = json
        self.secrets = SecretRegistry()
        self.show_tracebacks = False
        self.has_log_beside = False

    def line(self, text: str = "") -> None:
        """Print a line for users. Control characters are escaped, because the text may be untrusted."""
        if not self.json:
            self._print(self._stdout, printable(text))

    def text(self, piece: str) -> None:
        """Print a piece of text on stdout unchanged and without a line end, for text that arrives in pieces."""
        if not self.json:
            self._clear_progress()
            self._write(self._stdout, _encodable(piece, self._stdout))

    def aside(self, piece: str) -> None:
        """Print a piece of text on stderr, in both modes. The caller has escaped it."""
        self._clear_progress()
        self._write(self._stderr, _encodable(hide_secrets(piece, self.secrets), self._stderr))

    @property
    def stdout_is_terminal(self) -> bool:
        return self._stdout.isatty()

    @property
    def stderr_is_terminal(self) -> bool:
        return self._stderr.isatty()

    def table(self, headers: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """Print aligned columns. Numbers are aligned to the right."""
        if self.json:
            return
        cells = [[_cell(value) for value in row] for row in rows]
        widths = [max(len(row[column]) for row in [list(headers), *cells]) for column in range(len(headers))]
        numeric = [bool(rows) and all(_is_number(row[column]) for row in rows) for column in range(len(headers))]
        for row in [list(headers), *cells]:
            padded = [
                cell.rjust(width) if right else cell.ljust(width)
                for cell, width, right in zip(row, widths, numeric, strict=True)
            ]
            self._print(self._stdout, "  ".join(padded).rstrip())

    def progress(self, text: str) -> None:
        """Show progress on stderr: one changing line on a terminal, plain lines elsewhere."""
        if self.has_log_beside or not self._stderr.isatty():
            self._print(self._stderr, printable(text))
            return
        width = shutil.get_terminal_size().columns - 1
        self._write(self._stderr, f"{_CLEAR_LINE}{printable(text)[:width]}")
        self._has_progress = True

    def warning(self, text: str) -> None:
        self.error(f"warning: {text}")

    def error(self, text: str) -> None:
        """Print an error in one line to stderr, with and without `--json`."""
        self._print(self._stderr, f"rookery: {printable(hide_secrets(text, self.secrets))}")

    def traceback(self, error: BaseException) -> None:
        text = hide_secrets("".join(traceback.format_exception(error)), self.secrets)
        self._print(self._stderr, "\n".join(printable(row) for row in text.splitlines()))

    def result(self, document: object) -> None:
        """Set the document that `--json` prints at the end.

        A later call replaces it. A command that fails thus prints its error instead of an earlier result.
        """
        self._document = document

    def finish(self) -> None:
        self._clear_progress()
        if self.json and self._document is not None:
            text = msgspec.json.format(msgspec.json.encode(self._document, enc_hook=str), indent=2).decode()
            self._write(self._stdout, f"{text}\n")
            self._document = None

    def abandon(self) -> None:
        """Discard buffered output of stdout. Otherwise the interpreter would report an error at exit."""
        with suppress(OSError, ValueError):
            devnull = os.open(os.devnull, os.O_WRONLY)
            os.dup2(devnull, self._stdout.fileno())
            os.close(devnull)

    def _print(self, stream: TextIO, text: str) -> None:
        self._clear_progress()
        self._write(stream, f"{text}\n")

    def _clear_progress(self) -> None:
        if self._has_progress:
            self._has_progress = False
            self._write(self._stderr, _CLEAR_LINE)

    def _write(self, stream: TextIO, text: str) -> None:
        try:
            stream.write(text)
            stream.flush()
        except OSError as error:
            # Without stderr, messages are dropped and the work continues.
            if stream is self._stdout:
                raise OutputClosed("" if isinstance(error, BrokenPipeError) else str(error.strerror)) from error


def _encodable(text: str, stream: TextIO) -> str:
    """Replace characters that the stream's encoding lacks by question marks.

    An old terminal must not end the command.
    """
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "true" if value else "false"
        case list() | tuple():
            return ", ".join(_cell(item) for item in value)
    return printable(str(value))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
