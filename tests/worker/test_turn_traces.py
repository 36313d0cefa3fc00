"""The traces of turns, read from a collector: their spans, parents and outcomes."""

from __future__ import annotations

import asyncio
from functools import partial

from rookery.domain.chat.states import Status
from rookery.llm.scripted import CallTool, Fail, Say, Wait
from rookery.llm.types import ErrorKind
from rookery.loop.tool import ToolCall, ToolContext, ToolOutput
from rookery.telemetry.tracing import names, spans
from rookery.testing.fake_completions import Answer, FakeCall, FakeCompletions, FakeUsage
from rookery.testing.fake_server import failure
from tests import scripted_tools
from tests.eventually import until
from tests.otlp_collector import attributes, exporting, otlp_collector
from tests.worker.worker_rig import Records, in_turn, open_house

SECRET = "sk-very-secret-value-of-the-test"


async def test_turn_with_a_retry_and_a_tool_is_one_trace(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(
        failure(429, "Slow down.", retry_after="0"),
        Answer(calls=[FakeCall("echo", '{"a": 1}')], usage=FakeUsage(prompt=70, completion=20, cached=30)),
        Answer(text="Done."),
    )
    tools = [scripted_tools.echo()]
    with otlp_collector() as collector:
        async with (
            exporting(collector),
            fake.listening() as url,
            open_house(database_url, server=url, tools=tools) as rig,
        ):
            chat_id = await rig.ask("hello")
            await rig.rested(chat_id)
            (turn,) = await collector.until("invoke_agent")

    assert (turn.name, turn.kind, turn.parent_id) == ("invoke_agent default", "internal", "")
    assert turn.attributes["gen_ai.conversation.id"] == turn.attributes["rookery.root_chat.id"] == str(chat_id)
    assert turn.attributes["rookery.outcome"] == "complete"
    assert not turn.has_failed
    refused, called, done = collector.named("chat test")
    assert {(each.trace_id, each.parent_id) for each in (refused, called, done)} == {turn.id}
    assert {each.kind for each in (refused, called, done)} == {"client"}
    assert [each.attributes["rookery.generation_attempt"] for each in (refused, called, done)] == [1, 2, 1]
    assert (refused.has_failed, refused.attributes["error.type"]) == (True, "rate_limit")
    assert "first_chunk" not in refused.events
    assert called.events == ["first_chunk"]
    assert called.attributes["gen_ai.response.time_to_first_chunk"] > 0
    assert called.attributes["gen_ai.response.finish_reasons"] == ["tool_calls"]
    assert (called.attributes["gen_ai.usage.input_tokens"], called.attributes["gen_ai.usage.output_tokens"]) == (70, 20)
    assert called.attributes["gen_ai.usage.cache_read.input_tokens"] == 30
    assert done.attributes["gen_ai.request.model"] == done.attributes["gen_ai.response.model"] == "test"
    assert done.attributes["server.address"] == "127.0.0.1"

    exchanges = collector.named("POST /chat/completions")
    assert [(each.trace_id, each.parent_id) for each in exchanges] == [each.id for each in (refused, called, done)]
    assert [each.attributes["http.response.status_code"] for each in exchanges] == [429, 200, 200]
    assert [each.has_failed for each in exchanges] == [True, False, False]

    tool = collector.one("execute_tool")
    assert (tool.name, tool.trace_id, tool.parent_id) == ("execute_tool echo", *turn.id)
    assert tool.attributes["gen_ai.tool.name"] == "echo"
    assert tool.attributes["rookery.tool.result_bytes"] == len('{"a":1}')
    commits = [each for each in collector.named("db INSERT chat_messages") if each.trace_id == turn.trace_id]
    assert len(commits) == 2, "the statement with the answer also ends the turn, and is named for its first change"
    assert all(each.attributes["db.system.name"] == "postgresql" for each in commits)

    usage = {
        attributes(point.attributes)["gen_ai.token.type"]: point.sum
        for point in collector.metrics[names.TOKEN_USAGE]
        if attributes(point.attributes)["gen_ai.request.model"] == "test"
    }
    assert usage == {"input": 70 + 100, "output": 20 + 20}
    durations = [
        (attributes(point.attributes).get("error.type"), point.count)
        for point in collector.metrics[names.OPERATION_DURATION]
        if attributes(point.attributes)["gen_ai.request.model"] == "test"
    ]
    assert sorted(durations, key=str) == [("failed", 1), (None, 2)]


async def test_turn_with_an_error_is_a_failed_span_without_its_text(database_url: str) -> None:
    fake = FakeCompletions()
    fake.enqueue(failure(401, f"Bad key {SECRET}."))
    with otlp_collector() as collector:
        async with exporting(collector), fake.listening() as url, open_house(database_url, server=url) as rig:
            chat_id = await rig.ask("hello")
            await rig.error(chat_id)
            (turn,) = await collector.until("invoke_agent")

    assert turn.has_failed
    assert (turn.attributes["rookery.outcome"], turn.attributes["error.type"]) == ("error", "auth")
    assert collector.one("chat test").attributes["error.type"] == "auth"
    assert b"Bad key" not in b"".join(collector.bodies)


async def test_failed_tool_fails_its_span_and_not_the_turn(database_url: str) -> None:
    tools = [scripted_tools.giving(ToolOutput(f"no: {SECRET}", is_error=True), "give")]
    script = in_turn([CallTool("give", {"password": SECRET})], [Say("Too bad.")])
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=script, tools=tools) as rig:
            await rig.rested(await rig.ask("hello"))
            (turn,) = await collector.until("invoke_agent")

    tool = collector.one("execute_tool give")
    assert (tool.has_failed, tool.attributes["error.type"]) == (True, "tool_error")
    assert not turn.has_failed
    assert SECRET.encode() not in b"".join(collector.bodies)


async def test_interrupted_turn_says_so(database_url: str) -> None:
    script = (Say("Let me "), Wait(3600))
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=script) as rig:
            chat_id = await rig.ask("hello")
            await until(lambda: rig.calls)
            await rig.interrupt(chat_id)
            await rig.rested(chat_id)
            (turn,) = await collector.until("invoke_agent")

    assert turn.attributes["rookery.outcome"] == "interrupted"
    call = collector.one("chat test")
    assert (call.has_failed, call.attributes["error.type"]) == (True, "cancelled")


async def test_queued_message_is_a_turn_of_its_own(database_url: str) -> None:
    let_go = asyncio.Event()

    async def hold(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        await let_go.wait()
        return ToolOutput("held")

    tool = scripted_tools.ScriptedTool("hold", hold)
    script = in_turn([CallTool("hold")], [Say("One.")], [Say("Two.")])
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=script, tools=[tool]) as rig:
            chat_id = await rig.ask("first")
            await tool.started.wait()
            await rig.send(chat_id, "second")
            let_go.set()
            await rig.rested(chat_id)
            turns = await collector.until("invoke_agent", 2)

    assert [each.attributes["rookery.outcome"] for each in turns] == ["complete", "complete"]
    assert turns[0].trace_id != turns[1].trace_id
    assert turns[0].attributes["rookery.trigger_message.id"] < turns[1].attributes["rookery.trigger_message.id"]


async def test_no_turn_stays_open_when_tracing_ends_or_the_worker_stops(database_url: str) -> None:
    script = (Wait(3600),)
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=script) as rig:
            worker = rig.worker
            await rig.ask("hello")
            await until(lambda: rig.calls)
            assert len(worker.traces) == 1
        assert len(worker.traces) == 0

    assert collector.one("invoke_agent").attributes["rookery.outcome"] == "released"


async def test_turns_are_the_same_while_tracing_is_off(database_url: str) -> None:
    script = in_turn([Fail(ErrorKind.OVERLOADED)], [CallTool("echo", {"a": 1})], [Say("Done.")])
    async with open_house(database_url, script=script, tools=[scripted_tools.echo()]) as rig:
        chat_id = await rig.ask("hello")

        assert (await rig.rested(chat_id)).status == Status.WAITING
        assert len(rig.worker.traces) == 0


async def test_turn_that_another_replica_takes_over_is_a_linked_trace(database_url: str) -> None:
    script = in_turn([CallTool("echo", {"a": 1})], [Wait(3600)], [Say("Done.")])
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=script, tools=[scripted_tools.echo()]) as rig:
            first_id = rig.replicas[0].id
            chat_id = await rig.ask("hello")
            await until(lambda: len(rig.calls) == 2)

            await rig.crash()
            second_id = (await rig.add_replica()).id
            await rig.rested(chat_id)

    first, second = collector.named("invoke_agent")
    assert [each.attributes["rookery.replica.id"] for each in (first, second)] == [str(first_id), str(second_id)]
    assert first.attributes["rookery.trigger_message.id"] == second.attributes["rookery.trigger_message.id"]
    assert first.trace_id != second.trace_id
    assert (first.links, second.links) == ([], [first.id])
    assert [each.attributes["rookery.outcome"] for each in (first, second)] == ["released", "complete"]
    called, cut, done = collector.named("chat test")
    assert [each.trace_id for each in (called, cut, done)] == [first.trace_id, first.trace_id, second.trace_id]


async def test_turn_that_the_user_retries_is_linked_to_the_failed_one(database_url: str) -> None:
    script = in_turn([Fail(ErrorKind.AUTH, retryable=False)], [Say("Done.")])
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=script) as rig:
            chat_id = await rig.ask("hello")
            await rig.error(chat_id)
            await rig.retry(chat_id)
            await rig.until_status(chat_id, Status.WAITING)

    failed, retried = collector.named("invoke_agent")
    assert (failed.has_failed, retried.has_failed) == (True, False)
    assert retried.links == [failed.id]


async def test_turn_has_a_link_to_the_request_that_sent_its_message(database_url: str) -> None:
    let_go = asyncio.Event()

    async def hold(ctx: ToolContext, call: ToolCall) -> ToolOutput:
        await let_go.wait()
        return ToolOutput("held")

    tool = scripted_tools.ScriptedTool("hold", hold)
    script = in_turn([CallTool("hold")], [Say("One.")], [Say("Two.")], [Say("Three.")])
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=script, tools=[tool]) as rig:
            with spans.span("create"):
                chat_id = await rig.ask("first")
            await tool.started.wait()
            with spans.span("queue"):
                await rig.send(chat_id, "second")
            let_go.set()
            await rig.rested(chat_id)
            with spans.span("edit"):
                await rig.edit(chat_id, (await rig.messages(chat_id))[0], "again")
            await rig.rested(chat_id)

    turns = collector.named("invoke_agent")
    assert [turn.links for turn in turns] == [[collector.one(name).id] for name in ("create", "queue", "edit")]
    # A link is not a parent: the turn may run for hours after its request.
    assert {turn.parent_id for turn in turns} == {""}


async def test_messages_of_requests_that_are_not_sampled_store_no_trace(database_url: str) -> None:
    with otlp_collector() as collector:
        async with exporting(collector, sample=0.0), open_house(database_url, script=(Say("Hi."),)) as rig:
            with spans.span("request"):
                chat_id = await rig.ask("hello")
            await rig.rested(chat_id)

            assert await rig.rows(chat_id, "traceparent") == [(None,), (None,)]
            assert await rig.sql("SELECT count(*) FROM chat_turn_traces") == 0
    assert collector.spans == []


async def test_turn_goes_on_without_links_if_they_cannot_be_read(database_url: str) -> None:
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=(Say("Hi."),)) as rig:
            await rig.sql("ALTER TABLE chat_turn_traces ADD CONSTRAINT full_disk CHECK (false)")
            with spans.span("request"):
                chat_id = await rig.ask("hello")

            assert (await rig.rested(chat_id)).status == Status.WAITING

    assert collector.one("invoke_agent").links == []


async def test_recorded_turn_names_its_debug_run(database_url: str) -> None:
    with otlp_collector() as collector:
        async with exporting(collector), open_house(database_url, script=(Say("Hi."),), records=Records()) as rig:
            chat_id = await rig.ask("hello")
            await rig.rested(chat_id)
            run_id = "SELECT id FROM chat_debug_runs WHERE chat_id = $1 AND kind = 'chat_turn'"
            await until(partial(rig.sql, run_id, chat_id))
            found = await rig.sql(run_id, chat_id)

    assert collector.one("invoke_agent").attributes["rookery.debug_run.id"] == str(found)
