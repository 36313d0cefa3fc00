"""`rookery admin migrate`, `status` and `doctor`. Each command works with and without a running server."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import msgspec

from rookery.app import installation, workspaces
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from rookery.domain.models.options import ProviderType
from rookery.models import model_resolution
from rookery.runtime import replica_slots
from rookery.runtime.replica_slots import ReplicaSlot
from rookery.settings.settings import Settings
from rookery.store.db import installation_overview, job_runs, pool, replica_presence
from rookery.store.db import migrate as migrations
from rookery.store.db.database_errors import DATABASE_ERRORS
from rookery.store.db.embedded.data_dir import NoDatabase, prepare_data_dir
from rookery.store.db.embedded.server import find_binaries
from rookery.store.db.job_runs import JobRun
from rookery.store.db.migrate import Migration
from rookery.store.db.pool import Connection, DatabaseConfig
from rookery.store.models import model_configs, providers
from rookery.store.settings import settings as stored_settings
from rookery.workspaces.drivers.driver_interface import DriverError, DriverUnavailable
from rookery.workspaces.drivers.sandbox_check import problem_of_limits, problem_of_users
from rookery.workspaces.errors import WorkspaceError
from rookery.workspaces.isolation_check import IsolationCheck

LOW_DISK_BYTES = 1024**3
CLOCK_OFFSET_SECONDS = 2.0
ERROR_CHARS = 80  # the limit of a failed job's message, to keep it in one line


async def migrate(settings: Settings, out: Output, *, dry_run: bool) -> int:
    """Bring the schema up to date, or show the pending migrations."""
    names = [str(migration) for migration in await (_plan(settings, out) if dry_run else _apply(settings, out))]
    for name in names:
        out.line(f"{'would apply' if dry_run else 'applied'} {name}")
    if not names:
        out.line(f"The schema is up to date (version {migrations.SCHEMA_VERSION}).")
    out.result({"dry_run": dry_run, "schema": migrations.SCHEMA_VERSION, "migrations": names})
    return Exit.OK


async def _apply(settings: Settings, out: Output) -> list[Migration]:
    async with installation.command_database(settings, out.progress, may_create=True) as database:
        return await migrations.migrate(database)


async def _plan(settings: Settings, out: Output) -> list[Migration]:
    try:
        async with installation.command_database(settings, out.progress) as database, database.api.acquire() as conn:
            return await migrations.plan(conn)
    except NoDatabase:
        return migrations.load()  # if the database does not exist yet, all migrations are pending


async def status(settings: Settings, out: Output) -> int:
    """Show the running replicas, the states of the chats, and the last housekeeping runs."""
    async with installation.command_database(settings, out.progress) as database, database.api.acquire() as conn:
        await migrations.check(conn, advice=_migration_hint(settings))
        running = await replica_presence.list_replicas(conn)
        found = await installation_overview.read(conn)
        runs = await job_runs.list_last_runs(conn)
    slots = await asyncio.to_thread(replica_slots.read, settings.data_dir)
    out.line(f"Schema {found.schema_version}, PostgreSQL {found.server_version}, {found.size_bytes / 1e6:.0f} MB")
    out.line()
    if running:
        rows = [(r.replica.id, r.replica.hostname, r.replica.pid, r.state, r.replica.version) for r in running]
        out.table(("replica", "host", "pid", "state", "version"), rows)
    else:
        out.line("No replica is running.")
    if slots:
        out.line()
        out.table(("place", "state", "deaths", "exit code", "started again at"), [_slot_row(slot) for slot in slots])
    out.line()
    out.table(("chats", "number"), _chat_rows(found))
    if runs:
        out.line()
        out.table(("job", "last run", "removed", "skipped", "outcome"), [_job_row(run) for run in runs])
    out.result(
        {
            "schema": found.schema_version,
            "postgresql": found.server_version,
            "database_bytes": found.size_bytes,
            "replicas": [
                {
                    "id": str(r.replica.id),
                    "hostname": r.replica.hostname,
                    "pid": r.replica.pid,
                    "state": str(r.state),
                    "version": r.replica.version,
                    "started_at": r.started_at,
                    "heartbeat_at": r.heartbeat_at,
                }
                for r in running
            ],
            "replica_slots": msgspec.to_builtins(slots),
            "chats": found.chats,
            "total_estimate": found.total_estimate,
            "waiting_for_a_worker": found.unowned,
            "jobs": [
                {
                    "name": run.job,
                    "replica": str(run.replica_id),
                    "started_at": run.started_at,
                    "finished_at": run.finished_at,
                    "outcome": str(run.outcome),
                    "removed": run.removed,
                    "skipped": run.skipped,
                    "error": run.error,
                }
                for run in runs
            ],
        }
    )
    return Exit.OK


def _slot_row(slot: ReplicaSlot) -> tuple[object, ...]:
    again = "" if slot.again_at is None else f"{slot.again_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
    return slot.index, slot.state, slot.deaths, "" if slot.exit_code is None else slot.exit_code, again


def _chat_rows(found: installation_overview.Overview) -> list[tuple[str, int]]:
    return [*found.chats.items(), ("waiting for a worker", found.unowned), ("all, about", found.total_estimate)]


def _job_row(run: JobRun) -> tuple[object, ...]:
    outcome = str(run.outcome) if run.error is None else f"{run.outcome}: {' '.join(run.error.split())[:ERROR_CHARS]}"
    return run.job, f"{run.finished_at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC", run.removed, run.skipped, outcome


def _migration_hint(settings: Settings) -> str:
    if settings.auto_migrate:
        return "The next start of `rookery serve` applies them, and so does `rookery admin migrate`."
    return "`rookery admin migrate` applies them."


class Doctor:
    """Collects findings. Each is one line: `ok`, `warn` or `fail`."""

    def __init__(self, out: Output) -> None:
        self._out = out
        self.findings: list[dict[str, str]] = []

    def say(self, subject: str, verdict: str, text: str) -> None:
        self.findings.append({"check": subject, "result": verdict, "message": text})
        self._out.line(f"{verdict:4}  {subject:16}  {text}")

    async def look(self, subject: str, look: Callable[[], Awaitable[tuple[str, str]]]) -> None:
        """Run a check. If it raises an exception, the result of the check is a finding."""
        try:
            self.say(subject, *await look())
        except DATABASE_ERRORS as error:
            # The checks continue, because the next line may explain this failure.
            self.fail(subject, error)

    def fail(self, subject: str, error: Exception) -> None:
        self.say(subject, "fail", " ".join(str(error).split()) or type(error).__name__)

    @property
    def failed(self) -> bool:
        return any(finding["result"] == "fail" for finding in self.findings)


async def doctor(settings: Settings, out: Output) -> int:
    """Check everything a start needs and report problems."""
    found = Doctor(out)
    found.say("configuration", "ok", f"from {settings.config}" if settings.config else "no configuration file")
    await found.look("data directory", lambda: _check_data_dir(settings))
    await found.look("workspaces", lambda: _check_workspaces(settings))
    await _check_isolation(found, settings)
    if settings.database_url is None:
        await found.look("binaries", _check_binaries)
    try:
        async with installation.command_database(settings, out.progress) as database, database.api.acquire() as conn:
            await _check_database(found, conn, settings, config=database.config)
    except NoDatabase as error:
        found.say("database", "warn", str(error))
    except DATABASE_ERRORS as error:
        found.fail("database", error)
    out.result({"ok": not found.failed, "checks": found.findings})
    return Exit.FAILED if found.failed else Exit.OK


async def _check_data_dir(settings: Settings) -> tuple[str, str]:
    path = prepare_data_dir(settings.data_dir)
    free = shutil.disk_usage(path).free
    if free < LOW_DISK_BYTES:
        return "warn", f"{path} has only {free / 1e6:.0f} MB left on its disk; free some space."
    return "ok", f"{path}, {free / 1e9:.0f} GB free"


async def _check_workspaces(settings: Settings) -> tuple[str, str]:
    """Start one real sandbox. If this fails, a server can still serve chats, and workspaces on other machines."""
    try:
        machine = await workspaces.local_driver(settings).machine()
    except DriverUnavailable as error:
        return "warn", f"Local workspaces are unavailable. {error.advice}"
    if machine.bwrap is None:
        return (
            "warn",
            f"Local workspaces are NOT confined: drivers.local.unsafe is set, and {machine.unconfined_because}",
        )
    config = workspaces.local_config(settings)
    problem = problem_of_limits(config) or problem_of_users(config)
    if problem is not None:
        return "warn", problem
    return "ok", "; ".join([f"{machine.bwrap} confines them", *machine.notes])


async def _check_isolation(found: Doctor, settings: Settings) -> None:
    """Try forbidden actions from inside a workspace. Skipped without a sandbox."""
    driver = workspaces.local_driver(settings)
    try:
        if (await driver.machine()).bwrap is None:
            return
        check = IsolationCheck(
            driver, workspaces.local_config(settings), shared_folders=settings.workspaces_shared_folders
        )
        for finding in await check.run():
            result = {True: "ok", False: "fail", None: "warn"}[finding.is_held]
            found.say(finding.subject, result, finding.detail)
    except DriverUnavailable:
        return  # the check of workspaces reports this
    except (DriverError, WorkspaceError, TimeoutError, OSError) as error:
        found.say("isolation", "warn", f"The isolation test could not run: {str(error) or 'it took too long'}")
    finally:
        await driver.egress_sockets.close()


async def _check_binaries() -> tuple[str, str]:
    return "ok", f"embedded PostgreSQL in {find_binaries().parent.name}"


async def _check_database(found: Doctor, conn: Connection, settings: Settings, *, config: DatabaseConfig) -> None:
    async def check_server() -> tuple[str, str]:
        seen = await installation_overview.read_server(conn)
        if seen.read_only:
            return "fail", f"PostgreSQL {seen.version} is read-only; use the address of the primary."
        return "ok", f"PostgreSQL {seen.version}"

    async def check_schema() -> tuple[str, str]:
        if pending := await migrations.plan(conn):
            return "warn", f"{len(pending)} migration(s) pending. {_migration_hint(settings)}"
        return "ok", f"version {migrations.SCHEMA_VERSION}"

    async def check_clock() -> tuple[str, str]:
        asked = time.monotonic()
        theirs = await installation_overview.read_clock(conn)
        # Half of the round trip is the best estimate of the answer's age.
        offset = (datetime.now(UTC) - theirs).total_seconds() - (time.monotonic() - asked) / 2
        if abs(offset) > CLOCK_OFFSET_SECONDS:
            return "warn", f"this machine is {offset:+.1f} s off the database; leases use the database's clock."
        return "ok", f"{offset * 1000:+.0f} ms off the database"

    async def check_connections() -> tuple[str, str]:
        allowed = await pool.check_capacity(conn, config, replicas=settings.replicas)
        return "ok", f"{settings.replicas} replica(s) with up to {config.connections} each, of {allowed}"

    async def check_network() -> tuple[str, str]:
        """Report the network that workspaces share. Another check reports a schema of another version."""
        most = settings.drivers_local_network_max
        if most == "none":
            return "ok", "local workspaces have no network"
        private = ", ".join(settings.net_allow_private)
        also = f"; net_allow_private lets them into {private}" if private else ""
        if most == "hosts":
            return "ok", f"local workspaces reach hosts that their template lists{also}"
        if most == "public":
            return "ok", f"local workspaces reach public hosts at most{also}"
        users = 0 if await migrations.plan(conn) else await installation_overview.count_users(conn)
        if users > 1:
            return "warn", (
                f"{users} users may reach the networks of this machine, including its localhost, from workspaces whose "
                'template has network = "host". Set drivers.local.network_max = "public" to prevent this.'
            )
        return "ok", 'local workspaces have the network of the machine if their template has network = "host"'

    async def check_labels() -> tuple[str, str]:
        """Report the model that writes labels and summaries. There is none if no small model is set up or chosen."""
        if await migrations.plan(conn):
            return "ok", "checked when the schema is up to date"
        known = await providers.list_providers(conn)
        real = {each.id for each in known if each.enabled and each.type != ProviderType.SCRIPTED}
        configs = await model_configs.list_model_configs(conn)
        asked = [each for each in configs if each.enabled and each.provider_id in real]
        chosen = await stored_settings.find_setting(conn, "models")
        if isinstance(chosen, dict) and chosen.get("title_generation") is not None:
            return "ok", "made by the model that is chosen for titles"
        if not asked or model_resolution.small_models([(each.id, each.model, each.price_output) for each in asked]):
            return "ok", "made by a small model" if asked else "no model of a provider is set up yet"
        return "warn", (
            "No small model is set up, so chats get no labels and no summaries in the list. Choose a model for titles "
            "in the settings, or add one such as Haiku, GPT mini or Gemini Flash."
        )

    await found.look("database", check_server)
    await found.look("schema", check_schema)
    await found.look("clock", check_clock)
    await found.look("connections", check_connections)
    await found.look("network", check_network)
    await found.look("labels", check_labels)
