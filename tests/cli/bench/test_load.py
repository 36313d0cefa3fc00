"""`rookery bench load` at real servers, and at servers that refuse, fail or end."""

from __future__ import annotations

import argparse
import asyncio
import signal
from collections.abc import AsyncIterator, Coroutine
from io import StringIO
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from rookery.cli import main as cli
from rookery.cli.bench import load_command
from rookery.cli.bench.load import FIRST_TOKEN, KINDS, REST, RUNNING, SEND, Load, Plan
from rookery.cli.bench.load_command import LoadReport
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from rookery.client import AsyncRookery, errors
from rookery.llm.scripted import Fail
from rookery.llm.types import ErrorKind
from tests.cli.chat.chat_rig import HELLO, ChatRig, open_chat_desk
from tests.cli.serve.server_process import SCRIPT, environment
from tests.client.raw_server import RawServer, Reply, refused
from tests.eventually import until
from tests.faulty_proxy import FaultyProxy

TOKEN = "rk_aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
MODEL = {
    "id": "7f0c1f9e-0000-4000-8000-000000000001",
    "model": "m",
    "display_name": "M",
    "context_limit": 1000,
    "reasoning_efforts": [],
    "is_default": True,
    "compression_threshold": 70,
}
ME = {
    "id": "7f0c1f9e-0000-4000-8000-000000000002",
    "username": "ada",
    "name": "",
    "role": "member",
    "status": "active",
    "created_at": "2026-01-01T00:00:00Z",
    "permissions": [],
    "warnings": [],
}
PROVIDER = {"id": ME["id"], "type": "openai", "display_name": "P", "icon": "", "available": True, "models": [MODEL]}
# The responses before the first chat.
GREETING = (Reply(200, ME), Reply(200, {"providers": [PROVIDER]}))


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[ChatRig]:
    async with open_chat_desk(database_url, tmp_path) as opened:
        yield opened


def parse(*given: str) -> argparse.Namespace:
    return cli.parser().parse_args(["bench", "load", *given])


async def load(url: str, *given: str, tokens: tuple[str, ...], json: bool = True) -> tuple[int, str]:
    stdout = StringIO()
    out = Output(stdout, StringIO(), json=json)
    code = await load_command._run(parse(*given), url, tokens, out)
    out.finish()
    return code, stdout.getvalue()


def report(text: str) -> LoadReport:
    return msgspec.json.decode(text, type=LoadReport)


async def test_load_times_every_step_and_deletes_its_chats(rig: ChatRig) -> None:
    (mine,) = [await rig.client.chats.create("hello")]
    with rig.script(HELLO):
        code, text = await load(
            rig.rig.url,
            *("--users", "3", "--minutes", "0.03", "--ramp", "0.2", "--think", "0", "--messages", "3"),
            tokens=(rig.person.token,),
        )

    found = report(text)
    assert (code, found.errors, found.is_complete, found.users, found.model) == (Exit.OK, {}, True, 3, "test")
    assert list(found.times) == list(KINDS)
    assert found.turns == found.times[REST].count >= 3
    assert found.times[FIRST_TOKEN].count == found.turns
    assert 0 < found.times[RUNNING].count <= found.turns
    assert found.times[SEND].count >= found.turns - found.times["create"].count
    for each in found.times.values():
        if each.count:
            assert 0 < each.p50_ms <= each.p95_ms <= each.p99_ms <= each.worst_ms  # type: ignore[operator]
    assert found.times[FIRST_TOKEN].p50_ms <= found.times[REST].p50_ms  # type: ignore[operator]
    assert (found.chats.created, found.chats.left) == (found.chats.deleted, 0)
    assert [each.id for each in (await rig.client.chats.list()).items] == [mine.id]


async def test_kept_chats_have_the_label_of_the_load(rig: ChatRig) -> None:
    with rig.script(HELLO):
        _, text = await load(
            rig.rig.url, "--users", "1", "--minutes", "0.01", "--ramp", "0", "--keep", tokens=(rig.person.token,)
        )

    found = report(text)
    key, _, value = found.chats.label.partition(":")
    kept = (await rig.client.chats.list(labels={key: value})).items
    assert len(kept) == found.chats.created == found.chats.left >= 1


async def test_table_fits_80_columns_and_names_errors(rig: ChatRig) -> None:
    with rig.script((Fail(kind=ErrorKind.CONTENT_FILTER, message="No.", retryable=False),)):
        code, text = await load(
            rig.rig.url, "--users", "1", "--minutes", "0.01", "--ramp", "0", json=False, tokens=(rig.person.token,)
        )

    assert code == Exit.FAILED
    assert max(map(len, text.splitlines())) <= 80
    assert text.split()[:6] == ["Time", "Count", "p50", "p95", "p99", "Worst"]
    assert "Error, " in text
    assert "turn failed: " in text
    assert "\x1b" not in text


async def test_lost_streams_are_resumed_and_counted(rig: ChatRig) -> None:
    proxy = FaultyProxy(rig.rig.url)
    async with proxy.laid():
        with rig.script(HELLO):
            running = asyncio.create_task(
                load(
                    proxy.url,
                    *("--users", "2", "--minutes", "0.05", "--ramp", "0", "--think", "100"),
                    tokens=(rig.person.token,),
                )
            )
            await until(lambda: statuses(rig, ["waiting", "waiting"]), timeout=20.0)
            proxy.cut()
            code, text = await running

    found = report(text)
    assert (code, found.resumes, found.times["resume"].count) == (Exit.OK, 2, 2)


async def test_load_goes_on_when_the_server_is_away_for_a_while(rig: ChatRig) -> None:
    proxy = FaultyProxy(rig.rig.url)
    plan = Plan(
        users=2,
        seconds=60.0,
        ramp_seconds=0.0,
        think_seconds=0.0,
        messages=1,
        text="hello",
        timeout_seconds=20.0,
        model_id=(await rig.client.models.list())[0].models[0].id,
        label="x",
    )
    async with proxy.laid(), AsyncRookery(proxy.url, token=rig.person.token, max_retries=0) as client:
        load = Load(plan, [client], rng=Random(1))
        with rig.script(HELLO):
            running = asyncio.create_task(load.run())
            await until(lambda: load.turns)
            proxy.is_down = True
            proxy.cut()
            await until(lambda: load.errors)
            turns = load.turns
            proxy.is_down = False
            await until(lambda: load.turns > turns + 2)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)

    assert set(load.errors) == {"not reachable"}
    assert load.users == 2


async def test_limits_are_obeyed_and_counted_apart_and_a_refused_token_ends_the_load() -> None:
    busy = refused(429, "rate_limited", retry_after="1")
    async with RawServer(*GREETING, busy, busy, refused(401, "unauthenticated")).listening() as server:
        began = asyncio.get_running_loop().time()
        stdout = StringIO()
        out = Output(stdout, StringIO(), json=True)
        with pytest.raises(errors.Unauthenticated):
            await load_command._run(parse("--users", "1", "--minutes", "0.1", "--ramp", "0"), server.url, (TOKEN,), out)
        seconds = asyncio.get_running_loop().time() - began
        out.finish()

    found = report(stdout.getvalue())
    assert (found.rate_limited, found.rate_limited_seconds, found.errors) == ({"rate_limited": 2}, 2.0, {})
    assert 2.0 <= seconds < 5.0
    assert (len(server.requests), found.is_complete) == (5, False)


async def test_server_errors_are_counted_by_code() -> None:
    async with RawServer(*GREETING, refused(500, "internal")).listening() as server:
        code, text = await load(server.url, "--users", "2", "--minutes", "0.02", "--ramp", "0", tokens=(TOKEN,))

    found = report(text)
    assert (code, found.turns, list(found.errors)) == (Exit.FAILED, 0, ["500 internal"])
    assert found.errors["500 internal"] == len(server.requests) - 2


async def test_ctrl_c_cleans_up_and_prints_the_report_so_far(rig: ChatRig, tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *(SCRIPT, "bench", "load", "--url", rig.rig.url, "--users", "2", "--minutes", "5", "--ramp", "0", "--json"),
        env=environment(tmp_path, ROOKERY_TOKEN=rig.person.token),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    with rig.script(HELLO):
        await until(lambda: statuses(rig, ["waiting", "waiting"]), timeout=30.0)
        process.send_signal(signal.SIGINT)
        stdout, stderr = await process.communicate()

    assert process.returncode == Exit.INTERRUPTED, stderr
    found = report(stdout.decode())
    assert (found.is_complete, found.chats.created, found.chats.left) == (False, 2, 0)
    assert found.turns + found.unfinished == 2
    assert (await rig.client.chats.list()).items == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--users", "0"], "--users is a number from 1 to 10,000, not 0."),
        (["--users", "20000"], "--users is a number from 1 to 10,000, not 20000."),
        (["--minutes", "0"], "--minutes is a number from 0.01 to 1,440, not 0."),
        (["--minutes", "nan"], "--minutes is a number from 0.01 to 1,440, not nan."),
        (["--minutes", "inf"], "--minutes is a number from 0.01 to 1,440, not inf."),
        (["--think", "-1"], "--think is a number from 0 to 3,600, not -1."),
        (["--messages", "0"], "--messages is a number from 1 to 1,000, not 0."),
        (["--timeout", "0"], "--timeout is a number from 1 to 3,600, not 0."),
        (["--ramp", "60"], "--ramp must be shorter than --minutes."),
        (["--text", " "], "--text must have 1 to 20,000 characters."),
        (["--tokens", "/nowhere/tokens"], "/nowhere/tokens cannot be read: No such file or directory."),
        (["--tokens", "/dev/null"], "/dev/null has no token. Write one per line."),
    ],
)
def test_senseless_arguments_are_refused(given: list[str], said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROOKERY_TOKEN", TOKEN)
    stderr = StringIO()
    arguments = parse(*("--users", "1", "--minutes", "1"), *given)

    code = load_command.start(arguments, Output(StringIO(), stderr), never)

    assert (code, stderr.getvalue()) == (Exit.USAGE, f"rookery: {said}\n")


def test_without_a_login_the_user_is_told_to_log_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("ROOKERY_TOKEN", raising=False)
    stderr = StringIO()
    url = "http://127.0.0.1:1"

    code = load_command.start(parse("--users", "1", "--minutes", "1", "--url", url), Output(StringIO(), stderr), never)

    assert code == Exit.NOT_ALLOWED
    assert stderr.getvalue() == f"rookery: You are not logged in at {url}. Run `rookery chat login {url}`.\n"


def test_tokens_are_read_from_a_file_without_comments_and_repeats(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"# of ada\n{TOKEN}\n\n{TOKEN}\n{TOKEN}x\n")

    assert load_command._read_tokens(str(file)) == [TOKEN, f"{TOKEN}x"]


async def test_users_are_spread_over_the_tokens(rig: ChatRig) -> None:
    other = await rig.rig.add("eve")
    with rig.script(HELLO):
        _, text = await load(
            rig.rig.url,
            *("--users", "2", "--minutes", "0.01", "--ramp", "0", "--think", "100", "--keep"),
            tokens=(rig.person.token, other.token),
        )

    assert report(text).chats.created == 2
    async with AsyncRookery(rig.rig.url, token=other.token) as client:
        assert len((await client.chats.list()).items) == len((await rig.client.chats.list()).items) == 1


def test_more_users_than_one_account_may_have_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    stderr = StringIO()

    load_command._warn_about_limits(
        parse("--users", "65", "--minutes", "1", "--think", "60"), 1, Output(StringIO(), stderr)
    )
    load_command._warn_about_limits(
        parse("--users", "64", "--minutes", "1", "--think", "60"), 1, Output(StringIO(), StringIO())
    )

    assert "65 users need about 2 accounts" in stderr.getvalue()


def never(command: Coroutine[Any, Any, int], out: Output) -> int:
    command.close()
    raise AssertionError("The load has started.")


async def statuses(rig: ChatRig, wanted: list[str]) -> bool:
    return [each.status for each in (await rig.client.chats.list()).items] == wanted
