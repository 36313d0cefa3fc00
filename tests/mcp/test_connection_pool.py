"""Lists, calls, questions and tasks over real connections, in both eras of the protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from uuid import UUID

import pytest

from rookery.mcp.call_results import CallResult, InputRequired, Progress, Resume
from rookery.mcp.connection_pool import IDLE_SECONDS, RETRY_SECONDS
from rookery.mcp.errors import McpError, ProblemKind
from rookery.mcp.server_config import Unauthorized
from rookery.testing.clock import FakeClock
from rookery.testing.fake_mcp import Era, FakeCall, FakeMcp, Json, RpcError, text
from tests.eventually import until
from tests.mcp.mcp_rig import CHAT, config, mcp_rig, open_connections

ERAS: tuple[Era, ...] = ("stateless", "sessions")
FORM = {"type": "object", "properties": {"city": {"type": "string"}}}


@pytest.fixture(params=ERAS)
def era(request: pytest.FixtureRequest) -> Era:
    value: Era = request.param
    return value


async def add(call: FakeCall) -> Json:
    return text(call.arguments["a"] + call.arguments["b"])


async def ask_city(call: FakeCall) -> Json:
    answer = await call.ask("Which city?", FORM)
    return text(f"{answer['action']}: {(answer.get('content') or {}).get('city')}")


# ---------------------------------------------------------------------- lists


async def test_tools_are_listed_with_their_hints_and_schemas(era: Era) -> None:
    fake = FakeMcp(era, instructions="Add first.")
    fake.tool(
        "add",
        add,
        description="Add two numbers.",
        properties={"a": {"type": "integer"}, "b": {"type": "integer"}},
        annotations={"readOnlyHint": True, "idempotentHint": False, "title": "Adder"},
    )
    async with mcp_rig(fake) as rig:
        found = await rig.list()

    [tool] = found.tools
    assert (tool.name, tool.title, tool.description) == ("add", "Adder", "Add two numbers.")
    assert tool.input_schema["properties"]["a"] == {"type": "integer"}
    assert (tool.annotations.read_only, tool.annotations.idempotent, tool.annotations.destructive) == (
        True,
        False,
        None,
    )
    assert found.instructions == "Add first."
    assert found.problem is None


async def test_all_pages_are_read_up_to_500_tools(era: Era) -> None:
    fake = FakeMcp(era, page_size=150)
    for number in range(620):
        fake.tool(f"tool{number:03}")
    async with mcp_rig(fake) as rig:
        found = await rig.list()

    assert len(found.tools) == 500
    assert found.is_cut
    assert fake.count("tools/list") == 4


async def test_a_list_is_kept_until_its_age(era: Era) -> None:
    clock = FakeClock()
    fake = FakeMcp(era, ttl_ms=60_000)
    fake.tool("one")
    async with mcp_rig(fake, clock) as rig:
        await rig.list()
        await rig.list()
        assert fake.count("tools/list") == 1

        fake.tool("two")
        await clock.advance(301 if era == "sessions" else 61)

        assert [tool.name for tool in (await rig.list()).tools] == ["one", "two"]
        assert fake.count("tools/list") == 2


async def test_a_change_that_the_server_tells_is_seen_at_the_next_step(era: Era) -> None:
    fake = FakeMcp(era)
    fake.tool("one")
    async with mcp_rig(fake) as rig:
        await rig.list()
        await until(lambda: fake._listeners if era == "stateless" else fake.sessions and _has_stream(fake))
        fake.tool("two")
        await fake.change_list()
        connection = rig.connections._slots[CHAT, "fake"].connection
        assert connection is not None
        await until(lambda: connection.is_list_outdated)

        assert [tool.name for tool in (await rig.list()).tools] == ["one", "two"]


def _has_stream(fake: FakeMcp) -> bool:
    return any(session.has_stream for session in fake.sessions.values())


async def test_invalid_tools_are_left_out_by_name_and_do_not_cost_the_others(era: Era) -> None:
    fake = FakeMcp(era)
    fake.tool("good")
    bad: list[Json] = [
        {"name": "no_object", "inputSchema": {"type": "string"}},
        {"name": "", "inputSchema": {"type": "object"}},
        "not a tool",
        {"name": "elsewhere", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "https://x.test/s"}}}},
        {"name": "huge", "inputSchema": {"type": "object", "description": "x" * 70_000}},
        {"name": "untyped", "annotations": "none", "icons": 5, "description": 7},
        {"name": "choice", "inputSchema": {"anyOf": [{"properties": {"a": {"type": "string"}}, "required": ["a"]}]}},
    ]

    async def answer(request: Any) -> Json:
        page = fake._done(fake._page(None))
        page["tools"] += bad
        return page

    fake.behaviors["tools/list"] = answer
    async with mcp_rig(fake) as rig:
        found = await rig.list()

    assert [tool.name for tool in found.tools] == ["good", "untyped", "choice"]
    assert sorted(refused.name for refused in found.refused) == ["", "None", "elsewhere", "huge", "no_object"]
    choice = found.tools[2]
    assert choice.input_schema == {"type": "object", "properties": {"a": {"type": "string"}}}
    assert choice.repaired == "anyOf at the root was merged"


async def test_a_failing_server_keeps_its_last_list_and_is_left_alone_for_a_while(era: Era) -> None:
    clock = FakeClock()
    fake = FakeMcp(era, ttl_ms=1_000)
    fake.tool("one")
    async with open_connections(clock) as connections:
        async with fake.listening() as url:
            server = config(url)
            await connections.tools_of(CHAT, [server])
        await clock.advance(400)

        [down] = await connections.tools_of(CHAT, [server])
        assert [tool.name for tool in down.tools] == ["one"]
        assert down.problem is not None
        assert down.problem.kind is ProblemKind.UNREACHABLE

        async with fake.listening():
            [left_alone] = await connections.tools_of(CHAT, [server])
            assert left_alone.problem == down.problem
            await clock.advance(RETRY_SECONDS[0] + 1)
            [back] = await connections.tools_of(CHAT, [server])
            assert back.problem is None


async def test_stored_lists_stand_in_for_a_server_that_never_answered() -> None:
    fake = FakeMcp()
    fake.tool("one")
    async with mcp_rig(fake) as rig:
        stored = (await rig.list()).tools
    async with open_connections() as connections:
        [tools] = await connections.tools_of(CHAT, [rig.server], known={"fake": stored})

    assert tools.tools == stored
    assert tools.problem is not None


# ---------------------------------------------------------------------- calls


async def test_a_call_returns_its_text(era: Era) -> None:
    fake = FakeMcp(era)
    fake.tool("add", add)
    async with mcp_rig(fake) as rig:
        assert await rig.text_of("add", {"a": 1, "b": 2}, meta={"rookery/token": "t"}) == "3"

    assert fake.calls[0].meta["rookery/token"] == "t"


async def test_errors_of_the_tool_and_of_the_server_are_told_apart(era: Era) -> None:
    fake = FakeMcp(era)

    async def fail(call: FakeCall) -> Json:
        return text("no such file", is_error=True)

    async def refuse(call: FakeCall) -> Json:
        raise RpcError(-32000, "quota is used up")

    fake.tool("fail", fail)
    fake.tool("refuse", refuse)
    async with mcp_rig(fake) as rig:
        result = await rig.call("fail")
        assert isinstance(result, CallResult)
        assert (result.text, result.is_error) == ("no such file", True)
        problem = await rig.problem_of("refuse")

    assert problem.kind is ProblemKind.REFUSED
    assert problem.text == "The server refused: quota is used up"


async def test_progress_is_told_and_keeps_the_call_alive(era: Era) -> None:
    clock = FakeClock()
    proceed = asyncio.Event()

    async def slow(call: FakeCall) -> Json:
        await call.progress(1, 2, "halfway")
        await proceed.wait()
        return text("done")

    fake = FakeMcp(era)
    fake.tool("slow", slow)
    told: list[Progress] = []
    async with mcp_rig(fake, clock) as rig:
        await rig.list()
        running = asyncio.create_task(rig.text_of("slow", on_progress=told.append))
        await until(lambda: told)
        await clock.advance(50)
        proceed.set()

        assert await running == "done"
    assert told == [Progress(1, 2, "halfway")]


async def test_a_silent_call_ends_and_the_server_is_told(era: Era) -> None:
    clock = FakeClock()

    async def never(call: FakeCall) -> Json:
        await call.is_cancelled.wait()
        return text("too late")

    fake = FakeMcp(era)
    fake.tool("never", never)
    async with mcp_rig(fake, clock, call_seconds=20.0) as rig:
        await rig.list()
        running = asyncio.create_task(rig.problem_of("never"))
        await until(lambda: fake.calls)
        await clock.advance(21)
        problem = await running

        assert problem.kind is ProblemKind.TIMEOUT
        assert problem.may_have_run
        assert problem.text == "The server was silent for 20 seconds."
        await until(fake.calls[0].is_cancelled.is_set)


async def test_a_cancelled_call_is_cancelled_at_the_server_and_others_go_on(era: Era) -> None:
    proceed = asyncio.Event()

    async def wait(call: FakeCall) -> Json:
        await proceed.wait()
        return text("done")

    fake = FakeMcp(era)
    fake.tool("wait", wait)
    async with mcp_rig(fake) as rig:
        first = asyncio.create_task(rig.text_of("wait", call_key="first"))
        await until(lambda: len(fake.calls) == 1)
        second = asyncio.create_task(rig.text_of("wait", call_key="second"))
        await until(lambda: len(fake.calls) == 2)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        await until(fake.calls[0].is_cancelled.is_set)
        proceed.set()

        assert await second == "done"


async def test_structured_results_are_checked_and_media_are_kept(era: Era) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}

    async def count(call: FakeCall) -> Json:
        return {"content": [], "structuredContent": {"n": call.arguments["n"]}}

    async def draw(call: FakeCall) -> Json:
        picture = {"type": "image", "data": "iVBORw0=", "mimeType": "image/png"}
        link = {"type": "resource_link", "uri": "file:///a.txt", "name": "a"}
        embedded = {"type": "resource", "resource": {"uri": "file:///b.txt", "text": "inside"}}
        return {"content": [{"type": "text", "text": "Here:"}, picture, link, embedded]}

    fake = FakeMcp(era)
    fake.tool("count", count, output_schema=schema)
    fake.tool("draw", draw)
    async with mcp_rig(fake) as rig:
        good = await rig.call("count", {"n": 1}, output_schema=schema)
        bad = await rig.call("count", {"n": "one"}, output_schema=schema)
        drawn = await rig.call("draw")

    assert isinstance(good, CallResult)
    assert isinstance(bad, CallResult)
    assert isinstance(drawn, CallResult)
    assert (good.text, good.schema_problem) == ('{"n":1}', None)
    assert bad.schema_problem == "n: 'one' is not of type 'integer'"
    assert drawn.text == "Here:\n[resource: file:///a.txt]\ninside"
    assert [(each.mime_type, each.data[:4]) for each in drawn.media] == [("image/png", b"\x89PNG")]


# ---------------------------------------------------------------------- connections


async def test_a_server_that_died_and_came_back_is_called_again(era: Era) -> None:
    fake = FakeMcp(era)
    fake.tool("add", add)
    async with open_connections() as connections:
        async with fake.listening() as url:
            server = config(url)
            await connections.call(CHAT, server, "add", {"a": 1, "b": 1}, call_key="1")
        with pytest.raises(McpError) as caught:
            await connections.call(CHAT, server, "add", {"a": 1, "b": 1}, call_key="2")
        assert caught.value.kind is ProblemKind.UNREACHABLE

        async with fake.listening():
            again = await connections.call(CHAT, server, "add", {"a": 1, "b": 2}, call_key="3")

    assert isinstance(again, CallResult)
    assert again.text == "3"
    assert len(fake.calls) == 2


async def test_an_idle_connection_is_closed_and_ends_its_session() -> None:
    clock = FakeClock()
    fake = FakeMcp("sessions")
    fake.tool("add", add)
    async with mcp_rig(fake, clock) as rig:
        await rig.list()
        assert len(fake.sessions) == 1
        await clock.advance(IDLE_SECONDS + 60)
        await until(lambda: not fake.sessions)

        assert await rig.text_of("add", {"a": 1, "b": 1}) == "2"
        assert len(fake.sessions) == 1


async def test_another_revision_replaces_the_connection_and_the_list(era: Era) -> None:
    fake = FakeMcp(era)
    fake.tool("one")
    async with mcp_rig(fake) as rig:
        await rig.list()
        rig.server = config(rig.server.url, revision="2")
        await rig.list()

    assert fake.count("tools/list") == 2
    assert fake.count("server/discover") == 2


async def test_chats_have_connections_of_their_own_and_share_lists() -> None:
    fake = FakeMcp("sessions")
    fake.tool("add", add)
    async with mcp_rig(fake) as rig:
        await rig.list()
        rig.chat_id = UUID(int=2)
        await rig.list()
        assert fake.count("tools/list") == 1
        await rig.text_of("add", {"a": 1, "b": 1})

        assert len(fake.sessions) == 2
        await rig.connections.release(UUID(int=2))
        await until(lambda: len(fake.sessions) == 1)


async def test_headers_are_asked_for_each_request_and_a_refused_one_is_repeated_once(era: Era) -> None:
    fake = FakeMcp(era, bearers={"old"})
    fake.tool("add", add)
    tokens = ["old"]
    seen: list[Unauthorized] = []

    async def headers() -> Mapping[str, str]:
        return {"authorization": f"Bearer {tokens[-1]}"}

    async def on_unauthorized(unauthorized: Unauthorized) -> bool:
        seen.append(unauthorized)
        tokens.append("new")
        return fake.bearers == {"new"}

    async with mcp_rig(fake, headers=headers, on_unauthorized=on_unauthorized) as rig:
        await rig.list()
        fake.bearers = {"new"}
        assert await rig.text_of("add", {"a": 1, "b": 1}) == "2"
        assert [each.status for each in seen] == [401]
        assert seen[0].challenge.startswith("Bearer resource_metadata=")

        fake.bearers = set()
        problem = await rig.problem_of("add")
    assert problem.kind is ProblemKind.UNAUTHORIZED
    assert problem.needs_login
    assert not problem.may_have_run


# ---------------------------------------------------------------------- questions


async def test_a_question_is_returned_and_its_answer_continues_the_call(era: Era) -> None:
    fake = FakeMcp(era)
    fake.tool("weather", ask_city)
    async with mcp_rig(fake) as rig:
        asked = await rig.call("weather")
        assert isinstance(asked, InputRequired)
        [request] = asked.requests
        assert (request.mode, request.message, request.schema) == ("form", "Which city?", FORM)
        answers = {request.id: {"action": "accept", "content": {"city": "Oslo"}}}

        resume = Resume(responses=answers, request_state=asked.request_state)
        assert await rig.text_of("weather", resume=resume) == "accept: Oslo"

    assert len(fake.calls) == (2 if era == "stateless" else 1)


async def test_an_answer_after_a_restart_is_given_to_a_repeated_call(era: Era) -> None:
    fake = FakeMcp(era)
    fake.tool("weather", ask_city)
    async with fake.listening() as url:
        async with open_connections() as first:
            asked = await first.call(CHAT, config(url), "weather", {}, call_key="1")
        assert isinstance(asked, InputRequired)
        answers = {asked.requests[0].id: {"action": "accept", "content": {"city": "Oslo"}}}
        async with open_connections() as second:
            resume = Resume(responses=answers, request_state=asked.request_state)
            result = await second.call(CHAT, config(url), "weather", {}, call_key="1", resume=resume)

    assert isinstance(result, CallResult)
    assert result.text == "accept: Oslo"
    if era == "stateless":
        assert fake.calls[1].request_state == asked.request_state


async def test_two_questions_follow_each_other(era: Era) -> None:
    async def ask_twice(call: FakeCall) -> Json:
        first = await call.ask("From?", FORM, key="from")
        second = await call.ask("To?", FORM, key="to")
        return text(f"{first['content']['city']}-{second['content']['city']}")

    fake = FakeMcp(era)
    fake.tool("route", ask_twice)
    answers: dict[str, Any] = {}
    async with mcp_rig(fake) as rig:
        outcome = await rig.call("route")
        for city in ("Oslo", "Rome"):
            assert isinstance(outcome, InputRequired)
            [request] = outcome.requests
            answers[request.id] = {"action": "accept", "content": {"city": city}}
            resume = Resume(responses=answers, request_state=outcome.request_state)
            outcome = await rig.call("route", resume=resume)

    assert isinstance(outcome, CallResult)
    assert outcome.text == "Oslo-Rome"


async def test_an_address_to_open_is_a_question(era: Era) -> None:
    async def pay(call: FakeCall) -> Json:
        answer = await call.ask("Pay first.", url="https://pay.test/1", key="pay")
        return text(answer["action"])

    fake = FakeMcp(era)
    fake.tool("pay", pay)
    async with mcp_rig(fake) as rig:
        asked = await rig.call("pay")
        assert isinstance(asked, InputRequired)
        [request] = asked.requests
        assert (request.mode, request.url) == ("url", "https://pay.test/1")
        resume = Resume(responses={request.id: {"action": "accept"}}, request_state=asked.request_state)

        assert await rig.text_of("pay", resume=resume) == "accept"


async def test_requests_to_sample_are_refused(era: Era) -> None:
    async def sample(call: FakeCall) -> Json:
        return text(await call.request("s", "sampling/createMessage", {"messages": [], "maxTokens": 5}))

    fake = FakeMcp(era)
    fake.tool("sample", sample)
    async with mcp_rig(fake) as rig:
        problem = await rig.problem_of("sample")

    assert (
        problem.text
        == {
            "sessions": "The server refused: Sampling not supported",
            "stateless": "The server asks for sampling/createMessage, which Rookery does not offer.",
        }[era]
    )


async def test_a_question_keeps_its_connection_for_half_an_hour() -> None:
    clock = FakeClock()
    fake = FakeMcp("sessions")
    fake.tool("weather", ask_city)
    async with mcp_rig(fake, clock) as rig:
        asked = await rig.call("weather")
        assert isinstance(asked, InputRequired)
        await clock.advance(1_700)
        assert len(fake.sessions) == 1
        await clock.advance(200)
        await until(lambda: not fake.sessions)

        answers = {asked.requests[0].id: {"action": "accept", "content": {"city": "Oslo"}}}
        assert await rig.text_of("weather", resume=Resume(responses=answers)) == "accept: Oslo"
    assert len(fake.calls) == 2


async def test_a_released_chat_ends_its_open_question() -> None:
    fake = FakeMcp("sessions")
    fake.tool("weather", ask_city)
    async with mcp_rig(fake) as rig:
        await rig.call("weather")
        await rig.connections.release(CHAT)

        assert not fake.sessions
        assert rig.connections.stats().connections == 0


# ---------------------------------------------------------------------- tasks


async def test_a_task_is_reported_before_it_is_polled_and_its_result_is_that_of_the_call() -> None:
    fake = FakeMcp()
    proceed = asyncio.Event()

    async def work(call: FakeCall) -> Json:
        await proceed.wait()
        return text("worked")

    fake.tool("work", work, is_task=True)
    told: list[str] = []

    async def on_task(task_id: str) -> None:
        told.append(task_id)
        assert fake.tasks[task_id].polls == 0

    async with mcp_rig(fake) as rig:
        running = asyncio.create_task(rig.text_of("work", on_task=on_task))
        await until(lambda: told and fake.tasks[told[0]].polls)
        proceed.set()

        assert await running == "worked"
    assert told == list(fake.tasks)


async def test_a_task_is_taken_up_again_after_a_restart_and_not_called_again() -> None:
    fake = FakeMcp()
    proceed = asyncio.Event()

    async def work(call: FakeCall) -> Json:
        await proceed.wait()
        return text("worked")

    fake.tool("work", work, is_task=True)
    async with fake.listening() as url:
        async with open_connections() as first:
            calling = first.call(CHAT, config(url), "work", {}, call_key="1", stop_remote=lambda: False)
            lost = asyncio.create_task(calling)
            await until(lambda: fake.tasks and fake.tasks["task-1"].polls)
            lost.cancel()
            with pytest.raises(asyncio.CancelledError):
                await lost
        assert fake.tasks["task-1"].status == "working"
        proceed.set()
        async with open_connections() as second:
            resume = Resume(task_id="task-1")
            result = await second.call(CHAT, config(url), "work", {}, call_key="1", resume=resume)

    assert isinstance(result, CallResult)
    assert result.text == "worked"
    assert len(fake.calls) == 1


async def test_a_task_that_the_user_stops_is_cancelled() -> None:
    fake = FakeMcp()

    async def work(call: FakeCall) -> Json:
        await asyncio.Event().wait()

    fake.tool("work", work, is_task=True)
    async with mcp_rig(fake) as rig:
        running = asyncio.create_task(rig.call("work"))
        await until(lambda: fake.tasks and fake.tasks["task-1"].polls)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

        assert fake.tasks["task-1"].status == "cancelled"


async def test_a_task_asks_and_gets_its_answer() -> None:
    fake = FakeMcp()
    fake.tool("weather", ask_city, is_task=True)
    async with mcp_rig(fake) as rig:
        asked = await rig.call("weather")
        assert isinstance(asked, InputRequired)
        assert asked.task_id == "task-1"
        answers = {asked.requests[0].id: {"action": "decline"}}

        resume = Resume(responses=answers, task_id=asked.task_id)
        assert await rig.text_of("weather", resume=resume) == "decline: None"
    assert len(fake.calls) == 1


async def test_a_failed_task_is_an_error() -> None:
    fake = FakeMcp()

    async def work(call: FakeCall) -> Json:
        raise RpcError(-32000, "out of paper")

    fake.tool("work", work, is_task=True)
    async with mcp_rig(fake) as rig:
        problem = await rig.problem_of("work")

    assert problem.text == "The server's task failed: out of paper"
    assert problem.may_have_run
