"""The commands of `rookery chat` at a real server."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from rookery.cli.chat import chat_actions, prompt_loop
from rookery.cli.exit_codes import Exit, Refused
from rookery.client import errors
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.parts import Text
from rookery.llm.scripted import CallTool, Fail, Say, Step, Think, Wait, results_since_user
from rookery.llm.types import Call, ErrorKind
from rookery.store import machine
from rookery.store.machine import ChatSpec
from tests.cli.chat.chat_rig import HELLO, ChatRig, open_chat_desk, seated
from tests.eventually import until

LONG = 3600.0


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[ChatRig]:
    async with open_chat_desk(database_url, tmp_path) as opened:
        yield opened


async def test_answer_is_on_stdout_and_all_else_beside_it(rig: ChatRig) -> None:
    with rig.script((Think("Let me see."), *HELLO)):
        code = await chat_actions.new(rig.terminal(), "hello", wait=True)

    assert (code, rig.said) == (Exit.OK, "Good morning.\n")
    assert rig.notes[0] == "Let me see."
    (made,) = (await rig.client.chats.list()).items
    assert rig.notes[-1].endswith(f" s, chat {str(made.id)[:8]}")
    assert "tokens in" in rig.notes[-1]
    assert (made.client_type, made.has_unread) == ("cli", False)


async def test_conversation_goes_on_without_repeating_what_was_said(rig: ChatRig) -> None:
    with rig.script(HELLO):
        await chat_actions.new(rig.terminal(), "hello", wait=True)
    (made,) = (await rig.client.chats.list()).items

    with rig.script((Say("Good evening."),)):
        code = await chat_actions.send(rig.terminal(), str(made.id)[:6], "and now?", busy="queue", wait=True)

    assert (code, rig.said) == (Exit.OK, "Good evening.\n")


async def test_tools_are_told_by_name_and_outcome(rig: ChatRig) -> None:
    def steps(call: Call) -> Sequence[Step]:
        is_done = any(message.role == "tool" for message in call.prompt.messages)
        return HELLO if is_done else (CallTool("unheard_of", {"path": "a.txt"}),)

    with rig.script(steps):
        await chat_actions.new(rig.terminal(), "hello", wait=True)

    assert 'unheard_of path="a.txt"' in rig.notes
    assert any(note.startswith("unheard_of failed") for note in rig.notes)
    assert rig.said == "Good morning.\n"


async def test_failed_turn_says_why_and_exits_1(rig: ChatRig) -> None:
    with rig.script((Fail(ErrorKind.AUTH, "The key is wrong.", retryable=False),)):
        code = await chat_actions.new(rig.terminal(), "hello", wait=True)

    assert code == Exit.FAILED
    assert any(note.startswith("rookery: ") for note in rig.notes)


async def test_ctrl_c_stops_the_turn_and_keeps_what_was_said(rig: ChatRig) -> None:
    with rig.script((Say("Half an answer"), Wait(LONG))):
        running = asyncio.create_task(chat_actions.new(rig.terminal(), "hello", wait=True))
        await until(lambda: rig.said.startswith("Half an answer"))
        os.kill(os.getpid(), signal.SIGINT)
        code = await running

    assert code == Exit.INTERRUPTED
    assert "Stopping; Ctrl-C again leaves the chat running." in rig.notes
    assert "rookery: Interrupted. The answer so far is saved." in rig.notes
    (made,) = (await rig.client.chats.list()).items
    assert (await rig.client.messages.list(made.id)).items[0].content[0].text == "Half an answer"


async def test_second_ctrl_c_leaves_the_chat_running(rig: ChatRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rookery.cli.chat.stream_follower.ECHO_SECONDS", 0.0)
    with rig.script((Say("Half an answer"), Wait(LONG))):
        at = rig.terminal()
        made = await chat_actions.create(at.client, "hello", chat_actions.NewChat())
        running = asyncio.create_task(chat_actions.turn(at, made.id, since=made.snapshot_version))
        await until(lambda: rig.said.startswith("Half an answer"))
        async with rig.rig.database.api.acquire() as conn, conn.transaction():
            # The chat cannot be stopped while its row is locked, so the first Ctrl-C has no effect.
            await conn.execute("SELECT id FROM chats WHERE id = $1 FOR UPDATE", made.id)
            os.kill(os.getpid(), signal.SIGINT)
            await until(lambda: any(note.startswith("Stopping") for note in rig.notes))
            os.kill(os.getpid(), signal.SIGINT)
            code = await running

    assert code == Exit.INTERRUPTED
    assert rig.notes[-1] == f"rookery: Left. The chat continues: rookery chat attach {str(made.id)[:8]}"


async def test_events_are_printed_as_lines_of_json(rig: ChatRig) -> None:
    with rig.script(HELLO):
        code = await chat_actions.new(rig.terminal(lines=True), "hello", wait=True)

    events = [json.loads(line) for line in rig.said.splitlines()]
    assert code == Exit.OK
    assert events[0]["type"] == "chat"
    assert events[1]["type"] == "hello"
    assert events[-1]["type"] == "synced"
    assert {"message", "status", "message_part"} <= {event["type"] for event in events}
    assert rig.notes == []


async def test_answer_need_not_be_waited_for(rig: ChatRig) -> None:
    with rig.script((Wait(LONG),)):
        assert await chat_actions.new(rig.terminal(), "hello", wait=False) == Exit.OK
        chat_id = rig.said.strip()
        assert await chat_actions.send(rig.terminal(), chat_id, "and this", busy="queue", wait=False) == Exit.OK

        assert rig.said == "queued\n"
        assert await chat_actions.interrupt(rig.terminal(), chat_id) == Exit.OK
        assert rig.said == f"Chat {chat_id[:8]} is stopping.\n"


async def test_subagents_are_listed_with_their_state(rig: ChatRig) -> None:
    def script(call: Call) -> Sequence[Step]:
        if "spawn_agent" not in {tool.name for tool in call.tools}:
            return (Say("I found it."),)
        found = results_since_user(call.prompt)
        if not found:
            return (CallTool("spawn_agent", {"type": "explore", "prompt": "find it", "title": "Finder"}),)
        if len(found) == 1:
            return (CallTool("wait_agent", {"chat_id": json.loads(found[0].text)["chat_id"]}),)
        return (Say("Done."),)

    with rig.script(script):
        assert await chat_actions.new(rig.terminal(), "delegate", wait=True) == Exit.OK
        (made,) = (await rig.terminal().client.chats.list()).items
        assert await chat_actions.list_agents(rig.terminal(), str(made.id)) == Exit.OK

    head, row = rig.said.splitlines()
    assert head.split() == ["id", "kind", "state", "active", "steps", "cost", "title", "last", "activity"]
    # The scripted model has no price.
    assert row.split()[1:3] + row.split()[-5:] == ["explore", "finished", "-", "Finder", "I", "found", "it."]
    assert rig.notes[-1] == "Follow one with: rookery chat attach ID"


async def test_turn_with_subagents_shows_one_line_for_each(rig: ChatRig) -> None:
    def script(call: Call) -> Sequence[Step]:
        if "spawn_agent" not in {tool.name for tool in call.tools}:
            return (Say("I found it."),)
        found = results_since_user(call.prompt)
        if not found:
            orders = ({"type": "explore", "prompt": "find it", "title": title} for title in ("First", "Second"))
            return [CallTool("spawn_agent", order) for order in orders]
        if len(found) == 2:
            return (CallTool("wait_agent", {"chat_ids": [json.loads(each.text)["chat_id"] for each in found]}),)
        return (Say("Done."),)

    with rig.script(script):
        assert await chat_actions.new(rig.terminal(), "delegate", wait=True) == Exit.OK

    lines = [line.split(" ", 4)[-1] for line in rig.notes if line.startswith("  agent ")]
    assert sorted(lines[:2]) == ["First: at work", "Second: at work"]
    assert "wait_agent First, Second" in rig.notes or "wait_agent Second, First" in rig.notes
    assert sorted(lines[2:4]) == ["First: finished", "Second: finished"]


async def test_attaching_shows_the_last_messages(rig: ChatRig) -> None:
    with rig.script(HELLO):
        await chat_actions.new(rig.terminal(), "hello\nthere", wait=True)
    (made,) = (await rig.client.chats.list()).items

    code = await chat_actions.attach(rig.terminal(), str(made.id), tail=10)

    assert (code, rig.said, rig.notes) == (Exit.OK, "Good morning.\n", ["> hello", "> there"])


async def test_user_who_stops_watching_is_told_how_to_continue(rig: ChatRig) -> None:
    with rig.script((Say("Half an answer"), Wait(LONG))):
        at = rig.terminal()
        made = await chat_actions.create(at.client, "hello", chat_actions.NewChat())
        watching = asyncio.create_task(chat_actions.attach(at, str(made.id), tail=10))
        await until(lambda: rig.said.startswith("Half an answer"))
        watching.cancel()
        with pytest.raises(asyncio.CancelledError):
            await watching

    assert rig.said == "Half an answer\n"
    assert rig.notes[-1] == f"The chat continues: rookery chat attach {str(made.id)[:8]}"


async def test_list_shows_ids_that_can_be_used(rig: ChatRig) -> None:
    assert await chat_actions.list_chats(rig.terminal(), None, limit=20) == Exit.OK
    assert rig.said == 'There are no chats. Start one: rookery chat new "..."\n'
    with rig.script(HELLO):
        await chat_actions.new(rig.terminal(), "hello", wait=True)

    await chat_actions.list_chats(rig.terminal(), None, limit=20)
    header, row = rig.said.splitlines()
    assert header.split() == ["id", "state", "active", "title"]
    assert row.split()[1] == "idle"
    assert str(await chat_actions.find_chat(rig.client, row.split()[0])).startswith(row.split()[0])
    await chat_actions.list_chats(rig.terminal(), "status:error", limit=20)
    assert rig.said == "No chat matches.\n"


async def test_shortened_id_must_fit_one_chat(rig: ChatRig) -> None:
    ids = [UUID("aaaa1111-0000-4000-8000-000000000001"), UUID("aaaa2222-0000-4000-8000-000000000002")]
    for chat_id in ids:
        await make(rig, chat_id)

    assert await chat_actions.find_chat(rig.client, "AAAA2") == ids[1]
    for reference, words in [("aaaa", "2 chats have ids that begin with aaaa"), ("bbbb", "None of your chats")]:
        with pytest.raises(Refused, match=words):
            await chat_actions.find_chat(rig.client, reference)
    for reference in ("aaa", "hello", ""):
        with pytest.raises(Refused, match="is not the id of a chat"):
            await chat_actions.find_chat(rig.client, reference)


async def make(rig: ChatRig, chat_id: UUID) -> None:
    """Create a chat with a chosen id, which requests cannot do."""
    ((provider,), me) = await rig.client.models.list(), rig.person.id
    first = NewMessage(role=Role.USER, content=(Text("hello"),), created_by=me)
    spec = ChatSpec(id=chat_id, owner_id=me, title="A chat", model_config_id=provider.models[0].id, messages=(first,))
    await rig.rig.replica.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))


async def test_unknown_model_is_refused_before_a_chat_is_made(rig: ChatRig) -> None:
    with pytest.raises(Refused, match="There is no model nonsense"):
        await chat_actions.new(rig.terminal(), "hello", chat_actions.NewChat(model="nonsense"), wait=True)

    assert (await rig.client.chats.list()).items == ()
    await chat_actions.list_models(rig.terminal())
    assert rig.said.splitlines()[1].split()[:2] == ["test", "acme"]


async def test_missing_chat_is_the_servers_to_tell(rig: ChatRig) -> None:
    with pytest.raises(errors.NotFound):
        await chat_actions.attach(rig.terminal(), str(uuid4()), tail=10)


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0, "just now"), (59, "just now"), (60, "1 min ago"), (7200, "2 h ago"), (200_000, "2 d ago"), (-5, "just now")],
)
def test_times_are_told_by_how_long_ago_they_are(seconds: int, words: str) -> None:
    now = datetime(2030, 1, 1, tzinfo=UTC)

    assert chat_actions.ago(now - timedelta(seconds=seconds), now) == words


@pytest.mark.parametrize(("prompt", "words"), [("  ", "is empty"), ("x" * (256 * 1024 + 1), "longer than 256 KiB")])
def test_prompt_is_checked_before_anything_is_sent(prompt: str, words: str) -> None:
    with pytest.raises(Refused, match=words):
        chat_actions.read_prompt(prompt)


def test_conversation_at_the_prompt(database_url: str, tmp_path: Path) -> None:
    """Each typed line is a turn of one chat; the commands are those of /help."""
    typed = ["/stop", "/plan", "hello", "", "/help", "/nonsense", "once more", "/stop", "/new", "a new one", "/quit"]
    lines = iter([*typed[:-1], "/plan", "/plan", typed[-1]])

    with seated(database_url, tmp_path, HELLO) as (rig, runner):
        talk = prompt_loop.PromptLoop(rig.terminal(), runner, new_chat=chat_actions.NewChat())
        assert talk.run(lambda _: next(lines)) == Exit.OK
        made = runner.run(rig.client.chats.list()).items

    assert rig.said.count("Good morning.") == 3
    assert [(each.title, each.plan_mode) for each in made] == [("a new one", False), ("hello", True)]
    assert [rig.notes.count(words) for words in (prompt_loop.PLAN_MODE_ON, prompt_loop.PLAN_MODE_OFF)] == [2, 1]
    for words in (
        "There is no chat yet.",
        "/quit   leave",
        "There is no command /nonsense.",
        "No turn is running.",
        "starts another",
    ):
        assert words in rig.stderr.getvalue()
    assert rig.notes[-1] == f"Continue with: rookery chat attach {str(made[0].id)[:8]}"


@pytest.mark.parametrize("end", [EOFError, KeyboardInterrupt])
def test_end_of_input_leaves_the_prompt(database_url: str, tmp_path: Path, end: type[BaseException]) -> None:
    def read_line(_: str) -> str:
        raise end

    with seated(database_url, tmp_path, HELLO) as (rig, runner):
        assert prompt_loop.PromptLoop(rig.terminal(), runner, new_chat=chat_actions.NewChat()).run(read_line) == Exit.OK

    assert rig.notes == ["Type a message; /help lists the commands.", ""]
