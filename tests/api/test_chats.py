from __future__ import annotations

import asyncio
from uuid import UUID, uuid4

import pytest

from rookery.domain.access.rights import Role, Scope
from rookery.domain.models.options import ProviderType
from rookery.store.models import model_configs, providers
from rookery.store.models.model_configs import ModelConfigDraft, ModelConfigPatch
from rookery.store.models.providers import ProviderDraft, ProviderPatch
from rookery.tools import registry
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, TOOL, ChatRig, fields, text
from tests.eventually import until


@pytest.fixture
async def model(rig: ApiRig) -> UUID:
    return await rig.add_model()


@pytest.fixture
def chat_rig(rig: ApiRig, ada: Person, model: UUID) -> ChatRig:
    return ChatRig(rig, ada)


# Creating


async def test_created_chat_runs_and_is_where_its_location_says(ada: Person, model: UUID) -> None:
    made = await ada.http.post(CHATS, json={"content": text("Sort the books by colour, then by size, please")})

    assert made.status_code == 201, made.text
    chat = made.json()
    assert made.headers["location"] == f"{CHATS}/{chat['id']}"
    assert (chat["status"], chat["my_role"], chat["owner"]["username"]) == ("running", "owner", "ada")
    assert chat["title"] == "Sort the books by colour, then…"
    assert (chat["last_model_config_id"], chat["client_type"]) == (str(model), "api")
    assert (chat["files"], chat["dynamic_tools"], chat["children"]) == ([], [], [])
    assert (await ada.http.get(made.headers["location"])).json() == chat


async def test_everything_that_is_given_is_the_new_chats(chat_rig: ChatRig) -> None:
    made = await chat_rig.http.post(
        CHATS,
        json={
            "content": [
                *text("  Look at this  "),
                {"type": "file-reference", "file_name": "a.py", "start_line": 1, "end_line": 3, "content": "x = 1"},
            ],
            "title": "  My title ",
            "labels": {"team": "blue"},
            "plan_mode": True,
            "permission_mode": "ask",
            "reasoning_effort": "high",
            "system_prompt": "Be brief.\u202e",
            "dynamic_tools": [TOOL],
            "client_type": "ui",
            "workspace_id": None,
            "mcp_server_ids": [],
        },
    )

    chat = made.json()
    assert made.status_code == 201, made.text
    assert (chat["title"], chat["labels"], chat["plan_mode"]) == ("My title", {"team": "blue"}, True)
    assert (chat["last_reasoning_effort"], chat["dynamic_tools"]) == ("high", ["lookup"])
    assert chat["client_type"] == "ui"
    (message,) = (await chat_rig.http.get(f"{CHATS}/{chat['id']}/messages")).json()["items"]
    assert [part["type"] for part in message["content"]] == ["text", "file-reference"]
    assert message["content"][0]["text"] == "Look at this"


async def test_hidden_instructions_are_stored_and_never_shown(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create(system_prompt="Never mention the \u202epurple elephant.")

    async with chat_rig.rig.database.api.acquire() as conn:
        rows = await conn.fetch(
            "SELECT content::text FROM chat_messages WHERE chat_id = $1 AND visibility = 'model'", UUID(chat)
        )
    assert any("Never mention the purple elephant." in row[0] for row in rows)
    for path in ("messages", "prompts", "queue", "search?q=elephant"):
        assert "elephant" not in (await chat_rig.http.get(f"{CHATS}/{chat}/{path}")).text
    assert (await chat_rig.http.get(CHATS, params={"q": "elephant"})).json()["items"] == []


INVALID: tuple[tuple[str, object, str], ...] = (
    ("content", [], "content"),
    ("content", text("x") * 101, "content"),
    ("content", text("  "), "content[0].text"),
    ("content", text("x" * (256 * 1024 + 1)), "content[0].text"),
    ("content", [{"type": "tool-call", "tool_call_id": "1"}], "content[0]"),
    ("content", [{"type": "text", "text": "x", "provider_meta": {}}], "content[0].provider_meta"),
    ("content", [{"type": "file", "file_id": "nine"}], "content[0].file_id"),
    ("content", [{"type": "file-reference", "file_name": "", "start_line": 0, "end_line": 0, "content": ""}],
     "content[0].file_name"),
    ("content", [{"type": "file-reference", "file_name": "a", "start_line": 3, "end_line": 1, "content": ""}],
     "content[0].end_line"),
    ("content", [{"type": "file-reference", "file_name": "a", "start_line": -1, "end_line": 1, "content": ""}],
     "content[0].start_line"),
    ("model_config_id", "11111111-1111-4111-8111-111111111111", "model_config_id"),
    ("reasoning_effort", "enormous", "reasoning_effort"),
    ("workspace_id", "11111111-1111-4111-8111-111111111111", "workspace_id"),
    ("system_prompt", "x" * (128 * 1024 + 1), "system_prompt"),
    ("labels", {"-bad": "x"}, "labels.-bad"),
    ("labels", {"good": ""}, "labels.good"),
    ("labels", {f"k{n}": "x" for n in range(51)}, "labels"),
    ("mcp_server_ids", ["11111111-1111-4111-8111-111111111111"], "mcp_server_ids"),
    ("plan_mode", "yes", "plan_mode"),
    ("permission_mode", "yes", "permission_mode"),
    ("dynamic_tools", [TOOL, TOOL], "dynamic_tools[1].name"),
    ("dynamic_tools", [{**TOOL, "name": "a b"}], "dynamic_tools[0].name"),
    ("dynamic_tools", [{**TOOL, "input_schema": {"type": "array"}}], "dynamic_tools[0].input_schema"),
    ("dynamic_tools", [{**TOOL, "description": "x" * 256 * 1024}], "dynamic_tools"),
    ("dynamic_tools", [{**TOOL, "name": f"t{n}"} for n in range(251)], "dynamic_tools"),
    ("client_type", "fax", "client_type"),
    ("title", " ", "title"),
    ("title", "x" * 201, "title"),
    ("colour", "x", "colour"),
)  # fmt: skip


async def test_chat_with_an_invalid_member_is_refused_by_its_place(chat_rig: ChatRig) -> None:
    for member, value, field in INVALID:
        refused = await chat_rig.http.post(CHATS, json={"content": text("Hello"), member: value})

        assert list(fields(refused)) == [field], refused.text
    assert await chat_rig.count("chats") == 0


async def test_a_client_tool_with_the_name_of_a_built_in_one_is_refused_by_name(chat_rig: ChatRig) -> None:
    for name in (*registry.ACTIVE, *registry.ALIASES, "Execute"):
        refused = await chat_rig.http.post(
            CHATS, json={"content": text("x"), "dynamic_tools": [{**TOOL, "name": name}]}
        )

        assert refused.status_code == 400
        assert fields(refused) == {
            "dynamic_tools[0].name": f"{name} is the name of a built-in tool. Choose another name."
        }
    assert await chat_rig.count("chats") == 0


async def test_all_that_is_wrong_is_told_at_once(chat_rig: ChatRig) -> None:
    refused = await chat_rig.http.post(CHATS, json={"content": text(""), "labels": {"-": "x", "b": ""}, "colour": 1})

    assert set(fields(refused)) == {"content[0].text", "labels.-", "labels.b", "colour"}
    assert fields(refused)["colour"] == "There is no such field."


async def test_unknown_servers_are_named(chat_rig: ChatRig) -> None:
    server = str(uuid4())

    refused = await chat_rig.http.post(CHATS, json={"content": text("x"), "mcp_server_ids": [server, server]})

    assert fields(refused)["mcp_server_ids"].endswith(f"are not for you: {server}.")


async def test_body_that_is_no_json_or_too_large_is_refused(chat_rig: ChatRig) -> None:
    malformed = await chat_rig.http.post(CHATS, content=b"{", headers={"Content-Type": "application/json"})
    plain = await chat_rig.http.post(CHATS, content=b"{}", headers={"Content-Type": "text/plain"})
    large = await chat_rig.http.post(CHATS, json={"content": text("x" * 2 * 1024 * 1024)})

    assert (malformed.status_code, malformed.json()["code"]) == (400, "malformed")
    assert (plain.status_code, plain.json()["code"]) == (415, "unsupported_media_type")
    assert (large.status_code, large.json()["code"]) == (413, "body_too_large")


async def test_model_that_cannot_be_used_is_refused_with_the_reason(rig: ApiRig, ada: Person, model: UUID) -> None:
    other = await rig.add_model(name="second")
    keyless = ProviderDraft(
        type=ProviderType.OPENAI_COMPAT,
        name="keyless",
        base_url="http://127.0.0.1:9/v1",
        central_key_enabled=False,
        allow_user_key=True,
    )
    async with rig.database.api.acquire() as conn:
        made = await providers.create_provider(conn, keyless, ring=None)
        draft = ModelConfigDraft(provider_id=made.id, model="m", context_limit=1000)
        needy = (await model_configs.create_model_config(conn, draft, by=None)).id

    async def refusal(named: UUID) -> str:
        rig.replica.directory.invalidate()
        refused = await ada.http.post(CHATS, json={"content": text("x"), "model_config_id": str(named)})
        return fields(refused)["model_config_id"]

    assert await refusal(needy) == "This model needs your own API key. Add one in your settings."
    assert await refusal(UUID(int=1)) == "This model no longer exists. Choose another."
    async with rig.database.api.acquire() as conn:
        await model_configs.update_model_config(conn, other, patch=ModelConfigPatch(enabled=False), by=None)
        await providers.update_provider(conn, made.id, patch=ProviderPatch(enabled=False), ring=None)
    assert await refusal(other) == "This model is disabled. Choose another."
    assert await refusal(needy) == "The provider of this model is disabled. Choose another model."


async def test_chat_without_a_default_model_is_refused(rig: ApiRig, ada: Person, model: UUID) -> None:
    for change in ("enabled = false", "deleted = true, is_default = false"):
        await rig.database.api.execute(f"UPDATE model_configs SET {change}")
        rig.replica.directory.invalidate()

        refused = await ada.http.post(CHATS, json={"content": text("x")})

        assert (refused.status_code, refused.json()["code"]) == (400, "no_default_model")


async def test_provider_that_is_switched_off_in_between_makes_no_chat(
    rig: ApiRig, chat_rig: ChatRig, model: UUID
) -> None:
    """The cached directory still has the provider enabled; only the check inside the transaction detects the change."""
    await rig.replica.directory.models(chat_rig.person.id)
    async with rig.database.api.acquire() as conn:
        (provider,) = await providers.list_providers(conn)
        await providers.update_provider(conn, provider.id, patch=ProviderPatch(enabled=False), ring=None)

    refused = await chat_rig.http.post(CHATS, json={"content": text("x")})

    assert fields(refused) == {"model_config_id": "The provider of this model is disabled. Choose another model."}
    assert await chat_rig.count("chats") == 0


async def test_repeat_of_a_creation_gets_the_first_answer(chat_rig: ChatRig) -> None:
    body, key = {"content": text("Once")}, {"Idempotency-Key": "k1"}

    first = await chat_rig.http.post(CHATS, json=body, headers=key)
    again = await chat_rig.http.post(CHATS, json=body, headers=key)
    other = await chat_rig.http.post(CHATS, json={"content": text("Twice")}, headers=key)

    assert (first.status_code, again.status_code) == (201, 201)
    assert again.content == first.content
    assert again.headers["idempotency-replayed"] == "true"
    assert again.headers["location"] == first.headers["location"]
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    assert await chat_rig.count("chats") == 1


async def test_repeat_is_answered_though_its_model_is_gone(rig: ApiRig, chat_rig: ChatRig) -> None:
    body, key = {"content": text("Once")}, {"Idempotency-Key": "k1"}
    first = await chat_rig.http.post(CHATS, json=body, headers=key)
    async with rig.database.api.acquire() as conn:
        await conn.execute("UPDATE model_configs SET enabled = false")
    rig.replica.directory.invalidate()

    again = await chat_rig.http.post(CHATS, json=body, headers=key)

    assert again.content == first.content


async def test_creations_with_one_key_at_once_make_one_chat(chat_rig: ChatRig) -> None:
    body, key = {"content": text("Once")}, {"Idempotency-Key": "k1"}

    answers = await asyncio.gather(*(chat_rig.http.post(CHATS, json=body, headers=key) for _ in range(6)))

    made = [each for each in answers if each.status_code == 201]
    assert len({each.content for each in made}) == 1
    others = {each.json()["code"] for each in answers if each.status_code != 201}
    assert others <= {"idempotency_in_progress"}
    assert await chat_rig.count("chats") == 1


# Reading and listing


async def test_list_has_pins_first_and_pages_without_gaps(chat_rig: ChatRig) -> None:
    chats = [await chat_rig.create(f"Chat {n}") for n in range(5)]
    await chat_rig.http.patch(f"{CHATS}/{chats[0]}", json={"pin_order": 1})

    first = (await chat_rig.http.get(CHATS, params={"limit": 3})).json()
    rest = (await chat_rig.http.get(CHATS, params={"limit": 3, "cursor": first["next_cursor"]})).json()

    found = [chat["id"] for chat in (*first["items"], *rest["items"])]
    assert found[0] == chats[0]
    assert sorted(found) == sorted(chats)
    assert rest["next_cursor"] is None
    assert "files" not in first["items"][0]


async def test_search_finds_by_title_label_and_term(chat_rig: ChatRig) -> None:
    blue = await chat_rig.create("Paint the fence", labels={"team": "blue"})
    await chat_rig.create("Water the flowers")

    for query in ({"q": "title:FENCE"}, {"label": "team:blue"}, {"q": "label:team=blue status:running"}):
        assert [chat["id"] for chat in (await chat_rig.http.get(CHATS, params=query)).json()["items"]] == [blue], query
    assert (await chat_rig.http.get(CHATS, params={"q": "title:%"})).json()["items"] == []


@pytest.mark.parametrize("query", ["colour:red", "title:", ":x", "status:sleeping", "archived:maybe"])
async def test_bad_term_of_a_search_is_quoted(chat_rig: ChatRig, query: str) -> None:
    refused = await chat_rig.http.get(CHATS, params={"q": query})

    assert list(fields(refused)) == ["q"]
    assert query in fields(refused)["q"]


async def test_bad_parameters_of_a_list_are_refused_by_name(chat_rig: ChatRig) -> None:
    assert list(fields(await chat_rig.http.get(CHATS, params={"limit": 201}))) == ["limit"]
    assert list(fields(await chat_rig.http.get(CHATS, params={"label": "team"}))) == ["label"]
    assert list(fields(await chat_rig.http.get(CHATS, params={"cursor": "x"}))) == ["cursor"]
    assert list(fields(await chat_rig.http.get(CHATS, params={"sort": "x"}))) == ["sort"]
    assert list(fields(await chat_rig.http.get(f"{CHATS}/nine"))) == ["chat"]


# Changing


async def test_patch_changes_all_that_is_given_and_answers_with_the_chat(chat_rig: ChatRig, model: UUID) -> None:
    chat = await chat_rig.create()

    patched = await chat_rig.http.patch(
        f"{CHATS}/{chat}",
        json={"title": " New ", "labels": {"a": "b"}, "plan_mode": True, "reasoning_effort": "low", "pin_order": 7,
              "model_config_id": str(model), "workspace_id": None, "mcp_server_ids": []},
    )  # fmt: skip

    found = patched.json()
    assert patched.status_code == 200, patched.text
    assert (found["title"], found["labels"], found["plan_mode"], found["pin_order"]) == ("New", {"a": "b"}, True, 1)
    cleared = (await chat_rig.http.patch(f"{CHATS}/{chat}", json={"reasoning_effort": None, "pin_order": 0})).json()
    assert (cleared["last_reasoning_effort"], cleared["pin_order"]) == (None, None)


async def test_patch_with_one_bad_member_changes_nothing(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create("First")

    refused = await chat_rig.http.patch(
        f"{CHATS}/{chat}", json={"title": "Second", "labels": {"!": "x"}, "pin_order": -1}
    )

    assert set(fields(refused)) == {"labels.!", "pin_order"}
    assert (await chat_rig.get(chat))["title"] == "First"


async def test_title_has_1_to_200_characters(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()

    for title, is_good in (("x", True), ("x" * 200, True), ("x" * 201, False), ("  ", False)):
        patched = await chat_rig.http.patch(f"{CHATS}/{chat}", json={"title": title})
        assert patched.status_code == (200 if is_good else 400)


async def test_model_that_is_switched_off_may_stay_and_not_come(rig: ApiRig, chat_rig: ChatRig, model: UUID) -> None:
    chat, other = await chat_rig.create(), await rig.add_model(name="second")
    async with rig.database.api.acquire() as conn:
        await conn.execute("UPDATE model_configs SET enabled = false")
    rig.replica.directory.invalidate()

    kept = await chat_rig.http.patch(f"{CHATS}/{chat}", json={"model_config_id": str(model)})
    refused = await chat_rig.http.patch(f"{CHATS}/{chat}", json={"model_config_id": str(other)})

    assert kept.status_code == 200
    assert list(fields(refused)) == ["model_config_id"]


async def test_archive_and_delete_follow_their_rules(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    path = f"{CHATS}/{chat}"

    busy = await chat_rig.http.patch(path, json={"archived": True})
    await chat_rig.rest(chat)
    early = await chat_rig.http.delete(path)
    archived = await chat_rig.http.patch(path, json={"archived": True})
    twice = await chat_rig.http.patch(path, json={"archived": True})
    deleted = await chat_rig.http.delete(path)

    assert (busy.status_code, busy.json()["code"]) == (409, "chat_busy_cannot_archive")
    assert (early.status_code, early.json()["code"]) == (409, "archive_first")
    assert (archived.status_code, archived.json()["archived"]) == (200, True)
    assert (twice.status_code, twice.json()["code"]) == (400, "already_archived")
    assert deleted.status_code == 204
    assert (await chat_rig.http.get(path)).json()["code"] == "chat_not_found"
    assert await chat_rig.count("chat_messages") == 0


async def test_unarchiving_what_is_not_archived_is_refused(chat_rig: ChatRig) -> None:
    refused = await chat_rig.http.patch(f"{CHATS}/{await chat_rig.waiting()}", json={"archived": False})

    assert (refused.status_code, refused.json()["code"]) == (400, "not_archived")


async def test_read_cursor_only_goes_back_when_it_is_forced(chat_rig: ChatRig) -> None:
    chat = await chat_rig.waiting()
    path = f"{CHATS}/{chat}/read"
    assert (await chat_rig.get(chat))["has_unread"] is True

    await chat_rig.http.post(path, json={"message_id": None})
    assert (await chat_rig.get(chat))["has_unread"] is False
    await chat_rig.http.post(path, json={"message_id": 0})
    assert (await chat_rig.get(chat))["has_unread"] is False
    done = await chat_rig.http.post(path, json={"message_id": 0, "force": True})

    assert done.status_code == 204
    assert (await chat_rig.get(chat))["has_unread"] is True


# Rights


async def test_user_without_access_learns_nothing_from_a_bad_body(chat_rig: ChatRig, ben: Person) -> None:
    chat = await chat_rig.create()

    for method, path in (
        ("PATCH", ""),
        ("POST", "/messages"),
        ("PATCH", "/messages/1"),
        ("POST", "/tool-results"),
        ("POST", "/approvals"),
        ("PUT", "/approval-rules"),
        ("POST", "/queue/1/move"),
        ("PATCH", "/queue/1"),
        ("PATCH", "/acl"),
        ("POST", "/read"),
    ):
        refused = await ben.http.request(method, f"{CHATS}/{chat}{path}", json={"nonsense": 1})
        assert (refused.status_code, refused.json()["code"]) == (404, "chat_not_found"), (method, path)


async def test_reader_reads_and_changes_nothing(chat_rig: ChatRig, ben: Person) -> None:
    chat = await chat_rig.waiting()
    await chat_rig.share(chat, ben)

    for path in ("", "/messages", "/queue", "/prompts"):
        assert (await ben.http.get(f"{CHATS}/{chat}{path}")).status_code == 200, path
    assert (await ben.http.get(f"{CHATS}/{chat}")).json()["my_role"] == "reader"
    for method, path, body in (
        ("PATCH", "", {"title": "mine"}),
        ("PATCH", "", {"title": 1}),
        ("POST", "/messages", {"content": text("x")}),
        ("POST", "/retry", None),
        ("POST", "/compact", None),
        ("POST", "/title/propose", None),
        ("POST", "/title/regenerate", None),
        ("POST", "/tool-results", {"results": [{"tool_call_id": "x", "output": 1}]}),
        ("POST", "/approvals", {"answers": [{"tool_call_id": "x", "decision": "approve"}]}),
        ("PUT", "/approval-rules", {"rules": []}),
        ("DELETE", "/queue", None),
        ("POST", "/queue/1/promote", None),
        ("GET", "/acl", None),
        ("PATCH", "/acl", {"everyone": "read"}),
    ):
        refused = await ben.http.request(method, f"{CHATS}/{chat}{path}", json=body)
        assert (refused.status_code, refused.json()["code"]) == (403, "owner_only"), (method, path, refused.text)
    for method, path, given in (("POST", "/interrupt", None), ("PATCH", "", {"archived": True}), ("DELETE", "", None)):
        refused = await ben.http.request(method, f"{CHATS}/{chat}{path}", json=given)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), (method, path)
    assert (await ben.http.patch(f"{CHATS}/{chat}", json={"pin_order": 1})).status_code == 200
    assert (await ben.http.post(f"{CHATS}/{chat}/read", json={})).status_code == 204


async def test_administrator_stops_a_chat_without_seeing_what_is_in_it(rig: ApiRig, chat_rig: ChatRig) -> None:
    boss = await rig.add("boss", role=Role.ADMIN)
    chat = await chat_rig.create("A secret plan")

    unread = await boss.http.get(f"{CHATS}/{chat}")
    stopped = await boss.http.post(f"{CHATS}/{chat}/interrupt")
    read = await boss.http.get(f"{CHATS}/{chat}", headers={"Rookery-Break-Glass": "looking for a lost invoice"})

    assert (unread.status_code, unread.json()["code"]) == (403, "forbidden")
    assert (stopped.status_code, stopped.json()["status"], stopped.json()["title"]) == (200, "interrupting", "")
    assert (read.status_code, read.json()["title"]) == (200, "A secret plan")


async def test_token_for_reading_may_not_write(rig: ApiRig, chat_rig: ChatRig) -> None:
    reader = rig.client(await rig.token_of(chat_rig.person.user, scopes=frozenset({Scope.CHAT_READ})))
    chat = await chat_rig.create()

    assert (await reader.get(f"{CHATS}/{chat}")).status_code == 200
    for path in (CHATS, f"{CHATS}/{chat}/messages"):
        refused = await reader.post(path, json={"nonsense": 1})
        assert (refused.status_code, refused.json()["code"]) == (403, "scope")


async def test_too_many_new_chats_have_to_wait(rig: ApiRig, chat_rig: ChatRig) -> None:
    async def is_limited() -> bool:
        answer = await chat_rig.http.post(CHATS, json={})
        return answer.status_code == 429 and int(answer.headers["retry-after"]) >= 1

    await until(is_limited)
