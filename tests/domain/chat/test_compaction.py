"""Compaction: when a chat is summarized, the request for the summary, and the rows afterwards."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import Raw

from rookery.domain.chat import compaction, context_overflow, parts, summary_prompt
from rookery.domain.chat.compaction import Assessment, Source, Status
from rookery.domain.chat.messages import NewMessage, Role, StepFigures, Visibility
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptMessage,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.chat.parts import File, FileReference, Part, Text, ToolResult
from rookery.domain.chat.prompt import PromptRow
from rookery.domain.content.attachments import StoredFile
from tests.domain.chat.prompt_rows import assistant, boundary, call, hook, prompt_of, result, row, system, tool, user

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
CONFIG = UUID(int=11)
FILE = UUID(int=5)
LIMIT = 1000


def counted(message_id: int, tokens: int) -> PromptRow:
    return assistant(message_id, "hi", figures=StepFigures(context_tokens=tokens))


def assess(rows: list[PromptRow], *, threshold: int = 70, limit: int | None = LIMIT) -> Assessment:
    return compaction.assess(rows, files={}, threshold_percent=threshold, limit_tokens=limit)


# Inputs


@pytest.mark.parametrize(
    ("user_value", "config_value", "effective"),
    [
        (None, None, 70),
        (None, 50, 50),
        (30, 50, 30),
        (0, 50, 0),
        (100, 50, 100),
        (-1, 50, 70),
        (101, 50, 70),
        (None, 101, 70),
    ],
)
def test_the_users_threshold_wins_and_nonsense_is_70(
    user_value: int | None, config_value: int | None, effective: int
) -> None:
    assert compaction.effective_threshold(user_value, config_value) == effective


@pytest.mark.parametrize(
    ("chat", "override", "effective"),
    [(None, None, None), (10, None, 10), (None, 10, 10), (10, 20, 10), (20, 10, 10), (0, 20, 20), (-1, 0, None)],
)
def test_the_stricter_window_counts(chat: int | None, override: int | None, effective: int | None) -> None:
    assert compaction.effective_limit(chat, override) == effective


@pytest.mark.parametrize(
    ("figures", "tokens"),
    [
        (StepFigures(context_tokens=5, input_tokens=100, total_tokens=200), 5),
        (StepFigures(input_tokens=1, cache_read_tokens=20, cache_write_tokens=300, total_tokens=999), 321),
        (StepFigures(cache_read_tokens=20), 20),
        (StepFigures(total_tokens=7), 7),
        (StepFigures(context_tokens=0, input_tokens=0, total_tokens=0), None),
        (StepFigures(output_tokens=5), None),
    ],
)
def test_tokens_are_what_the_newest_answer_read(figures: StepFigures, tokens: int | None) -> None:
    assert compaction.count_tokens([user(1, "hi"), assistant(2, "x", figures=figures)], files={}) == tokens


def test_the_newest_counted_answer_decides_and_later_rows_are_guessed() -> None:
    rows = [counted(1, 900), user(2, "x"), counted(3, 100), user(4, "x" * 300), assistant(5, "not counted")]

    later = sum(len(each.message.content) for each in rows[3:])

    assert compaction.count_tokens(rows, files={}) == 100 + later // 3


def test_a_guess_counts_media_by_what_providers_charge() -> None:
    image = ToolResult(
        "a", "look", result=parts.json_raw({"data": "A" * 3_000_000, "mime_type": "image/png"}), is_media=True
    )

    tokens = compaction.count_tokens([counted(1, 100), tool(2, image)], files={})

    assert tokens is not None
    assert 1600 < tokens < 2000


def test_a_guess_counts_the_text_of_files_and_not_the_bytes_of_images() -> None:
    def guess(file: StoredFile | None) -> int:
        files = {} if file is None else {FILE: file}
        tokens = compaction.count_tokens([counted(1, 100), user(2, File("x/y", file_id=FILE))], files=files)
        assert tokens is not None
        return tokens

    nothing = guess(None)

    assert guess(StoredFile(media_type="text/markdown; x=y", data=b"x" * 9000)) == nothing + 3000
    assert guess(StoredFile(media_type="text/plain", data=b"x" * 900_000, is_pasted=True)) < nothing + 45_000
    assert guess(StoredFile(media_type="image/png", data=b"x" * 900_000)) == nothing + 1600
    assert guess(StoredFile(media_type="image/png", data=b"")) == nothing


def test_files_that_tools_attached_do_not_count() -> None:
    attached = tool(2, result("a"), File("image/png", data="A" * 900_000))

    tokens = compaction.count_tokens([counted(1, 100), attached], files={})

    assert tokens is not None
    assert tokens < 200


def test_an_unreadable_row_counts_by_its_length() -> None:
    damaged = row(2, Role.USER, '[{"type":"file","x":"' + "x" * 279)

    assert compaction.count_tokens([counted(1, 100), damaged], files={}) == 200


# Decision


@pytest.mark.parametrize(
    ("tokens", "threshold", "status"),
    [
        (699, 70, Status.NOT_NEEDED),
        (700, 70, Status.NEEDED),
        (701, 70, Status.NEEDED),
        (1, 0, Status.NEEDED),
        (5000, 100, Status.NOT_NEEDED),
        (990, 99, Status.NEEDED),
        (989, 99, Status.NOT_NEEDED),
    ],
)
def test_the_threshold_is_reached_exactly(tokens: int, threshold: int, status: Status) -> None:
    assert assess([user(1, "hi"), counted(2, tokens)], threshold=threshold).status is status


@pytest.mark.parametrize("threshold", [0, 70])
def test_unknown_usage_never_compacts(threshold: int) -> None:
    assessment = assess([user(1, "x" * 100_000)], threshold=threshold)

    assert (assessment.status, assessment.tokens, assessment.usage_percent) == (Status.NOT_NEEDED, None, None)


@pytest.mark.parametrize("limit", [None, 0, -5])
def test_without_a_limit_nothing_compacts(limit: int | None) -> None:
    assessment = assess([counted(1, 10**9)], limit=limit)

    assert assessment.status is Status.NOT_NEEDED


def test_a_huge_new_tool_result_is_noticed_before_it_is_sent() -> None:
    rows = [assistant(1, call("a"), figures=StepFigures(context_tokens=100)), tool(2, result("a", "x" * 1800))]

    assessment = assess(rows)

    assert assessment.status is Status.NEEDED
    assert assessment.usage_percent is not None
    assert 70 <= assessment.usage_percent < 80


@pytest.mark.parametrize(
    ("first", "newest", "status"),
    [
        (700, 700, Status.TIGHT),
        (700, 940, Status.TIGHT),
        (700, 960, Status.NEEDED),
        (940, 960, Status.NEEDED),
        (950, 950, Status.STILL_OVER_LIMIT),
        (990, 999, Status.STILL_OVER_LIMIT),
    ],
)
def test_a_summary_that_did_not_help_is_terminal_only_when_the_window_is_full(
    first: int, newest: int, status: Status
) -> None:
    rows = [boundary(5, "summary"), counted(6, first), counted(7, newest)]

    assert assess(rows).status is status
    assert assess(rows).has_room is (newest < 950)


def test_only_the_first_answer_after_the_summary_tells_whether_it_helped() -> None:
    rows = [boundary(5, "summary"), counted(6, 699), counted(7, 900)]

    assert assess(rows).status is Status.NEEDED


def test_an_uncounted_first_answer_is_no_proof_against_the_summary() -> None:
    rows = [boundary(5, "summary"), assistant(6, "half"), counted(7, 900)]

    assert assess(rows).status is Status.NEEDED


def test_a_threshold_of_0_compacts_again_instead_of_giving_up() -> None:
    assert assess([boundary(5, "summary"), counted(6, 700)], threshold=0).status is Status.NEEDED


def test_right_after_a_summary_the_chat_goes_on() -> None:
    assert assess([system(1, "rules"), boundary(5, "summary")]).status is Status.AFTER_COMPACTION


def test_after_a_summary_that_helped_nothing_is_needed() -> None:
    assert assess([boundary(5, "summary"), counted(6, 100)]).status is Status.NOT_NEEDED


def test_a_stricter_limit_makes_the_difference() -> None:
    rows = [counted(1, 700)]

    assert assess(rows, limit=compaction.effective_limit(2000, None)).status is Status.NOT_NEEDED
    assert assess(rows, limit=compaction.effective_limit(2000, 1000)).status is Status.NEEDED


# Rows

NEEDED = Assessment(status=Status.NEEDED, threshold_percent=70, tokens=723, limit_tokens=LIMIT)


def new_rows(source: Source, *turn: Part) -> tuple[NewMessage, ...]:
    return compaction.new_rows(
        "We did things.",
        source=source,
        assessment=NEEDED,
        carried=turn,
        tool_call_id=compaction.tool_call_id(UUID(int=1)),
        model_config_id=CONFIG,
        runtime_ms=1200,
        at=AT,
    )


def test_a_summary_leaves_boundary_call_and_result() -> None:
    rows = new_rows(Source.MANUAL)

    assert [(each.role, each.visibility, each.compressed) for each in rows] == [
        (Role.USER, Visibility.MODEL, True),
        (Role.ASSISTANT, Visibility.USER, True),
        (Role.TOOL, Visibility.BOTH, True),
    ]
    assert [each.figures for each in rows] == [None, StepFigures(runtime_ms=1200), None]
    assert rows[0].content == (Text(compaction.LEAD_IN + "We did things."),)


def test_call_and_result_say_why_and_how_full() -> None:
    _, asked, given = new_rows(Source.AUTOMATIC)

    (call_part,), (result_part,) = asked.content, given.content
    assert isinstance(call_part, parts.ToolCall)
    assert isinstance(result_part, parts.ToolResult)
    assert call_part.tool_call_id == result_part.tool_call_id == f"chat_summarized_{UUID(int=1)}"
    assert call_part.tool_name == result_part.tool_name == "chat_summarized"
    assert isinstance(call_part.args, Raw)
    assert isinstance(result_part.result, Raw)
    assert parts.json_value(call_part.args) == {"source": "automatic", "threshold_percent": 70}
    assert parts.json_value(result_part.result) == {
        "summary": "We did things.",
        "source": "automatic",
        "threshold_percent": 70,
        "usage_percent": 72.3,
        "context_tokens": 723,
        "context_limit_tokens": LIMIT,
    }


def test_a_failure_is_shown_as_the_result() -> None:
    part = compaction.error_part("id", "It failed.", at=AT)

    assert part.is_error
    assert isinstance(part.result, Raw)
    assert parts.json_value(part.result) == {"error": "It failed."}


@pytest.mark.parametrize("source", [Source.AUTOMATIC, Source.OVERFLOW])
def test_the_message_being_worked_on_is_carried_word_for_word(source: Source) -> None:
    turn = (Text("fix *this*, not that"), File("image/png", file_id=FILE), FileReference("a.py", 1, 2, "x"))

    boundary_row, *_ = new_rows(source, *turn)

    assert boundary_row.content[1:] == (Text(compaction.CARRIED_LEAD_IN), *turn)


def test_nothing_to_carry_leaves_no_lead_in() -> None:
    boundary_row, *_ = new_rows(Source.AUTOMATIC, *compaction.carriable((Text("  "),)))

    assert len(boundary_row.content) == 1


def test_a_message_alone_is_a_boundary_too() -> None:
    assert compaction.boundary_parts("", (Text("x"),)) == (Text(compaction.CARRIED_LEAD_IN), Text("x"))
    assert compaction.boundary_summary([boundary(1, Text(compaction.CARRIED_LEAD_IN), Text("x"))]) == ""
    assert compaction.boundary_summary([boundary(1, Text(compaction.LEAD_IN + "So far."))]) == "So far."


def test_a_message_that_was_carried_cut_is_carried_whole_from_its_row() -> None:
    cut = new_rows(Source.OVERFLOW, Text("first order"), Text("cut"))[0]
    rows = [user(5, "all of the second order"), boundary(6, *cut.content), assistant(9, call("b"))]

    assert compaction.current_turn_parts(rows) == (Text("first order"), Text("all of the second order"))


def test_a_message_heard_right_behind_a_carried_one_is_carried_with_it() -> None:
    first, *_ = new_rows(Source.AUTOMATIC, Text("do this"))

    assert compaction.current_turn_parts([boundary(6, *first.content), user(9, "and that")]) == (
        Text("do this"),
        Text("and that"),
    )


def test_the_newest_user_message_is_still_verbatim_in_the_next_prompt() -> None:
    rows = [user(1, "old"), assistant(2, "ok"), user(3, "fix *this*"), assistant(4, call("a")), tool(5, result("a"))]
    boundary_row, *_ = new_rows(Source.AUTOMATIC, *compaction.current_turn_parts(rows))

    prompt = prompt_of([boundary(6, *boundary_row.content)])

    texts = [part.text for part in prompt.messages[0].parts if isinstance(part, PromptText)]
    assert texts[-1] == "fix *this*"
    assert "old" not in texts


def test_a_second_summary_of_the_same_turn_carries_the_message_on() -> None:
    first, *_ = new_rows(Source.AUTOMATIC, Text("fix *this*"))
    rows = [boundary(6, *first.content), assistant(7, call("b")), tool(8, result("b"))]

    second, *_ = new_rows(Source.AUTOMATIC, *compaction.current_turn_parts(rows))

    assert second.content == first.content


def test_messages_heard_together_are_carried_together() -> None:
    rows = [
        user(1, "old"),
        assistant(2, "ok"),
        user(3, "do this"),
        hook(4, "note"),
        user(5, "and that"),
        assistant(6, "x"),
    ]

    assert compaction.current_turn_parts(rows) == (Text("do this"), Text("and that"))


def test_a_summary_without_a_carried_message_carries_nothing() -> None:
    assert compaction.current_turn_parts([boundary(1, "summary"), assistant(2, "x")]) == ()
    assert compaction.current_turn_parts([boundary(1, "a", "b", "c")]) == ()
    assert compaction.current_turn_parts([]) == ()


# The request


def texts_of(prompt: Prompt) -> list[str]:
    return [part.text for message in prompt.messages for part in message.parts if isinstance(part, PromptText)]


def message(role: Role, *content: PromptPart) -> PromptMessage:
    return PromptMessage(role=role, parts=content)


def says(text: str) -> PromptMessage:
    return message(Role.USER, PromptText(text))


def test_the_request_is_the_generation_with_an_instruction_at_its_end() -> None:
    prompt = prompt_of([system(1, "rules"), user(2, "hi"), counted(3, 1)])

    asked = summary_prompt.summary_request(prompt, hint=" keep names ")

    assert asked.messages[:-1] == prompt.messages
    assert asked.messages[-1] == says(f"{summary_prompt.INSTRUCTION}\n\nkeep names")
    assert summary_prompt.summary_request(prompt).messages[-1] == says(summary_prompt.INSTRUCTION)


@pytest.mark.parametrize(
    ("texts", "reason", "summary"),
    [
        ([" one ", "", "two\n"], "stop", "one\n\ntwo"),
        (["one"], "other", "one"),
        (["one"], "length", "one" + summary_prompt.CUT_SHORT),
    ],
)
def test_the_summary_is_all_text_of_the_answer(texts: list[str], reason: str, summary: str) -> None:
    assert summary_prompt.read_summary(texts, finish_reason=reason) == summary


@pytest.mark.parametrize(
    ("texts", "reason"),
    [([], "stop"), ([" \n"], "stop"), ([""], "length"), (["one"], "tool_calls"), (["No."], "content_filter")],
)
def test_an_answer_without_a_summary_fails(texts: list[str], reason: str) -> None:
    with pytest.raises(summary_prompt.SummaryFailed):
        summary_prompt.read_summary(texts, finish_reason=reason)


def test_another_provider_gets_a_copy_it_can_read() -> None:
    search = PromptCall("ws", "web_search", Raw(b'{"query":"x"}'), provider_executed=True, meta={"raw": 1})
    found = PromptResult("ws", "web_search", "News", provider_executed=True, meta={"raw": 2})
    image = PromptResult("a", "look", "a chart", media=PromptMedia("image/png", "QUJD"))
    prompt = Prompt(
        (
            message(Role.USER, PromptText("see"), PromptFile("image/png", b"x", "p.png"), PromptFile("text/csv", b"1")),
            message(Role.ASSISTANT, PromptReasoning("hm"), search, found, PromptCall("a", "look", Raw(b"{}"), meta={})),
            message(Role.TOOL, image),
        )
    )

    asked, answered, looked = summary_prompt.for_other_provider(
        prompt, accepts=lambda kind: kind == "text/csv"
    ).messages

    assert asked.parts[0] == PromptText("see")
    assert isinstance(asked.parts[1], PromptText)
    assert asked.parts[1].text.startswith('<attachment-omitted name="p.png" type="image/png">')
    assert asked.parts[2] == PromptFile("text/csv", b"1")
    assert answered.parts == (
        PromptText('[web_search was called with {"query":"x"}]'),
        PromptText("[web_search returned:\nNews\n]"),
        PromptCall("a", "look", Raw(b"{}")),
    )
    assert not answered.is_native
    (seen,) = looked.parts
    assert isinstance(seen, PromptResult)
    assert seen.media is None
    assert seen.text.startswith("a chart\n<attachment-omitted")


def test_results_of_provider_executed_tools_are_in_answers_only() -> None:
    search = PromptCall("ws", "web_search", Raw(b"{}"), provider_executed=True)
    found = PromptResult("ws", "web_search", "News", provider_executed=True)
    silent = PromptResult("wt", "web_search", " ", provider_executed=True)
    prompt = Prompt((message(Role.USER, PromptText("hi"), search, found), message(Role.ASSISTANT, silent)))

    assert summary_prompt.for_other_provider(prompt, accepts=lambda kind: True) == Prompt((says("hi"),))


def test_plain_results_reach_another_provider_unchanged() -> None:
    steps = step("a", 10)

    copied = summary_prompt.for_other_provider(Prompt(steps), accepts=lambda kind: True)

    assert copied.messages[1] == steps[1]


def test_an_estimate_counts_text_by_bytes_and_pictures_by_what_they_cost() -> None:
    def estimate(part: PromptPart) -> int:
        return context_overflow.estimate_tokens((message(Role.USER, part),))

    assert estimate(PromptText("é" * 300)) == 200
    assert estimate(PromptFile("text/csv", b"x" * 300)) == 100
    assert estimate(PromptFile("image/png", b"x" * 3_000_000)) == 1600
    assert estimate(PromptResult("a", "look", "x" * 300, media=PromptMedia("image/png", "A" * 9000))) == 1700


def test_an_answer_of_reasoning_alone_vanishes_from_the_copy() -> None:
    prompt = Prompt((says("hi"), message(Role.ASSISTANT, PromptReasoning("hm"))))

    assert summary_prompt.for_other_provider(prompt, accepts=lambda kind: True) == Prompt((says("hi"),))


# When it is too much


def step(call_id: str, size: int, *, media: PromptMedia | None = None) -> tuple[PromptMessage, PromptMessage]:
    return (
        message(Role.ASSISTANT, PromptCall(call_id, "look", Raw(b"{}"))),
        message(Role.TOOL, PromptResult(call_id, "look", "x" * size, media=media)),
    )


def test_first_media_and_old_results_go() -> None:
    steps = [each for number in range(12) for each in step(f"c{number}", 5000, media=PromptMedia("image/png", "QUJD"))]
    prompt = Prompt((message(Role.USER, PromptFile("image/png", b"x" * 100)), *steps))

    lighter = summary_prompt.without_bulk(prompt)

    results = [part for each in lighter.messages for part in each.parts if isinstance(part, PromptResult)]
    assert all(part.media is None for part in results)
    assert [len(part.text) <= 2048 for part in results] == [True, True] + [False] * 10
    assert texts_of(lighter)[0].startswith("<attachment-omitted")
    assert len(lighter.messages) == len(prompt.messages)
