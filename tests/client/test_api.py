"""The client with a whole server: every namespace over a real socket, with a scripted model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from uuid import uuid4

import pytest

from rookery.client import AsyncRookery, DynamicTool, PersonalOverride, Rookery, ToolOutput, errors, file_part
from rookery.domain.access.rights import Role
from rookery.llm.scripted import CallTool, Say, Step, When
from rookery.llm.types import Call
from rookery.store.people import first_admin
from rookery.store.settings import settings
from tests.api.api_rig import PASSWORD, ApiRig, Person, open_house
from tests.eventually import until

COLOUR = DynamicTool(
    name="pick_colour",
    description="Lets the user pick a colour.",
    input_schema={"type": "object", "properties": {"why": {"type": "string"}}},
)


@pytest.fixture
async def rig(database_url: str, tmp_path: Path) -> AsyncIterator[ApiRig]:
    """A server with a worker."""
    async with open_house(database_url, tmp_path, takes_chats=True) as opened:
        await opened.add_model("echo")
        yield opened


@pytest.fixture
async def client(rig: ApiRig, ada: Person) -> AsyncIterator[AsyncRookery]:
    async with AsyncRookery(rig.url, token=ada.token) as client:
        yield client


@pytest.fixture
async def quiet(database_url: str, tmp_path: Path) -> AsyncIterator[AsyncRookery]:
    """A client of a server without a worker: chats keep the state that requests gave them."""
    async with open_house(database_url, tmp_path) as opened:
        await opened.add_model("echo")
        person = await opened.add("root", role=Role.ADMIN)
        async with AsyncRookery(opened.url, token=person.token) as client:
            yield client


async def test_prompt_is_run_to_its_answer(client: AsyncRookery) -> None:
    assert "hello there" in await client.chats.run("hello there")


async def test_blocking_client_does_the_same(rig: ApiRig, ada: Person) -> None:
    def work() -> tuple[str, list[str], list[str]]:
        with Rookery(rig.url, token=ada.token) as client:
            said = client.chats.run("hello there")
            titles = [chat.title for chat in client.chats.iterate()]
            chat = client.chats.create("and again", title="Second")
            with client.chats.stream(chat.id) as live:
                for change in live:
                    if change.is_committed and live.state.status == "waiting":
                        break
                roles = [message.role for message in live.messages]
        return said, titles, roles

    said, titles, roles = await asyncio.to_thread(work)

    assert "hello there" in said
    assert titles == ["hello there"]
    assert roles == ["user", "assistant"]


async def test_blocking_client_that_is_closed_says_so(rig: ApiRig) -> None:
    client = Rookery(rig.url)
    client.close()
    client.close()

    with pytest.raises(RuntimeError, match="closed"):
        client.me()


async def test_conversation_goes_on_and_is_read_back(client: AsyncRookery) -> None:
    chat = await client.chats.create("first", title="A talk", labels={"kind": "test"})
    await client.chats.wait_idle(chat.id, chat.snapshot_version)
    sent = await client.messages.send(chat.id, "second", client_id="mine")
    again = await client.messages.send(chat.id, "second", client_id="mine")
    state = await client.chats.wait_idle(chat.id, sent.chat.snapshot_version)

    assert sent.message is not None
    assert again.message is not None
    assert again.message.id == sent.message.id
    assert state.status == "waiting"
    listed = [message async for message in client.messages.iterate(chat.id, page_size=2)]
    assert [message.role for message in listed] == ["user", "assistant"] * 2
    assert (await client.messages.get(chat.id, sent.message.id)).content[0].text == "second"
    assert [prompt.text for prompt in await client.messages.prompts(chat.id)] == ["second", "first"]
    found = await client.chats.get(chat.id)
    assert (found.title, found.labels, found.status) == ("A talk", {"kind": "test"}, "waiting")


async def test_edit_replaces_the_rest(client: AsyncRookery) -> None:
    chat = await client.chats.create("first")
    await client.chats.wait_idle(chat.id, chat.snapshot_version)
    (*_, first) = (await client.messages.list(chat.id)).items

    edited = await client.messages.edit(chat.id, first.id, "other words")
    await client.chats.wait_idle(chat.id, edited.chat.snapshot_version)

    assert first.id in edited.deleted_message_ids
    assert (await client.messages.list(chat.id)).items[-1].content[0].text == "other words"


async def test_chats_are_listed_changed_archived_and_deleted(client: AsyncRookery) -> None:
    made = [await client.chats.create(f"number {number}", title=f"Chat {number}") for number in range(5)]
    for chat in made:
        await client.chats.wait_idle(chat.id, chat.snapshot_version)

    first = await client.chats.list(limit=2)
    assert (len(first.items), first.next_cursor is not None) == (2, True)
    assert {chat.id async for chat in client.chats.iterate(page_size=2)} == {chat.id for chat in made}

    renamed = await client.chats.update(made[0].id, title="Another", labels={"a": "b"}, pin_order=1)
    assert (renamed.title, renamed.labels, renamed.pin_order) == ("Another", {"a": "b"}, 1)
    assert [chat.id for chat in (await client.chats.list(labels={"a": "b"})).items] == [made[0].id]

    with pytest.raises(errors.Conflict) as early:
        await client.chats.delete(made[0].id)
    assert (await client.chats.archive(made[0].id)).archived
    assert not (await client.chats.unarchive(made[0].id)).archived
    await client.chats.archive(made[0].id)
    await client.chats.delete(made[0].id)
    with pytest.raises(errors.NotFound) as gone:
        await client.chats.get(made[0].id)

    assert early.value.code == "archive_first"
    assert (gone.value.code, bool(gone.value.request_id)) == ("chat_not_found", True)


async def test_created_chat_is_one_however_often_it_is_asked_for(quiet: AsyncRookery) -> None:
    key = str(uuid4())

    first = await quiet.chats.create("hello", idempotency_key=key)
    again = await quiet.chats.create("hello", idempotency_key=key)
    with pytest.raises(errors.Conflict) as other:
        await quiet.chats.create("something else", idempotency_key=key)

    assert again.id == first.id
    assert other.value.code == "idempotency_mismatch"


async def test_running_chat_is_interrupted_and_its_queue_is_kept_in_order(quiet: AsyncRookery) -> None:
    chat = await quiet.chats.create("hello")
    queued = [(await quiet.messages.send(chat.id, f"later {number}")).queued_message for number in range(3)]
    one, two, three = [each.id for each in queued if each is not None]

    moved = await quiet.queue.move(chat.id, three, before=one)
    assert [each.id for each in moved.items] == [three, one, two]
    edited = await quiet.queue.edit(chat.id, one, content="sooner")
    assert edited.content[0].text == "sooner"
    await quiet.queue.delete(chat.id, two)
    assert [each.id for each in (await quiet.queue.list(chat.id)).items] == [three, one]
    promoted = await quiet.queue.promote(chat.id, one)
    assert promoted.chat.status == "interrupting"
    await quiet.queue.clear(chat.id)
    with pytest.raises(errors.NotFound) as gone:
        await quiet.queue.delete(chat.id, one)
    assert gone.value.code == "queued_message_not_found"


async def test_interrupt_of_a_chat_at_rest_is_a_conflict(client: AsyncRookery) -> None:
    chat = await client.chats.create("hello")
    await client.chats.wait_idle(chat.id, chat.snapshot_version)

    with pytest.raises(errors.Conflict) as caught:
        await client.chats.interrupt(chat.id)
    with pytest.raises(errors.Conflict):
        await client.chats.retry(chat.id)

    assert caught.value.code == "not_interruptible"


async def test_running_chat_can_be_interrupted(quiet: AsyncRookery) -> None:
    chat = await quiet.chats.create("hello")

    assert (await quiet.chats.interrupt(chat.id)).status == "interrupting"


async def test_wrong_values_are_all_named(quiet: AsyncRookery) -> None:
    with pytest.raises(errors.Invalid) as caught:
        await quiet.chats.create(" ", title="x" * 201)

    assert {each.field for each in caught.value.fields} == {"content[0].text", "title"}


async def test_read_cursor_is_moved(client: AsyncRookery) -> None:
    chat = await client.chats.create("hello")
    await client.chats.wait_idle(chat.id, chat.snapshot_version)
    unread = (await client.chats.get(chat.id)).has_unread

    await client.chats.mark_read(chat.id)

    assert (unread, (await client.chats.get(chat.id)).has_unread) == (True, False)


async def test_models_are_found_by_any_of_their_names(quiet: AsyncRookery) -> None:
    (provider,) = await quiet.models.list()
    (model,) = provider.models

    for name in (model.model, model.display_name, str(model.id)):
        assert await quiet.models.find(name) == model
    assert await quiet.models.find("nonsense") is None


async def test_tokens_are_made_listed_and_deleted(quiet: AsyncRookery) -> None:
    made = await quiet.tokens.create("for a test", scopes=["chat:read"], expires_in_days=1)

    async with AsyncRookery(quiet.base_url, token=made.token) as reader:
        assert (await reader.chats.list()).items == ()
        with pytest.raises(errors.Forbidden) as caught:
            await reader.chats.create("hello")
        await quiet.tokens.delete(made.id)
        with pytest.raises(errors.Unauthenticated):
            await reader.chats.list()

    assert caught.value.code == "scope"
    assert made.id not in {token.id for token in await quiet.tokens.list()}


async def test_password_becomes_a_session_and_a_token(quiet: AsyncRookery) -> None:
    async with AsyncRookery(quiet.base_url) as browser:
        with pytest.raises(errors.Unauthenticated):
            await browser.account.login("root", "not the password")
        user = await browser.account.login("root", PASSWORD)
        made = await browser.tokens.create("terminal")
        await browser.account.logout()
        with pytest.raises(errors.Unauthenticated):
            await browser.me()

    async with AsyncRookery(quiet.base_url, token=made.token) as client:
        assert (await client.me()).id == user.id


async def test_first_account_is_made_once(database_url: str, tmp_path: Path) -> None:
    async with open_house(database_url, tmp_path) as opened, AsyncRookery(opened.url, max_retries=0) as client:
        assert await client.account.is_setup_needed()
        with pytest.raises(errors.SetupRequired):
            await client.me()
        with pytest.raises(errors.Forbidden):
            await client.account.set_up("rk_setup_wrong", email="ann@example.org", password=PASSWORD)
        async with opened.database.api.acquire() as conn:
            token = await first_admin.ensure_token(conn, tmp_path, now=opened.clock.now())
        assert token is not None
        made = await client.account.set_up(token, email="ann@example.org", password=PASSWORD, name="Ann")
        assert (await client.me()).id == made.id
        with pytest.raises(errors.AlreadySetUp):
            await client.account.set_up(token, email="bea@example.org", password=PASSWORD)

    assert (made.role, made.username, made.name) == ("admin", "ann", "Ann")


async def test_file_is_uploaded_used_and_downloaded(client: AsyncRookery, tmp_path: Path) -> None:
    path = tmp_path / "über uns.md"
    path.write_text("# Hello\n")

    file = await client.files.upload(path)
    chat = await client.chats.create([{"type": "text", "text": "read this"}, file_part(file.id)])
    signed = await client.files.download_url(file.id)

    assert (file.name, file.mime_type, file.size_bytes) == ("über uns.md", "text/markdown", 8)
    assert await client.files.download(file.id) == b"# Hello\n"
    assert (signed.sha256, signed.name) == (file.sha256, file.name)
    with pytest.raises(errors.Conflict) as used:
        await client.files.delete(file.id)
    assert used.value.code == "in_use"
    assert [each.id for each in (await client.chats.get(chat.id)).files] == [file.id]


async def test_bytes_need_a_name(client: AsyncRookery) -> None:
    with pytest.raises(ValueError, match="needs a name"):
        await client.files.upload(b"hello")
    file = await client.files.upload(b"hello", name="hello.txt")
    await client.files.delete(file.id)

    with pytest.raises(errors.NotFound):
        await client.files.download(file.id)


def steps(call: Call) -> Sequence[Step]:
    """Ask for a color, then repeat it. Other requests (titles, labels) get a short answer."""
    if call.format is not None or "pick_colour" not in {tool.name for tool in call.tools}:
        return (Say('{"title": "Colours", "label": "Colours", "summary": "Colours."}'),)
    return (When((Say("So it is green."),), tool_result="green", otherwise=(CallTool("pick_colour", {"why": "art"}),)),)


async def test_tool_of_the_program_is_asked_for_and_answered(rig: ApiRig, client: AsyncRookery) -> None:
    model = await rig.add_model("colours", name="scripts")
    with rig.replica.connector.scripts.registered("colours", steps):
        chat = await client.chats.create("which colour?", dynamic_tools=[COLOUR], model_config_id=model)
        async with client.chats.stream(chat.id) as live:
            with pytest.raises(errors.ActionRequired) as asked:
                await live.answer(chat.snapshot_version)
            (call,) = asked.value.action["tool_calls"]
            with pytest.raises(errors.Invalid):
                await client.chats.submit_tool_results(chat.id, [ToolOutput(tool_call_id="other", output=1)])
            output = ToolOutput(tool_call_id=call["tool_call_id"], output={"colour": "green"})
            await client.chats.submit_tool_results(chat.id, [output])
            said = await live.answer(live.state.snapshot_version + 1)

    assert (call["tool_name"], call["args"]) == ("pick_colour", {"why": "art"})
    assert said == "So it is green."


async def test_cost_and_matches_of_a_chat_are_read(client: AsyncRookery) -> None:
    chat = await client.chats.create("a needle in a haystack")
    await client.chats.wait_idle(chat.id, chat.snapshot_version)

    async def is_counted() -> bool:
        return (await client.chats.cost(chat.id)).request_count >= 1

    await until(is_counted)
    assert await client.messages.search(chat.id, "nonsense") == ()
    assert "turn" in (await client.chats.cost(chat.id)).by_purpose


async def test_usage_is_reported_by_chat_and_in_a_period(client: AsyncRookery) -> None:
    chat = await client.chats.create("count me")
    await client.chats.wait_idle(chat.id, chat.snapshot_version)
    now = datetime.now(UTC)

    by_chat = await client.usage.report("chat", start=now - timedelta(days=1))
    later = await client.usage.report("chat", start=now + timedelta(days=1), end=now + timedelta(days=2))

    assert [row.request_count >= 1 for row in by_chat if row.key == str(chat.id)] == [True]
    assert later == ()
    assert (await client.usage.spend()).spent_micros >= 0


async def test_chat_in_a_sane_state_needs_no_repair(quiet: AsyncRookery) -> None:
    chat = await quiet.chats.create("hello")

    with pytest.raises(errors.Conflict) as caught:
        await quiet.chats.reconcile(chat.id)

    assert caught.value.code == "not_invalid"


async def test_version_is_told(quiet: AsyncRookery) -> None:
    version = await quiet.version()

    assert (version.api, version.stream_protocol) == (1, 1)


async def test_https_at_a_server_without_tls_is_said_as_such(rig: ApiRig) -> None:
    async with AsyncRookery(rig.url.replace("http:", "https:"), max_retries=0) as client:
        with pytest.raises(errors.Unreachable, match="does not use TLS; try http instead"):
            await client.me()


async def test_folders_order_the_caller_s_chats(quiet: AsyncRookery) -> None:
    chat = await quiet.chats.create("Say hello")

    made = await quiet.folders.create("Work", color="blue")
    moved = await quiet.chats.update(chat.id, folder_id=made.id)
    renamed = await quiet.folders.update(made.id, name="Customers")
    found = await quiet.chats.list('folder:"customers"')
    out = await quiet.chats.update(chat.id, folder_id=None)
    await quiet.folders.delete(made.id)

    assert (made.name, made.color, made.chats) == ("Work", "blue", 0)
    assert (moved.folder_id, out.folder_id) == (made.id, None)
    assert (renamed.name, renamed.color, renamed.chats) == ("Customers", "blue", 1)
    assert [each.id for each in found.items] == [chat.id]
    assert await quiet.folders.list() == ()


async def test_own_mcp_servers_are_added_changed_and_deleted(quiet: AsyncRookery) -> None:
    made = await quiet.mcp_servers.create("docs", "https://mcp.example.org/mcp", own=True, tool_deny_list=["drop"])
    changed = await quiet.mcp_servers.update(made.id, {"enabled": False}, own=True)

    assert (made.is_own, made.tool_deny_list, made.login.state) == (True, ("drop",), "none")
    assert (await quiet.mcp_servers.get(made.id)) == changed
    assert (await quiet.mcp_servers.tools(made.id)).items == ()
    assert "linear" in [entry.slug for entry in await quiet.mcp_servers.catalog()]
    assert (await quiet.mcp_servers.disconnect(made.id)).revoked is None
    with pytest.raises(errors.Invalid):
        await quiet.mcp_servers.connect(made.id)
    await quiet.mcp_servers.delete(made.id, own=True)
    assert made.id not in [each.id for each in await quiet.mcp_servers.list()]


async def test_saved_prompts_are_written_found_and_deleted(quiet: AsyncRookery) -> None:
    made = await quiet.saved_prompts.put("review", "Review {{file}} for {{ goal }}.")
    found = await quiet.saved_prompts.list("rev")
    read = await quiet.saved_prompts.get("review")
    await quiet.saved_prompts.delete("review")

    assert (made.scope, made.variables) == ("user", ("file", "goal"))
    assert [each.name for each in found.items] == ["review"]
    assert read.text == "Review {{file}} for {{ goal }}."
    assert (await quiet.saved_prompts.list()).items == ()


async def test_own_models_and_kinds_of_subagents_are_set_and_read(rig: ApiRig, client: AsyncRookery) -> None:
    model = (await client.models.list())[0].models[0].id
    async with rig.database.api.acquire() as conn:
        await settings.write_setting(conn, "models", value={"allow_personal_overrides": True})

    own = PersonalOverride(mode="model", model_config_id=model)
    saved = await client.account.set_model_overrides({"general": own, "explore": PersonalOverride(mode="chat_default")})
    cleared = await client.account.set_model_overrides({"explore": None})
    made = await client.agent_kinds.put("reviewer", "Reviews.", tools=["read_file"], read_only=True, max_minutes=5)
    listed = await client.agent_kinds.list()
    await client.agent_kinds.delete("reviewer")

    assert saved.model_overrides.general == own
    assert (saved.model_overrides.explore is None, cleared.model_overrides.explore) == (False, None)
    assert (await client.account.preferences()).model_overrides.general == own
    assert (made.name, made.source, made.tools, made.read_only, made.max_minutes) == (
        "reviewer",
        "user",
        ("read_file",),
        True,
        5,
    )
    assert [kind.name for kind in listed] == ["general", "explore", "reviewer"]
    assert [kind.name for kind in await client.agent_kinds.list()] == ["general", "explore"]
