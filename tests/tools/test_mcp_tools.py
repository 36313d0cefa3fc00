"""MCP servers in turns: selection, calls, questions, tasks, files, notices, and calls that a crash interrupted."""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from typing import Any

import pytest

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.permission_mode import PermissionMode
from rookery.llm.scripted import CallTool, Say
from rookery.llm.types import Call
from rookery.loop.tool_batch import OUTCOME_UNKNOWN
from rookery.testing.fake_mcp import FakeCall, FakeMcp, Json, text
from rookery.tools import mcp_tools
from tests.eventually import until
from tests.tools.mcp_rig import McpHouse, open_mcp_house

DONE = (Say("done"),)
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
FORM = {"type": "object", "properties": {"seat": {"type": "string"}}, "required": ["seat"]}


def sent(call: Call) -> list[str]:
    return [tool.name for tool in call.tools if "__" in tool.name]


async def notices(house: McpHouse, chat_id: ChatId) -> list[str]:
    return [words for role, words in await house.worker.story(chat_id) if role == "system"]


async def test_a_chosen_server_offers_its_tools_and_is_called(database_url: str) -> None:
    fake = FakeMcp()

    async def add(call: FakeCall) -> Json:
        return text(call.arguments["a"] + call.arguments["b"])

    fake.tool("add", add, properties={"a": {"type": "integer"}, "b": {"type": "integer"}})
    fake.tool("other.tool")
    async with (
        fake.listening() as url,
        open_mcp_house(database_url, (CallTool("sums__add", {"a": 2, "b": 3}),), DONE) as house,
    ):
        server = await house.add_server("sums", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == ["sums__add", "sums__other_tool"]
        assert await house.worker.results(chat_id) == [5]
        assert fake.calls[0].meta[mcp_tools.CALL_KEY]


async def test_a_server_that_was_not_chosen_is_not_asked(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        await house.add_server("sums", url)
        chat_id = await house.worker.ask("hello")
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == []
        assert fake.requests == []


async def test_a_forced_server_is_used_by_a_chat_that_never_chose_it(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("log")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        await house.add_server("audit", url, availability="force_on")
        chat_id = await house.worker.ask("hello")
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == ["audit__log"]


async def test_the_turn_fails_if_a_forced_server_does_not_answer(database_url: str) -> None:
    async with open_mcp_house(database_url, DONE) as house:
        await house.add_server("audit", "http://127.0.0.1:1/mcp", availability="force_on")
        chat_id = await house.worker.ask("hello")

        error = await house.worker.error(chat_id)

        assert "must use the MCP server audit" in error.message
        assert house.worker.calls == []


async def test_the_turn_fails_if_the_forced_set_cannot_be_loaded(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_mcp_house(database_url, DONE) as house:
        await house.add_server("audit", "http://127.0.0.1:1/mcp")
        await house.worker.sql("ALTER TABLE mcp_servers RENAME COLUMN slug TO slug_of_later_version")
        chat_id = await house.worker.ask("hello")

        await house.worker.error(chat_id)

        assert house.worker.calls == []


async def test_a_dead_server_only_removes_its_tools(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        alive = await house.add_server("sums", url)
        dead = await house.add_server("dead", "http://127.0.0.1:1/mcp?key=hidden")
        chat_id = await house.worker.ask("hello", mcp_server_ids=(alive, dead))
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == ["sums__add"]
        (notice,) = await notices(house, chat_id)
        assert notice.startswith("dead is left out of this turn")
        assert "hidden" not in notice


async def test_a_server_that_dies_later_keeps_its_last_known_tools(database_url: str) -> None:
    fake = FakeMcp(ttl_ms=0)
    fake.tool("add")
    async with open_mcp_house(database_url, DONE, DONE) as house:
        async with fake.listening() as url:
            server = await house.add_server("sums", url)
            chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
            await house.worker.rested(chat_id)
        await house.worker.crash()
        await house.worker.add_replica()

        await house.worker.send(chat_id, "again")
        await until(lambda: len(house.worker.calls) == 2)
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[1]) == ["sums__add"]
        assert "as they were last known" in (await notices(house, chat_id))[-1]


async def test_a_call_that_hangs_ends_and_the_turn_goes_on_with_the_other_servers(database_url: str) -> None:
    bad, good = FakeMcp(), FakeMcp()

    async def hang(call: FakeCall) -> Json:
        await call.is_cancelled.wait()
        return text("never")

    bad.tool("hang", hang)
    good.tool("hello")
    script = (CallTool("bad__hang"), CallTool("good__hello"))
    async with bad.listening() as bad_url, good.listening() as url, open_mcp_house(database_url, script, DONE) as house:
        servers = (
            await house.add_server("bad", bad_url, call_timeout_seconds=1),
            await house.add_server("good", url),
        )
        chat_id = await house.worker.ask("hello", mcp_server_ids=servers)
        await house.worker.rested(chat_id)

        said = " ".join(map(str, await house.worker.results(chat_id)))
        assert "bad: The server was silent for 1 second." in said
        assert "hello" in said
        assert len(house.worker.calls) == 2
        assert bad.calls[0].is_cancelled.is_set()


async def test_a_server_that_comes_back_has_its_tools_again(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add")
    async with open_mcp_house(database_url, DONE, DONE) as house:
        async with fake.listening() as url:
            pass  # now its port is known, and nothing listens
        server = await house.add_server("sums", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)
        assert sent(house.worker.calls[0]) == []

        # Another replica has not met the dead server, so it does not wait before it asks.
        await house.worker.crash()
        await house.worker.add_replica()
        async with fake.listening():
            await house.worker.send(chat_id, "again")
            await until(lambda: len(house.worker.calls) == 2)
            await house.worker.rested(chat_id)

        assert sent(house.worker.calls[1]) == ["sums__add"]


async def test_a_parameter_that_models_refuse_reaches_the_server_under_its_own_name(database_url: str) -> None:
    fake = FakeMcp()

    async def find(call: FakeCall) -> Json:
        return text(dict(call.arguments))

    fake.tool("find", find, properties={"$filter": {"type": "any"}, "top": {"type": "integer"}})
    script = (CallTool("odata__find", {"_filter": "a eq 1", "top": 5}),)
    async with fake.listening() as url, open_mcp_house(database_url, script, DONE) as house:
        server = await house.add_server("odata", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        (offered,) = (tool for tool in house.worker.calls[0].tools if tool.name == "odata__find")
        assert offered.input_schema["properties"] == {"_filter": {}, "top": {"type": "integer"}}
        assert fake.calls[0].arguments == {"$filter": "a eq 1", "top": 5}


async def test_a_server_that_wants_a_login_is_named(database_url: str) -> None:
    fake = FakeMcp(bearers={"secret"})
    fake.tool("add")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        server = await house.add_server("linear", url, auth_type="oauth2")
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == []
        (notice,) = await notices(house, chat_id)
        assert notice.startswith("linear needs you to log in")
        assert "Settings > Connections, or with /connect linear in a terminal" in notice


async def test_a_forced_server_that_wants_a_login_does_not_fail_the_turn(database_url: str) -> None:
    fake = FakeMcp(bearers=set())
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        await house.add_server("audit", url, availability="force_on", auth_type="oauth2")
        chat_id = await house.worker.ask("hello")
        await house.worker.rested(chat_id)

        assert len(house.worker.calls) == 1
        (notice,) = await notices(house, chat_id)
        assert notice.startswith("audit needs you to log in")


async def test_a_server_that_refuses_its_key_is_not_said_to_need_a_login(database_url: str) -> None:
    fake = FakeMcp(bearers={"secret"})
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        server = await house.add_server("linear", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        (notice,) = await notices(house, chat_id)
        assert notice == "linear wants a login or a key, but is set up without, so its tools are missing."


async def test_lists_permit_tools_by_their_original_names(database_url: str) -> None:
    fake = FakeMcp()
    for name in ("a.read", "a.write", "a.drop"):
        fake.tool(name)
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        server = await house.add_server(
            "db", url, tool_allow_list=["a.read", "a.drop"], tool_deny_list=["a.drop", "a_read"]
        )
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == ["db__a_read"]


async def test_a_planning_turn_has_the_servers_that_are_meant_for_it(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        ids = (await house.add_server("a", url), await house.add_server("b", url, allow_in_plan_mode=True))
        chat_id = await house.worker.ask("hello", mcp_server_ids=ids, plan_mode=True)
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == ["b__add"]


async def test_a_chat_that_may_only_read_has_no_servers(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add", annotations={"readOnlyHint": True})
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        await house.add_server("a", url, availability="force_on")
        chat_id = await house.worker.ask("hello", permission_mode=PermissionMode.READ_ONLY)
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == []


async def test_disabled_servers_and_those_of_others_are_skipped(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        other = await house.worker.add_user()
        ids = (
            await house.add_server("off", url, enabled=False),
            await house.add_server("theirs", url, owner_id=other),
            await house.add_server("limited", url, allowed_users=[other]),
            await house.add_server("mine", url, owner_id=house.worker.user),
        )
        chat_id = await house.worker.ask("hello", mcp_server_ids=ids)
        await house.worker.rested(chat_id)

        assert sent(house.worker.calls[0]) == ["mine__add"]


async def test_the_intent_is_taken_off_before_the_call(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add", properties={"a": {"type": "integer"}})
    wrapped = {"model_intent": "Add it up", "properties": {"a": 1}}
    flat = {"model_intent": "Add it up", "a": 2}
    script = ((CallTool("sums__add", wrapped), CallTool("sums__add", flat)), DONE)
    async with fake.listening() as url, open_mcp_house(database_url, *script) as house:
        server = await house.add_server("sums", url, model_intent=True)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        assert sorted(call.arguments["a"] for call in fake.calls) == [1, 2]
        assert all("model_intent" not in call.arguments for call in fake.calls)


async def test_a_server_is_told_whose_chat_it_is_only_if_that_is_set(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add")
    script = ((CallTool("told__add"), CallTool("untold__add")), DONE)
    async with fake.listening() as url, open_mcp_house(database_url, *script) as house:
        ids = (await house.add_server("told", url, forward_identity=True), await house.add_server("untold", url))
        chat_id = await house.worker.ask("hello", mcp_server_ids=ids)
        await house.worker.rested(chat_id)

        told = [call.headers.get("x-rookery-chat-id") for call in fake.calls]
        assert sorted(told, key=str) == sorted([None, str(chat_id)], key=str)


async def test_an_image_becomes_a_file_that_the_model_sees(database_url: str) -> None:
    fake = FakeMcp()

    async def draw(call: FakeCall) -> Json:
        data = base64.b64encode(PIXEL).decode()
        return {
            "content": [{"type": "text", "text": "a dot"}, {"type": "image", "data": data, "mimeType": "image/png"}]
        }

    fake.tool("draw", draw)
    async with fake.listening() as url, open_mcp_house(database_url, (CallTool("art__draw"),), DONE) as house:
        server = await house.add_server("art", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        (result,) = await house.worker.results(chat_id)
        assert (result["text"], result["mime_type"]) == ("a dot", "image/png")
        stored = await house.worker.sql("SELECT data FROM chat_files WHERE id = $1::uuid", result["attachment_file_id"])
        assert stored == PIXEL


@pytest.mark.parametrize("era", ["stateless", "sessions"])
async def test_a_question_of_a_server_is_asked_once_and_answered_once(database_url: str, era: Any) -> None:
    fake = FakeMcp(era)
    answers: list[Json] = []

    async def book(call: FakeCall) -> Json:
        answers.append(await call.ask("Which seat?", FORM))
        return text(f"booked {answers[-1]['content']['seat']}")

    fake.tool("book", book)
    async with fake.listening() as url, open_mcp_house(database_url, (CallTool("trains__book"),), DONE) as house:
        server = await house.add_server("trains", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,), client_type="api")
        await house.until_asked(chat_id)

        await house.answer(chat_id, {"seat": "12A"})
        await house.worker.rested(chat_id)

        assert "booked 12A" in str(await house.worker.results(chat_id))
        assert answers == [{"action": "accept", "content": {"seat": "12A"}}]


@pytest.mark.parametrize("era", ["stateless", "sessions"])
async def test_an_answer_reaches_the_server_through_another_replica(database_url: str, era: Any) -> None:
    fake = FakeMcp(era)
    booked: list[str] = []

    async def book(call: FakeCall) -> Json:
        answer = await call.ask("Which seat?", FORM)
        booked.append(answer["content"]["seat"])
        return text("booked")

    fake.tool("book", book)
    async with fake.listening() as url, open_mcp_house(database_url, (CallTool("trains__book"),), DONE) as house:
        server = await house.add_server("trains", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.until_asked(chat_id)
        await house.worker.crash()
        await house.families.pop(0).close()
        await house.worker.add_replica()

        await house.answer(chat_id, {"seat": "12A"})
        await house.worker.rested(chat_id)

        assert booked == ["12A"]
        assert await house.worker.sql("SELECT count(*) FROM chat_approvals") == 1


async def test_a_form_that_asks_for_a_secret_is_refused(database_url: str) -> None:
    fake = FakeMcp()

    async def login(call: FakeCall) -> Json:
        await call.ask("Log in", {"type": "object", "properties": {"password": {"type": "string"}}})
        raise AssertionError("the question is not answered")

    fake.tool("login", login)
    async with fake.listening() as url, open_mcp_house(database_url, (CallTool("bad__login"),), DONE) as house:
        server = await house.add_server("bad", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await house.worker.rested(chat_id)

        assert "bad asked for a secret" in str(await house.worker.results(chat_id))


class Held:
    """A tool of a server that holds its first call until the test lets it go."""

    def __init__(self) -> None:
        self.runs = 0
        self.started = asyncio.Event()
        self.go_on = asyncio.Event()

    async def __call__(self, call: FakeCall) -> Json:
        self.runs += 1
        if self.runs == 1:
            self.started.set()
            await self.go_on.wait()
        return text(f"run {self.runs}")


async def _crashed_in_call(database_url: str, fake: FakeMcp, tool: Held, *, release_early: bool = False) -> list[Any]:
    async with fake.listening() as url, open_mcp_house(database_url, (CallTool("s__work"),), DONE) as house:
        server = await house.add_server("s", url)
        chat_id = await house.worker.ask("hello", mcp_server_ids=(server,))
        await tool.started.wait()
        if fake.tasks or fake.tools["work"].is_task:
            await until(lambda: house.worker.sql("SELECT state IS NOT NULL FROM chat_tool_runs"))
        await house.worker.crash()
        tool.go_on.set()
        await house.worker.add_replica()
        await house.worker.rested(chat_id)
        return await house.worker.results(chat_id)


async def test_a_call_that_may_have_run_is_not_repeated_after_a_crash(database_url: str) -> None:
    fake, tool = FakeMcp(), Held()
    fake.tool("work", tool)

    (result,) = await _crashed_in_call(database_url, fake, tool)

    assert tool.runs == 1
    assert OUTCOME_UNKNOWN in str(result)


@pytest.mark.parametrize("hint", ["idempotentHint", "readOnlyHint"])
async def test_a_call_that_may_be_repeated_is_repeated_after_a_crash(database_url: str, hint: str) -> None:
    fake, tool = FakeMcp(), Held()
    fake.tool("work", tool, annotations={hint: True})

    (result,) = await _crashed_in_call(database_url, fake, tool)

    assert tool.runs == 2
    assert "run 2" in str(result)


async def test_a_task_is_attached_to_again_after_a_crash(database_url: str) -> None:
    fake, tool = FakeMcp(poll_ms=10), Held()
    fake.tool("work", tool, is_task=True)

    (result,) = await _crashed_in_call(database_url, fake, tool)

    assert tool.runs == 1
    assert "run 1" in str(result)
    assert len(fake.calls) == 1


def _of_children(house: McpHouse) -> list[Call]:
    return [call for call in house.worker.calls if call.cache_key != call.chat_id]


async def test_an_exploring_subagent_keeps_the_servers_of_its_parent(database_url: str) -> None:
    fake = FakeMcp()
    fake.tool("add")
    async with fake.listening() as url, open_mcp_house(database_url, DONE) as house:
        chosen = await house.add_server("a", url)
        forced = await house.add_server("b", url, availability="force_on")
        parent = await house.worker.ask("hello", mcp_server_ids=(chosen,))
        await house.worker.rested(parent)
        child = await house.worker.ask(
            "look", mcp_server_ids=(chosen, forced), mode="explore", parent_chat_id=parent, root_chat_id=parent
        )
        await house.worker.rested(child)
        await house.add_server("c", url, availability="force_on")
        await house.worker.send(child, "again")
        await until(lambda: len(_of_children(house)) == 2)
        await house.worker.rested(child)

        assert [sent(call) for call in _of_children(house)] == [["a__add", "b__add"]] * 2


def _has_calls(house: McpHouse, number: int) -> bool:
    return len(house.worker.calls) == number


async def test_a_deployment_without_servers_asks_the_database_once(database_url: str) -> None:
    async with open_mcp_house(database_url, DONE, DONE, DONE) as house:
        (family,) = house.families
        chat_id = await house.worker.ask("hello")
        await house.worker.rested(chat_id)
        for turn in (2, 3):
            await house.worker.send(chat_id, "again")
            await until(partial(_has_calls, house, turn))
            await house.worker.rested(chat_id)

        assert (family._any.stats().fills, family._usable.stats().fills) == (1, 0)
        assert family._connections is None


def test_the_wrapper_is_removed_in_every_form() -> None:
    schema: dict[str, Any] = {"properties": {"a": {}}}
    own: dict[str, Any] = {"properties": {"properties": {}, "model_intent": {}}}

    assert mcp_tools.unwrapped({"model_intent": "x", "properties": {"a": 1}}, schema) == {"a": 1}
    assert mcp_tools.unwrapped({"model_intent": "x", "properties": '{"a": 1}'}, schema) == {"a": 1}
    assert mcp_tools.unwrapped({"model_intent": "x", "a": 1}, schema) == {"a": 1}
    assert mcp_tools.unwrapped({"model_intent": "x", "properties": {"properties": 1}}, own) == {"properties": 1}
    assert mcp_tools.unwrapped({"model_intent": "x", "a": 1, "properties": 2}, own)["model_intent"] == "x"
