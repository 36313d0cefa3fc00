"""Approvals over HTTP: who sees the questions, who answers them, and the effects of an answer."""

from __future__ import annotations

import asyncio
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rookery.domain.access import rights
from rookery.domain.chat import approvals as rules_of_approvals
from rookery.domain.chat import parts
from rookery.domain.chat.approvals import Asked, Offers
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.parts import ToolCall
from rookery.store import machine
from rookery.store.chats import approval_rules
from rookery.store.machine import ChatSpec, Question, Tx
from tests.api.api_rig import ApiRig, Person
from tests.api.chat_rig import CHATS, ChatRig, fields
from tests.api.test_stats import stats_of
from tests.event_loop_turns import matches_by_turn

ARGS: dict[str, object] = {"command": "git push", "model_intent": "push it"}
OFFERS = Offers({"command": "git *"}, {"command": "git push"})
ME = "/api/v1/me/settings"
SETTINGS = "/api/v1/settings/approvals"


@pytest.fixture
async def chat_rig(rig: ApiRig, ada: Person) -> ChatRig:
    await rig.add_model()
    return ChatRig(rig, ada)


@pytest.fixture
async def admin(rig: ApiRig) -> Person:
    return await rig.add("rosa", role=rights.Role.ADMIN)


async def ask(chat_rig: ChatRig, chat: str, *call_ids: str, args: dict[str, object] = ARGS) -> None:
    """Commit the questions about calls that rules hold, as a worker does."""
    content = tuple(ToolCall(each, "execute", args=parts.json_raw(args)) for each in call_ids)

    async def park(tx: Tx) -> None:
        await machine.commit_step(tx, [NewMessage(role=Role.ASSISTANT, content=content)])
        asked = [Question(call, OFFERS) for call in await machine.open_calls.turn_calls(tx)]
        await machine.ask_approvals(tx, asked)

    await chat_rig.act(chat, park)


async def hold(chat_rig: ChatRig, chat: str, *call_ids: str) -> None:
    """Commit the questions about calls that the brake holds, beside one that a rule holds if there are several."""
    content = tuple(ToolCall(each, "execute", args=parts.json_raw(ARGS)) for each in call_ids)

    async def park(tx: Tx) -> None:
        await machine.commit_step(tx, [NewMessage(role=Role.ASSISTANT, content=content)])
        first, *others = await machine.open_calls.turn_calls(tx)
        held = Question(first, Asked(brake="The agent made the same call 5 times."))
        await machine.ask_approvals(tx, [held, *(Question(call, OFFERS) for call in others)])

    await chat_rig.act(chat, park)


async def asking(chat_rig: ChatRig, *call_ids: str) -> str:
    chat = await chat_rig.create()
    await ask(chat_rig, chat, *(call_ids or ("1",)))
    return chat


async def child_of(chat_rig: ChatRig, root: str) -> str:
    """A subagent's chat."""
    model = UUID((await chat_rig.get(root))["last_model_config_id"])
    spec = ChatSpec(
        owner_id=chat_rig.person.id,
        title="A child",
        model_config_id=model,
        messages=(NewMessage(role=Role.USER, content=(parts.Text("go"),)),),
        parent_chat_id=UUID(root),
        root_chat_id=UUID(root),
    )
    made = await chat_rig.rig.replica.machine.bundle(lambda bundle: machine.create_chat(bundle, spec))
    return str(made.chat.id)


def yes(call_id: str = "1", **members: object) -> dict[str, object]:
    return {"tool_call_id": call_id, "decision": "approve", **members}


def no(call_id: str = "1", **members: object) -> dict[str, object]:
    return {"tool_call_id": call_id, "decision": "deny", **members}


async def answer(chat_rig: ChatRig, chat: str, *answers: dict[str, object]) -> tuple[int, str]:
    done = await chat_rig.http.post(f"{CHATS}/{chat}/approvals", json={"answers": list(answers)})
    return done.status_code, "" if done.status_code == 204 else done.json()["code"]


async def test_a_chat_tells_what_it_asks_with_the_exact_arguments(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig)

    seen = await chat_rig.get(chat)

    call = {
        "tool_call_id": "1",
        "tool_name": "execute",
        "args": ARGS,
        "always": {"chat": {"command": "git *"}, "user": {"command": "git push"}},
    }
    assert seen["action"] == {"kind": "approval", "tool_calls": [call], "deadline_at": None}
    assert (seen["status"], seen["needs_user"]) == ("requires_action", "approval")


async def test_a_chat_that_waits_for_its_client_tells_that_and_one_at_work_nothing(chat_rig: ChatRig) -> None:
    client, busy = await chat_rig.get(await chat_rig.asking()), await chat_rig.get(await chat_rig.create())

    assert (client["action"]["kind"], client["needs_user"], busy["action"]) == ("tools", "tools", None)
    assert [sorted(call) for call in client["action"]["tool_calls"]] == [["args", "tool_call_id", "tool_name"]]


async def test_an_approval_lets_the_chat_run_on_with_the_call_still_open(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig)

    assert await answer(chat_rig, chat, yes()) == (204, "")

    seen = await chat_rig.get(chat)
    assert (seen["status"], seen["action"], len(await chat_rig.messages(chat))) == ("running", None, 2)


async def test_a_denial_is_a_result_that_says_why(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig, "1", "2")

    assert await answer(chat_rig, chat, no("2", reason="too early"), yes("1")) == (204, "")

    newest = (await chat_rig.http.get(f"{CHATS}/{chat}/messages", params={"limit": 1})).json()["items"][0]
    part = newest["content"][0]
    assert (part["tool_call_id"], part["is_error"], part["result"]["reason"]) == ("2", True, "denied_by_user")
    assert "too early" in part["result"]["error"]
    assert part["result"]["comment"] == "too early"
    assert dict(stats_of(chat_rig.rig).approvals) == {"deny": 1, "approve": 1}


async def test_open_questions_are_counted_with_the_age_of_the_oldest(chat_rig: ChatRig) -> None:
    first = await asking(chat_rig, "1", "2")
    await asking(chat_rig, "3")
    await answer(chat_rig, first, yes("1", always="chat"), no("2"))
    async with chat_rig.rig.replica.database.api.acquire() as conn:
        found = await approval_rules.count_open(conn)

    assert found.count == 1
    assert 0 <= found.oldest_seconds < 3600


async def test_the_event_loop_goes_on_while_an_answer_becomes_a_rule(
    chat_rig: ChatRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    args: dict[str, object] = {f"a{at}": "a" * 2000 for at in range(16)}
    chat = await chat_rig.create()
    await ask(chat_rig, chat, "1", args=args)
    async with matches_by_turn(monkeypatch) as matches:
        assert await answer(chat_rig, chat, yes(always="chat", match=dict.fromkeys(args, "a*"))) == (204, "")

    assert (matches.total(), max(matches.values())) == (16, 1)


BAD_ANSWERS: tuple[tuple[list[dict[str, object]], str], ...] = (
    ([], "invalid"),
    ([yes("1")], "approval_missing"),
    ([yes("1"), yes("1")], "approval_duplicate"),
    ([yes("1"), yes("2"), yes("3")], "approval_unexpected"),
    ([yes("1"), no("2", always="chat")], "invalid"),
    ([yes("1"), yes("2", match={"command": "x"})], "invalid"),
    ([yes("1"), yes("2", always="user", match={"command": "ls*"})], "invalid"),
    ([yes("1"), {"tool_call_id": "2", "decision": "perhaps"}], "invalid"),
)


async def test_bad_answers_change_nothing(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig, "1", "2")
    for answers, code in BAD_ANSWERS:
        assert await answer(chat_rig, chat, *answers) == (400, code)

        assert (await chat_rig.get(chat))["status"] == "requires_action"
        assert await rules_of(chat_rig, chat) == []


async def test_of_two_answers_at_once_one_is_taken(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig)

    codes = await asyncio.gather(answer(chat_rig, chat, yes()), answer(chat_rig, chat, no()))

    assert sorted(codes) == [(204, ""), (409, "not_waiting_for_approval")]


async def test_answers_and_results_do_not_stand_in_for_each_other(chat_rig: ChatRig) -> None:
    asked, client = await asking(chat_rig), await chat_rig.asking()

    results = {"results": [{"tool_call_id": "1", "output": 1}]}
    refused = await chat_rig.http.post(f"{CHATS}/{asked}/tool-results", json=results)

    assert (refused.status_code, refused.json()["code"]) == (409, "not_waiting_for_results")
    assert await answer(chat_rig, client, yes("call-1")) == (409, "not_waiting_for_approval")


async def test_an_interrupt_closes_the_question(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig)

    stopped = await chat_rig.http.post(f"{CHATS}/{chat}/interrupt")

    assert (stopped.status_code, stopped.json()["status"]) == (200, "waiting")
    assert await answer(chat_rig, chat, yes()) == (409, "not_waiting_for_approval")
    assert await chat_rig.count("chat_approvals") == 0


# Effects of an answer


async def rules_of(chat_rig: ChatRig, chat: str) -> list[dict[str, Any]]:
    found = await chat_rig.http.get(f"{CHATS}/{chat}/approval-rules")
    assert found.status_code == 200, found.text
    rules: list[dict[str, Any]] = found.json()["rules"]
    return rules


def always(**match: str) -> dict[str, Any]:
    return {"tool": "execute", "action": "always", "match": match, "reason": ""}


async def test_always_in_this_chat_becomes_a_rule_of_the_chat(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig)

    await answer(chat_rig, chat, yes(always="chat"))

    assert await rules_of(chat_rig, chat) == [always(command="git *")]


async def test_always_for_a_pattern_becomes_a_rule_of_the_user(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig)

    await answer(chat_rig, chat, yes(always="user", match={"command": "git push*"}))

    assert (await chat_rig.http.get(ME)).json()["approval_rules"] == [always(command="git push*")]
    assert await rules_of(chat_rig, chat) == []


async def test_the_same_answer_twice_is_one_rule(chat_rig: ChatRig) -> None:
    chat = await asking(chat_rig)
    await answer(chat_rig, chat, yes(always="user"))
    await ask(chat_rig, chat, "2")

    await answer(chat_rig, chat, yes("2", always="user"))

    assert (await chat_rig.http.get(ME)).json()["approval_rules"] == [always(command="git push")]


async def test_always_is_refused_where_administrators_want_each_call_asked(chat_rig: ChatRig, admin: Person) -> None:
    chat = await asking(chat_rig)
    done = await admin.http.put(SETTINGS, json={"allow_always": False})
    assert done.status_code == 200, done.text

    assert await answer(chat_rig, chat, yes(always="chat")) == (403, "disabled")

    assert (await chat_rig.get(chat))["status"] == "requires_action"


async def test_answers_are_in_the_audit_log_without_arguments(chat_rig: ChatRig, admin: Person) -> None:
    chat = await asking(chat_rig)

    await answer(chat_rig, chat, yes(always="chat"))

    log = (await admin.http.get("/api/v1/audit", params={"action": "approval.answer"})).json()["items"]
    assert [(entry["resource_id"], entry["diff"]) for entry in log] == [(chat, {"1": "approve, always (chat)"})]


# Subagents


async def test_a_question_of_a_subagent_is_shown_at_its_root_and_answered_there_where_it_is(chat_rig: ChatRig) -> None:
    root = await chat_rig.create()
    child = await child_of(chat_rig, root)
    await ask(chat_rig, child, "1")

    listed = (await chat_rig.http.get(CHATS)).json()["items"][0]
    done = await answer(chat_rig, child, yes(always="chat"))

    assert (listed["id"], listed["status"], listed["needs_user"]) == (root, "running", "approval")
    assert done == (204, "")
    assert await rules_of(chat_rig, root) == await rules_of(chat_rig, child) == [always(command="git *")]
    assert (await chat_rig.http.get(CHATS)).json()["items"][0]["needs_user"] is None


async def test_rules_of_a_subagent_are_those_of_its_root(chat_rig: ChatRig) -> None:
    child = await child_of(chat_rig, await chat_rig.create())

    refused = await chat_rig.http.put(f"{CHATS}/{child}/approval-rules", json={"rules": []})

    assert (refused.status_code, refused.json()["code"]) == (400, "not_root_chat")


# Rules


DENY = {"tool": "execute", "action": "deny", "match": {"command": "rm *"}, "reason": "no"}


async def test_rules_of_a_chat_are_replaced_as_a_whole(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()

    first = await chat_rig.http.put(f"{CHATS}/{chat}/approval-rules", json={"rules": [DENY, DENY]})
    second = await chat_rig.http.put(f"{CHATS}/{chat}/approval-rules", json={"rules": [DENY]})

    assert (first.status_code, second.json(), await rules_of(chat_rig, chat)) == (200, {"rules": [DENY]}, [DENY])


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        ({"action": "deny"}, "rules[0].tool"),
        ({"tool": "x", "action": "maybe"}, "rules[0].action"),
        ({"tool": "", "action": "deny"}, "rules[0].tool"),
        ({"tool": "x", "action": "deny", "match": {"command": "x" * 2001}}, "rules[0].match.command"),
        ({"tool": "x", "action": "deny", "unless": {}}, "rules[0].unless"),
    ],
)
async def test_bad_rules_are_told_by_place(chat_rig: ChatRig, rule: dict[str, object], field: str) -> None:
    chat = await chat_rig.create()

    refused = await chat_rig.http.put(f"{CHATS}/{chat}/approval-rules", json={"rules": [rule]})

    assert list(fields(refused)) == [field]


async def test_users_and_administrators_keep_rules_of_their_own(chat_rig: ChatRig, admin: Person) -> None:
    own = await chat_rig.http.patch(ME, json={"approval_rules": [DENY]})
    theirs = await admin.http.put(SETTINGS, json={"rules": [{"tool": "*", "action": "ask"}], "default": "ask"})
    seen = (await chat_rig.http.get("/api/v1/settings/approvals")).json()["values"]
    cleared = await chat_rig.http.patch(ME, json={"approval_rules": None})

    assert own.json()["approval_rules"] == [DENY], own.text
    assert theirs.status_code == 200, theirs.text
    assert seen["rules"] == [{"tool": "*", "action": "ask", "match": {}, "reason": ""}]
    assert (seen["default"], seen["timeout_seconds"], seen["allow_always"]) == ("ask", 0, True)
    assert cleared.json()["approval_rules"] == []


async def test_characters_that_cannot_be_stored_are_replaced_in_rules(chat_rig: ChatRig, rig: ApiRig) -> None:
    chat = await chat_rig.create()

    kept = await chat_rig.http.put(
        f"{CHATS}/{chat}/approval-rules", json={"rules": [{"tool": "x\0", "action": "deny", "match": {"a": "\0"}}]}
    )

    assert kept.json()["rules"][0] | {"reason": ""} == {
        "tool": "x\ufffd",
        "action": "deny",
        "match": {"a": "\ufffd"},
        "reason": "",
    }


WILD = {"tool": "execute", "match": {"command": "*a" * 17}, "action": "deny"}
LONG = {"tool": "execute", "match": {"command": "a" * 257}, "action": "allow"}
FORMLESS = {"tool": "mcp:docs", "action": "allow"}


@pytest.mark.parametrize(
    ("rule", "field"),
    [
        (WILD, "match.command"),
        (LONG, "match.command"),
        (FORMLESS, "tool"),
        ({"tool": "?" * 17, "action": "ask"}, "tool"),
    ],
)
async def test_a_rule_over_the_bounds_is_refused_wherever_rules_are_kept(
    chat_rig: ChatRig, admin: Person, rule: dict[str, object], field: str
) -> None:
    chat, good = await chat_rig.create(), {"tool": "execute", "action": "ask"}
    for name, refused in (
        ("rules", await chat_rig.http.put(f"{CHATS}/{chat}/approval-rules", json={"rules": [good, rule]})),
        ("approval_rules", await chat_rig.http.patch(ME, json={"approval_rules": [good, rule]})),
        ("rules", await admin.http.put(SETTINGS, json={"rules": [good, rule]})),
    ):
        assert refused.status_code == 400, refused.text
        assert list(fields(refused)) == [f"{name}[1].{field}"]


async def test_stored_rules_over_the_bounds_are_shown_with_what_is_wrong_and_new_ones_can_be_added(
    chat_rig: ChatRig, rig: ApiRig
) -> None:
    chat = await asking(chat_rig)
    stored = [{"tool": "execute", "match": {"command": "*a" * 300}, "action": "deny"}]
    await rig.database.api.execute(
        "INSERT INTO chat_approval_rules (chat_id, rules) VALUES ($1, $2)",
        UUID(chat),
        msgspec.json.encode(stored).decode(),
    )

    shown = (await chat_rig.http.get(f"{CHATS}/{chat}/approval-rules")).json()["rules"]
    answered = await answer(chat_rig, chat, yes(always="chat"))
    after = (await chat_rig.http.get(f"{CHATS}/{chat}/approval-rules")).json()["rules"]
    back = await chat_rig.http.put(f"{CHATS}/{chat}/approval-rules", json={"rules": after})

    assert shown[0]["problem"].startswith("match.command: A pattern can have at most ")
    assert answered[0] == 204
    assert ["problem" in rule for rule in after] == [True, False]
    assert back.status_code == 400
    kept = await chat_rig.http.put(f"{CHATS}/{chat}/approval-rules", json={"rules": [{**after[1], "problem": None}]})
    assert kept.status_code == 200


async def test_always_for_a_call_longer_than_a_pattern_says_what_to_do_instead(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    args = {"command": "x" * 300}
    content = (ToolCall("1", "execute", args=parts.json_raw(args)),)

    async def park(tx: Tx) -> None:
        await machine.commit_step(tx, [NewMessage(role=Role.ASSISTANT, content=content)])
        offers = rules_of_approvals.offers(None, ("execute",), args)
        await machine.ask_approvals(tx, [Question(call, offers) for call in await machine.open_calls.turn_calls(tx)])

    await chat_rig.act(chat, park)

    refused = await chat_rig.http.post(f"{CHATS}/{chat}/approvals", json={"answers": [yes(always="user")]})
    assert refused.status_code == 400
    assert "Approve it once" in fields(refused)["answers.match"]
    assert (await answer(chat_rig, chat, yes(always="user", match={"command": "xxx*"})))[0] == 204


@pytest.mark.parametrize(
    "parameters", [{}, {"folder": "/etc"}, "text", [1], {f"p{number}": 1 for number in range(101)}]
)
async def test_parameters_are_only_for_calls_that_create_a_workspace(chat_rig: ChatRig, parameters: object) -> None:
    chat = await asking(chat_rig)

    assert await answer(chat_rig, chat, yes(parameters=parameters)) == (400, "invalid")
    assert (await chat_rig.get(chat))["status"] == "requires_action"


# Calls that the brake holds


async def test_a_call_on_hold_says_why_and_offers_no_rule(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    await hold(chat_rig, chat, "1", "2")

    held, ruled = (await chat_rig.get(chat))["action"]["tool_calls"]

    assert (held["brake"], "always" in held) == ("The agent made the same call 5 times.", False)
    assert (ruled["always"]["user"], "brake" in ruled) == ({"command": "git push"}, False)


@pytest.mark.parametrize("members", [{"always": "chat"}, {"always": "user", "match": {"command": "git *"}}])
async def test_a_call_on_hold_cannot_be_answered_with_always(chat_rig: ChatRig, members: dict[str, object]) -> None:
    chat = await chat_rig.create()
    await hold(chat_rig, chat, "1")

    body = {"answers": [{**yes(), **members}]}
    refused = await chat_rig.http.post(f"{CHATS}/{chat}/approvals", json=body)

    assert refused.status_code == 400
    assert "on hold because it repeats" in refused.text
    assert (await chat_rig.get(chat))["status"] == "requires_action"
    assert await answer(chat_rig, chat, yes()) == (204, "")
    assert (await chat_rig.get(chat))["status"] == "running"


async def test_a_call_on_hold_that_is_denied_tells_the_model_the_instruction(chat_rig: ChatRig) -> None:
    chat = await chat_rig.create()
    await hold(chat_rig, chat, "1", "2")

    assert await answer(chat_rig, chat, no(reason="Use make."), no("2", reason="Not now.")) == (204, "")

    told = [
        part["result"]["error"]
        for message in (await chat_rig.http.get(f"{CHATS}/{chat}/messages")).json()["items"]
        for part in message["content"]
        if part["type"] == "tool-result"
    ]
    held, denied = sorted(told, key=lambda text: "Use make." not in text)
    assert held.endswith("because it repeats without a new result; it was not run. The user tells you: Use make.")
    assert denied.startswith("The user denied this call")
    assert "Not now." in denied
