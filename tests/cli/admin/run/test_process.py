"""`rookery admin run` as a process: a terminal, pipes, signals, exit codes, and a server at the same time."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO

import asyncpg

from tests.cli.serve.server_process import SCRIPT, environment, rookery, servers_of, serving
from tests.eventually import until

GUIDE = (Path(__file__).parents[4] / "docs" / "guide" / "first-steps.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL) for line in block.splitlines()
]
OFFLINE = "I am Rookery's scripted model"


def on_terminal(arguments: list[str], env: dict[str, str], *, watch: Callable[[str, int], None]) -> tuple[int, str]:
    """Run on a terminal of its own; `watch` sees the screen and the process id whenever something was added."""
    leader, follower = pty.openpty()
    with open(leader, "rb", buffering=0) as screen:
        process = subprocess.Popen(
            [SCRIPT, *arguments], env=env, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
        )
        os.close(follower)
        seen = b""
        while read := _read(screen):
            seen += read
            watch(seen.decode(errors="replace"), process.pid)
        return process.wait(30), seen.decode()


def _read(screen: IO[bytes]) -> bytes:
    try:
        return screen.read(65_536)
    except OSError:  # how Linux says that nobody holds the other side any more
        return b""


def test_newcomer_sees_the_answer_stream_and_stops_it(tmp_path: Path) -> None:
    """In a fresh data directory. Ctrl-C comes in the middle of an answer, which nothing but streaming could show."""
    data_dir = tmp_path / "data"
    interrupted = False

    def watch(screen: str, pid: int) -> None:
        nonlocal interrupted
        if OFFLINE in screen and not interrupted:
            interrupted = True
            os.kill(pid, signal.SIGINT)

    env = environment(tmp_path, TERM="xterm")
    code, screen = on_terminal(["admin", "run", "hello", "--data-dir", str(data_dir)], env, watch=watch)

    assert code == 130, screen
    assert "\x1b[2moffline/guide answers: the built-in model" in screen
    assert "take the tour" not in screen
    assert screen.splitlines()[-2] == "rookery: Interrupted. The answer so far is saved."
    found = re.search(r"\d\.\d s, chat (\S+)\x1b\[0m", screen.splitlines()[-1])
    assert found
    assert servers_of(data_dir) == []

    more = rookery(tmp_path, "admin", "run", "hello", "--chat", found[1], "--data-dir", str(data_dir))

    assert (more.returncode, more.stdout[: len(OFFLINE)]) == (0, OFFLINE), more.stderr
    assert "\x1b" not in more.stderr


def test_run_and_the_guide_work_beside_a_server_and_leave_it_alone(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    (tmp_path / "anthropic.key").write_text("key-0123456789\n")
    path = f"{Path(SCRIPT).parent}:{os.environ['PATH']}"
    with serving(tmp_path, "--data-dir", data_dir) as served:
        done = subprocess.run(
            [SCRIPT, "admin", "run", "-", "--json", "--data-dir", data_dir],
            env=environment(tmp_path),
            input="hello\n",
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        for command in COMMANDS:
            if command == "rookery serve":
                continue  # this is it
            followed = subprocess.run(
                ["bash", "-c", command],
                env=environment(tmp_path, ROOKERY_DATA_DIR=data_dir) | {"PATH": path},
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert followed.returncode == 0, (command, followed.stderr)
        status = json.loads(rookery(tmp_path, "admin", "status", "--json", "--data-dir", data_dir).stdout)

        assert served.readiness()["status"] == "ready"

    assert "rookery serve" in COMMANDS
    assert (tmp_path / "answer.txt").read_text().startswith(OFFLINE)
    document = json.loads(done.stdout)
    assert (done.returncode, document["status"]) == (0, "waiting"), done.stderr
    assert document["messages"][0]["content"] == [{"type": "text", "text": "hello"}]
    assert document["messages"][1]["content"][0]["text"].startswith(OFFLINE)
    assert len(status["replicas"]) == 1
    assert set(status["chats"].values()) == {0}
    # That a busy machine made the server wait is its own business.
    logged = [line for line in served.errors if "event_loop_lag" not in line]
    assert not [line for line in logged if '"level":"error"' in line or '"level":"warning"' in line]


def test_request_that_cannot_run_ends_with_its_exit_code(tmp_path: Path, database_url: str) -> None:
    """One process each for an invalid request, an unusable model, and a time limit."""
    where = ("--database-url", database_url)

    empty = rookery(tmp_path, "admin", "run", "  ", *where)
    unknown = rookery(tmp_path, "admin", "run", "hello", "--model", "opus", "--json", *where)
    late = rookery(tmp_path, "admin", "run", "hello", "--timeout", "0.3", "--quiet", *where)

    assert (empty.returncode, empty.stdout) == (2, "")
    assert empty.stderr == "rookery: The prompt is empty. Write a prompt, or pipe it in with `-`.\n"
    assert unknown.returncode == 2
    assert json.loads(unknown.stdout)["error"] == {
        "exit_code": 2,
        "message": "There is no model opus. There are: offline/guide.",
    }
    assert late.returncode == 1
    assert late.stderr == "rookery: Stopped after 0.3 s (--timeout). The answer so far is saved.\n"


async def test_second_signal_leaves_a_chat_that_does_not_stop(tmp_path: Path, database_url: str) -> None:
    """Another transaction holds the lock of the chat's row, so the interrupt cannot be written."""
    conn, watcher = await asyncpg.connect(database_url), await asyncpg.connect(database_url)
    process = await asyncio.create_subprocess_exec(
        *(SCRIPT, "admin", "run", "hello", "--database-url", database_url),
        env=environment(tmp_path),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        await process.stdout.readexactly(len(OFFLINE))
        async with conn.transaction():
            await conn.execute("SELECT FROM chats FOR UPDATE")
            process.send_signal(signal.SIGTERM)
            waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query ~ 'chats'"
            await until(lambda: watcher.fetchval(waiting))
            process.send_signal(signal.SIGINT)
            _, errors = await asyncio.wait_for(process.communicate(), 20)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
        await conn.close()
        await watcher.close()

    assert process.returncode == 130
    # A warning in the log may follow: a cost that could not be written, because the row of the chat is locked.
    assert "rookery: Interrupted." in errors.decode().splitlines()
