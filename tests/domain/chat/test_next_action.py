"""The table of decisions, row by row, and properties of decisions for every history."""

from __future__ import annotations

from datetime import datetime
from uuid import UUID

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import compaction, history
from rookery.domain.chat import next_action as chat_decision
from rookery.domain.chat.chat import Chat, LastError
from rookery.domain.chat.compaction import Assessment, Source
from rookery.domain.chat.messages import Role, StepFigures, Visibility
from rookery.domain.chat.next_action import (
    Compact,
    Decision,
    EnterRequiresAction,
    ExecuteTools,
    FailTurn,
    FinishTurn,
    Generate,
    Rules,
    TurnEnd,
)
from rookery.domain.chat.open_tool_calls import OpenCall
from rookery.domain.chat.parts import Part, Text, ToolCall, ToolResult
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.chat.system_blocks import Mode
from tests.domain.chat.prompt_rows import AT, CHAT, assistant, boundary, call, hook, result, row, system, tool, user

PLAIN = Chat(
    id=CHAT,
    owner_id=UUID(int=2),
    parent_chat_id=None,
    root_chat_id=None,
    status="running",
    archived=False,
    worker_id=None,
    runner_id=None,
    last_error=None,
    retry_state=None,
    requires_action_deadline_at=None,
    compaction_requested_at=None,
    compaction_resume=False,
    runnable_since=None,
    snapshot_version=1,
    history_version=1,
    queue_version=0,
    retry_state_version=0,
    generation_attempt=0,
    queue_len=0,
    last_model_config_id=UUID(int=11),
    last_reasoning_effort=None,
    created_at=AT,
    updated_at=AT,
    leased=True,
)
RULES = Rules(
    dynamic_tools=frozenset({"show_map", "ask_client"}),
    exclusive_tools=frozenset({"advisor"}),
    stop_after_tools=frozenset({"propose_plan"}),
)
LIMIT = 1000
PAUSED = StepFigures(finish_reason="pause")

ASKED = msgspec.structs.replace(PLAIN, compaction_requested_at=AT, compaction_resume=True)
ASKED_AT_REST = msgspec.structs.replace(PLAIN, compaction_requested_at=AT, compaction_resume=False)

COMPLETE = FinishTurn(TurnEnd.COMPLETE)
TOO_FULL = FailTurn(LastError(kind="config", message=compaction.STILL_OVER_LIMIT, retryable=False))


def assess(rows: list[PromptRow], *, threshold: int = 70, limit: int | None = LIMIT) -> Assessment:
    """Assess these rows as the worker does: the prompt has the system rows, the boundary and later rows."""
    newest = max((each.message.id for each in rows if _is_boundary(each)), default=0)
    prompt = [each for each in rows if _is_in_prompt(each, newest)]
    return compaction.assess(prompt, files={}, threshold_percent=threshold, limit_tokens=limit)


def _is_boundary(each: PromptRow) -> bool:
    message = each.message
    return message.compressed and message.visibility is Visibility.MODEL and not message.deleted


def _is_in_prompt(each: PromptRow, newest_boundary: int) -> bool:
    message = each.message
    if message.deleted or message.visibility is Visibility.USER:
        return False
    if message.id == newest_boundary:
        return True
    return not message.compressed and (message.role is Role.SYSTEM or message.id > newest_boundary)


def next_decision(
    rows: list[PromptRow],
    *,
    chat: Chat = PLAIN,
    rules: Rules = RULES,
    threshold: int = 70,
    limit: int | None = LIMIT,
    is_refused: bool = False,
) -> Decision:
    return chat_decision.decide(
        chat,
        history.read(rows),
        rules=rules,
        assessment=assess(rows, threshold=threshold, limit=limit),
        is_refused=is_refused,
    )


def counted(message_id: int, *content: Part | str, tokens: int) -> PromptRow:
    return assistant(message_id, *content, figures=StepFigures(context_tokens=tokens))


def silence(message_id: int) -> PromptRow:
    """Return a user row with too little text for one token."""
    return row(message_id, Role.USER, "[]", config=None)


def local(call_id: str) -> ToolCall:
    return call(call_id, name="run")


def dynamic(call_id: str) -> ToolCall:
    return call(call_id, name="show_map")


def opened(message_id: int, *calls: ToolCall) -> tuple[OpenCall, ...]:
    return tuple(OpenCall(message_id, each.tool_call_id, each.tool_name) for each in calls)


# Rows 1 and 2: open calls

LOCAL, DYNAMIC, OTHER = local("l"), dynamic("d"), call("o", name="web")
ADVISOR, ASK = call("a", name="advisor"), call("e", name="ask_client")


@pytest.mark.parametrize(
    ("answer", "decision"),
    [
        ((LOCAL,), ExecuteTools(opened(2, LOCAL))),
        ((LOCAL, OTHER), ExecuteTools(opened(2, LOCAL, OTHER))),
        ((OTHER, "text", LOCAL), ExecuteTools(opened(2, OTHER, LOCAL))),
        ((LOCAL, DYNAMIC, OTHER), ExecuteTools(opened(2, LOCAL, OTHER))),
        ((DYNAMIC,), EnterRequiresAction(opened(2, DYNAMIC))),
        ((DYNAMIC, ASK), EnterRequiresAction(opened(2, DYNAMIC, ASK))),
        ((ADVISOR,), ExecuteTools(opened(2, ADVISOR))),
        ((ADVISOR, LOCAL), ExecuteTools(opened(2, ADVISOR, LOCAL))),
        ((DYNAMIC, ADVISOR), ExecuteTools(opened(2, DYNAMIC, ADVISOR))),
        ((LOCAL, DYNAMIC, ADVISOR), ExecuteTools(opened(2, LOCAL, DYNAMIC, ADVISOR))),
    ],
)
def test_open_calls_decide_first(answer: tuple[Part | str, ...], decision: Decision) -> None:
    assert next_decision([user(1, "go"), assistant(2, *answer)]) == decision


def test_dynamic_calls_wait_until_the_local_ones_of_their_batch_are_answered() -> None:
    rows = [user(1, "go"), assistant(2, LOCAL, DYNAMIC)]

    assert next_decision(rows) == ExecuteTools(opened(2, LOCAL))
    assert next_decision([*rows, tool(3, result("l"))]) == EnterRequiresAction(opened(2, DYNAMIC))
    assert next_decision([*rows, tool(3, result("l")), tool(4, result("d"))]) == Generate()


def test_batch_that_was_rejected_as_a_whole_leaves_nothing_to_wait_for() -> None:
    rejected = [tool(3, result("a")), tool(4, result("d"))]

    assert next_decision([user(1, "go"), assistant(2, ADVISOR, DYNAMIC), *rejected]) == Generate()


def test_declared_tool_that_is_not_offered_now_is_answered_here() -> None:
    """In plan mode the client's tools are dropped: a call gets an error and does not wait for the client."""
    rules = Rules(dynamic_tools=frozenset())

    assert next_decision([user(1, "go"), assistant(2, DYNAMIC)], rules=rules) == ExecuteTools(opened(2, DYNAMIC))


def test_call_is_found_although_an_attachment_follows_its_message() -> None:
    rows = [user(1, "go"), assistant(2, LOCAL), assistant(3, "a picture")]

    assert next_decision(rows) == ExecuteTools(opened(2, LOCAL))


def test_call_that_the_provider_executes_is_never_open() -> None:
    searched = ToolCall("s", "web_search", provider_executed=True)

    assert next_decision([user(1, "go"), assistant(2, searched, "found it")]) == COMPLETE


@pytest.mark.parametrize("chat", [ASKED, ASKED_AT_REST])
@pytest.mark.parametrize(
    ("answer", "decision"),
    [(LOCAL, ExecuteTools(opened(2, LOCAL))), (DYNAMIC, EnterRequiresAction(opened(2, DYNAMIC)))],
)
def test_open_calls_come_before_a_summary_that_was_asked_for(chat: Chat, answer: Part, decision: Decision) -> None:
    assert next_decision([user(1, "go"), assistant(2, answer)], chat=chat) == decision


def test_open_calls_come_before_all_limits() -> None:
    rows = [user(1, "go"), counted(2, LOCAL, tokens=5000)]

    assert next_decision(rows, rules=Rules(max_steps=1)) == ExecuteTools(opened(2, LOCAL))


# Row 3: a summary that somebody asked for


@pytest.mark.parametrize(
    "rows",
    [
        [user(1, "go"), assistant(2, "done")],
        [user(1, "go"), assistant(2, LOCAL), tool(3, result("l"))],
        [user(1, "go"), assistant(2, "done"), user(3, "more")],
        [boundary(1, "summary"), user(4, "go"), assistant(5, "done")],
        [user(1, "go"), assistant(2, call("p", name="propose_plan")), tool(3, result("p", name="propose_plan"))],
    ],
    ids=["finished", "unfinished", "unanswered", "second summary", "stopped after a tool"],
)
@pytest.mark.parametrize("threshold", [0, 70, 100])
def test_summary_that_was_asked_for_needs_no_threshold(rows: list[PromptRow], threshold: int) -> None:
    assert next_decision(rows, chat=ASKED, threshold=threshold, limit=None) == Compact(Source.MANUAL)
    assert next_decision(rows, chat=ASKED_AT_REST, threshold=threshold) == Compact(Source.MANUAL, resume=False)


def test_summary_that_was_asked_for_comes_before_the_step_limit() -> None:
    rows = [user(1, "go"), assistant(2, LOCAL), tool(3, result("l"))]

    assert next_decision(rows, chat=ASKED, rules=Rules(max_steps=1)) == Compact(Source.MANUAL)


@pytest.mark.parametrize(
    ("rows", "decision"),
    [
        ([user(1, "go")], Generate()),
        ([boundary(1, "summary")], Generate()),
        ([user(1, "go"), assistant(2, "done"), boundary(3, "summary")], COMPLETE),
        ([user(1, "go"), assistant(2, LOCAL), tool(3, result("l")), boundary(4, "summary")], Generate()),
    ],
)
def test_order_to_compact_is_ignored_when_there_is_nothing(rows: list[PromptRow], decision: Decision) -> None:
    assert next_decision(rows, chat=ASKED) == decision


# Row 4: tools that end the turn


def planned(*, is_error: bool = False) -> list[PromptRow]:
    proposed = ToolResult("p", "propose_plan", is_error=is_error)
    return [user(1, "go"), assistant(2, call("p", name="propose_plan"), LOCAL), tool(3, proposed), tool(4, result("l"))]


def test_success_of_a_tool_that_ends_turns_ends_the_turn() -> None:
    assert next_decision(planned()) == FinishTurn(TurnEnd.STOP_AFTER_TOOL)


def test_tool_that_ends_turns_is_the_reason_even_if_the_model_spoke_after_it() -> None:
    assert next_decision([*planned(), assistant(5, "there you are")]) == FinishTurn(TurnEnd.STOP_AFTER_TOOL)


def test_failure_of_a_tool_that_ends_turns_does_not() -> None:
    assert next_decision(planned(is_error=True)) == Generate()


def test_siblings_of_a_tool_that_ends_turns_still_run() -> None:
    assert next_decision(planned()[:3]) == ExecuteTools(opened(2, LOCAL))


def test_tool_ends_only_the_turn_it_ran_in() -> None:
    assert next_decision([*planned(), user(5, "no, differently")]) == Generate()


@pytest.mark.parametrize(
    ("mode", "is_root", "names"),
    [
        (Mode.PLAN, True, {"propose_plan", "ask_user_question"}),
        (Mode.PLAN, False, {"propose_plan"}),
        (Mode.EXPLORE, True, set()),
        (Mode.EXPLORE, False, set()),
        (Mode.NORMAL, True, set()),
        (Mode.NORMAL, False, set()),
    ],
)
def test_only_plan_turns_have_tools_that_end_them(mode: Mode, is_root: bool, names: set[str]) -> None:
    assert chat_decision.stop_after_tools(mode, is_root=is_root) == names


# Row 5: the model has finished


def test_answer_without_calls_finishes_the_turn() -> None:
    assert next_decision([user(1, "go"), assistant(2, "done")]) == COMPLETE


@pytest.mark.parametrize("context", [hook(3, "psst"), row(3, Role.SYSTEM, (Text("note"),), visibility=Visibility.USER)])
def test_row_that_is_nobodys_turn_does_not_restart_the_model(context: PromptRow) -> None:
    assert next_decision([user(1, "go"), assistant(2, "done"), context]) == COMPLETE


def test_unreadable_answer_counts_as_an_answer() -> None:
    assert next_decision([user(1, "go"), row(2, Role.ASSISTANT, "[{")]) == COMPLETE


def test_finished_turn_is_never_compacted_unasked() -> None:
    assert next_decision([user(1, "go"), counted(2, "done", tokens=5000)]) == COMPLETE


def test_turn_that_finished_right_at_its_step_limit_is_complete() -> None:
    assert next_decision([user(1, "go"), assistant(2, "done")], rules=Rules(max_steps=1)) == COMPLETE


def paused(count: int) -> list[PromptRow]:
    return [user(1, "go"), *(assistant(2 + place, "searching", figures=PAUSED) for place in range(count))]


@pytest.mark.parametrize(("count", "decision"), [(1, Generate()), (10, Generate()), (11, COMPLETE)])
def test_paused_answer_goes_on_ten_times(count: int, decision: Decision) -> None:
    assert next_decision(paused(count)) == decision


def test_pauses_of_an_earlier_turn_are_forgotten() -> None:
    rows = [*paused(11), user(20, "more"), assistant(21, "searching", figures=PAUSED)]

    assert next_decision(rows) == Generate()


def test_paused_answer_with_an_open_call_waits_for_its_result() -> None:
    rows = [user(1, "go"), assistant(2, LOCAL, figures=PAUSED)]

    assert next_decision(rows) == ExecuteTools(opened(2, LOCAL))


# Row 6: the step limit


def steps(count: int) -> list[PromptRow]:
    rows = [user(1, "go")]
    for place in range(count):
        rows += [assistant(2 + 2 * place, local(f"c{place}")), tool(3 + 2 * place, result(f"c{place}"))]
    return rows


@pytest.mark.parametrize(
    ("count", "limit", "is_over"), [(2, 3, False), (3, 3, True), (4, 3, True), (3, 0, False), (3, -1, False)]
)
def test_turn_ends_at_its_step_limit(count: int, limit: int, is_over: bool) -> None:
    decision = next_decision(steps(count), rules=Rules(max_steps=limit))

    assert (decision == FinishTurn(TurnEnd.MAX_STEPS)) is is_over
    assert isinstance(decision, FinishTurn | Generate)


def test_steps_before_a_summary_of_the_same_turn_count() -> None:
    rows = [*steps(3), boundary(20, "summary")]

    assert next_decision(rows, rules=Rules(max_steps=3)) == FinishTurn(TurnEnd.MAX_STEPS)


def test_step_limit_comes_before_compaction() -> None:
    rows = [user(1, "go"), counted(2, LOCAL, tokens=5000), tool(3, result("l"))]

    assert next_decision(rows, rules=Rules(max_steps=1)) == FinishTurn(TurnEnd.MAX_STEPS)


@pytest.mark.parametrize(
    ("done", "limit", "is_told"),
    [(1079, 1200, False), (1080, 1200, True), (1199, 1200, True), (8, 10, False), (9, 10, True), (9999, 0, False)],
)
def test_model_is_told_when_nine_tenths_of_its_steps_are_used(done: int, limit: int, is_told: bool) -> None:
    notice = chat_decision.step_notice(done, limit)

    assert (notice is not None) is is_told
    assert notice is None or str(limit) in notice


def test_notice_goes_with_the_decision_and_stays_the_same() -> None:
    rules = Rules(max_steps=20)

    notices = [next_decision(steps(count), rules=rules) for count in (17, 18, 19)]

    assert notices[0] == Generate()
    assert notices[1] == notices[2] == Generate(chat_decision.step_notice(18, 20))


def test_people_are_told_how_to_go_on_after_the_limit() -> None:
    assert chat_decision.step_limit_notice(1200) == (
        "The turn was stopped at its limit of 1200 steps. Send a message to continue."
    )


# Rows 7 to 9: compaction, or generation


@pytest.mark.parametrize(
    ("rows", "decision"),
    [
        ([user(1, "go")], Generate()),
        ([counted(1, "hi", tokens=699), silence(2)], Generate()),
        ([counted(1, "hi", tokens=700), silence(2)], Compact(Source.AUTOMATIC)),
        ([boundary(1, "summary"), user(4, "go")], Generate()),
        ([boundary(1, "summary")], Generate()),
        ([boundary(1, "summary"), counted(4, "hi", tokens=300), user(5, "go")], Generate()),
        ([boundary(1, "summary"), counted(4, "hi", tokens=699), user(5, "go" * 99)], Compact(Source.AUTOMATIC)),
        ([boundary(1, "summary"), counted(4, "hi", tokens=700), user(5, "go")], Generate()),
        ([boundary(1, "summary"), counted(4, "hi", tokens=950), user(5, "go")], TOO_FULL),
    ],
    ids=[
        "nothing counted",
        "below the threshold",
        "at the threshold",
        "only a user message after the summary",
        "right after the summary",
        "summary helped",
        "full again",
        "still over the threshold, with room",
        "still over the limit",
    ],
)
def test_full_context_is_compacted_before_the_next_request(rows: list[PromptRow], decision: Decision) -> None:
    assert next_decision(rows) == decision


@pytest.mark.parametrize(
    ("figures", "is_over"),
    [
        (StepFigures(input_tokens=10, cache_read_tokens=680, cache_write_tokens=9), False),
        (StepFigures(input_tokens=10, cache_read_tokens=680, cache_write_tokens=10), True),
        (StepFigures(input_tokens=700), True),
        (StepFigures(total_tokens=700), True),
        (StepFigures(output_tokens=9000), False),
        # What the last pass read, not what all passes were billed.
        (StepFigures(context_tokens=100, input_tokens=9000), False),
    ],
)
def test_cached_tokens_fill_the_context_too(figures: StepFigures, is_over: bool) -> None:
    rows = [assistant(1, "hi", figures=figures), silence(2)]

    assert isinstance(next_decision(rows), Compact) is is_over


def test_huge_tool_result_is_noticed_before_it_is_sent() -> None:
    rows = [user(1, "go"), counted(2, LOCAL, tokens=100), tool(3, result("l", "x" * 1800))]

    assert next_decision(rows) == Compact(Source.AUTOMATIC)


@pytest.mark.parametrize(("threshold", "limit"), [(100, LIMIT), (70, None), (70, 0)])
def test_compaction_can_be_off(threshold: int, limit: int | None) -> None:
    rows = [counted(1, "hi", tokens=5000), user(2, "go")]

    assert next_decision(rows, threshold=threshold, limit=limit) == Generate()


def test_turn_goes_on_after_its_own_summary() -> None:
    rows = [user(1, "go"), counted(2, LOCAL, tokens=5000), tool(3, result("l"))]

    assert next_decision(rows) == Compact(Source.AUTOMATIC)
    assert next_decision([*rows, boundary(4, "summary")]) == Generate()


# A prompt that was refused as too long


def compacted(first_id: int, source: Source) -> list[PromptRow]:
    asked = call("s", {"source": str(source), "threshold_percent": 70}, name=compaction.TOOL_NAME)
    return [
        boundary(first_id, "summary"),
        row(first_id + 1, Role.ASSISTANT, (asked,), visibility=Visibility.USER, compressed=True),
    ]


STEP = [assistant(20, LOCAL), tool(21, result("l"))]


@pytest.mark.parametrize(
    ("rows", "decision"),
    [
        ([user(1, "go")], Compact(Source.OVERFLOW)),
        ([user(1, "go"), *STEP], Compact(Source.OVERFLOW)),
        ([user(1, "go"), *compacted(2, Source.OVERFLOW)], Compact(Source.OVERFLOW)),
        ([user(1, "go"), *(row for _ in range(7) for row in compacted(2, Source.OVERFLOW))], Compact(Source.OVERFLOW)),
        (
            [user(1, "go"), *(row for _ in range(8) for row in compacted(2, Source.OVERFLOW))],
            FailTurn(chat_decision.TOO_LONG),
        ),
        ([user(1, "go"), *(row for _ in range(9) for row in compacted(2, Source.AUTOMATIC))], Compact(Source.OVERFLOW)),
        (
            [*(row for _ in range(8) for row in compacted(2, Source.OVERFLOW)), user(90, "more")],
            Compact(Source.OVERFLOW),
        ),
    ],
    ids=[
        "a message alone",
        "a step to compact",
        "a second time",
        "an eighth time",
        "a ninth time",
        "after automatic summaries",
        "overflows of the turn before",
    ],
)
def test_request_that_was_refused_as_too_long_is_made_shorter_eight_times_a_turn(
    rows: list[PromptRow], decision: Decision
) -> None:
    assert next_decision(rows, is_refused=True) == decision


def test_refused_history_never_leads_to_the_same_request() -> None:
    assert next_decision([user(1, "go")]) == Generate()
    assert not isinstance(next_decision([user(1, "go")], is_refused=True), Generate)


# An answer without content


@pytest.mark.parametrize(
    ("rows", "attempt", "is_final"),
    [
        ([user(1, "go")], 1, False),
        ([user(1, "go")], 2, False),
        ([user(1, "go")], 3, True),
        ([user(1, "go"), hook(2, "psst")], 1, False),
        ([user(1, "go"), *STEP], 1, True),
        (paused(1), 1, True),
    ],
)
def test_empty_answer_to_the_user_is_asked_for_again(rows: list[PromptRow], attempt: int, is_final: bool) -> None:
    assert chat_decision.is_empty_answer_final(history.read(rows), attempt) is is_final


# What holds for every history

_NAMES = st.sampled_from(["run", "show_map", "advisor", "propose_plan"])
_IDS = st.sampled_from("abcd")
_contents = st.lists(
    st.one_of(
        st.builds(ToolCall, _IDS, _NAMES, provider_executed=st.booleans()),
        st.builds(ToolResult, _IDS, _NAMES, is_error=st.booleans()),
        st.just(Text("words")),
    ),
    max_size=3,
)
_figures = st.builds(
    StepFigures,
    context_tokens=st.one_of(st.none(), st.integers(0, 2000)),
    finish_reason=st.sampled_from([None, "stop", "pause"]),
)


@st.composite
def _rows(draw: st.DrawFn, *, max_size: int = 10) -> list[PromptRow]:
    """Generate any rows: every role, visibility and flag, readable or not."""
    drawn = []
    for place in range(draw(st.integers(0, max_size))):
        role = draw(st.sampled_from(Role))
        made = row(
            10 * (place + 1),
            role,
            draw(st.one_of(_contents, st.just("[{"))),
            visibility=draw(st.sampled_from(Visibility)),
            compressed=draw(st.booleans()),
            figures=draw(_figures) if role is Role.ASSISTANT else None,
        )
        drawn.append(_marked(made, deleted=draw(st.booleans())))
    return drawn


def _marked(each: PromptRow, *, deleted: bool) -> PromptRow:
    return msgspec.structs.replace(each, message=msgspec.structs.replace(each.message, deleted=deleted))


def _chat(requested_at: datetime | None, resume: bool) -> Chat:
    return msgspec.structs.replace(PLAIN, compaction_requested_at=requested_at, compaction_resume=resume)


_chats = st.builds(_chat, st.sampled_from([None, AT]), st.booleans())
_rules = st.builds(
    Rules,
    dynamic_tools=st.sampled_from([frozenset(), RULES.dynamic_tools]),
    exclusive_tools=st.just(RULES.exclusive_tools),
    stop_after_tools=st.sampled_from([frozenset(), RULES.stop_after_tools]),
    max_steps=st.integers(0, 4),
)
_thresholds = st.sampled_from([0, 70, 100])


def _last_live(rows: list[PromptRow]) -> PromptRow | None:
    """Return the newest row of a user or an assistant, computed without the code under test."""
    spoken = [
        each
        for each in rows
        if not (each.message.deleted or each.message.compressed or each.message.role is Role.SYSTEM)
        and not (each.message.role is Role.USER and each.message.visibility is Visibility.MODEL)
    ]
    return spoken[-1] if spoken else None


@given(_rows(), _chats, _rules, _thresholds)
def test_every_history_has_one_decision_and_always_the_same(
    rows: list[PromptRow], chat: Chat, rules: Rules, threshold: int
) -> None:
    first = next_decision(rows, chat=chat, rules=rules, threshold=threshold)

    assert isinstance(first, Decision)
    assert next_decision(list(rows), chat=chat, rules=rules, threshold=threshold) == first


@given(_rows(), _chats, _rules, _thresholds)
def test_open_calls_always_win(rows: list[PromptRow], chat: Chat, rules: Rules, threshold: int) -> None:
    calls = history.read(rows).open_calls

    decision = next_decision(rows, chat=chat, rules=rules, threshold=threshold)

    assert isinstance(decision, ExecuteTools | EnterRequiresAction) is bool(calls)
    if isinstance(decision, EnterRequiresAction):
        assert decision.calls == calls
    if isinstance(decision, ExecuteTools):
        assert set(decision.calls) <= set(calls)
        assert any(each.tool_name not in rules.dynamic_tools for each in decision.calls)


@given(_rows(), _chats, _rules, _thresholds)
def test_model_is_never_asked_again_after_it_finished(
    rows: list[PromptRow], chat: Chat, rules: Rules, threshold: int
) -> None:
    decision = next_decision(rows, chat=chat, rules=rules, threshold=threshold)

    last = _last_live(rows)
    if last is not None and last.message.role is Role.ASSISTANT and last.figures.finish_reason != "pause":
        assert not isinstance(decision, Generate | FailTurn)
        assert decision != Compact(Source.AUTOMATIC)


@given(_rows(), _rows(), _chats, _rules, _thresholds)
def test_deleted_rows_change_nothing(
    rows: list[PromptRow], removed: list[PromptRow], chat: Chat, rules: Rules, threshold: int
) -> None:
    # Ids of the others end in 0, so these fall between them.
    extra = [
        msgspec.structs.replace(
            each, message=msgspec.structs.replace(each.message, id=each.message.id + 5, deleted=True)
        )
        for each in removed
    ]
    mixed = sorted([*rows, *extra], key=lambda each: each.message.id)

    assert next_decision(mixed, chat=chat, rules=rules, threshold=threshold) == next_decision(
        rows, chat=chat, rules=rules, threshold=threshold
    )


@given(_rows(), _rows(), _rules)
def test_compressed_rows_are_no_part_of_any_turn(
    rows: list[PromptRow], summarised: list[PromptRow], rules: Rules
) -> None:
    """Rows of a compaction only mark its position: without compaction, the decision is the same."""
    extra = [
        msgspec.structs.replace(
            each, message=msgspec.structs.replace(each.message, id=each.message.id + 5, compressed=True)
        )
        for each in summarised
    ]
    mixed = sorted([*rows, *extra], key=lambda each: each.message.id)

    assert next_decision(mixed, rules=rules, limit=None) == next_decision(rows, rules=rules, limit=None)


@given(_rows(), _rules, _thresholds)
def test_decision_only_looks_at_the_turn(rows: list[PromptRow], rules: Rules, threshold: int) -> None:
    earlier = [system(1, "rules"), user(2, "go"), assistant(3, LOCAL, DYNAMIC), tool(4, result("l"))]
    begun = [*earlier, user(5, "go on"), *rows]

    decision = next_decision(begun, rules=rules, threshold=threshold, limit=None)

    assert decision == next_decision(begun[4:], rules=rules, threshold=threshold, limit=None)
