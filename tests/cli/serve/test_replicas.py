"""`rookery serve --replicas N` as processes: they die, are killed, and shut down in order."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from uuid import UUID

import asyncpg
import pytest

from rookery.cli.serve import parent, port
from rookery.cli.serve.parent import ReplicaSupervisor
from rookery.cli.serve.stop_signals import ECHO_SECONDS, Stop
from rookery.client import AsyncRookery
from rookery.runtime import replica_slots
from rookery.runtime.replica_slots import SlotState
from rookery.settings import settings
from rookery.settings.value_types import Address
from rookery.store.db.embedded.server import running_url
from rookery.telemetry.tracing import spans
from tests.cli.serve.replicas_rig import FIRST, REST, WAIT_SECONDS, ReplicasRig, open_fleet
from tests.cli.serve.server_process import SCRIPT, environment, is_alive, rookery, servers_of, serving, thread_heaps
from tests.eventually import until
from tests.otlp_collector import otlp_collector

DRAIN_SECONDS = 10
METRICS = re.compile(r"Metrics are at (http://\S+)")
SETUP = re.compile("rk_setup_[0-9a-f]{64}")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


async def test_replicas_share_a_port_and_their_numbers_are_served_together(home: Path, database_url: str) -> None:
    async with open_fleet(database_url, home, replicas=3, options=("--metrics-listen", "127.0.0.1:0")) as rig:
        metrics_url = await asyncio.to_thread(rig.served.wait_for_line, METRICS)

        replicas = await rig.replicas()
        text = await asyncio.to_thread(lambda: urllib.request.urlopen(metrics_url[1], timeout=10).read().decode())
        ready = await asyncio.to_thread(rig.served.readiness)

        assert ready["status"] == "ready"
        assert len(set(replicas.values()) - {rig.served.process.pid}) == 3
        assert set(re.findall(r'rookery_build_info\{process="(\d)"', text)) == {"0", "1", "2"}
        assert {line["replica"] for line in rig.served.log("ready")} == {"", *replicas}
        assert [heap for pid in replicas.values() for heap in thread_heaps(pid)] == []
        code = await asyncio.to_thread(rig.served.stop)

    assert code == 0
    assert not any(is_alive(pid) for pid in replicas.values())
    assert list((home / "data" / "run").glob("r*.s")) == []


async def test_client_of_another_replica_is_shown_the_answer_as_it_is_written(home: Path, database_url: str) -> None:
    async with open_fleet(database_url, home, replicas=2) as rig:
        chat_id = await rig.start_chat()
        owner = await rig.until_owned(chat_id)
        follower = await rig.follow_elsewhere(chat_id, owner)

        await until(lambda: FIRST in follower.preview(), timeout=30)
        assert await rig.status(chat_id) == "running"
        rig.story.gate.set()
        await until(lambda: any(FIRST + REST in json.dumps(event) for event in follower.of("message")), timeout=30)

        # Text that is committed immediately may not arrive as live parts; parts that arrived are its beginning.
        assert (FIRST + REST).startswith(follower.preview())
        await follower.close()


async def test_killed_replica_is_started_again_and_its_chats_go_on_elsewhere(home: Path, database_url: str) -> None:
    async with open_fleet(database_url, home, replicas=2) as rig:
        chat_id = await rig.start_chat()
        owner = await rig.until_owned(chat_id)
        before = await rig.replicas()
        follower = await rig.follow_elsewhere(chat_id, owner)

        os.kill(before[owner], signal.SIGKILL)
        taker = await rig.until_owned(chat_id, not_by=owner)
        rig.story.gate.set()
        await until(lambda: any(FIRST + REST in json.dumps(event) for event in follower.of("message")), timeout=30)

        assert taker in before or taker in await rig.replicas()
        await until(lambda: len(rig.served.log("ready")) == 4, timeout=60)
        after = await rig.replicas()
        assert owner not in after
        assert [is_alive(pid) for pid in after.values()] == [True, True]
        (ended,) = rig.served.log("replica_ended")
        assert ended["code"] == -signal.SIGKILL
        await follower.close()


async def test_replica_that_is_told_to_stop_leaves_the_port_to_the_other_and_is_replaced(
    home: Path, database_url: str
) -> None:
    async with open_fleet(database_url, home, replicas=2) as rig:
        before = await rig.replicas()
        chat_id = await rig.start_chat()
        owner = await rig.until_owned(chat_id)
        follower = await rig.follow_elsewhere(chat_id, owner)
        loyal = asyncio.Event()
        away = asyncio.create_task(time_away(rig, chat_id, owner, connected=loyal))
        await until(lambda: loyal.is_set() or away.done(), timeout=WAIT_SECONDS)

        os.kill(before[owner], signal.SIGTERM)
        await until(lambda: rig.served.log("stop_requested"), timeout=30)
        rig.story.gate.set()
        to_connect, to_return = await away
        await until(lambda: rig.served.log("replica_ended"), timeout=60)
        assert (await rig.http.get("/readyz")).status_code == 200
        await until(lambda: len(rig.served.log("ready")) == 4, timeout=60)

        (ended,) = rig.served.log("replica_ended")
        assert ended["code"] == 0
        assert any(FIRST + REST in json.dumps(event) for event in follower.of("message"))
        assert follower.close_code is None
        assert set(await rig.replicas()) - set(before)
        await follower.close()
    # A goodbye requests up to two seconds. The rest is the measured time of a connection, times this factor.
    assert to_return < max(3.0, 2.0 + 20 * to_connect)


async def time_away(rig: ReplicasRig, chat_id: UUID, replica: str, *, connected: asyncio.Event) -> tuple[float, float]:
    """Return how long a client takes to connect to that replica, and to reconnect to another after its goodbye."""
    async with AsyncRookery(rig.served.url, token=rig.token) as client, asyncio.timeout(WAIT_SECONDS):
        while True:
            began, took, left = time.monotonic(), 0.0, 0.0
            async with client.chats.stream(chat_id) as live:
                async for change in live:
                    told = {event["type"]: event for event in change.events}
                    if not connected.is_set() and "hello" in told and told["hello"]["replica_id"] != replica:
                        break  # the kernel chooses the replica
                    if "synced" in told and not connected.is_set():
                        took = time.monotonic() - began
                        connected.set()
                    if "goodbye" in told:
                        left = time.monotonic()
                    elif "synced" in told and left:
                        return took, time.monotonic() - left


async def test_stop_sends_clients_elsewhere_and_ends_within_the_drain(home: Path, database_url: str) -> None:
    options = ("--drain-timeout", f"{DRAIN_SECONDS}s")
    async with open_fleet(database_url, home, replicas=2, options=options) as rig:
        chat_id = await rig.start_chat()
        await rig.until_owned(chat_id)
        followers = [await rig.follow(chat_id) for _ in range(4)]
        began = time.monotonic()

        code = await asyncio.to_thread(rig.served.stop)
        took = time.monotonic() - began
        for follower in followers:
            await follower.ended()

        assert code == 0
        assert took < DRAIN_SECONDS + 5
        assert [follower.close_code for follower in followers] == [1012] * 4
        assert all(follower.of("goodbye") for follower in followers)
        assert await rig.status(chat_id) == "running"
        assert await rig.database.fetchval("SELECT count(*) FROM chat_heartbeats") == 0
        assert await rig.replicas() == {}


async def test_second_signal_skips_the_waiting_of_all(home: Path, database_url: str) -> None:
    async with open_fleet(database_url, home, replicas=2, options=("--shutdown-delay", "50s")) as rig:
        pids = list((await rig.replicas()).values())

        rig.served.process.send_signal(signal.SIGINT)
        await until(lambda: rig.served.log("stop_requested"), timeout=30)
        heard = time.monotonic()
        await until(lambda: time.monotonic() - heard > ECHO_SECONDS)
        code = await asyncio.to_thread(rig.served.stop, signal.SIGINT)

        assert code == 130
        assert not any(map(is_alive, pids))


async def test_killing_the_parent_leaves_neither_replica_nor_database(home: Path) -> None:
    data_dir = home / "data"

    def look() -> tuple[list[int], list[str]]:
        with serving(home, "--data-dir", str(data_dir), "--replicas", "2") as served:
            setup = served.wait_for_line(SETUP)
            pids = asyncio.run(pids_of(data_dir))
            assert asyncio.run(token_is_good(data_dir, setup[0]))
            served.stop(signal.SIGKILL)
            # Its stderr stays open as long as a child runs.
            return pids, [setup[0], *served.errors]

    pids, (token, *said) = await asyncio.to_thread(look)

    await until(lambda: not any(map(is_alive, pids)), timeout=30)
    await until(lambda: servers_of(data_dir) == [], timeout=30)
    assert len(pids) == 2
    assert not any(token in line for line in said)


async def test_server_that_is_started_right_after_a_kill_gets_port_and_database(home: Path) -> None:
    data_dir = home / "data"
    arguments = ("--data-dir", str(data_dir), "--replicas", "2")

    def look() -> None:
        with serving(home, *arguments) as first:
            old = asyncio.run(pids_of(data_dir))
            first.process.kill()
            first.process.wait()
            address = first.url.removeprefix("http://")
            with serving(home, *arguments, "--listen", address) as second:
                asyncio.run(until(lambda: not any(map(is_alive, old)), timeout=60))
                new = asyncio.run(pids_of(data_dir))
                assert second.readiness()["status"] == "ready"
                assert second.stop() == 0
        assert len(old) == len(new) == 2
        assert not any(map(is_alive, new))

    await asyncio.to_thread(look)

    assert servers_of(data_dir) == []


async def pids_of(data_dir: Path) -> list[int]:
    url = running_url(data_dir)
    assert url is not None
    connection = await asyncpg.connect(url)
    pids = [row["pid"] for row in await connection.fetch("SELECT pid FROM replicas WHERE stopping_at IS NULL")]
    await connection.close()
    return pids


async def token_is_good(data_dir: Path, token: str) -> bool:
    return (data_dir / "setup-token").read_text().strip() == token


async def test_stop_during_the_start_leaves_no_process(home: Path, database_url: str) -> None:
    data_dir = home / "data"
    process = await asyncio.create_subprocess_exec(
        *(SCRIPT, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--replicas", "2"),
        env=environment(home, ROOKERY_DATABASE_URL=database_url),
        stderr=asyncio.subprocess.PIPE,
    )
    await until(lambda: (data_dir / "replicas.lock").exists(), timeout=60)
    process.send_signal(signal.SIGTERM)
    # Read to its end: each running replica keeps it open.
    async with asyncio.timeout(60):
        _, said = await process.communicate()

    assert process.returncode == 130, said
    connection = await asyncpg.connect(database_url)
    assert await connection.fetchval("SELECT count(*) FROM replicas") == 0
    await connection.close()


def take_neighbours() -> tuple[socket.socket, socket.socket]:
    """Bind two consecutive ports."""
    while True:
        first = socket.create_server(("127.0.0.1", 0))
        try:
            return first, socket.create_server(("127.0.0.1", first.getsockname()[1] + 1))
        except (OSError, OverflowError):
            first.close()


async def test_failure_of_every_replica_ends_the_first_start_with_its_exit_code(home: Path, database_url: str) -> None:
    first, second = take_neighbours()
    with first, second:
        done: subprocess.CompletedProcess[str] = await asyncio.to_thread(
            rookery,
            home,
            *("serve", "--data-dir", str(home / "data"), "--listen", "127.0.0.1:0", "--replicas", "2"),
            *("--relay-bind", f"127.0.0.1:{first.getsockname()[1]}"),
            ROOKERY_DATABASE_URL=database_url,
        )

    assert done.returncode == 2
    assert "relay_bind" in done.stderr
    assert done.stderr.splitlines()[-1] == "rookery: No replica could start. Their messages are above."


async def test_replica_that_cannot_start_at_first_is_tried_again_while_the_other_serves(
    home: Path, database_url: str
) -> None:
    first, second = take_neighbours()
    first.close()
    bind = f"127.0.0.1:{second.getsockname()[1] - 1}"

    def look() -> tuple[str, int]:
        arguments = ("--data-dir", str(home / "data"), "--replicas", "2", "--relay-bind", bind)
        with second, serving(home, *arguments, ROOKERY_DATABASE_URL=database_url) as served:
            said, before = served.said[-1], served.readiness()
            assert before["status"] == "ready"
            assert before["replicas"][1]["state"] != "ready"
            assert before["replicas"][1]["deaths"] > 0
            asyncio.run(until(lambda: any("relay_bind" in line for line in served.errors)))
            second.close()
            asyncio.run(until(are_ready, timeout=WAIT_SECONDS))
            return said, served.stop()

    def are_ready() -> bool:
        return [slot.state for slot in replica_slots.read(home / "data")] == [SlotState.READY, SlotState.READY]

    said, code = await asyncio.to_thread(look)

    assert "with 1 of 2 replicas" in said
    assert code == 0


async def test_place_that_keeps_losing_its_replica_is_filled_again_while_the_other_serves(
    home: Path, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parent, "FIRST_RESTART_SECONDS", 0.01)
    (home / "data").mkdir(mode=0o700)
    flags = {"data_dir": str(home / "data"), "database_url": database_url, "replicas": "2"}
    config = settings.load(flags, {"HOME": str(home)}).settings
    stop = Stop(1e9)
    kills = 6  # one more than an earlier limit
    seen: set[int] = set()
    with port.bound(Address("127.0.0.1", 0)) as listening:
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/readyz"
        supervisor = ReplicaSupervisor(config, database_url, listening)
        supervising = asyncio.create_task(supervisor.run(stop, on_ready=lambda: None))
        await until(lambda: len(supervisor.serving()) == 2, timeout=60)
        for _ in range(kills):
            (victim,) = [child for child in supervisor.serving() if child.index == 0]
            seen.update(child.pid for child in supervisor.serving())
            os.kill(victim.pid, signal.SIGKILL)
            await until(
                lambda dead=victim: any(c.index == 0 and c is not dead for c in supervisor.serving()),  # type: ignore[misc]
                timeout=60,
            )
            assert not supervising.done()
        ready = json.loads(await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=30).read()))
        seen.update(child.pid for child in supervisor.serving())

        assert ready["status"] == "ready"
        assert [slot["state"] for slot in ready["replicas"]] == ["ready", "ready"]
        assert [slot["deaths"] for slot in ready["replicas"]] == [kills, 0]
        assert [slot.restarts for slot in replica_slots.read(config.data_dir)] == [kills, 0]
        stop.ask()
        await supervising

    assert len(seen) == 2 + kills
    assert not any(map(is_alive, seen))
    assert replica_slots.read(config.data_dir) == ()


async def test_more_replicas_than_the_database_has_connections_for_are_refused(home: Path, database_url: str) -> None:
    done = await asyncio.to_thread(
        rookery,
        home,
        *("serve", "--data-dir", str(home / "data"), "--listen", "127.0.0.1:0", "--replicas", "20"),
        ROOKERY_DATABASE_URL=database_url,
    )

    assert done.returncode == 2
    assert "20 replicas use up to 400 connections" in done.stderr


async def test_turn_of_a_killed_replica_goes_on_in_a_linked_trace(home: Path, database_url: str) -> None:
    with otlp_collector() as collector:
        options = ("--otel-endpoint", collector.url)
        async with open_fleet(database_url, home, replicas=2, options=options) as rig:
            chat_id = await rig.start_chat()
            owner = await rig.until_owned(chat_id)
            stored = "SELECT traceparent FROM chat_turn_traces WHERE chat_id = $1"
            await until(partial(rig.database.fetchval, stored, chat_id))
            first = spans.parse_traceparent(await rig.database.fetchval(stored, chat_id))
            (request,) = await collector.until("POST /api/v1/chats")

            os.kill((await rig.replicas())[owner], signal.SIGKILL)
            taker = await rig.until_owned(chat_id, not_by=owner)
            rig.story.gate.set()
            (turn,) = await collector.until("invoke_agent")
            code = await asyncio.to_thread(rig.served.stop)

    assert first is not None
    assert turn.links == [request.id, (first.trace_id, first.span_id)]
    assert turn.attributes["rookery.replica.id"] == turn.resource["service.instance.id"] == taker
    assert turn.attributes["rookery.outcome"] == "complete"
    assert code == 0
    assert {span.attributes["error.type"] for span in collector.spans if span.has_failed} <= {"cancelled"}


async def test_collector_that_hangs_does_not_hold_up_chats_or_the_stop(home: Path, database_url: str) -> None:
    let_go = threading.Event()

    def hang(handler: BaseHTTPRequestHandler) -> None:
        let_go.wait(60)

    with otlp_collector() as collector:
        collector.answer = hang
        options = ("--otel-endpoint", collector.url)
        async with open_fleet(database_url, home, replicas=1, options=options) as rig:
            rig.story.gate.set()
            chat_id = await rig.start_chat()
            await until(partial(_rests, rig, chat_id))
            await until(lambda: collector.requests)

            began = time.monotonic()
            code = await asyncio.to_thread(rig.served.stop)
            took = time.monotonic() - began
            told = rig.served.log("otel_not_flushed")
        let_go.set()

    assert (code, len(told)) == (0, 1)
    assert took < DRAIN_SECONDS


async def _rests(rig: ReplicasRig, chat_id: UUID) -> bool:
    return await rig.status(chat_id) == "waiting"
