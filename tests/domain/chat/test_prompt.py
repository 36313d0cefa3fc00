"""From committed rows to the prompt of one model."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET, Raw

from rookery.domain.chat import parts
from rookery.domain.chat.default_prompt import PLAN_PATH
from rookery.domain.chat.messages import Role, StepFigures, Visibility
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMedia,
    PromptPart,
    PromptReasoning,
    PromptResult,
    PromptText,
)
from rookery.domain.chat.parts import File, FileReference, HookNotice, Reasoning, Source, Text, ToolCall, ToolResult
from rookery.domain.chat.prompt import ModelIdentity, UnreadableRow, list_files, readable_output, result_text
from rookery.domain.chat.tool_call_pairing import NO_RESULT
from rookery.domain.content.attachments import FileRules, ImageTooLarge, StoredFile
from tests.domain.chat.prompt_rows import (
    ANTHROPIC,
    CLAUDE,
    CLAUDE_NEXT,
    GPT,
    OPENAI,
    WRITERS,
    assistant,
    boundary,
    call,
    hook,
    prompt_of,
    result,
    row,
    system,
    tool,
    user,
)

FILE = UUID(int=5)
SIGNED = {"wire": "anthropic", "signature": "sig"}
SEARCH = (
    ToolCall(
        "ws", "web_search", args=Raw(b'{"query":"x"}'), provider_executed=True, provider_meta={"raw": {"id": "ws"}}
    ),
    ToolResult(
        "ws",
        "web_search",
        result=Raw(b'[{"type":"web_search_result","title":"News","url":"https://n","encrypted_content":"zzz"}]'),
        provider_executed=True,
        provider_meta={"raw": {"tool_use_id": "ws"}},
    ),
)


def texts(prompt: Prompt) -> list[str]:
    return [part.text for message in prompt.messages for part in message.parts if isinstance(part, PromptText)]


def all_parts(prompt: Prompt) -> list[PromptPart]:
    return [part for message in prompt.messages for part in message.parts]


def of_kind(prompt: Prompt, *kinds: type[PromptPart]) -> list[PromptPart]:
    return [part for part in all_parts(prompt) if isinstance(part, kinds)]


# Rows


def test_rows_are_told_in_the_order_of_their_ids() -> None:
    rows = [system(1, "rules"), boundary(9, "summary"), user(10, "go on"), assistant(11, "going")]

    prompt = prompt_of(rows)

    assert [message.role for message in prompt.messages] == [Role.SYSTEM, Role.USER, Role.USER, Role.ASSISTANT]
    assert texts(prompt) == ["rules", "summary", "go on", "going"]


def test_a_row_of_another_content_version_stops_the_prompt_with_its_id() -> None:
    with pytest.raises(UnreadableRow, match=r"Message 7 .*version 2") as caught:
        prompt_of([user(1, "hi"), row(7, Role.ASSISTANT, "[]", version=2)])

    assert caught.value.message_id == 7


@pytest.mark.parametrize("content", ["{", '[{"type":"hologram"}]', '[{"type":"text"}]'])
def test_a_damaged_row_stops_the_prompt(content: str) -> None:
    with pytest.raises(UnreadableRow):
        prompt_of([row(1, Role.USER, content)])


def test_rows_left_empty_are_dropped() -> None:
    rows = [
        user(1, "  \n"),
        assistant(2, "", Source("https://x")),
        row(3, Role.USER, (HookNotice("for people"),)),
        user(4, "hi"),
    ]

    assert texts(prompt_of(rows)) == ["hi"]
    assert len(prompt_of(rows).messages) == 1


def test_parts_of_a_user_row_keep_their_order() -> None:
    rows = [user(1, "look", FileReference("a.py", 1, 1, "x"), HookNotice("for people"), "here")]

    assert texts(prompt_of(rows)) == ["look", '<file-reference path="a.py" lines="1">\nx\n</file-reference>', "here"]


def test_hook_context_is_told_to_the_model() -> None:
    assert texts(prompt_of([hook(1, "be brief")])) == ["be brief"]


def test_outcome_of_a_step_reaches_the_wire() -> None:
    figures = StepFigures(finish_reason="pause", prefix_fp=b"fp")

    (message,) = prompt_of([assistant(1, "hi", figures=figures)]).messages

    assert (message.finish_reason, message.prefix_fp, message.is_whole, message.is_native) == (
        "pause",
        b"fp",
        True,
        True,
    )


# Calls and results


@pytest.mark.parametrize("args", [Raw(b"[1]"), Raw(b'"x"'), Raw(b"null"), UNSET])
def test_input_that_is_no_object_becomes_an_empty_one(args: Raw) -> None:
    prompt = prompt_of([assistant(1, ToolCall("a", "look", args=args)), tool(2, result("a"))])

    assert of_kind(prompt, PromptCall) == [PromptCall("a", "look", Raw(b"{}"))]


def test_input_is_the_same_however_the_database_spaces_it() -> None:
    stored = '[{"type": "tool-call", "tool_call_id": "a", "tool_name": "look", "args": {"n": 1152921504606846976.50}}]'

    prompt = prompt_of([row(1, Role.ASSISTANT, stored)])

    assert of_kind(prompt, PromptCall) == [PromptCall("a", "look", Raw(b'{"n":1152921504606846976.50}'))]


@pytest.mark.parametrize(
    ("stored", "read"),
    [
        (b'{"output": "plain\\ntext"}', "plain\ntext"),
        (b'{"error": "no such file"}', "no such file"),
        (b'"just a string"', "just a string"),
        (b'{"output": "x", "exit_code": 0}', '{"output":"x","exit_code":0}'),
        (b'{"error": "x", "reason": "interrupted"}', '{"error":"x","reason":"interrupted"}'),
        (b'{"output": {"a": 1}}', '{"output":{"a":1}}'),
        (b"[1, 2.50]", "[1,2.50]"),
        (b"null", "null"),
    ],
)
def test_a_model_reads_text_where_a_tool_gave_text(stored: bytes, read: str) -> None:
    assert result_text(Raw(stored)) == read


def test_a_result_without_content_reads_as_nothing() -> None:
    assert result_text(UNSET) == ""


def test_an_error_result_stays_one() -> None:
    failed = ToolResult("a", "look", result=Raw(b'{"error":"no"}'), is_error=True)

    prompt = prompt_of([assistant(1, call("a", name="look")), tool(2, failed)])

    assert of_kind(prompt, PromptResult) == [PromptResult("a", "look", "no", is_error=True)]


MEDIA = ToolResult(
    "a",
    "look",
    result=Raw(b'{"data":"QUJD","mime_type":"image/png","text":"a chart","attachment_name":"c"}'),
    is_media=True,
)


def media_result(rules: FileRules, stored: ToolResult = MEDIA) -> PromptResult:
    prompt = prompt_of([assistant(1, call("a", name="look")), tool(2, stored)], rules=rules)
    (part,) = of_kind(prompt, PromptResult)
    assert isinstance(part, PromptResult)
    return part


def test_an_image_of_a_tool_comes_with_its_text() -> None:
    part = media_result(FileRules(accepts=lambda media_type: media_type == "image/png"))

    assert (part.text, part.media) == ("a chart", PromptMedia("image/png", "QUJD"))


@pytest.mark.parametrize(
    "rules",
    [FileRules(accepts=lambda media_type: False), FileRules(accepts=lambda media_type: True, max_image_bytes=3)],
    ids=["not accepted", "too large"],
)
def test_an_image_of_a_tool_that_cannot_be_sent_is_named(rules: FileRules) -> None:
    part = media_result(rules)

    assert part.media is None
    assert part.text.startswith("a chart\n[image/png")


def test_media_without_its_fields_is_read_as_json() -> None:
    part = media_result(
        FileRules(accepts=lambda media_type: True), ToolResult("a", "look", result=Raw(b'{"x": 1}'), is_media=True)
    )

    assert (part.text, part.media) == ('{"x":1}', None)


def test_files_on_tool_and_assistant_rows_are_not_replayed() -> None:
    file = File("image/png", file_id=FILE)
    rows = [assistant(1, call("a"), file), tool(2, result("a"), file)]

    assert of_kind(prompt_of(rows, files={FILE: StoredFile(media_type="image/png", data=b"x")}), PromptFile) == []
    assert list_files(rows) == frozenset()


def test_a_hook_row_between_call_and_result_does_not_separate_them() -> None:
    prompt = prompt_of([assistant(1, call("a"), call("b")), hook(2, "note"), tool(3, result("a")), user(4, "next")])

    assert [message.role for message in prompt.messages] == [
        Role.ASSISTANT,
        Role.TOOL,
        Role.TOOL,
        Role.USER,
        Role.USER,
    ]
    assert of_kind(prompt, PromptResult)[1:] == [PromptResult("b", "read_file", NO_RESULT, is_error=True)]


def test_an_id_reused_in_two_steps_is_unique_in_the_prompt() -> None:
    rows = [
        assistant(1, call("call_0")),
        tool(2, result("call_0")),
        assistant(3, call("call_0")),
        tool(4, result("call_0")),
    ]

    ids = [part.id for part in all_parts(prompt_of(rows)) if isinstance(part, PromptCall | PromptResult)]

    assert ids == ["call_0", "call_0", "call_0_2", "call_0_2"]


@pytest.mark.parametrize(
    ("invented", "told"),
    [
        ("functions.read file", "functions_read_file"),
        ("größe!", "gr__e_"),
        ("x" * 200, "x" * 64),
        ("", "unnamed"),
        ("read_file", "read_file"),
    ],
)
def test_a_name_that_a_model_invented_is_told_as_providers_take_it(invented: str, told: str) -> None:
    """Providers would refuse every later request with an invalid tool name."""
    rows = [assistant(1, ToolCall("1", invented)), tool(2, ToolResult("1", invented, result=Raw(b"{}")))]

    names = {part.name for part in all_parts(prompt_of(rows)) if isinstance(part, PromptCall | PromptResult)}

    assert names == {told}


# Reasoning


@pytest.mark.parametrize(
    ("part", "is_kept"),
    [
        (Reasoning("hm", provider_meta=SIGNED), True),
        (Reasoning("hm"), True),
        (Reasoning("", provider_meta=SIGNED), True),
        (Reasoning("", provider_meta={"redacted_data": "x"}), True),
        (Reasoning("", provider_meta={"encrypted_content": "x"}), True),
        (Reasoning("", provider_meta={"wire": "anthropic", "signature": ""}), False),
        (Reasoning(" "), False),
    ],
)
def test_reasoning_needs_words_or_proof(part: Reasoning, is_kept: bool) -> None:
    prompt = prompt_of([assistant(1, part, "answer")])

    assert of_kind(prompt, PromptReasoning) == ([PromptReasoning(part.text, part.provider_meta)] if is_kept else [])


def test_reasoning_of_an_interrupted_step_is_never_replayed() -> None:
    rows = [
        assistant(1, Reasoning("hm", provider_meta=SIGNED), "half", figures=StepFigures(finish_reason="interrupted"))
    ]

    (message,) = prompt_of(rows).messages

    assert message.parts == (PromptText("half"),)
    assert not message.is_whole


# Provider switch


def test_another_provider_gets_neither_reasoning_nor_opaque_data() -> None:
    rows = [
        assistant(1, Reasoning("hm", provider_meta=SIGNED), Text("hi", provider_meta={"phase": "x"}), call("a")),
        tool(2, result("a")),
    ]

    prompt = prompt_of(rows, target=GPT)

    assert all_parts(prompt)[:2] == [PromptText("hi"), PromptCall("a", "read_file", Raw(b"{}"))]
    assert not prompt.messages[0].is_native


def test_results_of_another_providers_search_become_text() -> None:
    prompt = prompt_of([assistant(1, *SEARCH, "It says so.")], target=GPT)

    found, answer = texts(prompt)
    assert "web_search" in found
    assert "News https://n" in found
    assert "zzz" not in found
    assert answer == "It says so."
    assert of_kind(prompt, PromptCall, PromptResult) == []


def test_back_at_its_own_provider_everything_is_replayed() -> None:
    rows = [
        user(1, "search"),
        assistant(2, Reasoning("hm", provider_meta=SIGNED), *SEARCH, "found"),
        user(3, "and now you"),
        assistant(4, Reasoning("so", provider_meta={"encrypted_content": "e"}), "hello", config=GPT),
        user(5, "back"),
    ]

    prompt = prompt_of(rows, target=CLAUDE)

    assert [message.is_native for message in prompt.messages if message.role is Role.ASSISTANT] == [True, False]
    assert of_kind(prompt, PromptReasoning) == [PromptReasoning("hm", SIGNED)]
    (search,) = of_kind(prompt, PromptCall)
    assert isinstance(search, PromptCall)
    assert (search.provider_executed, search.meta) == (True, {"raw": {"id": "ws"}})


def test_a_row_whose_config_is_unknown_is_foreign() -> None:
    rows = [assistant(1, Reasoning("hm", provider_meta=SIGNED), *SEARCH, "hi", config=UUID(int=99))]

    prompt = prompt_of(rows)

    assert of_kind(prompt, PromptReasoning, PromptCall, PromptResult) == []
    assert texts(prompt)[-1] == "hi"


def test_another_model_of_the_provider_keeps_the_search_and_loses_foreign_thinking() -> None:
    prompt = prompt_of([assistant(1, Reasoning("hm", provider_meta=SIGNED), *SEARCH)], target=CLAUDE_NEXT)

    assert of_kind(prompt, PromptReasoning) == []
    assert len(of_kind(prompt, PromptCall, PromptResult)) == 2
    assert not prompt.messages[0].is_native


def identity(
    provider_id: UUID = ANTHROPIC, model: str = "m", wire: str = "w", family: str | None = None
) -> ModelIdentity:
    return ModelIdentity(provider_id=provider_id, model=model, wire=wire, thinking_family=family)


@pytest.mark.parametrize(
    ("writer", "reader", "can"),
    [
        (identity(), identity(), True),
        (identity(family="f"), identity(model="n", family="f"), True),
        (identity(family="f"), identity(model="n", family="g"), False),
        (identity(), identity(model="n"), False),
        (identity(family="f"), identity(wire="v", family="f"), False),
        (identity(family="f"), identity(provider_id=OPENAI, family="f"), False),
    ],
)
def test_thinking_is_replayed_within_one_provider_wire_and_family(
    writer: ModelIdentity, reader: ModelIdentity, can: bool
) -> None:
    assert reader.can_replay_thinking_of(writer) is can


@pytest.mark.parametrize("target", [CLAUDE, GPT])
def test_a_local_result_stored_with_the_answer_is_still_its_result(target: UUID) -> None:
    prompt = prompt_of([assistant(1, call("a"), result("a", "seen"))], target=target)

    assert [each.role for each in prompt.messages] == [Role.ASSISTANT, Role.TOOL]
    assert of_kind(prompt, PromptResult) == [PromptResult("a", "read_file", "seen")]


def test_a_foreign_row_left_empty_is_dropped() -> None:
    rows = [user(1, "hi"), assistant(2, Reasoning("hm", provider_meta=SIGNED), SEARCH[0])]

    assert len(prompt_of(rows, target=GPT).messages) == 1


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (b'{"output":"plain"}', "plain"),
        (b'"plain"', "plain"),
        (b'{"action":{"query":"q","sources":[{"url":"https://a"},{"url":"https://a"}]}}', "q\nhttps://a"),
        (b'{"encrypted_content":"zzz"}', ""),
        (b"[]", ""),
        (b"12", ""),
    ],
)
def test_words_are_found_in_the_output_of_a_provider(output: bytes, words: str) -> None:
    assert readable_output(Raw(output)) == words


# Files


def test_files_of_user_rows_are_asked_for_and_used() -> None:
    rows = [user(1, File("text/markdown", file_id=FILE), "read this")]
    files = {FILE: StoredFile(media_type="text/markdown", data=b"# Hi", name="n.md")}

    native = prompt_of(rows, files=files, rules=FileRules(accepts=lambda media_type: media_type == "text/markdown"))
    inlined = prompt_of(rows, target=GPT, files=files, rules=FileRules(accepts=lambda media_type: False))
    deleted = prompt_of(rows)

    assert list_files(rows) == {FILE}
    assert all_parts(native)[0] == PromptFile("text/markdown", b"# Hi", "n.md")
    assert texts(inlined)[0] == '<attachment name="n.md" type="text/markdown">\n# Hi\n</attachment>'
    assert texts(deleted)[0].startswith("<attachment-missing")


def test_an_empty_file_leaves_only_the_words_beside_it() -> None:
    rows = [user(1, File("text/plain", file_id=FILE), "read this")]

    assert all_parts(prompt_of(rows, files={FILE: StoredFile(media_type="text/plain", data=b"")})) == [
        PromptText("read this")
    ]


def test_unreadable_rows_ask_for_no_files() -> None:
    assert list_files([row(1, Role.USER, '[{"type":"file"}]')]) == frozenset()


IMAGE = {FILE: StoredFile(media_type="image/png", data=b"x" * 600, name="big.png")}
SMALL_IMAGES = FileRules(accepts=lambda media_type: True, max_image_bytes=500)


def test_a_large_image_in_the_newest_user_message_is_an_error_though_a_hook_row_follows() -> None:
    rows = [user(1, "old"), user(2, File("image/png", file_id=FILE)), hook(3, "note")]

    with pytest.raises(ImageTooLarge):
        prompt_of(rows, files=IMAGE, rules=SMALL_IMAGES)


def test_a_large_image_in_an_old_message_does_not_block_the_chat() -> None:
    rows = [user(1, File("image/png", file_id=FILE)), assistant(2, "nice"), user(3, "next")]

    assert texts(prompt_of(rows, files=IMAGE, rules=SMALL_IMAGES))[0].startswith("<attachment-omitted")


def test_a_large_image_carried_by_a_summary_does_not_block_the_chat() -> None:
    rows = [boundary(1, "summary", File("image/png", file_id=FILE))]

    assert texts(prompt_of(rows, files=IMAGE, rules=SMALL_IMAGES))[1].startswith("<attachment-omitted")


# Blocks of the turn


def test_blocks_of_the_turn_stand_behind_the_system_rows() -> None:
    prompt = prompt_of([system(1, "rules"), system(2, "more"), user(3, "hi")], step_blocks=["skills", " ", "overlay"])

    assert texts(prompt) == ["rules", "more", "skills", "overlay", "hi"]
    assert [message.role for message in prompt.messages][:4] == [Role.SYSTEM] * 4


def test_blocks_come_first_without_system_rows() -> None:
    assert texts(prompt_of([user(1, "hi")], step_blocks=["skills"])) == ["skills", "hi"]


def test_the_plan_path_is_named_in_system_rows_only() -> None:
    rows = [system(1, f"rules\n\n{PLAN_PATH}"), user(2, PLAN_PATH)]

    prompt = prompt_of(rows, step_blocks=[f"plan: {PLAN_PATH}"], plan_path="/home/x/PLAN.md")

    block = "<plan-file-path>\n/home/x/PLAN.md\n</plan-file-path>"
    assert texts(prompt) == [f"rules\n\n{block}", f"plan: {block}", PLAN_PATH]


def test_an_unknown_plan_path_leaves_no_trace() -> None:
    prompt = prompt_of([system(1, f"rules\n\n{PLAN_PATH}"), system(2, PLAN_PATH), user(3, "hi")])

    assert texts(prompt) == ["rules", "hi"]


# Stability


def test_the_next_step_has_the_same_prefix() -> None:
    rows = [
        system(1, "rules"),
        user(2, "go"),
        assistant(3, Reasoning("hm", provider_meta=SIGNED), call("a", {"b": 1, "a": [2]})),
        tool(4, result("a")),
    ]
    more = [*rows, assistant(5, *SEARCH, call("a")), tool(6, result("a")), user(7, "thanks")]

    first, second = prompt_of(rows, step_blocks=["skills"]), prompt_of(more, step_blocks=["skills"])

    assert second.messages[: len(first.messages)] == first.messages


def test_building_twice_gives_equal_prompts() -> None:
    rows = [user(1, "go"), assistant(2, call("a", {"z": 1, "y": 2})), tool(3, result("a", "ü"))]

    assert prompt_of(rows) == prompt_of(rows)


PARTS = st.one_of(
    st.builds(Text, st.text(max_size=5)),
    st.builds(Reasoning, st.text(max_size=3), provider_meta=st.sampled_from([None, SIGNED])),
    st.builds(ToolCall, st.sampled_from(["a", "b"]), st.just("look"), provider_executed=st.booleans()),
    st.builds(ToolResult, st.sampled_from(["a", "b"]), st.just("look"), provider_executed=st.booleans()),
    st.builds(File, st.just("image/png"), file_id=st.just(FILE)),
    st.builds(FileReference, st.just("a"), st.just(1), st.just(2), st.text(max_size=3)),
    st.builds(HookNotice, st.just("n")),
    st.builds(parts.HookContext, st.just("c")),
)
ROWS = st.lists(
    st.tuples(
        st.sampled_from(list(Role)),
        st.lists(PARTS, max_size=4),
        st.sampled_from([Visibility.BOTH, Visibility.MODEL]),
        st.sampled_from([*WRITERS, None]),
    ),
    max_size=8,
)


@given(ROWS, st.sampled_from(list(WRITERS)))
def test_any_rows_give_a_prompt_without_empty_messages(
    rows: Iterable[tuple[Role, list[parts.Part], Visibility, UUID | None]], target: UUID
) -> None:
    numbered = [
        row(number, role, content, visibility=visibility, config=config)
        for number, (role, content, visibility, config) in enumerate(rows, start=1)
    ]

    prompt = prompt_of(numbered, target=target)

    assert all(message.parts for message in prompt.messages)
    foreign = [each for each in prompt.messages if each.role is Role.ASSISTANT and not each.is_native]
    assert not any(isinstance(part, PromptReasoning) for each in foreign for part in each.parts)
