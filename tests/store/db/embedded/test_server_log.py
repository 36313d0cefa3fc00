"""Messages of PostgreSQL, converted to one sentence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rookery.store.db.embedded import server_log

STAMP = "2026-01-02 03:04:05.678 UTC [42] "


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ('FATAL:  could not write lock file "postmaster.pid": No space left on device', "no space left on the disk"),
        ('PANIC:  could not write to file "pg_wal/xlogtemp.31": Disk quota exceeded', "Free some space"),
        ("FATAL:  could not map anonymous shared memory: Cannot allocate memory", "Free some memory"),
        ("FATAL:  could not create semaphores: No space left on device", "Free some memory"),
        ('ERROR:  could not resize shared memory segment "/x": No space left on device', "Free some memory"),
        ('FATAL:  data directory "/d" has wrong ownership', "Restore their owner and mode"),
        ('FATAL:  could not open file "global/pg_control": Permission denied', "Restore their owner and mode"),
        ('FATAL:  lock file "postmaster.pid" already exists', "Another PostgreSQL still uses"),
        ("FATAL:  pre-existing shared memory block (key 1, ID 2) is still in use", "Another PostgreSQL still uses"),
        ("FATAL:  database files are incompatible with server", "created by another PostgreSQL"),
        ("PANIC:  could not locate a valid checkpoint record at 0/1", "is damaged"),
        ("FATAL:  could not become user 57117: [Errno 22] Invalid argument", "Run rookery as a normal user"),
        ('FATAL:  unrecognized configuration parameter "x"', 'unrecognized configuration parameter "x"'),
    ],
)
def test_failure_is_explained_in_one_line_that_says_what_to_do(tmp_path: Path, said: str, sentence: str) -> None:
    output = f"{STAMP}LOG:  starting PostgreSQL\n{STAMP}{said}\n{STAMP}LOG:  database system is shut down\n"

    explained = server_log.explain(output, tmp_path)

    assert sentence in explained
    assert str(tmp_path) in explained or said.split("  ")[1] in explained
    assert "\n" not in explained


def test_progress_of_the_setup_is_not_taken_for_a_failure(tmp_path: Path) -> None:
    output = (
        "selecting dynamic shared memory implementation ... posix\n"
        f'running bootstrap script ... {STAMP}FATAL:  could not extend file "base/1/2691": No space left on device\n'
        f"{STAMP}PANIC:  cannot abort transaction 1, it was already committed\n"
        "child process exited with exit code 134\n"
    )

    assert server_log.explain(output, tmp_path).startswith("There is no space left on the disk")


def test_silence_is_explained_too(tmp_path: Path) -> None:
    assert "it left no message" in server_log.explain("", tmp_path)


def test_log_is_read_from_the_start_of_this_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("yesterday: No space left on device\n")
    offset = log.stat().st_size
    with server_log.open_log(log) as appended:
        appended.write(b"today\n")

    assert server_log.read_since(log, offset) == "today\n"


def test_only_the_end_of_a_flood_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * (server_log.TAIL_BYTES + 1000) + b"end")

    text = server_log.read_since(log, 0)

    assert len(text) == server_log.TAIL_BYTES
    assert text.endswith("end")
