"""Logging: the content of a line, redaction, and that logging never blocks."""

from __future__ import annotations

import asyncio
import io
import json
import logging
import os
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Any, TextIO
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.telemetry import log
from rookery.telemetry.log import Handle
from rookery.telemetry.redaction import SecretRegistry, hide_secrets
from rookery.telemetry.tracing import spans
from rookery.testing.clock import FakeClock
from tests.otlp_collector import exporting, otlp_collector

logger = log.get_logger("test.part")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Lines:
    """A log whose lines can be read. `read` closes the log, so that everything is written."""

    def __init__(self, handle: Handle, stream: io.StringIO) -> None:
        self.handle = handle
        self._stream = stream

    def text(self) -> str:
        self.handle.close()
        return self._stream.getvalue()

    def read(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.text().splitlines()]


@contextmanager
def logging_to(
    stream: io.StringIO,
    *,
    level: str = "info",
    form: str = "json",
    secrets: SecretRegistry | None = None,
    clock: FakeClock | None = None,
) -> Iterator[Lines]:
    handle = log.configure(level, form, replica="r1", stream=stream, secrets=secrets, clock=clock or FakeClock())
    try:
        yield Lines(handle, stream)
    finally:
        handle.close()


@pytest.fixture
def lines() -> Iterator[Lines]:
    with logging_to(io.StringIO()) as lines:
        yield lines


def test_line_is_one_json_object_with_time_level_event_logger_and_replica(lines: Lines) -> None:
    logger.info("chat_acquired", chat_id=UUID(int=1), waited_ms=12)

    assert lines.text() == (
        '{"ts":"2030-01-01T00:00:00.000Z","level":"info","event":"chat_acquired","logger":"test.part","replica":"r1",'
        '"chat_id":"00000000-0000-0000-0000-000000000001","waited_ms":12}\n'
    )


def test_lines_below_the_level_are_not_written() -> None:
    with logging_to(io.StringIO(), level="warning") as lines:
        logger.info("quiet")
        logger.error("loud")

        assert [line["event"] for line in lines.read()] == ["loud"]


def test_bound_fields_are_on_every_line_inside_also_in_tasks_and_libraries(lines: Lines) -> None:
    async def work() -> None:
        logger.info("in_task")

    async def bound() -> None:
        with log.bind(chat_id="c1", user_id="u1"), log.bind(user_id="u2"):
            await asyncio.create_task(work())
            logging.getLogger("asyncpg").warning("in library")
            logger.info("own_wins", chat_id="c2")
        logger.info("outside")

    asyncio.run(bound())

    seen = [(line.get("chat_id"), line.get("user_id")) for line in lines.read()]
    assert seen == [("c1", "u2"), ("c1", "u2"), ("c2", "u2"), (None, None)]


async def test_line_inside_a_span_names_its_trace(lines: Lines) -> None:
    with otlp_collector() as collector:
        async with exporting(collector):
            with spans.span("work"):
                logger.info("inside")
            logger.info("outside")

    inside, outside = lines.read()
    assert (inside["trace_id"], inside["span_id"]) == collector.one("work").id
    assert "trace_id" not in outside


def test_replica_bound_in_the_context_wins(lines: Lines) -> None:
    with log.bind(replica="r2"):
        logger.info("x")

    assert lines.read()[0]["replica"] == "r2"


def test_field_cannot_take_the_place_of_the_line_s_own(lines: Lines) -> None:
    logger.info("real", level="fake", ts="never", event="other", logger="else")

    (line,) = lines.read()
    assert (line["event"], line["level"], line["logger"]) == ("real", "info", "test.part")
    assert (line["level_"], line["event_"]) == ("fake", "other")


def test_libraries_come_out_as_the_same_lines(lines: Lines) -> None:
    # Not a logger of a used library, because a server of another test may have changed its level.
    logging.getLogger("some.library").info("Listening on %s", "127.0.0.1")
    logging.getLogger("asyncio").debug("Using selector")

    (line,) = lines.read()
    assert (line["event"], line["logger"], line["text"]) == ("message", "some.library", "Listening on 127.0.0.1")


def test_debug_level_is_for_our_own_lines_only() -> None:
    with logging_to(io.StringIO(), level="debug") as lines:
        logger.debug("ours")
        logging.getLogger("asyncio").debug("theirs")

        assert [line["event"] for line in lines.read()] == ["ours"]


def test_warnings_of_python_come_out_as_lines() -> None:
    with warnings.catch_warnings(), logging_to(io.StringIO()) as lines:
        warnings.simplefilter("always")
        warnings.warn("old thing", DeprecationWarning, stacklevel=1)

        assert [line["logger"] for line in lines.read()] == ["py.warnings"]


def test_standard_logging_is_as_before_after_close() -> None:
    root, own = logging.getLogger(), logging.getLogger("rookery")
    before = (root.handlers[:], root.level, own.level)

    with logging_to(io.StringIO()):
        assert root.handlers != before[0]

    assert (root.handlers, root.level, own.level) == before


class Color(StrEnum):
    RED = "red"


class Number(IntEnum):
    TWO = 2


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    ("value", "seen"),
    [
        (None, None),
        (True, True),
        (2**70, 2**70),
        (1.5, 1.5),
        (float("nan"), None),
        (Color.RED, "red"),
        (Number.TWO, 2),
        (Path("/a"), "/a"),
        (b"abc", "<3 bytes>"),
        ({"a": [1, {"b": (2, 3)}]}, {"a": [1, {"b": [2, 3]}]}),
        (ValueError("bad"), "ValueError: bad"),
        (Broken(), "<unprintable Broken>"),
        (range(10**12), list(range(log.MAX_ITEMS))),
        (object, "<class 'object'>"),
        ("half \ud800 pair", "half \\ud800 pair"),
    ],
)
def test_any_value_becomes_something_json_can_hold(lines: Lines, value: object, seen: object) -> None:
    logger.info("x", value=value)

    assert lines.read()[0]["value"] == seen


def test_deep_and_circular_values_end_as_text(lines: Lines) -> None:
    circular: list[object] = []
    circular.append(circular)

    logger.info("x", value=circular)

    assert lines.read()[0]["value"] == [[[["[[...]]"]]]]


def test_value_that_breaks_the_line_leaves_a_line_that_says_so(lines: Lines) -> None:
    class Hostile(dict[str, str]):
        def items(self) -> Any:
            raise RuntimeError("hunter22")

    logger.info("x", value=Hostile())

    (line,) = lines.read()
    assert (line["event"], line["from"], line["error"]) == ("log_line_failed", "rookery.test.part", "RuntimeError")


def test_long_text_is_cut_and_says_how_long_it_was(lines: Lines) -> None:
    logger.info("x", text="a" * 100_000)

    assert lines.read()[0]["text"] == "a" * log.MAX_TEXT + "... (100000 characters)"


@pytest.mark.parametrize("cut", [log.MAX_TEXT, 2 * log.MAX_TEXT])
@pytest.mark.parametrize("key_size", [0, 2_000, 3_900])
def test_cut_never_leaves_half_a_secret(cut: int, key_size: int) -> None:
    secrets = SecretRegistry()
    secrets.add("key", "hunter22hunter22")
    # A long key before it gets shorter when it is hidden, so the text after it moves into the shown part.
    pem = "-----BEGIN PRIVATE KEY-----" + "A" * key_size + "-----END PRIVATE KEY-----"
    keys = pem * ((cut - 6) // len(pem)) if key_size else ""

    with logging_to(io.StringIO(), secrets=secrets) as lines:
        logger.info("x", text=keys.ljust(cut - 6) + "hunter22hunter22" + "b" * 10_000)

        assert "hunter" not in lines.text()


def test_control_characters_are_escaped_in_both_formats() -> None:
    hostile = "a\x1b[2J\nb\x7f\x85\u2028\u202ec"
    for form in ("json", "text"):
        with logging_to(io.StringIO(), form=form) as lines:
            logger.info("x", value=hostile)
            text = lines.text()

        assert text.count("\n") == 1
        assert text.rstrip("\n").isprintable()
        if form == "json":
            assert json.loads(text)["value"] == hostile


@given(st.text(), st.dictionaries(st.text(), st.text()))
def test_any_text_makes_exactly_one_readable_line(text: str, table: dict[str, str]) -> None:
    with logging_to(io.StringIO()) as lines:
        logger.info("x", value=text, table=table)

        assert len(lines.read()) == 1


@pytest.mark.parametrize(
    ("name", "value", "is_hidden"),
    [
        ("authorization", "x", True),
        ("Cookie", "x", True),
        ("api_key", "x", True),
        ("x-api-key", "x", True),
        ("private_key", "x", True),
        ("client_secret", "x", True),
        ("db_password", 1234, True),
        ("token", 1234, True),
        ("setup_token", "x", True),
        ("access_token", None, False),
        ("input_tokens", 1234, False),
        ("has_token", True, False),
        ("anthropic-ratelimit-input-tokens-remaining", "40000", False),
        ("x-ratelimit-remaining-tokens", "40000", False),
        ("key", "x", False),
        ("monkey", "x", False),
    ],
)
def test_names_decide_what_is_hidden(lines: Lines, name: str, value: object, is_hidden: bool) -> None:
    logger.info("x", **{name: value}, nested={"headers": [{name: value}]})

    (line,) = lines.read()
    assert line[name] == line["nested"]["headers"][0][name] == ("[REDACTED]" if is_hidden else value)


@pytest.mark.parametrize(
    "secret",
    [
        "sk-ant-api03-hunter22hunter22",
        "AKIAHUNTER22HUNTER22",
        "ghp_hunter22hunter22hunter22",
        "rk_hunter22hunter22",
        "Bearer hunter22hunter22",
        "bearer  hunter22/hunter22=",
        "eyJhdW50ZXIyMg.eyJodW50ZXIyMg.hunter22",
        "-----BEGIN RSA PRIVATE KEY-----\nhunter22\nhunter22\n-----END RSA PRIVATE KEY-----",
        "-----BEGIN PRIVATE KEY-----\nhunter22 and no end",
        "https://user:hunter22@example.org/a",
        "postgresql://user:hunter22@db/rookery",
        "https://example.org/?api%5Fkey=hunter22&x=1",
        "https://example.org/#token=hunter22",
        "https://user:hunter22/x@example.org/",
        "https://user:x#hunter22@example.org/",
        "https://[hunter22",
    ],
)
def test_texts_that_look_like_secrets_are_hidden(lines: Lines, secret: str) -> None:
    logger.error("failed", text=f"it said {secret} there", error=ValueError(secret), nested=[{"a": secret}])
    logging.getLogger("lib").error("library says %s", secret)
    try:
        raise RuntimeError(secret)
    except RuntimeError as error:
        logger.exception("raised", error)

    text = lines.text().lower()
    assert "hunter22" not in text
    assert "it said" in text


def test_known_secrets_are_hidden_by_name_wherever_they_are(lines: Lines) -> None:
    secrets = SecretRegistry()
    secrets.add("provider", "correct horse")
    secrets.add("longer", "correct horse battery")
    secrets.add("short", "a")

    assert hide_secrets("a correct horse battery", secrets) == "a [REDACTED:longer]"
    assert hide_secrets("a correct horse", secrets) == "a [REDACTED:provider]"


@pytest.mark.parametrize(
    "text",
    [
        "see https://example.org/a?page=2#part and http://localhost:7117/x",
        "https://example.org/@somebody/post",
        "task-1234567890 asked for desk-aaaaaaaaaaaaaaa",
        "the bearer of bad news",
    ],
)
def test_plain_texts_stay_as_they_are(text: str) -> None:
    assert hide_secrets(text) == text


def test_traceback_is_one_field_without_local_variables(lines: Lines) -> None:
    def fail(argument: str) -> None:
        local = argument * 2
        raise RuntimeError(f"failed with {len(local)} characters")

    try:
        fail("hunter22")
    except RuntimeError as error:
        logger.exception("task_failed", error, chat_id="c")

    (line,) = lines.read()
    assert line["traceback"].startswith("Traceback (most recent call last):\n")
    assert line["traceback"].endswith("RuntimeError: failed with 16 characters\n")
    assert "hunter22hunter22" not in line["traceback"]


def test_traceback_of_a_library_is_a_field_too(lines: Lines) -> None:
    try:
        raise RuntimeError("x" * 50_000)
    except RuntimeError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")

    (line,) = lines.read()
    assert line["text"] == "Task exception was never retrieved"
    assert len(line["traceback"]) <= log.MAX_TRACEBACK + 3


async def test_same_warning_for_a_chat_appears_once_a_minute_with_a_count() -> None:
    clock = FakeClock()
    with logging_to(io.StringIO(), clock=clock) as lines:
        for _ in range(5):
            logger.warning("slow", chat_id="a")
            with log.bind(chat_id="b"):
                logger.warning("slow")
        logger.warning("other", chat_id="a")
        logger.error("slow", chat_id="a")
        await clock.advance(59.9)
        logger.warning("slow", chat_id="a")
        await clock.advance(0.1)
        logger.warning("slow", chat_id="a")

        seen = [(line["level"], line["event"], line.get("chat_id"), line.get("suppressed")) for line in lines.read()]

    assert seen[:5] == [
        ("warning", "slow", "a", None),
        ("warning", "slow", "b", None),
        ("warning", "other", "a", None),
        ("error", "slow", "a", None),
        ("warning", "slow", "a", 5),
    ]


def test_suppressed_warnings_are_counted_at_close(lines: Lines) -> None:
    for _ in range(3):
        logger.warning("slow", chat_id="a")
        logger.warning("slow")

    told = [line for line in lines.read() if line["event"] == "warnings_suppressed"]
    assert [(line["warning"], line["chat_id"], line["count"]) for line in told] == [("slow", "a", 2), ("slow", None, 2)]


def test_warnings_of_very_many_chats_are_remembered_within_bounds(lines: Lines) -> None:
    for number in range(3_000):
        logger.warning("slow", chat_id=number)
        logger.warning("slow", chat_id=number)

    seen = lines.read()
    assert sum(line["event"] == "slow" for line in seen) + sum(line.get("count", 0) for line in seen) == 6_000


def test_libraries_warnings_are_not_suppressed(lines: Lines) -> None:
    for _ in range(3):
        logging.getLogger("lib").warning("again")

    assert len(lines.read()) == 3


def test_text_format_is_readable_and_aligned() -> None:
    with logging_to(io.StringIO(), form="text") as lines:
        logger.info("chat_acquired", chat_id="c1", note="two words", empty="", count=3, yes=True)
        logger.error("x")

        assert lines.text() == (
            '00:00:00.000Z info    chat_acquired                chat_id=c1 note="two words" empty="" count=3 yes=true '
            "[test.part]\n"
            "00:00:00.000Z error   x                             [test.part]\n"
        )


def test_text_traceback_cannot_pose_as_a_line() -> None:
    with logging_to(io.StringIO(), form="text") as lines:
        logger.exception("failed", ValueError("x\n00:00:00.000Z info    all_is_well"))

        first, *rest = lines.text().splitlines()

    assert " failed " in first
    assert rest[-1] == "    | 00:00:00.000Z info    all_is_well"


@pytest.mark.parametrize(
    ("form", "stream", "environ", "expected"),
    [
        ("auto", io.StringIO, {}, "json"),
        ("auto", Terminal, {}, "color"),
        ("auto", Terminal, {"NO_COLOR": "1"}, "text"),
        ("auto", Terminal, {"NO_COLOR": ""}, "color"),
        ("auto", Terminal, {"TERM": "dumb"}, "text"),
        ("text", io.StringIO, {}, "text"),
        ("json", Terminal, {}, "json"),
    ],
)
def test_auto_is_text_on_a_terminal_with_color_unless_refused(
    form: str,
    stream: Callable[[], io.StringIO],
    environ: dict[str, str],
    expected: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environ.items():
        monkeypatch.setenv(name, value)

    with logging_to(stream(), form=form) as lines:
        logger.info("x")
        text = lines.text()

    assert {"json": text.startswith("{"), "color": "\x1b[" in text, "text": text.isascii() and "\x1b" not in text}[
        expected
    ]
    assert expected == "json" or text.startswith("00:00")


def _fill(stream: TextIO) -> Handle:
    """Log more lines than the queue can hold, to a pipe without a reader."""
    handle = log.configure("info", "json", replica="", stream=stream)
    for number in range(log.MAX_QUEUED_LINES + 2_000):
        logger.info("line", number=number)
    return handle


def test_slow_reader_costs_lines_and_never_time() -> None:
    read, write = os.pipe()
    with open(write, "w") as stream, open(read, "rb") as source:
        handle = _fill(stream)
        stats = handle.stats()
        assert stats.dropped > 0
        assert stats.queued <= log.MAX_QUEUED_LINES

        # With a reader, the queued lines arrive in order, followed by the number of dropped lines.
        seen: list[dict[str, Any]] = []
        while not seen or seen[-1]["event"] != "log_lines_dropped":
            seen.append(json.loads(source.readline()))
        handle.close()

    numbers = [line["number"] for line in seen[:-1]]
    assert numbers == sorted(numbers)
    assert seen[-1]["count"] == stats.dropped
    assert len(numbers) + stats.dropped == log.MAX_QUEUED_LINES + 2_000


def test_close_gives_up_on_a_reader_who_never_comes() -> None:
    read, write = os.pipe()
    with open(write, "w") as stream:
        with open(read, "rb"):
            handle = _fill(stream)
            handle.close(timeout=0.01)
            assert handle.stats().queued > 0

        # Without a reader, the thread gets an error instead of waiting, and ends.
        handle.close()
        assert handle.stats().queued == 0


def test_lost_stderr_is_survived() -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "w") as stream:
        handle = log.configure("info", "json", replica="", stream=stream)
        logger.info("x")
        handle.close()
        assert handle.stats().queued == 0


def test_stderr_that_does_not_block_gets_every_line() -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    with open(write, "w") as stream, open(read, "rb") as source:
        handle = log.configure("info", "json", replica="", stream=stream)
        for number in range(5_000):
            logger.info("line", number=number)
        numbers = [json.loads(source.readline())["number"] for _ in range(5_000)]
        handle.close()

    assert numbers == list(range(5_000))


def test_process_ends_cleanly_while_its_stderr_is_blocked() -> None:
    program = (
        "import sys\nfrom rookery.telemetry import log\n"
        "handle = log.configure('info', 'json', replica='', stream=sys.stderr)\n"
        "for n in range(5_000): log.get_logger('x').info('line', number=n)\n"
        "handle.close(timeout=0.01)\n"
    )
    read, write = os.pipe()
    with open(read, "rb"), open(write, "wb") as stderr:
        done = subprocess.run([sys.executable, "-c", program], stderr=stderr, timeout=30, check=False)

    assert done.returncode == 0
