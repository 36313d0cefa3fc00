from __future__ import annotations

import json
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.errors import ChatNotFound, InvalidInput, ParentArchived, TransitionNotAllowed
from rookery.domain.chat.messages import Effort, NewMessage, Role, StepFigures, Visibility
from rookery.domain.chat.states import State
from rookery.store import machine
from rookery.store.db.hints import WatchKind
from rookery.store.machine import ChatSpec, Created
from tests.store.machine.machine_rig import Rig, assistant, call, calling, closure_of, result, text, told, words


async def create(rig: Rig, spec: ChatSpec) -> Created:
    return await rig.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))


def user_message(content: str, **fields: object) -> NewMessage:
    return NewMessage(role=Role.USER, content=text(content), **fields)  # type: ignore[arg-type]


async def test_new_chat_runs_unowned_with_its_first_versions(rig: Rig) -> None:
    created = await create(rig, rig.spec())

    chat = created.chat
    assert chat == await rig.load(chat.id)
    assert chat.state is State.R0
    assert (chat.snapshot_version, chat.history_version, chat.queue_version, chat.retry_state_version) == (1, 1, 0, 0)
    assert (chat.generation_attempt, chat.queue_len) == (0, 0)
    assert (chat.worker_id, chat.runner_id, chat.leased) == (None, None, False)
    assert (chat.last_error, chat.retry_state, chat.compaction_requested_at) == (None, None, None)
    assert chat.runnable_since is not None
    assert [message.revision for message in created.messages] == [1]


async def test_new_chat_is_announced_once_and_asks_for_a_worker(rig: Rig) -> None:
    chat_id = (await create(rig, rig.spec())).chat.id

    (hint,) = rig.published.chats()
    assert (hint.chat_id, hint.snapshot_version, hint.history_version, hint.status) == (chat_id, 1, 1, "running")
    assert (hint.worker_id, hint.runner_id, hint.gone) == (None, None, False)
    (ownership,) = rig.published.ownership()
    assert (ownership.chat_id, ownership.snapshot_version) == (chat_id, 1)
    (watch,) = rig.published.watch()
    assert (watch.kind, watch.chat_id, watch.user_id) == (WatchKind.CREATED, chat_id, rig.user)


async def test_first_messages_keep_their_order_and_all_they_carry(rig: Rig) -> None:
    given = (
        NewMessage(role=Role.SYSTEM, content=text("be kind"), visibility=Visibility.MODEL),
        user_message("hello", created_by=rig.user, client_id="c-1"),
        assistant("hi", figures=StepFigures(input_tokens=3)),
        user_message("and?", created_by=rig.user, reasoning_effort=Effort.HIGH),
    )

    created = await create(rig, rig.spec(*given))

    assert told(created.messages) == told(await rig.history(created.chat.id))
    assert [words(message) for message in created.messages] == ["be kind", "hello", "hi", "and?"]
    assert [message.role for message in created.messages] == [message.role for message in given]
    assert [message.visibility for message in created.messages] == ["model", "both", "both", "both"]
    assert [message.created_by for message in created.messages] == [None, rig.user, None, rig.user]
    assert [message.client_id for message in created.messages] == [None, "c-1", None, None]
    assert [message.id for message in created.messages] == sorted(message.id for message in created.messages)
    assert {message.revision for message in created.messages} == {1}


async def test_call_without_a_result_among_the_first_messages_is_answered_before_the_user_speaks(rig: Rig) -> None:
    hidden = user_message("context", visibility=Visibility.MODEL)
    given = (
        user_message("hello"),
        calling(call("a"), call("b", "run"), call("p", provider_executed=True)),
        result("a"),
        hidden,
        user_message("and?"),
        calling(call("c")),
    )

    created = await create(rig, rig.spec(*given))

    history = await rig.history(created.chat.id)
    assert told(created.messages) == told(history)
    assert [message.role for message in history] == ["user", "assistant", "tool", "user", "tool", "user", "assistant"]
    assert closure_of(history[4]) == ("b", "new_user_message")
    assert history[4].model_config_id == rig.model
    assert [each.tool_call_id for each in await rig.update(created.chat.id, machine.open_calls.turn_calls)] == ["c"]


async def test_first_messages_whose_calls_are_answered_are_stored_as_given(rig: Rig) -> None:
    given = (user_message("hello"), calling(call("a")), result("a"), user_message("and?"))

    created = await create(rig, rig.spec(*given))

    assert [message.role for message in created.messages] == [message.role for message in given]


async def test_chat_without_any_message_is_refused(rig: Rig) -> None:
    with pytest.raises(InvalidInput) as refusal:
        await create(rig, ChatSpec(owner_id=rig.user, title="Empty", model_config_id=rig.model, messages=()))

    assert refusal.value.field == "messages"
    assert await rig.value("SELECT count(*) FROM chats") == 0
    assert rig.published.hints == []


async def test_chat_without_a_user_message_is_accepted(rig: Rig) -> None:
    created = await create(rig, rig.spec(NewMessage(role=Role.SYSTEM, content=text("watch the build"))))

    assert created.chat.state is State.R0
    assert [message.role for message in created.messages] == [Role.SYSTEM]


async def test_new_chat_keeps_what_it_was_given(rig: Rig) -> None:
    chat_id, mcp_server = uuid4(), uuid4()
    workspace = await rig.value(
        "INSERT INTO workspaces (owner_id, name) VALUES ($1, 'home') RETURNING id",
        rig.user,
    )

    await create(
        rig,
        rig.spec(
            id=chat_id,
            title="Plans",
            labels={"team": "blue"},
            workspace_id=workspace,
            mode="explore",
            plan_mode=True,
            mcp_server_ids=(mcp_server,),
            client_type="web",
        ),
    )

    row = await rig.columns(chat_id)
    assert (row["title"], json.loads(row["labels"]), row["workspace_id"]) == ("Plans", {"team": "blue"}, workspace)
    assert (row["mode"], row["plan_mode"], row["mcp_server_ids"]) == ("explore", True, [mcp_server])
    assert row["client_type"] == "web"
    assert [tool["name"] for tool in json.loads(row["dynamic_tools"])] == ["pick_colour"]


async def test_model_and_effort_are_those_of_the_last_message_that_names_one(rig: Rig) -> None:
    other = await rig.add_model()
    plain = rig.spec(user_message("hello"), reasoning_effort=Effort.LOW)
    naming = rig.spec(
        user_message("one", model_config_id=rig.model, reasoning_effort=Effort.HIGH),
        user_message("two", model_config_id=other),
        user_message("three"),
        reasoning_effort=Effort.LOW,
    )

    chosen = [(await create(rig, spec)).chat for spec in (plain, naming)]

    assert [(chat.last_model_config_id, chat.last_reasoning_effort) for chat in chosen] == [
        (rig.model, "low"),
        (other, "high"),
    ]


async def test_id_that_is_taken_is_refused_and_its_chat_left_alone(rig: Rig) -> None:
    chat_id = await rig.chat(State.W)
    before = await rig.trace(chat_id)

    with pytest.raises(TransitionNotAllowed) as refusal:
        await create(rig, rig.spec(id=chat_id))

    assert (refusal.value.from_state, refusal.value.cause) == (State.W, "exists")
    assert await rig.trace(chat_id) == before
    assert rig.published.hints == []


async def test_subagents_chat_belongs_to_its_root_and_may_have_a_parent_below_it(rig: Rig) -> None:
    root = await rig.create()

    child = (await create(rig, rig.spec(parent_chat_id=root, root_chat_id=root))).chat
    grandchild = (await create(rig, rig.spec(parent_chat_id=child.id, root_chat_id=root))).chat

    assert (child.parent_chat_id, child.root_chat_id, child.is_root) == (root, root, False)
    assert (grandchild.parent_chat_id, grandchild.root_chat_id) == (child.id, root)
    assert child.state is grandchild.state is State.R0


async def test_creating_a_subagents_chat_moves_nothing_of_its_root(rig: Rig) -> None:
    root = await rig.chat(State.W)
    before = await rig.trace(root)

    child = await rig.child(root)

    assert await rig.trace(root) == before
    assert {hint.chat_id for hint in rig.published.chats()} == {child}


async def test_family_that_does_not_fit_together_is_refused(rig: Rig) -> None:
    root, other_root, archived = await rig.create(), await rig.create(), await rig.chat(State.XW)
    child, stranger = await rig.child(root), uuid4()
    foreign = await rig.value("INSERT INTO users (username) VALUES ('bob') RETURNING id")
    count = await rig.value("SELECT count(*) FROM chats")
    rig.published.clear()
    wrong: list[tuple[dict[str, UUID], type[Exception]]] = [
        ({"parent_chat_id": root}, InvalidInput),
        ({"root_chat_id": root}, InvalidInput),
        ({"parent_chat_id": stranger, "root_chat_id": stranger}, ChatNotFound),
        ({"parent_chat_id": stranger, "root_chat_id": root}, ChatNotFound),
        ({"parent_chat_id": child, "root_chat_id": child}, ChatNotFound),
        ({"parent_chat_id": child, "root_chat_id": other_root}, InvalidInput),
        ({"parent_chat_id": other_root, "root_chat_id": root}, InvalidInput),
        ({"parent_chat_id": root, "root_chat_id": root, "owner_id": foreign}, InvalidInput),  # type: ignore[dict-item]
        ({"parent_chat_id": archived, "root_chat_id": archived}, ParentArchived),
    ]

    for fields, expected in wrong:
        with pytest.raises(expected) as refusal:
            await create(rig, rig.spec(**fields))
        assert type(refusal.value) is expected, fields

    assert await rig.value("SELECT count(*) FROM chats") == count
    assert rig.published.hints == []
