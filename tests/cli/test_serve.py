"""`rookery serve` and the admin commands as an operator meets them: real processes, real database, real port."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
from pathlib import Path

import asyncpg
import pytest

from rookery.store import migrate
from tests.cli.served import SCRIPT, rookery, servers_of, serving


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    return tmp_path / "home" / "data"


@pytest.fixture
def home(data_dir: Path) -> Path:
    data_dir.parent.mkdir()
    return data_dir.parent


def test_first_start_serves_and_a_normal_stop_leaves_nothing_behind(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir)) as served:
        assert served.get("/healthz") == (200, '{"status":"ok"}')
        assert served.readiness()["status"] == "ready"
        status, page = served.get("/")
        assert status == 200
        assert "Rookery is running" in page
        assert served.get("/nothing/here")[0] == 404

        assert served.stop() == 0

    assert servers_of(data_dir) == []


def test_sigint_stops_in_order_too(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir)) as served:
        assert served.stop(signal.SIGINT) == 0

    assert servers_of(data_dir) == []


def test_signal_that_comes_twice_at_once_still_stops_in_order(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir)) as served:
        served.process.send_signal(signal.SIGTERM)
        assert served.stop() == 0

    assert servers_of(data_dir) == []


def test_impatient_ctrl_c_skips_the_waiting(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir), "--shutdown-delay", "50s") as served:
        code = None
        for _ in range(100):
            served.process.send_signal(signal.SIGINT)
            try:
                code = served.process.wait(0.2)
                break
            except subprocess.TimeoutExpired:
                continue

        assert code in (130, 1)


def test_readiness_turns_with_the_signal_and_requests_are_served_on(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir), "--shutdown-delay", "3s") as served:
        assert served.get("/readyz")[0] == 200
        served.process.send_signal(signal.SIGTERM)

        while served.get("/readyz")[0] == 200:
            pass

        assert served.readiness()["checks"]["stopping"] == "the process is stopping"
        assert served.get("/healthz")[0] == 200


def test_second_serve_on_the_same_data_directory_says_who_has_it_and_exits_1(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir)) as served:
        second = rookery(home, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0")

        assert second.returncode == 1
        assert second.stderr == (
            f"rookery: {data_dir} is in use by process {served.process.pid}. "
            "Stop that one first, or choose another directory with --data-dir.\n"
        )
        assert served.readiness()["status"] == "ready"


def test_start_after_kill_9_adopts_the_database_with_everything_in_it(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir)) as served:
        asyncio.run(add_user(data_dir, "ada"))
        survivors = servers_of(data_dir)
        served.stop(signal.SIGKILL)
        assert servers_of(data_dir)

    with serving(home, "--data-dir", str(data_dir)) as served:
        assert asyncio.run(count_users(data_dir)) == 1
        assert set(servers_of(data_dir)) & set(survivors)
        assert served.readiness()["status"] == "ready"

    assert servers_of(data_dir) == []


def test_port_in_use_is_one_line_and_exit_1(home: Path, data_dir: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"

        done = rookery(home, "serve", "--data-dir", str(data_dir), "--listen", address)

    assert done.returncode == 1
    expected = f"{address} is already in use. Stop what listens there, or choose another address with --listen."
    assert done.stderr == f"rookery: {expected}\n"
    assert not (data_dir / "postgres").exists()


def test_wrong_database_url_is_one_line_and_exit_4(home: Path, data_dir: Path) -> None:
    url = "postgresql://ada:secret-word@127.0.0.1:1/rookery"

    done = rookery(home, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", ROOKERY_DATABASE_URL=url)

    assert done.returncode == 4
    assert done.stderr == "rookery: Nobody answers at 127.0.0.1:1/rookery. Is PostgreSQL running there?\n"


async def test_database_newer_than_the_binary_is_one_line_and_exit_3(
    home: Path, data_dir: Path, database_url: str
) -> None:
    newer = migrate.SCHEMA_VERSION + 1
    connection = await asyncpg.connect(database_url)
    await connection.execute(
        "INSERT INTO schema_migrations (version, name, checksum, min_schema, applied_by)"
        " VALUES ($1, 'future', 'x', $1, 'x')",
        newer,
    )
    await connection.close()

    done = await asyncio.to_thread(
        rookery,
        home,
        "serve",
        "--data-dir",
        str(data_dir),
        "--listen",
        "127.0.0.1:0",
        ROOKERY_DATABASE_URL=database_url,
    )

    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert str(newer) in done.stderr
    assert str(migrate.SCHEMA_VERSION) in done.stderr


async def test_external_database_is_migrated_and_served(home: Path, data_dir: Path, empty_database_url: str) -> None:
    def look() -> None:
        with serving(home, "--data-dir", str(data_dir), ROOKERY_DATABASE_URL=empty_database_url) as served:
            assert served.readiness()["status"] == "ready"
            shown = rookery(home, "admin", "status", "--json", ROOKERY_DATABASE_URL=empty_database_url)
            (replica,) = json.loads(shown.stdout)["replicas"]
            assert replica["pid"] == served.process.pid
        assert servers_of(data_dir) == []

    await asyncio.to_thread(look)


async def test_without_auto_migrate_a_lacking_schema_is_refused(
    home: Path, data_dir: Path, empty_database_url: str
) -> None:
    done = await asyncio.to_thread(
        rookery,
        home,
        *("serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", "--auto-migrate", "false"),
        ROOKERY_DATABASE_URL=empty_database_url,
    )

    assert done.returncode == 3
    assert "rookery admin migrate" in done.stderr


def test_file_in_place_of_the_data_directory_is_one_line_and_exit_1(home: Path, data_dir: Path) -> None:
    data_dir.write_text("not a directory")

    done = rookery(home, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0")

    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert data_dir.read_text() == "not a directory"


def test_data_directory_others_can_read_is_refused_with_the_command_that_mends_it(home: Path, data_dir: Path) -> None:
    data_dir.mkdir(mode=0o700)
    data_dir.chmod(0o755)

    done = rookery(home, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0")

    assert done.returncode == 1
    assert f"chmod 700 {data_dir}" in done.stderr
    assert list(data_dir.iterdir()) == []


def test_admin_commands_work_without_a_server_and_stop_what_they_started(home: Path, data_dir: Path) -> None:
    variables = {"ROOKERY_DATA_DIR": str(data_dir)}

    planned = rookery(home, "admin", "migrate", "--dry-run", **variables)
    status_before = rookery(home, "admin", "status", **variables)
    applied = rookery(home, "admin", "migrate", "--json", **variables)
    again = rookery(home, "admin", "migrate", **variables)
    doctor = rookery(home, "admin", "doctor", "--json", **variables)
    status = rookery(home, "admin", "status", **variables)

    assert planned.stdout.startswith("would apply 0001_core")
    assert status_before.returncode == 3
    assert json.loads(applied.stdout)["migrations"][0] == "0001_core"
    assert again.stdout == f"The schema is up to date (version {migrate.SCHEMA_VERSION}).\n"
    assert json.loads(doctor.stdout)["ok"]
    assert "No replica is running." in status.stdout
    assert servers_of(data_dir) == []


def test_admin_commands_look_into_a_running_server(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir)) as served:
        status = rookery(home, "admin", "status", "--data-dir", str(data_dir))
        doctor = rookery(home, "admin", "doctor", "--data-dir", str(data_dir))

        assert str(served.process.pid) in status.stdout
        assert doctor.returncode == 0, doctor.stdout
        assert {line.split()[0] for line in doctor.stdout.splitlines()} == {"ok"}
        assert served.readiness()["status"] == "ready"


def test_doctor_says_what_is_wrong_and_exits_1(home: Path, data_dir: Path) -> None:
    done = rookery(home, "admin", "doctor", "--json", ROOKERY_DATABASE_URL="postgresql://x@127.0.0.1:1/x")

    assert done.returncode == 1
    findings = {check["check"]: check for check in json.loads(done.stdout)["checks"]}
    assert findings["database"]["result"] == "fail"
    assert findings["data directory"]["result"] == "ok"


def test_start_is_quiet_but_for_the_log_and_its_lines_name_the_replica(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir), ROOKERY_LOG_FORMAT="json") as served:
        served.get("/healthz?token=hunter2")
        served.stop()

    lines = [json.loads(line) for line in served.errors if line.startswith("{")]
    assert {line["level"] for line in lines} == {"info"}
    (access,) = [line for line in lines if line["event"] == "request"]
    assert (access["route"], access["status"], len(access["replica"])) == ("/healthz", 200, 36)
    assert not any("hunter2" in line for line in served.errors)


def test_stop_during_the_start_leaves_no_process(home: Path, data_dir: Path) -> None:
    pid = os.posix_spawn(
        SCRIPT,
        [SCRIPT, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"],
        {"HOME": str(home), "PATH": os.environ["PATH"]},
        file_actions=[(os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0)],
    )
    while not (data_dir / "rookery.lock").exists():
        assert os.waitpid(pid, os.WNOHANG) == (0, 0)
    os.kill(pid, signal.SIGTERM)

    _, status = os.waitpid(pid, 0)

    assert os.waitstatus_to_exitcode(status) in (130, -signal.SIGTERM)
    assert servers_of(data_dir) == []


async def add_user(data_dir: Path, name: str) -> None:
    connection = await asyncpg.connect(address_of(data_dir))
    await connection.execute("INSERT INTO users (username) VALUES ($1)", name)
    await connection.close()


async def count_users(data_dir: Path) -> int:
    connection = await asyncpg.connect(address_of(data_dir))
    number: int = await connection.fetchval("SELECT count(*) FROM users")
    await connection.close()
    return number


def address_of(data_dir: Path) -> str:
    from rookery.store.embedded.server import running_url

    found = running_url(data_dir)
    assert found is not None
    return found
