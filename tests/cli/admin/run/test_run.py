"""`rookery admin run` on a real database: what it shows, what it stores, how it ends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from datetime import timedelta
from decimal import Decimal
from pathlib import Path
from uuid import uuid4

import pytest

from rookery.app import replica
from rookery.app.replica import Choices
from rookery.cli.admin.run.run import Interrupts
from rookery.cli.admin.run.turn_follower import Stop
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import OutputClosed
from rookery.client.errors import ChatDeleted
from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.llm.scripted import CallTool, Count, Fail, Say, Think, Truncate, Wait
from rookery.llm.types import ErrorKind, Usage
from rookery.loop.tool import ToolOutput
from rookery.store import machine
from rookery.store.db.pubsub import Bus, Notifier
from rookery.store.machine import ChatSpec, Machine
from rookery.store.people import users
from tests import scripted_tools
from tests.cli.admin.run.run_rig import HELLO, RunRig, Stream, open_desk
from tests.eventually import until
from tests.worker.worker_rig import in_turn

FOREVER = 3600.0


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[RunRig]:
    async with open_desk(database_url, tmp_path) as opened:
        yield opened


# The answer


async def test_answer_is_all_there_is_on_stdout(rig: RunRig) -> None:
    await rig.model()

    done = await rig.run("hello")

    assert (done.code, done.stdout) == (Exit.OK, "Good morning.\n")
    assert re.search(r"\d+ tokens in, \d+ out, \d+\.\d s, chat [0-9a-f-]{36}$", done.notes[-1])


async def test_first_words_are_shown_while_the_model_goes_on(rig: RunRig) -> None:
    """The model never ends by itself: the words can only have come live."""
    await rig.model()
    interrupts = Interrupts()

    def seen(text: str) -> None:
        if "morning." in text and interrupts.follower is not None:
            interrupts.follower.stop(Stop.SIGNAL)

    async with asyncio.timeout(30):
        done = await rig.run(
            script=(Say("Good morning."), Wait(FOREVER)), interrupts=interrupts, stdout=Stream(on_write=seen)
        )

    assert (done.code, done.stdout) == (Exit.INTERRUPTED, "Good morning.\n")
    assert "rookery: Interrupted. The answer so far is saved." in done.notes
    assert await rig.sql("SELECT status FROM chats") == "waiting"
    assert await rig.sql("SELECT count(*) FROM chat_messages WHERE role = 'assistant'") == 1


async def test_tools_and_thoughts_are_told_beside_the_answer(rig: RunRig) -> None:
    await rig.model()
    script = in_turn(
        (Think("Let me see."), Say("I will look."), CallTool("look", {"where": "here"}), CallTool("bad")),
        (Say("Nothing there."),),
    )
    bad = scripted_tools.giving(ToolOutput({"error": "It is\nbroken."}, is_error=True), "bad")

    done = await rig.run(script=script, tools=[scripted_tools.echo("look"), bad])

    assert done.stdout == "I will look.\n\nNothing there.\n"
    assert done.notes[3] == "Let me see."
    assert done.notes[4:6] == ['look where="here"', "bad"]
    assert sorted(re.sub(r"\d+\.\d s", "N s", note) for note in done.notes[6:8]) == [
        "bad failed after N s: It is broken.",
        "look done in N s",
    ]


async def test_on_one_terminal_the_lines_of_both_streams_stay_whole(rig: RunRig) -> None:
    await rig.model()
    screen: list[str] = []
    script = in_turn((Say("I will look."), CallTool("look")), (Say("Nothing\x1b[2J there."),))
    stdout, stderr = Stream(screen=screen), Stream(screen=screen)

    await rig.run(script=script, tools=[scripted_tools.echo("look")], stdout=stdout, stderr=stderr)

    shown = re.sub(r"\r\x1b\[2K(asking the model\r\x1b\[2K)?", "", "".join(screen))
    lines = re.sub(r"\d+\.\d s", "N s", shown).split("\n")[3:-2]
    assert lines == ["I will look.", "look", "look done in N s", "Nothing\\u001b[2J there."]


async def test_quiet_shows_the_answer_and_nothing_else(rig: RunRig) -> None:
    await rig.model()

    done = await rig.run(script=(Think("Hm."), *HELLO), quiet=True)

    assert (done.stdout, done.stderr) == ("Good morning.\n", "")


async def test_cost_is_told_where_there_are_prices(rig: RunRig) -> None:
    await rig.model(price_input=Decimal(3), price_output=Decimal(15))
    usage = Usage(input=2000, output=100, total=2100, context_tokens=2000)

    done = await rig.run(script=(Count(usage), *HELLO))

    assert done.notes[-1].startswith("2000 tokens in, 100 out, $0.0075, ")


# Failures


async def test_turn_that_fails_ends_with_its_reason_and_exit_1(rig: RunRig) -> None:
    await rig.model()
    script = (Say("Well"), Fail(ErrorKind.AUTH, "The key was refused.", retryable=False))

    done = await rig.run(script=script)

    assert done.code == Exit.FAILED
    assert done.stdout == "Well\n"
    assert any(note.startswith("rookery: ") and "key" in note for note in done.notes)
    assert await rig.sql("SELECT status FROM chats") == "error"


async def test_attempt_that_is_cut_off_is_told_and_said_again(rig: RunRig) -> None:
    await rig.model()
    script = in_turn((Say("Good morn"), Truncate()), (Say("Good morning."),))

    done = await rig.run(script=script)

    assert (done.code, done.stdout) == (Exit.OK, "Good morn\n\nGood morning.\n")
    failed, cut = [note for note in done.notes if "Attempt" in note or "starts again" in note]
    assert re.match(r"Attempt 1 failed: .+ Trying again in \d+ s\.", failed)
    assert cut == "The answer was cut off; it starts again."


async def test_timeout_stops_the_chat_and_keeps_what_was_said(rig: RunRig) -> None:
    await rig.model()

    done = await rig.run(script=(Say("Good morning."), Wait(FOREVER)), timeout=timedelta(seconds=0.5))

    assert (done.code, done.stdout) == (Exit.FAILED, "Good morning.\n")
    assert "rookery: Stopped after 0.5 s (--timeout). The answer so far is saved." in done.notes
    assert await rig.sql("SELECT status FROM chats") == "waiting"
    assert await rig.sql("SELECT content->0->>'text' FROM chat_messages ORDER BY id DESC LIMIT 1") == "Good morning."


async def test_chat_is_stopped_when_stdout_is_closed(rig: RunRig) -> None:
    await rig.model()

    def break_pipe(_: str) -> None:
        raise BrokenPipeError

    with pytest.raises(OutputClosed):
        await rig.run(script=(Say("Good morning."), Wait(FOREVER)), stdout=Stream(on_write=break_pipe))

    assert await rig.sql("SELECT status FROM chats") == "waiting"


async def test_call_that_needs_an_approval_is_reported_and_can_be_stopped(rig: RunRig) -> None:
    await rig.model()
    await rig.sql(
        "INSERT INTO settings (key, value) VALUES ('approvals', $1::jsonb)",
        json.dumps({"rules": [{"tool": "look", "action": "ask"}]}),
    )
    interrupts, look = Interrupts(), scripted_tools.echo("look")

    def seen(text: str) -> None:
        if "waits for the approval of a tool call" in text and interrupts.follower is not None:
            interrupts.follower.stop(Stop.SIGNAL)

    async with asyncio.timeout(30):
        done = await rig.run(
            script=(CallTool("look"),), tools=[look], interrupts=interrupts, stderr=Stream(on_write=seen)
        )

    assert done.code == Exit.INTERRUPTED
    assert await rig.sql("SELECT status FROM chats") == "waiting"
    assert look.runs == []


async def test_chat_that_is_deleted_meanwhile_is_an_error(rig: RunRig) -> None:
    await rig.model()
    tool = scripted_tools.hanging("hang")
    running = asyncio.create_task(rig.run(script=(CallTool("hang"),), tools=[tool]))
    await tool.started.wait()

    await rig.sql("DELETE FROM chats")

    with pytest.raises(ChatDeleted):
        await running


# JSON


async def test_document_holds_the_turn(rig: RunRig) -> None:
    config = await rig.model(display_name="The Test")
    script = in_turn((CallTool("look", {"where": "here"}),), HELLO)

    done = await rig.run("hello", script=script, tools=[scripted_tools.echo("look")], json=True)

    document = json.loads(done.stdout)
    row = await rig.database.api.fetchrow("SELECT id, owner_id FROM chats")
    assert row is not None
    assert document["chat_id"] == str(row["id"])
    assert document["model"] == {
        "id": str(config.id),
        "provider": "acme",
        "model": "test",
        "display_name": "The Test",
    }
    assert (document["status"], document["stopped"], document["error"]) == ("waiting", None, None)
    assert document["usage"]["requests"] == 2
    assert document["usage"]["output_tokens"] > 0
    assert document["cost_micros"] is None
    assert [(message["role"], message["content"][0]["type"]) for message in document["messages"]] == [
        ("user", "text"),
        ("assistant", "tool-call"),
        ("tool", "tool-result"),
        ("assistant", "text"),
    ]
    assert document["messages"][0]["created_by"] == str(row["owner_id"])
    assert document["messages"][-1]["content"] == [{"type": "text", "text": "Good morning."}]


async def test_document_of_a_failed_turn_names_the_error(rig: RunRig) -> None:
    await rig.model()

    done = await rig.run(script=(Fail(ErrorKind.AUTH, "The key was refused.", retryable=False),), json=True)

    document = json.loads(done.stdout)
    assert done.code == Exit.FAILED
    assert document["status"] == "error"
    assert document["error"]["kind"] == "auth"
    assert document["error"]["message"]


# Whose chat, and which


async def test_chat_belongs_to_the_operator_and_has_its_instructions(rig: RunRig) -> None:
    await rig.model()

    await rig.run("say hello to the world of birds today", system="Speak like a rook.")
    await rig.run("again")

    assert await rig.sql("SELECT count(*) FROM users WHERE username = $1", users.OPERATOR) == 1
    first = "SELECT {} FROM chats c JOIN users u ON u.id = c.owner_id ORDER BY c.created_at LIMIT 1"
    assert await rig.sql(first.format("u.username || ' ' || c.client_type")) == "operator cli"
    assert await rig.sql(first.format("title")) == "say hello to the world of…"
    told = "SELECT count(*) FROM chat_messages WHERE role = 'system' AND visibility = 'model' AND content::text ~ $1"
    assert await rig.sql(told, "Speak like a rook") == 1


async def test_chat_goes_on_with_the_next_prompt(rig: RunRig) -> None:
    await rig.model()
    first = json.loads((await rig.run("first", json=True)).stdout)
    chat_id = ChatId(first["chat_id"])

    done = await rig.run("second", script=(Say("Good evening."),), chat_id=chat_id, json=True)

    document = json.loads(done.stdout)
    assert document["chat_id"] == str(chat_id)
    assert [message["content"][0]["text"] for message in document["messages"]] == ["second", "Good evening."]
    assert document["usage"]["requests"] == 1
    assert await rig.sql("SELECT count(*) FROM chats") == 1


async def test_chat_that_is_busy_is_refused(rig: RunRig) -> None:
    await rig.model()
    tool = scripted_tools.hanging("hang")
    interrupts = Interrupts()
    running = asyncio.create_task(rig.run(script=(CallTool("hang"),), tools=[tool], interrupts=interrupts))
    await tool.started.wait()
    chat_id = await rig.sql("SELECT id FROM chats")

    with pytest.raises(Refused, match="is running"):
        await rig.run("more", chat_id=chat_id)

    assert interrupts.follower is not None
    interrupts.follower.stop(Stop.SIGNAL)
    assert (await running).code == Exit.INTERRUPTED
    assert await rig.sql("SELECT count(*) FROM chat_messages WHERE role = 'user'") == 1


async def test_unknown_chat_is_refused(rig: RunRig) -> None:
    await rig.model()

    with pytest.raises(Refused, match="There is no chat"):
        await rig.run(chat_id=ChatId(uuid4()))


async def test_turn_in_a_chat_of_another_user_is_the_operators_and_leaves_no_token(rig: RunRig) -> None:
    await rig.model()
    chat_id = ChatId(json.loads((await rig.run("first", json=True)).stdout)["chat_id"])
    await rig.sql("UPDATE users SET username = 'ada'")

    done = await rig.run("second", chat_id=chat_id, json=True)

    operator = await rig.sql("SELECT id FROM users WHERE username = $1", users.OPERATOR)
    assert done.code == Exit.OK
    assert json.loads(done.stdout)["messages"][0]["created_by"] == str(operator)
    assert await rig.sql("SELECT count(*) FROM api_tokens") == 0


# Beside others


async def test_chats_of_others_are_left_alone(rig: RunRig) -> None:
    config = await rig.model()
    async with rig.database.api.acquire() as conn:
        owner_id = await users.ensure_operator(conn)
    message = NewMessage(role=Role.USER, content=(Text("mine"),), created_by=owner_id)
    spec = ChatSpec(owner_id=owner_id, title="Mine", model_config_id=config.id, messages=(message,))
    waiting = Machine(rig.database.api, Notifier(rig.database.api, Bus()))
    other = (await waiting.bundle(lambda bundle: machine.create_chat(bundle, spec))).chat.id

    done = await rig.run()

    assert done.code == Exit.OK
    assert await rig.sql("SELECT status || (worker_id IS NULL)::text FROM chats WHERE id = $1", other) == "runningtrue"


async def test_chat_that_another_process_has_taken_is_still_shown(rig: RunRig) -> None:
    """A server takes over the chat after the lease was lost: its messages are shown when they are committed."""
    await rig.model("guide")
    tool = scripted_tools.hanging("execute")
    running = asyncio.create_task(rig.run("run `ls`", tools=[tool]))
    await tool.started.wait()
    chat_id = await rig.sql("SELECT id FROM chats")

    async with replica.running_replica(rig.settings, rig.database, Choices(takes_chats=False)) as server:
        runner_id = uuid4()
        await server.machine.chat(chat_id).update(
            lambda tx: machine.acquire(tx, worker_id=server.id, runner_id=runner_id)
        )
        assert server.worker.manager.spawn(chat_id, runner_id)
        done = await running

    assert done.code == Exit.OK
    assert done.stdout.startswith("I will run that.\n\n")
    assert "execute failed" in done.stderr


async def test_chat_without_a_worker_is_acquired_again(rig: RunRig) -> None:
    await rig.model()
    hold = asyncio.Event()
    runs = 0

    async def behave(*_: object) -> ToolOutput:
        nonlocal runs
        runs += 1
        if runs == 1:
            await hold.wait()
        return ToolOutput("done")

    tool = scripted_tools.ScriptedTool("hold", behave)
    running = asyncio.create_task(rig.run(script=in_turn((CallTool("hold"),), HELLO), tools=[tool]))
    await tool.started.wait()
    chat_id = await rig.sql("SELECT id FROM chats")
    worker_id, runner_id = await rig.database.api.fetchrow("SELECT worker_id, runner_id FROM chats")  # type: ignore[misc]

    notifier = Notifier(rig.database.api, Bus())
    taker = Machine(rig.database.api, notifier)
    await machine.try_abandon(taker, chat_id, worker_id=worker_id, runner_id=runner_id)
    await notifier.close()

    done = await running
    hold.set()
    assert (done.code, done.stdout) == (Exit.OK, "Good morning.\n")
    await until(lambda: runs == 2)
