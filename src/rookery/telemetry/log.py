"""Structured logging: the event is a constant string, and all variable values are fields.

It is built on the standard `logging`, so that lines of libraries have the same format. The calling thread formats the
line and hides secrets (`redaction`). A separate thread writes it, because a slow stderr must not block the event loop.
"""

from __future__ import annotations

import logging
import os
import re
import select
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import date, datetime, timedelta
from enum import Enum
from itertools import islice
from pathlib import PurePath
from types import MappingProxyType
from typing import TextIO
from uuid import UUID

import msgspec

from rookery.runtime.clock import Clock, SystemClock
from rookery.telemetry.redaction import REDACTED, SecretRegistry, encodable, hide_secrets, is_secret_name, printable
from rookery.telemetry.tracing import spans

# Limit of a text field in characters.
MAX_TEXT = 4_096
MAX_TRACEBACK = 16_384
MAX_ITEMS = 50
MAX_DEPTH = 4
# Enough lines for some seconds of a busy server.
MAX_QUEUED_LINES = 8_192
MAX_QUEUED_BYTES = 16 * 1024 * 1024
REPEAT_SECONDS = 60.0
_MAX_REPEATS = 1_024
_ROOT = "rookery"
_RESERVED = frozenset({"ts", "level", "event", "logger", "suppressed", "traceback"})

Fields = Mapping[str, object]
_context: ContextVar[Fields] = ContextVar("rookery_log_context", default=MappingProxyType({}))


class Logger:
    """Logs events of one module. A repeated warning for the same chat is logged once a minute, with a count."""

    __slots__ = ("_logger",)

    def __init__(self, name: str) -> None:
        self._logger = logging.getLogger(f"{_ROOT}.{name}")

    def debug(self, event: str, /, **fields: object) -> None:
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        self._log(logging.ERROR, event, fields)

    def exception(self, event: str, error: BaseException, /, **fields: object) -> None:
        """Log an error with its traceback, but without local variables, which may contain secrets."""
        self._log(logging.ERROR, event, fields, error)

    def _log(self, level: int, event: str, fields: Fields, error: BaseException | None = None) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.handle(_record(self._logger.name, level, event, fields, error))


def _record(name: str, level: int, event: str, fields: Fields, error: BaseException | None = None) -> logging.LogRecord:
    exc_info = None if error is None else (type(error), error, error.__traceback__)
    record = logging.LogRecord(name, level, "", 0, event, None, exc_info)
    record.__dict__["fields"] = fields
    return record


def get_logger(name: str) -> Logger:
    """Return the logger of a module. The name omits `rookery`: `get_logger("store.machine")`."""
    return Logger(name)


@contextmanager
def bind(**fields: object) -> Iterator[None]:
    """Add fields to every line logged inside the block, including lines of tasks that are started there.

    A line's own fields take precedence.
    """
    token = _context.set({**_context.get(), **fields})
    try:
        yield
    finally:
        _context.reset(token)


_COLORS = {"debug": "\x1b[2m", "info": "\x1b[32m", "warning": "\x1b[33m", "error": "\x1b[31m", "critical": "\x1b[31m"}


class Entry(msgspec.Struct, frozen=True):
    """The content of one line, without secrets and with limited lengths."""

    ts: str
    level: str
    event: str
    logger: str
    replica: str
    fields: dict[str, object]
    traceback: str


def json_line(entry: Entry) -> str:
    head = {"ts": entry.ts, "level": entry.level, "event": entry.event, "logger": entry.logger}
    tail = {"traceback": entry.traceback} if entry.traceback else {}
    line = msgspec.json.encode({**head, "replica": entry.replica, **entry.fields, **tail}).decode()
    # JSON leaves some control characters unescaped, which a terminal would execute.
    return printable(line) + "\n"


def text_line(entry: Entry, *, color: bool) -> str:
    level = f"{entry.level:7}"
    if color:
        level = f"{_COLORS.get(entry.level, '')}{level}\x1b[0m"
    fields = " ".join(f"{printable(name)}={_text_value(value)}" for name, value in entry.fields.items())
    line = f"{entry.ts[11:]} {level} {printable(entry.event):28} {fields} [{printable(entry.logger)}]\n"
    return line + "".join(f"    | {printable(row)}\n" for row in entry.traceback.splitlines())


def _text_value(value: object) -> str:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    quoted = isinstance(value, str) and (not text or re.search(r'[\s"=]', text))
    return printable(msgspec.json.encode(text).decode() if quoted else text)


class _LineFormatter:
    """Converts a record to a line: adds the context, hides secrets, limits lengths, and formats the line."""

    def __init__(self, replica: str, secrets: SecretRegistry, formatter: Callable[[Entry], str]) -> None:
        self._replica = replica
        self._secrets = secrets
        self._formatter = formatter

    def line(self, record: logging.LogRecord, now: datetime, suppressed: int = 0) -> str:
        own: Fields | None = record.__dict__.get("fields")
        # A library's message contains values, so it becomes a field.
        event, own = (record.msg, own) if own is not None else ("message", {"text": record.getMessage()})
        merged = {**_context.get(), **own}
        replica = str(merged.pop("replica", self._replica))
        fields = {self._name(name): self._field(name, value) for name, value in merged.items()}
        if (traced := spans.current().context) is not None:
            fields["trace_id"], fields["span_id"] = traced.trace_id, traced.span_id
        if suppressed:
            fields["suppressed"] = suppressed
        ts = now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03}Z"
        name = record.name.removeprefix(f"{_ROOT}.")
        level = record.levelname.lower()
        return self._formatter(Entry(ts, level, self._text(event), name, replica, fields, self._traceback(record)))

    def _name(self, name: str) -> str:
        if name in _RESERVED:
            return f"{name}_"
        return name if name.isidentifier() else self._text(name)

    def _field(self, name: str, value: object, depth: int = 0) -> object:
        return REDACTED if value is not None and is_secret_name(name, value) else self._plain(value, depth)

    def _plain(self, value: object, depth: int) -> object:
        """Return the value as a JSON value. A value of an unknown type becomes its repr."""
        match value:
            case Enum():
                return self._plain(value.value, depth)
            case None | bool():
                return value
            case int():
                return int(value)
            case float():
                return float(value)
            case UUID():
                return str(value)
            case str() | PurePath() | datetime() | date():
                return self._text(str(value))
            case timedelta():
                return value.total_seconds()
            case BaseException():
                return self._text(f"{type(value).__name__}: {_safe(str, value)}")
            case bytes() | bytearray() | memoryview():
                return f"<{len(value)} bytes>"
            case Mapping() if depth < MAX_DEPTH:
                items = islice(value.items(), MAX_ITEMS)
                return {self._text(str(key)): self._field(str(key), item, depth + 1) for key, item in items}
            case Sequence() | Set() if depth < MAX_DEPTH:
                return [self._plain(item, depth + 1) for item in islice(value, MAX_ITEMS)]
        return self._text(_safe(repr, value))

    def _text(self, text: str) -> str:
        """Return the text with secrets hidden, cut to `MAX_TEXT` characters.

        In a longer text, secrets are hidden in the first `2 * MAX_TEXT` characters, and the result is then cut to
        `MAX_TEXT`. A secret that is cut in two at the end would not be recognized.
        """
        if len(text) <= MAX_TEXT:
            return self._hidden(text)
        return f"{self._hidden(text[: 2 * MAX_TEXT])[:-MAX_TEXT][:MAX_TEXT]}... ({len(text)} characters)"

    def _hidden(self, text: str) -> str:
        return encodable(hide_secrets(text, self._secrets))

    def _traceback(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[1] is None:
            return ""
        text = self._hidden("".join(traceback.format_exception(record.exc_info[1])))
        return text if len(text) <= MAX_TRACEBACK else f"...{text[-MAX_TRACEBACK:]}"


def _safe(show: Callable[[object], str], value: object) -> str:
    try:
        return show(value)
    except Exception:  # a broken __repr__ must not lose the line
        return f"<unprintable {type(value).__name__}>"


class _Repeats:
    """Suppresses and counts warnings that were logged for the same chat less than a minute ago."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str, str], tuple[float, int]] = {}

    def check(self, record: logging.LogRecord, now: float) -> int | None:
        """Return the number of equal warnings that were suppressed before; None if this one must be suppressed."""
        own: Fields | None = record.__dict__.get("fields")
        if own is None or record.levelno != logging.WARNING:
            return 0
        key = (record.name, record.msg, str(own.get("chat_id", _context.get().get("chat_id", ""))))
        said_at, count = self._seen.get(key, (-REPEAT_SECONDS + now, 0))
        if now - said_at < REPEAT_SECONDS:
            self._seen[key] = (said_at, count + 1)
            return None
        self._seen[key] = (now, 0)
        return count

    def forget(self) -> list[Fields]:
        """Reset, and return the suppressed warnings that were not reported."""
        seen, self._seen = self._seen, {}
        return [{"warning": key[1], "chat_id": key[2] or None, "count": n} for key, (_, n) in seen.items() if n]

    def __len__(self) -> int:
        return len(self._seen)


class Stats(msgspec.Struct, frozen=True):
    written: int
    dropped: int
    queued: int


class _Writer:
    """A bounded queue of lines and the thread that writes them. If it is full, new lines are dropped and counted."""

    def __init__(self, write: Callable[[str], None], dropped_line: Callable[[int], str]) -> None:
        self._write = write
        self._dropped_line = dropped_line
        self._lines: deque[str] = deque()
        self._bytes = 0
        self._written = 0
        self._dropped = 0
        self._unreported = 0
        self._closing = False
        self._changed = threading.Condition()
        # A daemon thread, because a blocked stderr must not prevent the process from exiting.
        self._thread = threading.Thread(target=self._run, name="rookery-log", daemon=True)
        self._thread.start()

    def put(self, line: str) -> None:
        with self._changed:
            if len(self._lines) >= MAX_QUEUED_LINES or self._bytes + len(line) > MAX_QUEUED_BYTES:
                self._dropped += 1
                self._unreported += 1
                return
            self._lines.append(line)
            self._bytes += len(line)
            self._changed.notify()

    def close(self, timeout: float) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)

    def stats(self) -> Stats:
        with self._changed:
            return Stats(self._written, self._dropped, len(self._lines))

    def _run(self) -> None:
        while (batch := self._next_batch()) is not None:
            # stderr is closed or full, and there is no other output for this error.
            with suppress(OSError, ValueError):
                self._write("".join(batch))
            with self._changed:
                self._written += len(batch)

    def _next_batch(self) -> list[str] | None:
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._closing)
            batch = [self._lines.popleft() for _ in range(min(len(self._lines), 256))]
            self._bytes -= sum(len(line) for line in batch)
            if self._unreported and not self._lines:
                batch.append(self._dropped_line(self._unreported))
                self._unreported = 0
            return batch or None


class _Handler(logging.Handler):
    def __init__(self, formatter: _LineFormatter, writer: _Writer, clock: Clock) -> None:
        super().__init__()
        self._formatter = formatter
        self._writer = writer
        self._clock = clock
        self._repeats = _Repeats()

    def emit(self, record: logging.LogRecord) -> None:
        try:
            suppressed = self._repeats.check(record, self._clock.monotonic())
            if suppressed is not None:
                self._writer.put(self._formatter.line(record, self._clock.now(), suppressed))
        except Exception as error:  # the standard handler would print the record with its secrets
            self.put("log_line_failed", {"from": record.name, "error": type(error).__name__})
        if len(self._repeats) > _MAX_REPEATS:
            self.report_suppressed()

    def put(self, event: str, fields: Fields) -> None:
        self._writer.put(self._formatter.line(_record("log", logging.WARNING, event, fields), self._clock.now()))

    def report_suppressed(self) -> None:
        for fields in self._repeats.forget():
            self.put("warnings_suppressed", fields)


class Handle:
    """The configured log. Close it last, because later lines are lost."""

    def __init__(self, handler: _Handler, writer: _Writer, level: int) -> None:
        self._handler = handler
        self._writer = writer
        root, own = logging.getLogger(), logging.getLogger(_ROOT)
        self._levels = (root.level, own.level)
        root.addHandler(handler)
        own.setLevel(level)
        root.setLevel(max(level, logging.INFO))
        logging.captureWarnings(True)

    def stats(self) -> Stats:
        return self._writer.stats()

    def close(self, timeout: float = 5.0) -> None:
        """Write the queued lines for at most `timeout` seconds, and restore the standard logging."""
        root, own = logging.getLogger(), logging.getLogger(_ROOT)
        if self._handler in root.handlers:
            logging.captureWarnings(False)
            root.removeHandler(self._handler)
            root.setLevel(self._levels[0])
            own.setLevel(self._levels[1])
            self._handler.report_suppressed()
        self._writer.close(timeout)


def configure(
    level: str,
    format: str,
    *,
    replica: str,
    stream: TextIO,
    secrets: SecretRegistry | None = None,
    clock: Clock | None = None,
) -> Handle:
    """Write all log lines of this process to `stream` until the handle is closed.

    `format` is `text`, `json` or `auto`, which is text on a terminal. Libraries log at level info or above, because
    their debug lines may contain payloads. A `replica` in the context precedes the argument.
    """
    clock = clock or SystemClock()
    is_text = format == "text" or (format == "auto" and stream.isatty())
    color = stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    formatter = _LineFormatter(
        replica, secrets or SecretRegistry(), (lambda entry: text_line(entry, color=color)) if is_text else json_line
    )

    def dropped_line(count: int) -> str:
        return formatter.line(_record("log", logging.WARNING, "log_lines_dropped", {"count": count}), clock.now())

    writer = _Writer(_write_to(stream), dropped_line)
    return Handle(_Handler(formatter, writer, clock), writer, logging.getLevelNamesMapping()[level.upper()])


def _write_to(stream: TextIO) -> Callable[[str], None]:
    """Return a function that writes to the stream, directly to its file descriptor if it has one.

    `stream.write` holds the lock of the stream's buffer. If the thread is blocked in it at exit, the interpreter cannot
    flush the buffer and aborts.
    """
    try:
        fd = stream.fileno()
    except (OSError, ValueError):
        return stream.write  # type: ignore[return-value]  # the returned count is ignored

    def write(text: str) -> None:
        left = memoryview(text.encode())
        while left:
            try:
                left = left[os.write(fd, left) :]
            except BlockingIOError:
                select.select([], [fd], [])

    return write
