"""`rookery serve` and the admin commands: real processes, a real database, a real port."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import signal
import socket
import ssl
import subprocess
import tempfile
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest

from rookery.models.key_ring import KEY_FILE, new_key
from rookery.store.db import job_runs, migrate
from rookery.store.db.embedded.server import running_url
from rookery.store.db.job_runs import JobOutcome, JobRun
from tests.certificates import make_certificate
from tests.cli.serve.server_process import SCRIPT, environment, rookery, servers_of, serving, thread_heaps
from tests.database import Server
from tests.eventually import until
from tests.store.db.fake_postgres import TERMINATE, TransactionPooler, listening, old_server


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
        assert "<title>Rookery</title>" in page
        assert served.get("/nothing/here")[0] == 404
        limits = Path("/proc", str(served.process.pid), "limits").read_text()
        assert re.search(r"Max core file size +0 +0 ", limits)
        assert thread_heaps(served.process.pid) == [], "free memory of such heaps is not returned to the system"
        # A library that only the package of MCP loads.
        assert "/rpds/" not in Path("/proc", str(served.process.pid), "maps").read_text()

        assert served.stop() == 0

    assert servers_of(data_dir) == []


def test_first_start_tells_how_to_make_the_first_account_and_the_next_one_does_not(home: Path, data_dir: Path) -> None:
    arguments = ("--data-dir", str(data_dir), "--trusted-proxies", "127.0.0.1")
    with serving(home, *arguments, ROOKERY_LOG_FORMAT="json") as served:
        assert served.wait_for_line(re.compile("rookery chat login (.+)"))[1] == served.url
        token = served.wait_for_line(re.compile("rk_setup_[0-9a-f]{64}"))[0]
        command = shlex.split(served.wait_for_line(re.compile("curl .*"))[0])
        address, body = command[3], json.loads(command[-1])
        assert (address, body["token"]) == (f"{served.url}/api/v1/setup", token)
        body |= {"email": "ada@example.org", "password": "correct horse battery"}

        request = urllib.request.Request(
            address,
            json.dumps(body).encode(),
            {"Content-Type": "application/json", "X-Forwarded-For": "203.0.113.9"},
        )
        with urllib.request.urlopen(request, timeout=20) as answer:
            assert answer.status == 201
        assert asyncio.run(addresses_in_the_audit_log(data_dir)) == {"203.0.113.9"}
    assert not any(token in line for line in served.errors)

    with serving(home, *arguments) as served:
        served.stop()
        assert not any("rk_setup_" in line for line in served.rest())


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
    # The third signal does not wait for the database: the next start would adopt it.
    for pid in servers_of(data_dir):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


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
            "Stop it first, or choose another directory with --data-dir.\n"
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
    expected = f"{address} is already in use. Stop its program, or choose another address with --listen."
    assert done.stderr == f"rookery: {expected}\n"
    assert not (data_dir / "postgres").exists()


def test_wrong_database_url_is_one_line_and_exit_4(home: Path, data_dir: Path) -> None:
    url = "postgresql://ada:secret-word@127.0.0.1:1/rookery"

    done = rookery(home, "serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0", ROOKERY_DATABASE_URL=url)

    assert done.returncode == 4
    assert done.stderr == "rookery: No server answers at 127.0.0.1:1/rookery. Check that PostgreSQL is running there.\n"


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


@pytest.mark.parametrize("replicas", ["1", "2"])
async def test_start_rewrites_addresses_and_names_those_that_stay_by_id_only(
    home: Path, data_dir: Path, database_url: str, *, replicas: str
) -> None:
    connection = await asyncpg.connect(database_url)
    try:
        add = "INSERT INTO users (username, email, created_at) VALUES ($1, $2, $3) RETURNING id"
        await connection.fetchval(add, "older", "Ada@Stra\u00dfe.example", datetime(2026, 1, 1, tzinfo=UTC))
        younger = await connection.fetchval(
            add, "younger", "\uff41da@strasse.example", datetime(2026, 1, 2, tzinfo=UTC)
        )
        arguments = ("--data-dir", str(data_dir), "--replicas", replicas)

        with serving(home, *arguments, ROOKERY_DATABASE_URL=database_url, ROOKERY_LOG_FORMAT="json") as served:
            served.stop()

        assert [line["count"] for line in served.log("email_addresses_normalised")] == [1]
        assert [line["user_id"] for line in served.log("email_address_not_normal")] == [str(younger)]
        assert not any("strasse" in line for line in served.errors)
        stored = await connection.fetch("SELECT email FROM users WHERE email IS NOT NULL ORDER BY created_at")
        assert [email for (email,) in stored] == ["ada@strasse.example", "\uff41da@strasse.example"]
    finally:
        await connection.close()


async def test_external_database_is_migrated_and_served(home: Path, data_dir: Path, empty_database_url: str) -> None:
    def look() -> None:
        with serving(home, "--data-dir", str(data_dir), ROOKERY_DATABASE_URL=empty_database_url) as served:
            assert served.readiness()["status"] == "ready"
            shown = rookery(home, "admin", "status", "--json", ROOKERY_DATABASE_URL=empty_database_url)
            found = json.loads(shown.stdout)
            assert [replica["pid"] for replica in found["replicas"]] == [served.process.pid]
            assert found["chats"] == {"running": 0, "interrupting": 0, "requires_action": 0}
            assert found["total_estimate"] == 0
        assert sum("schema_created" in line for line in served.errors) == 1
        assert servers_of(data_dir) == []

    await asyncio.to_thread(look)


async def test_pooler_is_refused_with_exit_2_and_gets_no_tables(
    home: Path, data_dir: Path, empty_database_url: str, *, database_server: Server
) -> None:
    database = urlsplit(empty_database_url).path.strip("/")
    async with listening(TransactionPooler(database_server)) as port:
        done = await asyncio.to_thread(
            rookery,
            home,
            *("serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"),
            ROOKERY_DATABASE_URL=f"postgresql://rookery@127.0.0.1:{port}/{database}",
        )

    assert done.returncode == 2
    assert "connection pooler" in done.stderr
    connection = await asyncpg.connect(empty_database_url)
    assert await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'") == 0
    await connection.close()


async def test_old_server_is_refused_with_exit_2_and_asked_for_nothing(home: Path, data_dir: Path) -> None:
    asked: list[bytes] = []
    async with listening(partial(old_server, heard=asked)) as port:
        done = await asyncio.to_thread(
            rookery,
            home,
            *("serve", "--data-dir", str(data_dir), "--listen", "127.0.0.1:0"),
            ROOKERY_DATABASE_URL=f"postgresql://rookery@127.0.0.1:{port}/rookery",
        )

    assert done.returncode == 2
    assert "PostgreSQL 14.9" in done.stderr
    assert asked
    assert set(asked) <= {b"", TERMINATE}


async def test_doctor_of_a_database_with_too_few_rights_goes_on_to_the_end(
    home: Path, database_url: str, database_server: Server
) -> None:
    database = urlsplit(database_url).path.strip("/")
    admin = await asyncpg.connect(database_server.url(database, role="postgres"))
    await admin.execute("ALTER TABLE schema_migrations OWNER TO postgres")
    await admin.close()

    doctor = await asyncio.to_thread(rookery, home, "admin", "doctor", "--json", ROOKERY_DATABASE_URL=database_url)
    status = await asyncio.to_thread(rookery, home, "admin", "status", ROOKERY_DATABASE_URL=database_url)

    results = {check["check"]: check["result"] for check in json.loads(doctor.stdout)["checks"]}
    assert doctor.returncode == 1
    assert [results[check] for check in ("database", "schema", "clock", "connections")] == ["ok", "fail", "ok", "ok"]
    assert status.returncode == 2
    assert "Make it the owner" in status.stderr


async def test_status_shows_the_last_run_of_each_job_in_a_line(home: Path, database_url: str) -> None:
    conn = await asyncpg.connect(database_url)
    at = datetime(2030, 1, 31, 15, 30, tzinfo=UTC)
    for job, removed, error in (("purge_files", 3, None), ("purge_files", 7, None), ("purge_chats", 0, "Too\nbad.")):
        outcome = JobOutcome.DONE if error is None else JobOutcome.FAILED
        await job_runs.record_run(conn, JobRun(job, uuid4(), at, at, outcome, removed=removed, error=error))
    await conn.close()

    shown = await asyncio.to_thread(rookery, home, "admin", "status", ROOKERY_DATABASE_URL=database_url)
    told = await asyncio.to_thread(rookery, home, "admin", "status", "--json", ROOKERY_DATABASE_URL=database_url)

    lines = [" ".join(line.split()) for line in shown.stdout.splitlines() if line.startswith("purge_")]
    assert lines == [
        "purge_chats 2030-01-31 15:30:00 UTC 0 0 failed: Too bad.",
        "purge_files 2030-01-31 15:30:00 UTC 7 0 done",
    ]
    jobs = json.loads(told.stdout)["jobs"]
    assert [(job["name"], job["removed"], job["outcome"]) for job in jobs] == [
        ("purge_chats", 0, "failed"),
        ("purge_files", 7, "done"),
    ]


async def test_doctor_counts_connections_by_the_settings(home: Path, database_url: str) -> None:
    url = {"ROOKERY_DATABASE_URL": database_url}

    conn = await asyncpg.connect(database_url)
    await conn.execute("INSERT INTO users (username) VALUES ('ada'), ('bob')")
    await conn.close()
    fits = await asyncio.to_thread(rookery, home, "admin", "doctor", "--database-pool-api", "20", **url)
    too_many = await asyncio.to_thread(rookery, home, "admin", "doctor", "--database-pool-api", "400", **url)
    most = "--drivers-local-network-max"
    listed = (most, "proxy", "--net-allow-private", "10.0.0.0/8")  # the earlier name of `hosts`
    proxied = await asyncio.to_thread(rookery, home, "admin", "doctor", *listed, **url)
    shared = await asyncio.to_thread(rookery, home, "admin", "doctor", most, "host", **url)

    assert re.search(r"^ok +connections +1 replica\(s\) with up to 32 each, of \d+$", fits.stdout, re.MULTILINE)
    assert re.search(r"^fail +connections +A replica uses up to 412 connections", too_many.stdout, re.MULTILINE)
    assert (fits.returncode, too_many.returncode) == (0, 1)
    assert re.search(r"^ok +network +local workspaces reach public hosts at most$", fits.stdout, re.MULTILINE)
    # Two users whose workspaces may share the network of the machine.
    assert re.search(r"^warn +network +2 users may reach the networks of this machine", shared.stdout, re.MULTILINE)
    reach = r"^ok +network +local workspaces reach hosts that their template lists; net_allow_private .* 10\.0\.0\.0/8$"
    assert re.search(reach, proxied.stdout, re.MULTILINE)


async def test_doctor_says_when_no_model_makes_labels_and_summaries(home: Path, database_url: str) -> None:
    async def said(*statements: str) -> list[str]:
        for statement in statements:
            await conn.execute(statement)
        url = {"ROOKERY_DATABASE_URL": database_url}
        done = await asyncio.to_thread(rookery, home, "admin", "doctor", "--json", **url)
        (found,) = [each for each in json.loads(done.stdout)["checks"] if each["check"] == "labels"]
        return [found["result"], found["message"]]

    add = (
        "INSERT INTO model_configs (provider_id, model, context_limit)"
        " SELECT id, '{}', 100000 FROM model_providers WHERE name = 'acme'"
    )
    conn = await asyncpg.connect(database_url)
    try:
        before = await said("INSERT INTO model_providers (type, name) VALUES ('openai', 'acme')")
        large = await said(add.format("gpt-5.2"))
        chosen = await said("INSERT INTO settings (key, value) VALUES ('models', '{\"title_generation\": {}}')")
        small = await said("DELETE FROM settings", add.format("gpt-5.2-mini"))
    finally:
        await conn.close()

    assert before == ["ok", "no model of a provider is set up yet"]
    assert large[0] == "warn"
    assert large[1].startswith("No small model is set up, so chats get no labels")
    assert (chosen, small) == (["ok", "made by the model that is chosen for titles"], ["ok", "made by a small model"])


async def test_read_only_database_is_refused_with_exit_2(
    home: Path, data_dir: Path, empty_database_url: str, *, database_server: Server
) -> None:
    database = urlsplit(empty_database_url).path.strip("/")
    admin = await asyncpg.connect(database_server.superuser_url)
    await admin.execute(f"ALTER DATABASE {database} SET default_transaction_read_only = on")
    await admin.close()
    url = {"ROOKERY_DATABASE_URL": empty_database_url, "ROOKERY_DATA_DIR": str(data_dir)}

    served = await asyncio.to_thread(rookery, home, "serve", "--listen", "127.0.0.1:0", **url)
    doctor = await asyncio.to_thread(rookery, home, "admin", "doctor", **url)

    assert served.returncode == 2
    assert "Use the address of the primary" in served.stderr
    assert re.search(r"^fail +database .*is read-only", doctor.stdout, re.MULTILINE)


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
    assert (status_before.returncode, status_before.stdout) == (1, "")
    assert status_before.stderr == f"rookery: There is no database in {data_dir} yet. `rookery serve` creates it.\n"
    assert json.loads(applied.stdout)["migrations"][0] == "0001_core"
    assert again.stdout == f"The schema is up to date (version {migrate.SCHEMA_VERSION}).\n"
    assert json.loads(doctor.stdout)["ok"]
    assert "No replica is running." in status.stdout
    assert re.search(r"^all, about +0$", status.stdout, re.MULTILINE)
    assert servers_of(data_dir) == []


@pytest.mark.parametrize("task", [["status"], ["doctor"], ["migrate", "--dry-run"]], ids=" ".join)
def test_looking_at_an_installation_does_not_make_one(home: Path, data_dir: Path, task: list[str]) -> None:
    rookery(home, "admin", *task, ROOKERY_DATA_DIR=str(data_dir))

    assert not (data_dir / "postgres").exists()
    assert servers_of(data_dir) == []


def test_doctor_of_a_fresh_directory_warns_that_there_is_no_database(home: Path, data_dir: Path) -> None:
    done = rookery(home, "admin", "doctor", "--json", ROOKERY_DATA_DIR=str(data_dir))

    assert done.returncode == 0
    *_, last = json.loads(done.stdout)["checks"]
    said = f"There is no database in {data_dir} yet. `rookery serve` creates it."
    assert last == {"check": "database", "result": "warn", "message": said}


def test_terminated_admin_command_stops_the_database_it_started(home: Path, data_dir: Path) -> None:
    assert rookery(home, "admin", "migrate", "--data-dir", str(data_dir)).returncode == 0
    with (data_dir / "postgres" / "postgresql.conf").open("a") as configuration:
        configuration.write("post_auth_delay = 30\n")  # blocks the command while the server runs
    with subprocess.Popen(
        [SCRIPT, "admin", "status", "--data-dir", str(data_dir)],
        env=environment(home),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        asyncio.run(until(lambda: running_url(data_dir) is not None))
        process.send_signal(signal.SIGTERM)
        _, stderr = process.communicate(timeout=60)

    assert (process.returncode, stderr) == (130, "rookery: Interrupted.\n")
    assert servers_of(data_dir) == []


def test_admin_command_beside_a_server_that_is_starting_waits_for_it(home: Path, data_dir: Path) -> None:
    assert rookery(home, "admin", "migrate", "--data-dir", str(data_dir)).returncode == 0
    (data_dir / "rookery.lock").unlink()

    def look() -> subprocess.CompletedProcess[str]:
        asyncio.run(until(lambda: (data_dir / "rookery.lock").exists()))
        return rookery(home, "admin", "status", "--data-dir", str(data_dir))

    with ThreadPoolExecutor(1) as threads:
        looking = threads.submit(look)
        with serving(home, "--data-dir", str(data_dir)) as served:
            status = looking.result(60)

    assert status.returncode == 0, status.stderr
    assert str(served.process.pid) in status.stdout


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
    # A log line about a busy machine is not an error of the start.
    assert {line["level"] for line in lines if line["event"] != "event_loop_lag"} == {"info"}
    (access,) = [line for line in lines if line["event"] == "request"]
    assert (access["route"], access["status"], len(access["replica"])) == ("/healthz", 200, 36)
    assert not any("hunter2" in line for line in served.errors)


def test_ring_that_does_not_open_the_stored_keys_is_one_line_and_exit_2(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir)):
        assert (data_dir / KEY_FILE).stat().st_mode & 0o777 == 0o600

    other = rookery(home, "serve", "--data-dir", str(data_dir), ROOKERY_SECRET_KEYS=new_key("k9"))
    garbage = rookery(home, "serve", "--data-dir", str(data_dir), ROOKERY_SECRET_KEYS="not-a-ring")

    for done in (other, garbage):
        assert done.returncode == 2
        (said,) = [line for line in done.stderr.splitlines() if line.startswith("rookery:")]
        assert "secret_keys" in said
    assert servers_of(data_dir) == []


def test_key_in_the_environment_gives_its_provider_a_row_and_is_not_stored(home: Path, data_dir: Path) -> None:
    key = "sk-ant-api03-very-secret-value"

    with serving(home, "--data-dir", str(data_dir), ANTHROPIC_API_KEY=key) as served:
        dumped = asyncio.run(dump_providers(data_dir))

    assert '"type":"anthropic"' in dumped
    assert key not in dumped
    assert not any(key in line for line in served.errors)


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


async def addresses_in_the_audit_log(data_dir: Path) -> set[str]:
    connection = await asyncpg.connect(address_of(data_dir))
    rows = await connection.fetch("SELECT host(ip::inet) AS ip FROM audit_log WHERE action = 'user.create'")
    await connection.close()
    return {row["ip"] for row in rows}


async def dump_providers(data_dir: Path) -> str:
    connection = await asyncpg.connect(address_of(data_dir))
    rows = await connection.fetch("SELECT row_to_json(p)::text FROM model_providers p")
    await connection.close()
    return "\n".join(row[0] for row in rows)


async def count_users(data_dir: Path) -> int:
    connection = await asyncpg.connect(address_of(data_dir))
    number: int = await connection.fetchval("SELECT count(*) FROM users")
    await connection.close()
    return number


def address_of(data_dir: Path) -> str:
    found = running_url(data_dir)
    assert found is not None
    return found


def test_certificate_makes_the_port_speak_https_and_the_cookie_stay_there(tmp_path: Path) -> None:
    cert = make_certificate(tmp_path)
    trusted = ssl.create_default_context(cafile=cert)
    with serving(tmp_path, "--data-dir", str(tmp_path / "data"), "--tls-cert", cert, "--tls-key", cert) as served:
        token = (tmp_path / "data" / "setup-token").read_text().strip()
        body = {"token": token, "email": "ada@example.org", "password": "long enough for this"}
        asked = urllib.request.Request(
            f"{served.url}/api/v1/setup", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, context=trusted, timeout=30) as answer:
            cookie = answer.headers["set-cookie"]

    assert served.url.startswith("https://127.0.0.1:")
    assert cookie.startswith("__Host-rookery_session=")
    assert cookie.endswith("; Secure")


def test_settings_locked_by_the_environment_are_shown_to_readers(tmp_path: Path) -> None:
    data_dir = str(tmp_path / "data")
    pins = {"ROOKERY_PIN_CHATS_RUNNING_ROOTS": "7"}
    with serving(tmp_path, "--data-dir", data_dir, **pins) as served:
        token = (tmp_path / "data" / "setup-token").read_text().strip()
        body = {"token": token, "email": "ada@example.org", "password": "long enough for this"}
        asked = urllib.request.Request(
            f"{served.url}/api/v1/setup", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(asked, timeout=30) as answer:
            cookie, key = answer.headers["set-cookie"].split(";")[0], json.load(answer)["session_key"]
        session = {"Cookie": cookie, "Rookery-Session-Key": key}
        group = urllib.request.Request(f"{served.url}/api/v1/settings/chats", headers=session)
        with urllib.request.urlopen(group, timeout=30) as answer:
            found = json.load(answer)
    wrong = rookery(
        tmp_path, "serve", "--data-dir", data_dir, ROOKERY_PIN_CHATS_RUNNING_ROOTS="many", ROOKERY_PIN_X="1"
    )

    assert (found["values"]["running_roots"], found["pinned"]) == (7, ["running_roots"])
    assert wrong.returncode == 2
    assert "ROOKERY_PIN_CHATS_RUNNING_ROOTS" in wrong.stderr
    assert "ROOKERY_PIN_X" in wrong.stderr


@pytest.mark.parametrize("replicas", ["1", "2"])
def test_proxy_on_a_unix_socket_says_who_its_clients_are(home: Path, data_dir: Path, replicas: str) -> None:
    with tempfile.TemporaryDirectory(prefix="rku") as folder:
        path = Path(folder) / "s"
        options = ("--data-dir", str(data_dir), "--listen", f"unix:{path}", "--replicas", replicas)
        with serving(home, *options, "--external-url", "https://rook.example") as served:
            assert served.url == "https://rook.example"
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(str(path))
                client.sendall(
                    b"GET /healthz HTTP/1.1\r\nHost: rook.example\r\nConnection: close\r\n"
                    b"X-Forwarded-For: 203.0.113.9\r\nX-Forwarded-Proto: https\r\n\r\n"
                )
                answered = b"".join(iter(lambda: client.recv(65536), b""))
        assert not path.exists()

    assert answered.startswith(b"HTTP/1.1 200 ")
    assert b"strict-transport-security: max-age=31536000" in answered.lower()


def test_secret_on_the_command_line_is_refused_with_where_it_belongs(home: Path) -> None:
    for command in (("serve",), ("admin", "status")):
        done = rookery(home, *command, "--setup-token", "a-token-of-more-than-twenty-characters")

        assert done.returncode == 2
        assert "ROOKERY_SETUP_TOKEN_FILE" in done.stderr
        assert "a-token-of" not in done.stderr


def test_server_that_others_reach_without_https_says_so_at_its_start(home: Path, data_dir: Path) -> None:
    with serving(home, "--data-dir", str(data_dir), "--listen", "0.0.0.0:0") as served:
        served.stop()

    assert any("cross the network unprotected" in line for line in served.errors)
    assert len(served.log("served_in_the_clear")) == 1
