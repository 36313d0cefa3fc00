"""Debug records of a whole replica: forced by the operator, and complete when it stops in the middle of a turn."""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg

from rookery.app import installation
from rookery.app import replica as app_replica
from rookery.app.replica import Choices
from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.domain.models.options import ProviderType
from rookery.llm.scripted import Say, Wait
from rookery.models.connector import default_scripts
from rookery.settings import settings
from rookery.store import machine
from rookery.store.db.pool import Database
from rookery.store.machine import ChatSpec
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft
from rookery.store.models.providers import ProviderDraft
from tests.eventually import until


async def ask(replica: app_replica.Replica) -> ChatId:
    async with replica.database.api.acquire() as conn:
        user = await conn.fetchval("INSERT INTO users (username) VALUES ('ada') RETURNING id")
        provider = await providers.create_provider(
            conn, ProviderDraft(type=ProviderType.SCRIPTED, name="acme"), ring=None
        )
        draft = ModelConfigDraft(provider_id=provider.id, model="test", context_limit=100_000)
        model = await model_configs.create_model_config(conn, draft, by=None)
    message = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=user)
    spec = ChatSpec(owner_id=user, title="A chat", model_config_id=model.id, messages=(message,), client_type="api")
    return (await replica.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id


async def test_records_are_complete_when_a_replica_stops_in_the_middle_of_a_turn(
    tmp_path: Path, database_url: str
) -> None:
    flags = {"data_dir": str(tmp_path / "data"), "database_url": database_url, "debug_force": "true"}
    config = settings.load(flags, {"HOME": str(tmp_path)}).settings
    scripts, streaming = default_scripts(), asyncio.Event()

    def script(call: object) -> tuple[Say, Wait]:
        streaming.set()
        return Say("half a"), Wait(3600)

    with scripts.registered("test", script):
        async with await Database.connect(installation.database_config(config, database_url)) as database:
            async with app_replica.running_replica(config, database, Choices(scripts=scripts)) as replica:
                chat_id = await ask(replica)
                await streaming.wait()
                await until(lambda: replica.debug.recorder.open_runs)
            conn = await asyncpg.connect(database_url)
            run = await conn.fetchrow("SELECT * FROM chat_debug_runs WHERE chat_id = $1", chat_id)
            step = await conn.fetchrow("SELECT * FROM chat_debug_steps WHERE chat_id = $1", chat_id)
            await conn.close()

    assert run is not None
    assert step is not None
    assert (run["status"], run["replica_id"]) == ("interrupted", replica.id)
    assert (step["status"], step["finished_at"] is not None) == ("interrupted", True)
    assert replica.debug.recorder.open_runs == []


async def test_connection_of_the_writer_is_opened_with_the_first_record(tmp_path: Path, database_url: str) -> None:
    flags = {"data_dir": str(tmp_path / "data"), "database_url": database_url, "debug_force": "true"}
    config = settings.load(flags, {"HOME": str(tmp_path)}).settings
    count = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name LIKE '%debug%'"
    )
    scripts = default_scripts()
    with scripts.registered("test", (Say("done"),)):
        async with (
            await Database.connect(installation.database_config(config, database_url)) as database,
            app_replica.running_replica(config, database, Choices(scripts=scripts)) as replica,
        ):
            before = await database.api.fetchval(count)
            await ask(replica)
            await until(lambda: replica.debug.stats.operations.total())
            await replica.debug.writer.flush()
            after = await database.api.fetchval(count)

    assert (before, after) == (0, 1)
