"""Tool calls that need approval: questions, waiting, answers, and crashes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from rookery.domain.chat import approvals
from rookery.domain.chat.approvals import Answer, Decision, Policy, Rule, RuleAction
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import ToolCall
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.llm.scripted import CallTool, Say
from rookery.loop.tool import Replay
from rookery.runtime.time_slices import in_pieces
from rookery.store import machine
from tests import scripted_tools
from tests.event_loop_turns import matches_by_turn
from tests.eventually import until
from tests.scripted_tools import ScriptedTool
from tests.worker.worker_rig import WorkerRig, in_turn, open_house

PICK = msgspec.json.encode([{"name": "pick", "description": "Pick one.", "input_schema": {"type": "object"}}]).decode()
ASK_RUN = {"rules": [{"tool": "run", "action": "ask"}]}
SCRIPT = ((CallTool("run", {"command": "ls"}),), (Say("done"),))


def approve(call_id: str) -> Answer:
    return Answer(tool_call_id=call_id, decision=Decision.APPROVE)


def deny(call_id: str) -> Answer:
    return Answer(tool_call_id=call_id, decision=Decision.DENY, reason="not today")


async def asked(rig: WorkerRig, **fields: object) -> ChatId:
    """Return a chat that waits for an approval and has no worker."""
    chat_id = await rig.ask("hello", **fields)
    await until_asked(rig, chat_id)
    return chat_id


async def until_asked(rig: WorkerRig, chat_id: ChatId) -> None:
    async def parked() -> bool:
        chat = await rig.chat(chat_id)
        return chat.is_parked and chat.worker_id is None

    await until(parked)


async def answer(rig: WorkerRig, chat_id: ChatId, make: Callable[[str], Answer] = approve, only: str = "") -> None:
    async def run(tx: machine.Tx) -> None:
        pending = await machine.open_calls.asked_calls(tx)
        answers = [make(call.tool_call_id) for call in pending if only in ("", call.tool_name)]
        await machine.answer_approvals(tx, answers, answered_by=rig.user)

    await rig.machine.chat(chat_id).update(run)


async def errors(rig: WorkerRig, chat_id: ChatId) -> list[Any]:
    return [result["error"] for result in await rig.results(chat_id) if "error" in result]


async def test_an_approved_call_runs_and_the_turn_goes_on(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)
        before = len(rig.calls), len(tool.runs)
        await until(lambda: rig.worker.stats.approvals_asked == 1)

        await answer(rig, chat_id)
        chat = await rig.rested(chat_id)

        assert before == (1, 0)
        assert chat.status == Status.WAITING
        assert tool.inputs == [{"command": "ls"}]
        assert (await rig.story(chat_id))[1:] == [("assistant", "run!"), ("tool", "run=ok"), ("assistant", "done")]
        assert len(rig.calls) == 2


async def test_a_question_that_was_not_written_is_not_counted(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = 0

    async def ask(tx: machine.Tx, questions: Sequence[machine.Question], **fields: Any) -> None:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise OSError("the database went away")
        await machine.approvals.ask_approvals(tx, questions, **fields)

    monkeypatch.setattr(machine, "ask_approvals", ask)
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[scripted_tools.echo("run")]) as rig:
        await rig.set("approvals", ASK_RUN)
        await asked(rig)
        await until(lambda: rig.worker.stats.approvals_asked > 0)

        assert (tries, rig.worker.stats.approvals_asked) == (2, 1)


async def test_a_denied_call_does_not_run_and_the_model_is_told_why(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)

        await answer(rig, chat_id, deny)
        await rig.rested(chat_id)

        assert tool.runs == []
        assert (await rig.story(chat_id))[2:] == [("tool", "run=error"), ("assistant", "done")]
        assert "not today" in (await errors(rig, chat_id))[0]
        assert (await rig.messages(chat_id))[2].created_by == rig.user


async def test_a_rule_that_denies_asks_no_question(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", {"rules": [{"tool": "run", "action": "deny", "reason": "read only"}]})
        chat_id = await rig.ask()
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert tool.runs == []
        assert "read only" in (await errors(rig, chat_id))[0]


MIXED = (
    (CallTool("look"), CallTool("run", {"command": "a"}), CallTool("pick"), CallTool("burn"), CallTool("nothing")),
    (Say("done"),),
)


async def test_allowed_calls_run_first_then_the_user_is_asked_then_the_client(database_url: str) -> None:
    look, run, burn = (scripted_tools.echo(name) for name in ("look", "run", "burn"))
    rules = [{"tool": "run", "action": "ask"}, {"tool": "burn", "action": "deny"}]
    async with open_house(database_url, script=in_turn(*MIXED), tools=[look, run, burn]) as rig:
        await rig.set("approvals", {"rules": rules})
        chat_id = await asked(rig, dynamic_tools=PICK)
        first = (await rig.story(chat_id))[2:]

        await answer(rig, chat_id)

        async def handed_over() -> bool:
            chat = await rig.chat(chat_id)
            return chat.status == Status.REQUIRES_ACTION and not chat.awaits_approval

        await until(handed_over)
        second = (await rig.story(chat_id))[5:]
        await submit(rig, chat_id)
        await rig.rested(chat_id)

        assert first == [("tool", "look=ok"), ("tool", "burn=error"), ("tool", "nothing=error")]
        assert second == [("tool", "run=ok")]
        assert (await rig.story(chat_id))[6:] == [("tool", "pick=ok"), ("assistant", "done")]
        assert (len(look.runs), len(run.runs), len(burn.runs), len(rig.calls)) == (1, 1, 0, 2)


async def submit(rig: WorkerRig, chat_id: ChatId) -> None:
    call = next(
        part
        for message in await rig.messages(chat_id)
        for part in message.parts()
        if isinstance(part, ToolCall) and part.tool_name == "pick"
    )
    results = [SubmittedResult(call.tool_call_id, "{}")]
    await rig.machine.chat(chat_id).update(
        lambda tx: machine.complete_requires_action(tx, results, submitted_by=rig.user)
    )


async def test_a_tool_of_the_client_can_be_asked_about_too(database_url: str) -> None:
    async with open_house(database_url, script=in_turn((CallTool("pick"),), (Say("done"),))) as rig:
        await rig.set("approvals", {"rules": [{"tool": "pick", "action": "ask"}]})
        chat_id = await asked(rig, dynamic_tools=PICK)

        await answer(rig, chat_id, deny)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (await rig.story(chat_id))[2] == ("tool", "pick=error")


async def test_an_exclusive_call_beside_one_that_needs_approval_runs_neither_and_asks_no_question(
    database_url: str,
) -> None:
    alone, run = scripted_tools.echo("alone", exclusive=True), scripted_tools.echo("run")
    script = in_turn((CallTool("alone"), CallTool("run", {"command": "a"})), (Say("done"),))
    async with open_house(database_url, script=script, tools=[alone, run]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await rig.ask()
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (alone.runs, run.runs) == ([], [])
        assert len(await errors(rig, chat_id)) == 2


async def test_rules_of_the_owner_and_of_the_chat_count_as_well(database_url: str) -> None:
    tools = [scripted_tools.echo(name) for name in ("look", "run")]
    script = in_turn((CallTool("look"), CallTool("run", {"command": "ls"})), (Say("done"),))
    async with open_house(database_url, script=script, tools=tools) as rig:
        chat_id = await blocked_chat(rig)
        await rig.rested(chat_id)

        assert await errors(rig, chat_id) != []
        assert [len(tool.runs) for tool in tools] == [0, 0]


async def blocked_chat(rig: WorkerRig) -> ChatId:
    """Return a chat whose owner denies one tool and which itself denies the other."""
    own = msgspec.json.encode([{"tool": "look", "action": "deny"}]).decode()
    of_chat = msgspec.json.encode([{"tool": "run", "action": "deny"}]).decode()
    insert = "INSERT INTO user_settings (user_id, key, value) VALUES ($1, 'approval_rules', $2)"
    await rig.sql(insert, rig.user, own)
    rig.worker.stop_acquiring()
    chat_id = await rig.ask()
    await rig.sql("INSERT INTO chat_approval_rules (chat_id, rules) VALUES ($1, $2)", chat_id, of_chat)
    await rig.add_replica()
    return chat_id


@pytest.mark.parametrize("value", [{"rules": [{"tool": "x", "action": "forbid"}]}, {"rules": "none"}, []])
async def test_rules_that_cannot_be_read_leave_every_call_to_be_asked(database_url: str, value: object) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", value)
        await asked(rig)

        assert tool.runs == []


async def test_a_stored_rule_over_the_bounds_denies_its_tool_and_stops_no_chat(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        rule = {"tool": "run", "match": {"command": "*a" * 300}, "action": "deny", "reason": "too wild"}
        await rig.set("approvals", {"rules": [rule]})

        chat_id = await rig.ask("hello")
        await rig.rested(chat_id)

        assert tool.inputs == []
        assert "too wild" in (await errors(rig, chat_id))[0]


async def test_the_event_loop_goes_on_while_a_hostile_rule_set_judges_a_long_command(database_url: str) -> None:
    """Passes of the event loop are counted and not time, because one call is judged in many pieces."""
    policy = Policy(
        rules=tuple(
            Rule(tool="*", action=RuleAction.DENY, match={f"a{at}": "*".join(["a" * 15] * 15) + f"{place:03}b"})
            for place in range(200)
            for at in (place % 16,)
        )
    )
    args = {f"a{at}": "a" * 16_384 for at in range(16)}
    turns, is_over = 0, False

    async def count() -> None:
        nonlocal turns
        while not is_over:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await in_pieces(approvals.judge_sliced(policy, ("tool",), args))
    is_over = True
    await counting

    assert turns >= 5


async def test_the_event_loop_goes_on_while_a_question_is_prepared(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most one pattern is matched per pass of the event loop, both for judging and for the offers of "always"."""
    args: dict[str, object] = {f"a{at}": "a" * 2000 for at in range(16)}
    rule = {"tool": "run", "action": "ask", "match": {name: "a*a*a*" for name in args}}
    script = ((CallTool("run", args), CallTool("run", args)), (Say("done"),))
    async with open_house(database_url, script=in_turn(*script), tools=[scripted_tools.echo("run")]) as rig:
        await rig.set("approvals", {"rules": [rule]})
        async with matches_by_turn(monkeypatch) as matches:
            await asked(rig)

        # Each of the two calls matches 16 restrictive patterns, and then the same 16 for the offers.
        assert matches.total() >= 64
        assert max(matches.values()) == 1


async def test_a_rule_that_denies_is_stronger_than_an_approval(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)
        await rig.set("approvals", {"rules": [{"tool": "run", "action": "deny"}]})

        await answer(rig, chat_id)
        await rig.rested(chat_id)

        assert tool.runs == []


# Restarts and crashes


async def test_a_question_outlives_the_process_and_asks_the_model_nothing_again(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)
        await rig.crash()

        await answer(rig, chat_id)
        await rig.add_replica()
        await rig.rested(chat_id)

        assert (len(tool.runs), len(rig.calls)) == (1, 2)


async def test_an_approved_call_that_a_crash_cut_off_runs_on_without_another_question(database_url: str) -> None:
    tool = scripted_tools.hanging("run", replay=Replay.TOKEN)
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)
        await answer(rig, chat_id)
        await tool.started.wait()
        tool.started.clear()

        await rig.crash()
        await rig.add_replica()
        await tool.started.wait()

        assert (await rig.chat(chat_id)).status == Status.RUNNING
        assert len(set(tool.runs)) == 1
        assert len(rig.calls) == 1


async def test_an_approved_call_with_a_ledger_runs_once_although_its_process_dies(database_url: str) -> None:
    tool = scripted_tools.hanging("run", replay=Replay.LEDGER)
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)
        await answer(rig, chat_id)
        await tool.started.wait()

        await rig.crash()
        await rig.add_replica()
        await rig.rested(chat_id)

        assert len(tool.runs) == 1
        assert "outcome is unknown" in (await errors(rig, chat_id))[0]


# Other endings


async def test_an_interrupt_closes_the_question(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)

        await rig.interrupt(chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert (len(tool.runs), len(rig.calls)) == (0, 1)
        assert (await rig.results(chat_id))[0]["reason"] == "interrupted_by_user"
        assert await rig.sql("SELECT count(*) FROM chat_approvals") == 0


async def test_a_message_that_interrupts_and_an_edit_close_the_question(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    script = in_turn(SCRIPT[0], SCRIPT[0], (Say("done"),))
    async with open_house(database_url, script=script, tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)

        await rig.send(chat_id, "stop that", BusyBehavior.INTERRUPT)
        await until_asked(rig, chat_id)
        await rig.edit(chat_id, (await rig.messages(chat_id))[0], "something else")
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert tool.runs == []
        assert await rig.sql("SELECT count(*) FROM chat_approvals") == 0


async def test_a_message_that_waits_leaves_the_question_open(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", ASK_RUN)
        chat_id = await asked(rig)

        await rig.send(chat_id, "and then")
        await answer(rig, chat_id)
        await rig.rested(chat_id)

        assert len(tool.runs) == 1


async def test_a_deadline_closes_the_question_where_one_is_set(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", {**ASK_RUN, "timeout_seconds": 3600})
        chat_id = await rig.ask()
        await rig.until_status(chat_id, Status.REQUIRES_ACTION)

        await pass_deadline(rig, chat_id)
        await rig.add_replica()
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert tool.runs == []
        assert (await rig.results(chat_id))[0]["reason"] == "approval_timed_out"


async def pass_deadline(rig: WorkerRig, chat_id: ChatId) -> None:
    """Let an hour pass for the database, and kill the replica that owns the waiting chat."""

    async def change(tx: machine.Tx) -> None:
        await tx.conn.execute("UPDATE chats SET requires_action_deadline_at = clock_timestamp() WHERE id = $1", chat_id)

    await rig.machine.chat(chat_id).update(change)
    await rig.crash()


@pytest.mark.parametrize("count", [3])
async def test_chats_that_wait_for_people_take_no_slots(database_url: str, count: int) -> None:
    tools: Sequence[ScriptedTool] = [scripted_tools.echo("run"), scripted_tools.echo("look")]
    async with open_house(database_url, script=(CallTool("run", {"command": "ls"}),), tools=tools) as rig:
        await rig.set("chats", {"running_roots": 1})
        await rig.set("approvals", ASK_RUN)

        for _ in range(count):
            await asked(rig)

        assert await rig.sql("SELECT count(*) FROM chats WHERE awaits_approval") == count


async def test_mode_ask_holds_every_call_with_an_effect_and_offers_no_always(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", {"rules": [{"tool": "run", "action": "always"}]})
        chat_id = await asked(rig, permission_mode=PermissionMode.ASK)
        offers = await rig.sql("SELECT offers::text FROM chat_approvals WHERE chat_id = $1", chat_id)

        await answer(rig, chat_id)
        chat = await rig.rested(chat_id)

        assert chat.status == Status.WAITING
        assert msgspec.json.decode(offers) == {"chat": None, "user": None}
        assert tool.inputs == [{"command": "ls"}]


async def test_mode_ask_lets_calls_without_an_effect_run(database_url: str) -> None:
    tool = scripted_tools.echo("read_file")
    script = ((CallTool("read_file", {"command": "ls"}),), (Say("done"),))
    async with open_house(database_url, script=in_turn(*script), tools=[tool]) as rig:
        chat_id = await rig.ask("hello", permission_mode=PermissionMode.ASK)

        assert (await rig.rested(chat_id)).status == Status.WAITING
        assert len(tool.runs) == 1


async def test_rule_that_denies_is_stronger_than_mode_ask(database_url: str) -> None:
    tool = scripted_tools.echo("run")
    async with open_house(database_url, script=in_turn(*SCRIPT), tools=[tool]) as rig:
        await rig.set("approvals", {"rules": [{"tool": "run", "action": "deny"}]})
        chat_id = await rig.ask("hello", permission_mode=PermissionMode.ASK)

        assert (await rig.rested(chat_id)).status == Status.WAITING
        assert tool.runs == []
