"""The subagents of a chat over HTTP: what users see of them, and who may."""

from __future__ import annotations

from uuid import UUID

import pytest
from msgspec import Raw

from rookery.domain.chat.messages import ChatId, NewMessage, Role
from rookery.domain.chat.parts import Text, ToolCall
from rookery.store import machine
from rookery.store.chats import subagents
from rookery.store.chats.subagents import KindSource, NewSubagent
from rookery.store.machine import Bundle, ChatSpec
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


async def spawn(chat_rig: ChatRig, root: str, *, title: str = "A child", budget_micros: int | None = None) -> str:
    """A subagent as the worker makes it."""
    owner = chat_rig.person.id
    model = UUID((await chat_rig.get(root))["last_model_config_id"])

    async def create(bundle: Bundle) -> ChatId:
        spec = ChatSpec(
            owner_id=owner,
            title=title,
            model_config_id=model,
            messages=(NewMessage(role=Role.USER, content=(Text("work"),), created_by=owner),),
            parent_chat_id=UUID(root),
            root_chat_id=UUID(root),
        )
        made = await machine.create_chat(bundle, spec)
        terms = NewSubagent(
            chat_id=made.chat.id,
            parent_chat_id=ChatId(UUID(root)),
            tool_call_id="call-7",
            kind="explore",
            kind_source=KindSource.BUILTIN,
            tools=None,
            max_minutes=60,
            budget_micros=budget_micros,
        )
        await subagents.insert(bundle.conn, terms)
        return made.chat.id

    return str(await chat_rig.rig.replica.machine.bundle(create))


async def test_family_is_listed_with_state_and_terms_from_root_and_child(rig: ApiRig, chat_rig: ChatRig) -> None:
    root = await chat_rig.create()
    child = await spawn(chat_rig, root, title="License", budget_micros=500_000)

    (agent,) = (await chat_rig.http.get(f"{CHATS}/{root}/agents")).json()["agents"]

    assert agent["chat_id"] == child
    assert (agent["title"], agent["kind"], agent["kind_source"]) == ("License", "explore", "builtin")
    # Nothing drives chats here: a running child without a worker waits for a slot.
    assert (agent["status"], agent["phase"], agent["stalled"]) == ("running", "queued", False)
    assert (agent["tool_call_id"], agent["budget_micros"]) == ("call-7", 500_000)
    assert (agent["steps"], agent["tokens"], agent["cost_micros"], agent["activity"]) == (0, 0, 0, "")
    assert agent["deadline_at"] is not None
    assert (await chat_rig.http.get(f"{CHATS}/{child}/agents")).json()["agents"][0]["chat_id"] == child


async def test_outcome_and_last_words_of_a_child_that_has_ended_are_shown(rig: ApiRig, chat_rig: ChatRig) -> None:
    root = await chat_rig.create()
    child = await spawn(chat_rig, root)
    answer = NewMessage(role=Role.ASSISTANT, content=(Text("Found it.\n```\nIn LICENSE.\n```\n"),))

    await chat_rig.act(
        child,
        lambda tx: machine.commit_step(tx, [answer]),
        machine.finish_turn,
    )

    (agent,) = (await chat_rig.http.get(f"{CHATS}/{root}/agents")).json()["agents"]
    assert (agent["status"], agent["outcome"], agent["phase"]) == ("waiting", "finished", None)
    assert agent["activity"] == "In LICENSE."
    assert agent["deadline_at"] is None


async def test_activity_names_all_commands_of_the_last_call(rig: ApiRig, chat_rig: ChatRig) -> None:
    root = await chat_rig.create()
    child = await spawn(chat_rig, root)
    commands = (("sleep", "25"), ("echo", "apples"))
    call = ToolCall(tool_call_id="call", tool_name="execute", args=Raw(b"{}"), parsed_commands=commands)
    answer = NewMessage(role=Role.ASSISTANT, content=(Text("I will run that."), call))

    await chat_rig.act(child, lambda tx: machine.commit_step(tx, [answer]))

    (agent,) = (await chat_rig.http.get(f"{CHATS}/{root}/agents")).json()["agents"]
    assert (agent["activity"], agent["phase"]) == ("execute sleep 25, echo apples", "queued")


async def test_subagents_of_an_archived_chat_are_still_listed(rig: ApiRig, chat_rig: ChatRig) -> None:
    root = await chat_rig.create()
    child = await spawn(chat_rig, root)
    for chat in (child, root):
        await chat_rig.act(chat, machine.finish_turn)

    patched = await chat_rig.http.patch(f"{CHATS}/{root}", json={"archived": True})

    assert patched.status_code == 200
    (agent,) = (await chat_rig.http.get(f"{CHATS}/{root}/agents")).json()["agents"]
    assert (agent["chat_id"], agent["outcome"]) == (child, "finished")


async def test_chat_without_subagents_has_an_empty_list(chat_rig: ChatRig) -> None:
    root = await chat_rig.create()

    assert (await chat_rig.http.get(f"{CHATS}/{root}/agents")).json() == {"agents": []}


async def test_user_without_access_does_not_learn_of_subagents(rig: ApiRig, chat_rig: ChatRig) -> None:
    root = await chat_rig.create()
    await spawn(chat_rig, root)
    stranger: Person = await rig.add("stranger")

    assert (await stranger.http.get(f"{CHATS}/{root}/agents")).status_code == 404
