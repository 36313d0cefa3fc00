"""Chats and their subagents: spawning, waiting, notices, wakes, deadlines and the rules of a family."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID, uuid4

import pytest

from rookery.agents.subagent_monitor import SubagentMonitor
from rookery.agents.subagent_operations import WAIT_GRACE_SECONDS
from rookery.domain.access.rights import OwnerActor
from rookery.domain.chat.errors import TransitionNotAllowed
from rookery.domain.chat.messages import ChatId, Effort, NewMessage, NewQueuedMessage, Role
from rookery.domain.chat.model_prompt import PromptCall, PromptResult
from rookery.domain.chat.parts import Text
from rookery.domain.chat.states import Status
from rookery.domain.chat.transitions import BusyBehavior
from rookery.live.part_buffer import EpisodeKey
from rookery.llm.scripted import CallTool, Count, Fail, Say, Step, Wait
from rookery.llm.types import Call, ErrorKind, Usage
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput
from rookery.store import machine
from rookery.store.authorized.actor_store import ActorStore, Store
from rookery.store.chats import step_reads, subagents
from rookery.store.machine import bundle_runner
from rookery.store.models import model_configs
from rookery.store.models.model_configs import ModelConfigDraft, ModelConfigPatch
from rookery.store.people import preferences
from rookery.store.people.preferences import PersonalOverride, PreferencesPatch
from rookery.testing import FakeClock
from tests.agents.family_rig import FamilyRig, open_family, texts
from tests.eventually import until
from tests.otlp_collector import exporting, otlp_collector
from tests.scripted_tools import ScriptedTool
from tests.worker.worker_rig import BRAKE_OFF

SPAWN = CallTool("spawn_agent", {"type": "general", "prompt": "work"})


def results(call: Call) -> list[Any]:
    """The results in the prompt, as JSON, in order."""
    return [
        json.loads(part.text) if part.text.startswith("{") else part.text
        for message in call.prompt.messages
        for part in message.parts
        if isinstance(part, PromptResult)
    ]


def steps(*made: Callable[[list[Any]], Sequence[Step]] | Sequence[Step]) -> Callable[[Call], Sequence[Step]]:
    """A parent whose nth step follows n earlier steps with tools; a function gets the results so far."""

    def script(call: Call) -> Sequence[Step]:
        turns = sum(any(isinstance(part, PromptCall) for part in message.parts) for message in call.prompt.messages)
        chosen = made[min(turns, len(made) - 1)]
        return chosen(results(call)) if callable(chosen) else chosen

    return script


def wait_for(found: list[Any], **arguments: Any) -> Sequence[Step]:
    return (CallTool("wait_agent", {"chat_id": found[0]["chat_id"], **arguments}),)


def endless(call: Call) -> Sequence[Step]:
    """A child that says something and then nothing for long."""
    return (Say("I have begun."), Wait(3600.0))


def monitor(rig: FamilyRig) -> SubagentMonitor:
    return rig.worker.worker.subagents


def owner_store(rig: FamilyRig) -> ActorStore:
    publisher = rig.worker.replicas[0].notifier
    store = Store(rig.worker.database.api, machine=rig.worker.machine, publisher=publisher, clock=rig.worker.clock)
    return store.as_actor(OwnerActor(rig.worker.user))


async def told(rig: FamilyRig, parent: ChatId) -> list[str]:
    """The outcomes that the parent knows. A child may end before its parent waits for it: then a notice tells."""
    ends = await rig.ends(parent)
    assert all(by is not None and not woke for _, by, woke in ends)
    return [outcome for outcome, _, _ in ends]


async def until_spawned(rig: FamilyRig, parent: ChatId, count: int = 1) -> list[ChatId]:
    async def spawned() -> bool:
        return len(await rig.children(parent)) >= count

    await until(spawned)
    return await rig.children(parent)


async def until_streaming(rig: FamilyRig, chat_id: ChatId) -> None:
    async def streaming() -> bool:
        return (await rig.worker.chat(chat_id)).generation_attempt > 0

    await until(streaming)


# Spawning


async def test_parent_spawns_two_children_waits_for_both_and_reads_their_reports(database_url: str) -> None:
    parent = steps(
        (
            CallTool("spawn_agent", {"type": "general", "prompt": "count the files"}),
            CallTool("spawn_agent", {"type": "explore", "prompt": "find the license", "title": "License"}),
        ),
        lambda found: (CallTool("wait_agent", {"chat_ids": [each["chat_id"] for each in found]}),),
        (Say("Both are done."),),
    )

    def child(call: Call) -> Sequence[Step]:
        return (Say(f"Report: {'license' if 'license' in texts(call) else 'files'}"),)

    async with open_family(database_url, parent=parent, child=child) as rig:
        chat_id = await rig.worker.ask("delegate")
        await rig.worker.rested(chat_id)

        first, second, waited = await rig.worker.results(chat_id)
        assert (first["title"], first["type"], first["status"]) == ("count the files", "general", "running")
        assert (second["title"], second["type"]) == ("License", "explore")
        assert [each["report"] for each in waited["agents"]] == ["Report: files", "Report: license"]
        assert await told(rig, chat_id) == ["finished"] * 2
        assert (await rig.worker.story(chat_id))[-1] == ("assistant", "Both are done.")


async def test_trace_of_a_child_is_linked_to_the_call_that_spawned_it(database_url: str) -> None:
    with otlp_collector() as collector:
        async with (
            exporting(collector),
            open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig,
        ):
            chat_id = await rig.worker.ask("delegate")
            await rig.worker.rested(chat_id)
            await collector.until("invoke_agent", 2)

    parent, child = collector.one("invoke_agent default"), collector.one("invoke_agent general")
    spawn = collector.one("execute_tool spawn_agent")
    assert spawn.trace_id == parent.trace_id != child.trace_id
    assert child.links == [spawn.id]
    assert child.attributes["rookery.root_chat.id"] == str(chat_id) != child.attributes["gen_ai.conversation.id"]


async def test_child_sees_its_prompt_and_nothing_of_its_parent(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask("my secret plan")
        await rig.worker.rested(chat_id)

        asked = next(call for call in rig.worker.calls if call.cache_key != call.chat_id)
        assert "my secret plan" not in texts(asked)
        assert "You are a subagent" in texts(asked)
        assert "<subagents>" not in texts(asked)
        assert not {tool.name for tool in asked.tools} & {"spawn_agent", "list_agents", "message_agent", "wait_agent"}


async def test_child_belongs_to_its_parents_owner_and_inherits_no_labels_and_no_client_tools(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        servers = (uuid4(), uuid4())
        chat_id = await rig.worker.ask(client_type="cli", labels={"team": "blue"}, mcp_server_ids=servers)
        await rig.worker.rested(chat_id)
        # The child keeps the servers of the moment when it was spawned.
        await rig.sql("UPDATE chats SET mcp_server_ids = '{}' WHERE id = $1", chat_id)

        (child,) = await rig.children(chat_id)
        columns = (
            "owner_id, client_type, labels::text, dynamic_tools::text, mcp_server_ids, plan_mode, mode, root_chat_id"
        )
        async with rig.worker.database.api.acquire() as conn:
            row = await conn.fetchrow(f"SELECT {columns} FROM chats WHERE id = $1", child)
        assert row is not None
        assert tuple(row) == (rig.worker.user, "cli", "{}", None, list(servers), False, None, chat_id)


@pytest.mark.parametrize(("kind", "plans", "mode"), [("general", True, None), ("explore", False, "explore")])
async def test_general_child_of_a_planning_turn_plans_and_an_explore_child_does_not(
    database_url: str, kind: str, plans: bool, mode: str | None
) -> None:
    order = CallTool("spawn_agent", {"type": kind, "prompt": "look"})
    async with open_family(database_url, parent=steps((order,), wait_for, (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask(plan_mode=True)
        await rig.worker.rested(chat_id)

        (child,) = await rig.children(chat_id)
        assert await rig.sql("SELECT plan_mode FROM chats WHERE id = $1", child) is plans
        assert await rig.sql("SELECT mode FROM chats WHERE id = $1", child) == mode


@pytest.mark.parametrize("mode", ["ask", "read_only"])
async def test_subagent_has_the_permission_mode_of_its_main_chat(database_url: str, mode: str) -> None:
    order = CallTool("spawn_agent", {"type": "general", "prompt": "look"})
    async with open_family(database_url, parent=steps((order,), wait_for, (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask("hello")
        await rig.worker.rested(chat_id)
        (child,) = await rig.children(chat_id)
        await rig.sql("UPDATE chats SET permission_mode = $2 WHERE id = $1", chat_id, mode)

        async with rig.worker.database.api.acquire() as conn:
            row = await conn.fetchrow(step_reads.READ_ROW, child)

        assert row is not None
        assert mode in list(row)


@pytest.mark.parametrize(
    ("given", "title"),
    [
        ("Every caller of the login function in all tests", "Every caller of the login function in all tests"),
        ("  two\nlines ", "two lines"),
        ("x" * 100, "x" * 79 + "\N{HORIZONTAL ELLIPSIS}"),
        ("  ", "find the callers of the login\N{HORIZONTAL ELLIPSIS}"),
    ],
)
async def test_given_title_is_kept_and_otherwise_the_first_words_are_the_title(
    database_url: str, given: str, title: str
) -> None:
    order = {"type": "general", "prompt": "find the callers of the login function", "title": given}
    async with open_family(database_url, parent=steps((CallTool("spawn_agent", order),), (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        assert (await rig.worker.results(chat_id))[0]["title"] == title


@pytest.mark.parametrize(("asked", "minutes"), [(5, 5), (500, 60), (None, 60)])
async def test_call_may_ask_for_less_time_and_not_for_more(database_url: str, asked: int | None, minutes: int) -> None:
    order = CallTool("spawn_agent", {"type": "general", "prompt": "work", "max_minutes": asked})
    async with open_family(database_url, parent=steps((order,), wait_for, (Say("ok"),)), child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)

        assert await rig.sql("SELECT max_minutes FROM subagents WHERE chat_id = $1", child) == minutes


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"type": "wizard"}, "There is no kind of subagent 'wizard'. The kinds are: general, explore."),
        ({"prompt": "  \n"}, "The prompt is blank."),
        ({"prompt": "x" * 300_000}, "The prompt is longer than 262144 bytes."),
        ({"model_config_id": "gpt"}, "'gpt' is not a model id."),
        ({"model_config_id": str(uuid4())}, "Call list_subagent_models"),
        ({"reasoning_effort": "frantic"}, "There is no reasoning effort 'frantic'."),
        ({"max_minutes": 0}, "`max_minutes` must be at least 1."),
        ({"budget_usd": -1}, "`budget_usd` must be more than 0 and at most 1,000,000."),
        ({"budget_usd": 1}, "This model has no price"),
    ],
)
async def test_spawn_that_cannot_work_is_an_error_result(
    database_url: str, arguments: dict[str, Any], told: str
) -> None:
    order = CallTool("spawn_agent", {"type": "general", "prompt": "work", **arguments})
    async with open_family(database_url, parent=steps((order,), (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (result,) = await rig.worker.results(chat_id)
        assert told in (result["error"] if isinstance(result, dict) else result)
        assert await rig.children(chat_id) == []


async def test_spawn_that_loses_the_database_is_repeated_and_makes_one_child(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        # The sequence is not rolled back, so only the first insert fails.
        await rig.sql("CREATE SEQUENCE spawns")
        await rig.sql(
            """
            CREATE FUNCTION fail_first() RETURNS trigger LANGUAGE plpgsql AS $$
            BEGIN
              IF nextval('spawns') = 1 THEN
                RAISE EXCEPTION 'terminating connection' USING ERRCODE = 'admin_shutdown';
              END IF;
              RETURN NEW;
            END $$
            """
        )
        await rig.sql("CREATE TRIGGER fail_first BEFORE INSERT ON subagents FOR EACH ROW EXECUTE FUNCTION fail_first()")
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        spawned, _ = await rig.worker.results(chat_id)
        assert await rig.sql("SELECT last_value FROM spawns") == 2
        assert [UUID(spawned["chat_id"])] == await rig.children(chat_id)


async def test_fifty_first_child_is_refused_however_the_spawns_are_batched(database_url: str) -> None:
    parent = steps((SPAWN,) * 30, (SPAWN,) * 25, (Say("ok"),))
    async with open_family(database_url, parent=parent) as rig:
        await rig.worker.set("chats", BRAKE_OFF)
        chat_id = await rig.worker.ask()
        await until_spawned(rig, chat_id, subagents.MAX_CHILDREN)
        await rig.worker.until_status(chat_id, Status.WAITING)

        assert len(await rig.children(chat_id)) == subagents.MAX_CHILDREN
        refused = [each for each in await rig.worker.results(chat_id) if "error" in each]
        assert len(refused) == 5
        assert "50 subagents, which is the limit" in refused[0]["error"]


async def test_call_that_is_run_again_after_a_crash_finds_its_child(database_url: str) -> None:
    gate = asyncio.Event()

    async def hold(ctx: ToolContext, given: ToolCall) -> ToolOutput:
        await gate.wait()
        return ToolOutput("held")

    tool = ScriptedTool("hold", hold)
    parent = steps((SPAWN, CallTool("hold")), (Say("ok"),))
    async with open_family(database_url, parent=parent, tools=[tool], workers=2) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        owner = (await rig.worker.chat(chat_id)).worker_id
        rig.worker.replicas.sort(key=lambda each: each.id != owner)
        await rig.worker.crash()
        gate.set()

        await rig.worker.rested(chat_id)
        assert await rig.children(chat_id) == [child]
        assert (await rig.worker.results(chat_id))[0]["chat_id"] == str(child)


# Waiting


async def test_wait_that_is_over_leaves_the_child_at_work(database_url: str) -> None:
    parent = steps((SPAWN,), lambda found: wait_for(found, timeout_seconds=1), (Say("I go on."),))
    async with open_family(database_url, parent=parent, child=endless) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        waited = (await rig.worker.results(chat_id))[1]
        assert waited["timed_out"] is True
        assert waited["status"] == "running"
        (child,) = await rig.children(chat_id)
        assert (await rig.worker.chat(child)).status == Status.RUNNING


async def test_wait_for_any_returns_with_the_first_report(database_url: str) -> None:
    parent = steps(
        (SPAWN, CallTool("spawn_agent", {"type": "general", "prompt": "quick"})),
        lambda found: (CallTool("wait_agent", {"chat_ids": [each["chat_id"] for each in found], "mode": "any"}),),
        (Say("ok"),),
    )

    def child(call: Call) -> Sequence[Step]:
        return (Say("quick report"),) if "quick" in texts(call) else endless(call)

    async with open_family(database_url, parent=parent, child=child) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        slow, quick = (await rig.worker.results(chat_id))[2]["agents"]
        assert quick["report"] == "quick report"
        assert (slow["status"], "report" in slow, "timed_out" in slow) == ("running", False, False)


async def test_child_that_fails_is_reported_with_its_error(database_url: str) -> None:
    def child(call: Call) -> Sequence[Step]:
        return (Fail(ErrorKind.AUTH, message="The key is wrong.", retryable=False),)

    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),)), child=child) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        waited = (await rig.worker.results(chat_id))[1]
        assert (waited["status"], waited["report"]) == ("error", "")
        assert waited["last_error_kind"] == "auth"
        assert waited["last_error_retryable"] is False
        assert waited["last_error"]
        assert await told(rig, chat_id) == ["error"]


async def test_wait_for_a_chat_of_another_family_is_refused(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        other = await rig.worker.ask("a family of its own")
        await rig.worker.rested(other)
        (stranger,) = await rig.children(other)

        def parent(call: Call) -> Sequence[Step]:
            return (Say("ok"),) if results(call) else (CallTool("wait_agent", {"chat_id": str(stranger)}),)

        rig.worker.script = parent
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (result,) = await rig.worker.results(chat_id)
        assert "is not a subagent of this chat" in result["error"]


async def test_wait_of_a_restarted_call_lasts_only_for_the_rest_of_its_time(database_url: str) -> None:
    parent = steps((SPAWN,), lambda found: wait_for(found, timeout_seconds=4), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless, workers=2) as rig:
        chat_id = await rig.worker.ask()
        await until_spawned(rig, chat_id)

        async def is_half_over() -> bool:
            return bool(
                await rig.sql(
                    "SELECT EXISTS (SELECT FROM chat_messages WHERE chat_id = $1 AND content::text LIKE '%wait_agent%'"
                    " AND created_at < clock_timestamp() - interval '2 seconds')",
                    chat_id,
                )
            )

        await until(is_half_over)
        owner = (await rig.worker.chat(chat_id)).worker_id
        rig.worker.replicas.sort(key=lambda each: each.id != owner)
        await rig.worker.crash()

        await rig.worker.rested(chat_id)
        assert (await rig.worker.results(chat_id))[1]["timed_out"] is True
        waited = await rig.sql(
            "SELECT extract(epoch FROM max(created_at) FILTER (WHERE role = 'tool') -"
            " max(created_at) FILTER (WHERE content::text LIKE '%\"tool-call\"%wait_agent%'))::float8"
            " FROM chat_messages WHERE chat_id = $1",
            chat_id,
        )
        # Without the rule it would be at least 6 seconds: 2 before the crash, and the whole time after it.
        assert 4 <= waited < 6


async def test_end_whose_hint_is_lost_is_found_when_the_wait_is_over(database_url: str) -> None:
    parent = steps((SPAWN,), lambda found: wait_for(found, timeout_seconds=2), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        await until_streaming(rig, child)

        async def waits() -> bool:
            return ("assistant", "wait_agent!") in await rig.worker.story(chat_id)

        await until(waits)
        # Without a hint, and the wait polls only every five seconds: the child ends in the gap before the time is over.
        silent = machine.Machine(rig.worker.database.api, Silence())
        await silent.chat(child).update(machine.finish_turn)
        await rig.worker.rested(chat_id)

        waited = (await rig.worker.results(chat_id))[1]
        assert (waited["status"], "timed_out" in waited, "report" in waited) == ("waiting", False, True)


class Silence:
    def publish(self, hints: object) -> None:
        return


@pytest.mark.parametrize(("asked", "seconds"), [(0, 300), (-5, 300), (50, 50), (99_999, 3600)])
async def test_wait_has_a_default_and_a_longest_time(database_url: str, asked: int, seconds: int) -> None:
    clock = FakeClock()
    parent = steps((SPAWN,), lambda found: wait_for(found, timeout_seconds=asked), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless, clock=clock) as rig:
        await rig.worker.ask()
        await clock.until_waiting("wait-agent")

        (tool,) = clock.waiting("tool")
        assert tool.due - clock.monotonic() == pytest.approx(seconds + WAIT_GRACE_SECONDS, abs=20)


class Gate:
    """Holds children at work, by a tool, until their parent waits for them."""

    def __init__(self, report: str) -> None:
        self.opened = asyncio.Event()
        self.tool = ScriptedTool("hold", self._hold)
        self._report = report

    async def _hold(self, ctx: ToolContext, given: ToolCall) -> ToolOutput:
        await self.opened.wait()
        return ToolOutput("held")

    def child(self, call: Call) -> Sequence[Step]:
        return (Say(self._report),) if results(call) else (CallTool("hold"),)


async def test_reports_that_are_too_long_together_are_cut_and_all_children_stay_in_the_result(
    database_url: str,
) -> None:
    long = "first " + "x" * 8000 + " last"
    gate = Gate(long)

    def wait(found: list[Any]) -> Sequence[Step]:
        gate.opened.set()
        return (CallTool("wait_agent", {"chat_ids": [each["chat_id"] for each in found]}),)

    parent = steps((SPAWN,) * 8, wait, (Say("ok"),))
    options: dict[str, Any] = {"tools": [gate.tool], "context_limit": 16_384}
    async with open_family(database_url, parent=parent, child=gate.child, **options) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        children = (await rig.worker.results(chat_id))[-1]["agents"]
        assert len(children) == 8
        for each in children:
            assert each["report_bytes"] == len(long)
            assert each["report"].startswith("first x")
            assert "Read it whole with read_agent_report." in each["report"]
        assert await told(rig, chat_id) == ["finished"] * 8


async def test_end_in_a_wait_result_without_room_for_its_shape_is_told_once(database_url: str) -> None:
    gate = Gate("My report.")

    def ask_for_it_often(found: list[Any]) -> Sequence[Step]:
        gate.opened.set()
        return (CallTool("wait_agent", {"chat_ids": [found[0]["chat_id"]] * 50}),) * 6

    parent = steps((SPAWN,), ask_for_it_often, (Say("ok"),))
    options: dict[str, Any] = {"tools": [gate.tool], "context_limit": 16_384}
    async with open_family(database_url, parent=parent, child=gate.child, **options) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        _, *waited = await rig.worker.results(chat_id)
        assert [list(each) for each in waited] == [["output"]] * 6
        assert await rig.ends(chat_id) == [("finished", "wait", False)]
        assert "AgentNotice" not in [said for _, said in await rig.worker.story(chat_id)]


# Notices and wakes


async def test_child_that_ends_while_its_parent_rests_wakes_it_once(database_url: str) -> None:
    gate = Gate("My report.")

    def parent(call: Call) -> Sequence[Step]:
        if "subagent-notice" in texts(call):
            return (Say("Thank you, child."),)
        return (Say("I go on alone."),) if results(call) else (SPAWN,)

    async with open_family(database_url, parent=parent, child=gate.child, tools=[gate.tool]) as rig:
        chat_id = await rig.worker.ask("delegate and rest")
        await rig.worker.until_status(chat_id, Status.WAITING)
        gate.opened.set()

        async def is_woken() -> bool:
            return ("assistant", "Thank you, child.") in await rig.worker.story(chat_id)

        await until(is_woken)
        await rig.worker.until_status(chat_id, Status.WAITING)
        await monitor(rig).look()
        assert await rig.ends(chat_id) == [("finished", "notice", True)]
        assert sum(said == "AgentNotice" for _, said in await rig.worker.story(chat_id)) == 1
        assert "My report." in texts(rig.worker.calls[-1])


async def test_parent_at_work_is_told_with_its_next_step(database_url: str) -> None:
    async def until_ended(ctx: ToolContext, given: ToolCall) -> ToolOutput:
        async def ended() -> bool:
            return bool(await rig.ends(chat_id))

        await until(ended)
        return ToolOutput("done")

    parent = steps((SPAWN,), (CallTool("busy"),), (Say("All is said."),))
    async with open_family(database_url, parent=parent, tools=[ScriptedTool("busy", until_ended)]) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        assert await rig.ends(chat_id) == [("finished", "notice", False)]
        assert [said for _, said in await rig.worker.story(chat_id)][-2:] == ["AgentNotice", "All is said."]


async def test_parent_that_its_user_stopped_is_not_woken_by_the_children_that_end_with_it(database_url: str) -> None:
    parent = steps((SPAWN, SPAWN), lambda found: wait_for(found, timeout_seconds=600), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless) as rig:
        chat_id = await rig.worker.ask()
        children = await until_spawned(rig, chat_id, 2)
        for child in children:
            await until_streaming(rig, child)

        async def stop(bundle: machine.Bundle) -> None:
            for each in (chat_id, *children):
                await machine.interrupt(await bundle.open(each))

        await rig.worker.machine.bundle(stop)
        for each in (chat_id, *children):
            await rig.worker.until_status(each, Status.WAITING)
        await monitor(rig).look()

        assert (await rig.worker.chat(chat_id)).status == Status.WAITING
        assert [end[0] for end in await rig.ends(chat_id)] == ["interrupted", "interrupted"]
        assert not any(woke for _, _, woke in await rig.ends(chat_id))


async def test_parent_is_woken_at_most_ten_times_between_messages_of_its_user(database_url: str) -> None:
    def parent(call: Call) -> Sequence[Step]:
        """Each wake starts another child, without end."""
        last = call.prompt.messages[-1]
        return (Say("rest"),) if any(isinstance(part, PromptResult) for part in last.parts) else (SPAWN,)

    async with open_family(database_url, parent=parent) as rig:
        await rig.worker.set("chats", BRAKE_OFF)
        chat_id = await rig.worker.ask()

        async def held() -> bool:
            return bool(await rig.sql("SELECT wake_held FROM chats WHERE id = $1", chat_id))

        await until(held)
        wakes = await rig.sql(
            "SELECT count(DISTINCT notice_id) FROM subagent_ends WHERE parent_chat_id = $1 AND woke_parent", chat_id
        )
        assert wakes == machine.MAX_WAKES
        shown = [said for role, said in await rig.worker.story(chat_id) if role == "system"]
        assert shown == [
            "Subagents have resumed this chat 10 times since your last message. They do not resume it again until you "
            "send one."
        ]
        assert not any("resumed this chat" in texts(call) for call in rig.worker.calls)

        await rig.worker.send(chat_id, "go on")

        async def woken_again() -> bool:
            found = await rig.sql(
                "SELECT count(DISTINCT notice_id) FROM subagent_ends WHERE parent_chat_id = $1 AND woke_parent", chat_id
            )
            return int(found) > machine.MAX_WAKES

        await until(woken_again)


async def test_wake_that_a_dead_replica_left_undone_is_made_up_for(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), (Say("rest"),)), child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        await rig.worker.until_status(chat_id, Status.WAITING)
        # As if a replica had committed the end and died before it could do anything else.
        await rig.sql(
            "INSERT INTO subagent_ends (chat_id, parent_chat_id, outcome) VALUES ($1, $2, 'finished')", child, chat_id
        )

        await monitor(rig).look()

        async def is_told() -> bool:
            return await rig.ends(chat_id) == [("finished", "notice", True)]

        await until(is_told)


async def test_many_stopped_children_do_not_hide_the_one_that_finished(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), (Say("rest"),)), child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        await rig.worker.until_status(chat_id, Status.WAITING)
        outcomes = ["interrupted"] * subagents.MAX_NOTICES + ["finished"]
        await rig.sql(
            "INSERT INTO subagent_ends (chat_id, parent_chat_id, outcome) SELECT $1, $2, unnest($3::text[])",
            child,
            chat_id,
            outcomes,
        )

        await monitor(rig).look()

        async def are_told() -> bool:
            return all(told_by == "notice" for _, told_by, _ in await rig.ends(chat_id))

        await until(are_told)
        assert monitor(rig).stats.woken == 1


async def test_setting_keeps_parents_at_rest(database_url: str) -> None:
    gate = Gate("My report.")
    parent = steps((SPAWN,), (Say("rest"),))
    async with open_family(database_url, parent=parent, child=gate.child, tools=[gate.tool]) as rig:
        await rig.worker.set("subagents", {"wake_parent": False})
        chat_id = await rig.worker.ask()
        await rig.worker.until_status(chat_id, Status.WAITING)
        gate.opened.set()

        async def ended() -> bool:
            return len(await rig.ends(chat_id)) == 1

        await until(ended)
        await monitor(rig).look()
        assert (await rig.worker.chat(chat_id)).status == Status.WAITING
        assert await list_waking(rig) == []

        # An end of that time does not resume the chat when the setting changes, perhaps months later.
        await rig.worker.set("subagents", {"wake_parent": True})
        await monitor(rig).look()
        assert (await rig.worker.chat(chat_id)).status == Status.WAITING
        assert await rig.ends(chat_id) == [("finished", None, False)]

        await rig.worker.send(chat_id, "and?")

        async def told() -> bool:
            return (await rig.ends(chat_id))[0][1] == "notice"

        await until(told)


async def test_unarchived_parent_stays_at_rest_and_is_told_with_its_next_message(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("rest"),))) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)
        (child,) = await rig.children(chat_id)

        async def archive_with_an_end(bundle: machine.Bundle) -> None:
            """As if the user had archived the chat just after the end of a child."""
            await bundle.conn.execute(
                "INSERT INTO subagent_ends (chat_id, parent_chat_id, outcome) VALUES ($1, $2, 'finished')",
                child,
                chat_id,
            )
            await machine.set_family_archived(bundle, chat_id, archived=True)

        await rig.worker.machine.bundle(archive_with_an_end)
        await rig.worker.machine.bundle(partial(machine.set_family_archived, root_id=chat_id, archived=False))

        await monitor(rig).look()
        await monitor(rig).wake(chat_id)

        assert await list_waking(rig) == []
        assert (await rig.worker.chat(chat_id)).status == Status.WAITING
        assert await rig.ends(chat_id) == [("finished", "wait", False), ("finished", None, False)]
        await rig.worker.send(chat_id, "and?")

        async def is_told() -> bool:
            return (await rig.ends(chat_id))[1:] == [("finished", "notice", False)]

        await until(is_told)


async def list_waking(rig: FamilyRig) -> list[UUID]:
    async with rig.worker.database.api.acquire() as conn:
        return await subagents.list_to_wake(conn, limit=10)


# Deadlines, stalls and budgets


async def test_child_is_stopped_at_its_deadline_and_its_partial_answer_is_its_report(database_url: str) -> None:
    parent = steps((SPAWN,), wait_for, (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        await until_streaming(rig, child)
        key = EpisodeKey(child, (await rig.worker.chat(child)).history_version, 1)
        await until(lambda: bool(rig.worker.worker.buffer.get_parts(key)))
        await rig.sql("UPDATE subagents SET deadline_at = clock_timestamp() WHERE chat_id = $1", child)

        await monitor(rig).look()

        await rig.worker.rested(chat_id)
        waited = (await rig.worker.results(chat_id))[1]
        assert (waited["last_error_kind"], waited["report"]) == ("deadline", "I have begun.")
        assert waited["status"] == "waiting"
        assert await rig.ends(chat_id) == [("deadline", "wait", False)]
        assert monitor(rig).stats.overdue == 1


async def test_monitor_stops_other_chats_before_it_waits_for_one_that_is_locked(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN, SPAWN), (Say("ok"),)), child=endless) as rig:
        first, second = await two_overdue(rig)

        async with rig.worker.database.api.acquire() as conn, conn.transaction():
            await conn.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", first)
            round_of_monitor = asyncio.create_task(monitor(rig).look())
            # Less than the lock timeout of 5 seconds.
            async with asyncio.timeout(4):
                await rig.worker.rested(second)
        await round_of_monitor
        await rig.worker.rested(first)
        assert monitor(rig).stats.overdue == 2


async def test_monitor_leaves_a_chat_that_stays_locked_to_the_next_round(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_family(database_url, parent=steps((SPAWN, SPAWN), (Say("ok"),)), child=endless) as rig:
        first, second = await two_overdue(rig)
        monkeypatch.setattr(
            bundle_runner, "_BEGIN", bundle_runner._BEGIN.replace("lock_timeout = '5s'", "lock_timeout = '50ms'")
        )

        async with rig.worker.database.api.acquire() as conn, conn.transaction():
            await conn.execute("SELECT FROM chats WHERE id = $1 FOR UPDATE", first)
            await monitor(rig).look()

        assert monitor(rig).stats.overdue == 1
        await rig.worker.rested(second)
        assert (await rig.worker.chat(first)).status == Status.RUNNING


async def two_overdue(rig: FamilyRig) -> list[ChatId]:
    """Two children of one parent whose deadlines have passed, in the order in which the monitor finds them."""
    chat_id = await rig.worker.ask()
    for child in await until_spawned(rig, chat_id, 2):
        await until_streaming(rig, child)
    await rig.worker.rested(chat_id)
    await rig.sql("UPDATE subagents SET deadline_at = clock_timestamp()")
    async with rig.worker.database.api.acquire() as conn:
        return [ChatId(each) for each in await subagents.list_overdue(conn, limit=10)]


async def test_next_turn_of_a_child_has_a_deadline_of_its_own(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)
        (child,) = await rig.children(chat_id)
        assert await rig.sql("SELECT deadline_at FROM subagents WHERE chat_id = $1", child) is None

        await rig.sql("UPDATE subagents SET stopped_by = 'deadline' WHERE chat_id = $1", child)
        await rig.worker.send(child, "once more")
        await rig.worker.until_status(child, Status.WAITING)

        assert [outcome for outcome, _, _ in await rig.ends(chat_id)] == ["finished", "finished"]


async def test_silent_child_is_reported_as_stalled_with_its_phase(database_url: str) -> None:
    parent = steps((SPAWN,), lambda found: wait_for(found, timeout_seconds=1), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        await until_streaming(rig, child)
        await rig.worker.worker.leases.beat()
        async with rig.worker.database.api.acquire() as conn:
            found = (await subagents.find_subagents(conn, [child], root_id=chat_id))[child]
            assert found.phase is subagents.Phase.MODEL
            await conn.execute("UPDATE chats SET updated_at = updated_at - interval '11 minutes' WHERE id = $1", child)
            await conn.execute(
                "UPDATE chat_heartbeats SET progress_at = progress_at - interval '11 minutes' WHERE chat_id = $1", child
            )
        await rig.worker.rested(chat_id)

        waited = (await rig.worker.results(chat_id))[1]
        assert (waited["stalled"], waited["phase"]) == (True, "model")


@pytest.mark.parametrize("phase", ["tool", "approval", "queued"])
async def test_phase_says_what_a_child_waits_for(database_url: str, phase: str) -> None:
    gate = Gate("My report.")
    parent = steps((SPAWN,), lambda found: wait_for(found, timeout_seconds=3600), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=gate.child, tools=[gate.tool]) as rig:
        if phase == "approval":
            await rig.worker.set("approvals", {"rules": [{"tool": "hold", "action": "ask"}]})
        if phase == "queued":
            await rig.worker.set("chats", {"running_subagents": 1})
            other = await rig.worker.ask()
            await until_spawned(rig, other)
            await gate.tool.started.wait()
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)

        async def found() -> subagents.Phase | None:
            await rig.worker.worker.leases.beat()
            async with rig.worker.database.api.acquire() as conn:
                return (await subagents.find_subagents(conn, [child], root_id=chat_id))[child].phase

        async def is_told() -> bool:
            return await found() == phase

        await until(is_told)
        # It is no passing state: a child without a slot would be `queued` for a moment, too.
        assert await found() == phase


async def test_users_see_that_a_tool_runs_before_the_next_heartbeat(database_url: str) -> None:
    gate = Gate("My report.")
    parent = steps((SPAWN,), lambda found: wait_for(found, timeout_seconds=3600), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=gate.child, tools=[gate.tool]) as rig:
        chat_id = await rig.worker.ask()
        await gate.tool.started.wait()
        # The last heartbeat was in the model's time.
        await rig.sql("UPDATE chat_heartbeats SET phase = 'model'")

        async with rig.worker.database.api.acquire() as conn:
            (agent,) = (await subagents.list_views(conn, chat_id, stall_after=timedelta(minutes=10))).agents

        assert (agent.phase, agent.activity) == ("tool", "hold")


async def test_cost_of_children_counts_against_the_limit_of_their_owner(database_url: str) -> None:
    def child(call: Call) -> Sequence[Step]:
        return (Count(Usage(input=1000, output=1000)), Say("That was expensive."))

    parent = steps((SPAWN,), wait_for, (SPAWN,), (Say("ok"),))
    async with open_family(database_url, parent=parent, child=child) as rig:
        await rig.sql("UPDATE model_configs SET price_input = 1, price_output = 1 WHERE id = $1", rig.worker.model)
        await rig.worker.set("spend", {"enabled": True, "default_limit_micros": 1500, "period": "month"})
        error = await rig.worker.error(await rig.worker.ask())

        assert error.kind == "usage_limit"


async def test_parent_that_fails_leaves_its_children_at_work(database_url: str) -> None:
    gate = Gate("My report.")
    parent = steps((SPAWN,), (Fail(ErrorKind.AUTH, retryable=False),))
    async with open_family(database_url, parent=parent, child=gate.child, tools=[gate.tool]) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.error(chat_id)
        gate.opened.set()

        async def ended() -> bool:
            return await rig.ends(chat_id) == [("finished", None, False)]

        await until(ended)
        await monitor(rig).look()
        assert (await rig.worker.chat(chat_id)).status == Status.ERROR


async def test_child_that_has_used_up_its_budget_ends_with_an_error(database_url: str) -> None:
    order = CallTool("spawn_agent", {"type": "general", "prompt": "work", "budget_usd": 0.5})
    parent = steps((order,), wait_for, (Say("ok"),))

    def child(call: Call) -> Sequence[Step]:
        return (Count(Usage(input=1000, output=1)), CallTool("wait_agent", {}))

    async with open_family(database_url, parent=parent, child=child) as rig:
        async with rig.worker.database.api.acquire() as conn:
            patch = ModelConfigPatch(price_input=Decimal(1000), price_output=Decimal(1))
            await model_configs.update_model_config(conn, rig.worker.model, patch=patch, by=None)
        rig.worker.forget()
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        waited = (await rig.worker.results(chat_id))[1]
        assert (waited["status"], waited["last_error_kind"]) == ("error", "budget")


async def test_queued_message_of_a_child_gets_the_whole_time_for_its_turn(database_url: str) -> None:
    parent = steps((SPAWN,), wait_for, (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        await until_streaming(rig, child)
        await rig.worker.send(child, "and then this")
        await rig.sql("UPDATE subagents SET deadline_at = clock_timestamp() WHERE chat_id = $1", child)

        await monitor(rig).look()

        async def renewed() -> bool:
            return bool(
                await rig.sql(
                    "SELECT deadline_at > clock_timestamp() + interval '59 minutes' AND stopped_by IS NULL"
                    " FROM subagents WHERE chat_id = $1",
                    child,
                )
            )

        await until(renewed)
        assert (await rig.worker.chat(child)).status == Status.RUNNING


async def test_notices_do_not_reset_the_limit_of_steps(database_url: str) -> None:
    def parent(call: Call) -> Sequence[Step]:
        """A parent that never rests: each child it starts ends before its next step."""
        return (SPAWN,)

    async with open_family(database_url, parent=parent, max_steps=6) as rig:
        await rig.worker.set("chats", BRAKE_OFF)
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        answers = [said for role, said in await rig.worker.story(chat_id) if role == "assistant"]
        assert len(answers) == 6


# The other tools


async def test_message_resumes_a_child_and_its_second_report_is_read(database_url: str) -> None:
    parent = steps(
        (SPAWN,),
        wait_for,
        lambda found: (CallTool("message_agent", {"chat_id": found[0]["chat_id"], "message": "look again"}),),
        wait_for,
        (Say("ok"),),
    )

    def child(call: Call) -> Sequence[Step]:
        return (Say("second report"),) if "look again" in texts(call) else (Say("first report"),)

    async with open_family(database_url, parent=parent, child=child) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        _, first, sent, second = await rig.worker.results(chat_id)
        assert (sent["status"], sent["interrupted"]) == ("running", False)
        assert (first["report"], second["report"]) == ("first report", "second report")
        assert await told(rig, chat_id) == ["finished"] * 2


async def test_message_to_a_busy_child_waits_in_its_queue(database_url: str) -> None:
    gate = Gate("First report.")

    def child(call: Call) -> Sequence[Step]:
        return (Say("Second report."),) if "and this" in texts(call) else gate.child(call)

    def send(found: list[Any]) -> Sequence[Step]:
        return (CallTool("message_agent", {"chat_id": found[0]["chat_id"], "message": "and this"}),)

    def wait(found: list[Any]) -> Sequence[Step]:
        gate.opened.set()
        return wait_for(found)

    async with open_family(
        database_url, parent=steps((SPAWN,), send, wait, (Say("ok"),)), child=child, tools=[gate.tool]
    ) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        _, sent, waited = await rig.worker.results(chat_id)
        assert (sent["status"], sent["interrupted"]) == ("running", False)
        assert waited["report"] == "Second report."
        (made,) = await rig.children(chat_id)
        said = [text for role, text in await rig.worker.story(made) if role != "tool"]
        assert said == ["work", "hold!", "First report.", "and this", "Second report."]


async def test_message_that_interrupts_stops_the_work_of_a_child_first(database_url: str) -> None:
    gate = Gate("Never said.")

    def child(call: Call) -> Sequence[Step]:
        return (Say("Second report."),) if "this instead" in texts(call) else gate.child(call)

    def send(found: list[Any]) -> Sequence[Step]:
        order = {"chat_id": found[0]["chat_id"], "message": "this instead", "interrupt": True}
        return (CallTool("message_agent", order),)

    async def until_held(ctx: ToolContext, given: ToolCall) -> ToolOutput:
        await gate.tool.started.wait()
        return ToolOutput("held")

    pause = ScriptedTool("pause", until_held)
    parent = steps((SPAWN,), (CallTool("pause"),), send, wait_for, (Say("ok"),))
    async with open_family(database_url, parent=parent, child=child, tools=[gate.tool, pause]) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        _, _, sent, waited = await rig.worker.results(chat_id)
        assert (sent["status"], sent["interrupted"]) == ("interrupting", True)
        assert waited["report"] == "Second report."


@pytest.mark.parametrize("at_work", ["tool", "model"])
async def test_message_that_interrupts_follows_the_stopped_turn_and_precedes_the_queue(
    database_url: str, at_work: str
) -> None:
    gate = Gate("Never said.")

    def child(call: Call) -> Sequence[Step]:
        asked = [word for word in ("pears", "plums") if word in texts(call)]
        if "plums" in asked:
            return (Say("Answer to plums."),)
        if asked:
            return (Say("Answer to pears."),)
        return gate.child(call) if at_work == "tool" else endless(call)

    def message(text: str, **arguments: Any) -> Callable[[list[Any]], Sequence[Step]]:
        return lambda found: (
            CallTool("message_agent", {"chat_id": found[0]["chat_id"], "message": text, **arguments}),
        )

    async def until_at_work(ctx: ToolContext, given: ToolCall) -> ToolOutput:
        (busy,) = await rig.children(chat_id)
        await (gate.tool.started.wait() if at_work == "tool" else until_streaming(rig, busy))
        return ToolOutput("at work")

    parent = steps(
        (SPAWN,), (CallTool("pause"),), message("plums"), message("pears", interrupt=True), wait_for, (Say("ok"),)
    )
    pause = ScriptedTool("pause", until_at_work)
    async with open_family(database_url, parent=parent, child=child, tools=[gate.tool, pause]) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        _, _, plums, pears, waited = await rig.worker.results(chat_id)
        assert (plums["status"], plums["interrupted"]) == ("running", False)
        assert (pears["status"], pears["interrupted"]) == ("interrupting", True)
        assert waited["report"] == "Answer to plums."
        (made,) = await rig.children(chat_id)
        story = await rig.worker.story(made)
        assert [
            (role, text) for role, text in story if "hold" not in text and "begun" not in text and role != "tool"
        ] == [
            ("user", "work"),
            ("user", "pears"),
            ("assistant", "Answer to pears."),
            ("user", "plums"),
            ("assistant", "Answer to plums."),
        ]
        if at_work == "tool":
            # The stopped turn is closed before the message: its open call has a result.
            assert [role for role, _ in story[:4]] == ["user", "assistant", "tool", "user"]
        # The child has ended once, after its last message.
        assert await told(rig, chat_id) == ["finished"]


async def test_message_that_interrupts_a_child_at_rest_resumes_it(database_url: str) -> None:
    def child(call: Call) -> Sequence[Step]:
        return (Say("Second report." if "and this" in texts(call) else "First report."),)

    def send(found: list[Any]) -> Sequence[Step]:
        order = {"chat_id": found[0]["chat_id"], "message": "and this", "interrupt": True}
        return (CallTool("message_agent", order),)

    async with open_family(
        database_url, parent=steps((SPAWN,), wait_for, send, wait_for, (Say("ok"),)), child=child
    ) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        _, first, sent, second = await rig.worker.results(chat_id)
        assert (first["report"], second["report"]) == ("First report.", "Second report.")
        assert (sent["status"], sent["interrupted"]) == ("running", False)


async def test_interrupt_stops_a_child_and_leaves_one_at_rest_alone(database_url: str) -> None:
    def stop(found: list[Any]) -> Sequence[Step]:
        return (CallTool("interrupt_agent", {"chat_id": found[0]["chat_id"]}),)

    parent = steps((SPAWN,), stop, wait_for, stop, (Say("ok"),))
    async with open_family(database_url, parent=parent, child=endless) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        _, stopped, waited, again = await rig.worker.results(chat_id)
        assert stopped["interrupted"] is True
        assert waited["interrupted"] is True
        assert again["interrupted"] is False


async def test_list_shows_children_with_their_status_and_pages(database_url: str) -> None:
    parent = steps(
        (SPAWN, SPAWN, SPAWN),
        lambda found: (CallTool("wait_agent", {"chat_ids": [each["chat_id"] for each in found]}),),
        (CallTool("list_agents", {"limit": 2}), CallTool("list_agents", {"limit": 2, "offset": 2})),
        (CallTool("list_agents", {"limit": 0}),),
        (Say("ok"),),
    )
    async with open_family(database_url, parent=parent) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        *_, page, rest, refused = await rig.worker.results(chat_id)
        assert (page["total"], page["returned"], page["has_more"]) == (3, 2, True)
        assert (rest["returned"], rest["offset"], rest["has_more"]) == (1, 2, False)
        assert {each["status"] for each in page["agents"]} == {"waiting"}
        assert "`limit` is 1 to 50" in refused["error"]


async def test_long_report_is_read_in_pages_that_keep_characters_whole(database_url: str) -> None:
    report = "ä" * 20_000

    def read(found: list[Any]) -> Sequence[Step]:
        offset = found[-1].get("next_offset", 0) if len(found) > 2 else 0
        return (CallTool("read_agent_report", {"chat_id": found[0]["chat_id"], "offset": offset}),)

    parent = steps((SPAWN,), lambda found: wait_for(found), read, read, read, read, (Say("ok"),))
    async with open_family(database_url, parent=parent, child=lambda call: (Say(report),)) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        pages = (await rig.worker.results(chat_id))[2:]
        assert pages[0]["total_bytes"] == 40_000
        assert "".join(page["report"] for page in pages) == report
        assert "next_offset" not in pages[-1]


async def test_models_for_children_are_those_that_the_owner_can_use(database_url: str) -> None:
    parent = steps((CallTool("list_subagent_models"),), (Say("ok"),))
    options = {"reasoning_effort": {"default": "low", "max": "medium"}}
    async with open_family(database_url, parent=parent, options=options) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (listed,) = await rig.worker.results(chat_id)
        default, other = listed["models"]
        assert default == {
            "model_config_id": str(rig.worker.quick),
            "display_name": "quick",
            "model": "quick",
            "provider": default["provider"],
            "context_limit": 100_000,
            "is_default": True,
        }
        assert (other["model_config_id"], other["provider"], other["is_default"]) == (
            str(rig.worker.model),
            "Acme",
            False,
        )
        assert other["reasoning_efforts"] == ["none", "minimal", "low", "medium"]


async def test_administrators_choose_the_model_of_a_kind(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        override = {"model_config_id": str(rig.worker.quick)}
        await rig.worker.set("models", {"general_subagents": override, "title_generation": {"mode": "chat_default"}})
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (child,) = await rig.children(chat_id)
        assert (await rig.worker.chat(child)).last_model_config_id == rig.worker.quick


@pytest.mark.parametrize(
    ("named", "own", "is_allowed", "deployment", "expected"),
    [
        ("third", "quick", True, "quick", "third"),
        (None, "third", True, "quick", "third"),
        (None, "third", False, "quick", "quick"),
        (None, "disabled", True, "quick", "quick"),
        (None, "chat_default", True, "quick", "model"),
        (None, "deployment_default", True, "quick", "quick"),
        (None, "deployment_default", True, None, "model"),
        (None, None, True, "disabled", "model"),
    ],
)
async def test_model_of_a_child_is_the_named_one_then_the_users_then_the_deployments_then_the_parents(
    database_url: str, named: str | None, own: str | None, is_allowed: bool, deployment: str | None, expected: str
) -> None:
    def order(found: list[Any]) -> Sequence[Step]:
        more = {} if named is None else {"model_config_id": str(known[named])}
        return (CallTool("spawn_agent", {"type": "explore", "prompt": "look", **more}),)

    async with open_family(database_url, parent=steps(order, wait_for, (Say("ok"),))) as rig:
        known = {"model": rig.worker.model, "quick": rig.worker.quick}
        for name in ("third", "disabled"):
            async with rig.worker.database.api.acquire() as conn:
                provider = await conn.fetchval("SELECT provider_id FROM model_configs WHERE id = $1", rig.worker.quick)
                draft = ModelConfigDraft(provider_id=provider, model=name, context_limit=100_000)
                known[name] = (await model_configs.create_model_config(conn, draft, by=None)).id
        await rig.worker.set("models", {"allow_personal_overrides": True})
        if own is not None:
            override = PersonalOverride("model", known[own]) if own in known else PersonalOverride(own)  # type: ignore[arg-type]
            async with rig.worker.database.api.acquire() as conn:
                patch = PreferencesPatch(model_overrides={"explore": override})
                await preferences.update(conn, rig.worker.user, patch=patch)
        await rig.sql("UPDATE model_configs SET enabled = false WHERE id = $1", known["disabled"])
        of_kind = None if deployment is None else {"model_config_id": str(known[deployment])}
        await rig.worker.set("models", {"allow_personal_overrides": is_allowed, "explore_subagents": of_kind})
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (child,) = await rig.children(chat_id)
        assert (await rig.worker.chat(child)).last_model_config_id == known[expected]


async def test_own_effort_for_children_with_the_model_of_their_parent(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        await rig.worker.set("models", {"allow_personal_overrides": True})
        async with rig.worker.database.api.acquire() as conn:
            override = PersonalOverride("chat_default", reasoning_effort=Effort.LOW)
            patch = PreferencesPatch(model_overrides={"general": override})
            await preferences.update(conn, rig.worker.user, patch=patch)
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        (child,) = await rig.children(chat_id)
        found = await rig.worker.chat(child)
        assert (found.last_model_config_id, found.last_reasoning_effort) == (rig.worker.model, "low")


async def test_subagents_that_are_turned_off_are_not_offered(database_url: str) -> None:
    async with open_family(database_url, parent=lambda call: (Say("alone"),)) as rig:
        await rig.worker.set("subagents", {"enabled": False})
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)

        assert [tool.name for tool in rig.worker.calls[-1].tools] == []


async def test_root_at_rest_is_stopped_with_its_busy_children_and_not_woken(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), (Say("rest"),)), child=endless) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)
        await rig.worker.until_status(chat_id, Status.WAITING)
        await until_streaming(rig, child)

        await owner_store(rig).turns.interrupt(chat_id)

        await rig.worker.until_status(child, Status.WAITING)
        await monitor(rig).look()
        assert (await rig.worker.chat(chat_id)).status == Status.WAITING
        assert await rig.ends(chat_id) == [("interrupted", None, False)]


async def test_stopped_family_does_not_go_on_with_the_messages_in_its_queues(database_url: str) -> None:
    gate = Gate("Never said.")

    def send(found: list[Any]) -> Sequence[Step]:
        return (CallTool("message_agent", {"chat_id": found[0]["chat_id"], "message": "plums"}),)

    async def until_held(ctx: ToolContext, given: ToolCall) -> ToolOutput:
        await gate.tool.started.wait()
        return ToolOutput("held")

    parent = steps((SPAWN,), (CallTool("pause"),), send, wait_for, (Say("ok"),))
    tools = [gate.tool, ScriptedTool("pause", until_held)]
    async with open_family(database_url, parent=parent, child=gate.child, tools=tools) as rig:
        chat_id = await rig.worker.ask()
        (child,) = await until_spawned(rig, chat_id)

        async def is_queued() -> bool:
            return (await rig.worker.chat(child)).queue_len == 1

        await until(is_queued)

        await owner_store(rig).turns.interrupt(chat_id)

        stopped = await rig.worker.until_status(child, Status.WAITING)
        await rig.worker.until_status(chat_id, Status.WAITING)
        assert stopped.queue_len == 0
        assert "plums" not in [text for _, text in await rig.worker.story(child)]
        assert not any("plums" in texts(call) for call in rig.worker.calls if call.cache_key != call.chat_id)
        await monitor(rig).look()
        assert (await rig.worker.chat(chat_id)).status == Status.WAITING
        assert await rig.ends(chat_id) == [("interrupted", None, False)]


async def test_stopped_parent_sends_its_children_no_more_messages(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)
        (child,) = await rig.children(chat_id)
        message = NewQueuedMessage(
            content=(Text("late"),), created_by=rig.worker.user, model_config_id=rig.worker.model
        )

        with pytest.raises(TransitionNotAllowed, match="stopped"):
            await owner_store(rig).turns.send_to_subagent(child, message, busy=BusyBehavior.QUEUE, parent_id=chat_id)

        assert (await rig.worker.chat(child)).status == Status.WAITING
        assert "late" not in [text for _, text in await rig.worker.story(child)]


async def test_stopped_parent_starts_no_more_children(database_url: str) -> None:
    async with open_family(database_url, parent=steps((SPAWN,), wait_for, (Say("ok"),))) as rig:
        chat_id = await rig.worker.ask()
        await rig.worker.rested(chat_id)
        (child,) = await rig.children(chat_id)
        spec = machine.ChatSpec(
            owner_id=rig.worker.user,
            title="Late",
            model_config_id=rig.worker.model,
            messages=(NewMessage(role=Role.USER, content=(Text("work"),), created_by=rig.worker.user),),
            parent_chat_id=chat_id,
            root_chat_id=chat_id,
        )
        terms = subagents.NewSubagent(
            chat_id=ChatId(uuid4()),
            parent_chat_id=chat_id,
            tool_call_id="late",
            kind="general",
            kind_source=subagents.KindSource.BUILTIN,
            tools=None,
            max_minutes=60,
        )

        with pytest.raises(TransitionNotAllowed):
            await owner_store(rig).turns.spawn(chat_id, spec, terms)

        assert await rig.children(chat_id) == [child]


# Pools


async def test_waiting_parents_do_not_keep_their_children_from_working(database_url: str) -> None:
    gate, waiting = Gate("My report."), set[str]()
    # One owner leaves a quarter of each pool to others, so 15 of the 20 slots for roots can be taken.
    most_roots = 15

    def parent(call: Call) -> Sequence[Step]:
        found = results(call)
        if not found:
            return (SPAWN,) * 5
        if len(found) > 5:
            return (Say("ok"),)
        assert call.chat_id is not None
        waiting.add(call.chat_id)
        if len(waiting) >= most_roots:
            gate.opened.set()
        return (CallTool("wait_agent", {"chat_ids": [each["chat_id"] for each in found]}),)

    async with open_family(database_url, parent=parent, child=gate.child, tools=[gate.tool]) as rig:
        await rig.worker.set("chats", {"running_roots": 20, "running_subagents": 40})
        chats = [await rig.worker.ask() for _ in range(40)]

        # No child can finish before all slots for roots are taken by parents that wait.
        for chat_id in chats:
            await rig.worker.until_status(chat_id, Status.WAITING)
            assert [(outcome, woke) for outcome, _, woke in await rig.ends(chat_id)] == [("finished", False)] * 5
