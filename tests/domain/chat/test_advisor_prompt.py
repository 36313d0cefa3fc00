"""The advisor's prompt: the kept messages of the parent, their order, and the description of tool calls."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import advisor_prompt, default_prompt
from rookery.domain.chat.messages import Role
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

CALL = "call_open"


def message(role: Role, *parts: PromptPart) -> PromptMessage:
    return PromptMessage(role=role, parts=parts)


def system(text: str) -> PromptMessage:
    return message(Role.SYSTEM, PromptText(text))


def said(prompt: Prompt) -> list[tuple[str, str]]:
    return [
        (each.role, " | ".join(part.text for part in each.parts if isinstance(part, PromptText)))
        for each in prompt.messages
    ]


def test_prompt_is_system_messages_then_instructions_then_the_end_of_the_chat_then_the_question() -> None:
    snapshot = Prompt(
        (
            system("You are an agent."),
            system(f"About the workspace.\n\n{default_prompt.ADVISOR}"),
            message(Role.USER, PromptText("fix the login")),
            message(Role.ASSISTANT, PromptText("I read it."), PromptCall("c1", "read_file", Raw(b'{"path":"/a"}'))),
            message(Role.TOOL, PromptResult("c1", "read_file", "line 1")),
            message(
                Role.ASSISTANT,
                PromptReasoning("two ways"),
                PromptText("I could rewrite it."),
                PromptCall(CALL, "advisor", Raw(b"{}")),
            ),
            message(Role.TOOL, PromptResult(CALL, "advisor", "invented", is_error=True)),
        )
    )

    made = advisor_prompt.advisor_prompt(snapshot, "Rewrite or patch?", call_id=CALL)

    assert said(made) == [
        ("system", "You are an agent."),
        ("system", "About the workspace."),
        ("system", advisor_prompt.INSTRUCTIONS),
        ("user", "fix the login"),
        ("assistant", "I read it."),
        ("user", '[parent used read_file, input {"path":"/a"}, got: line 1]'),
        ("assistant", "[reasoning] two ways | I could rewrite it."),
        ("user", "Rewrite or patch?"),
    ]


def test_too_large_system_message_is_skipped_and_the_order_is_kept() -> None:
    snapshot = Prompt((system("a" * 5000), system("b" * 20_000), system("c" * 5000)))

    kept = [text[0] for _, text in said(advisor_prompt.advisor_prompt(snapshot, "?", call_id=CALL))]

    assert kept == ["a", "c", "Y", "?"]


def test_newest_messages_are_kept_without_a_gap() -> None:
    turns = [
        message(Role.USER, PromptText(f"{number} " + "x" * (20_000 if number == 3 else 10))) for number in range(6)
    ]

    kept = [text.split()[0] for _, text in said(advisor_prompt.advisor_prompt(Prompt(tuple(turns)), "?", call_id=CALL))]

    assert kept[1:] == ["4", "5", "?"]


def test_conversation_that_would_begin_with_an_answer_says_that_its_beginning_is_left_out() -> None:
    turns = (message(Role.USER, PromptText("x" * 20_000)), message(Role.ASSISTANT, PromptText("yes")))

    assert said(advisor_prompt.advisor_prompt(Prompt(turns), "?", call_id=CALL))[1:] == [
        ("user", "[The beginning of the conversation is left out.]"),
        ("assistant", "yes"),
        ("user", "?"),
    ]


def test_result_without_its_call_media_and_files_are_told_in_short() -> None:
    snapshot = Prompt(
        (
            message(Role.USER, PromptFile("image/png", b"1234", "a.png")),
            message(Role.TOOL, PromptResult("gone", "shot", "a picture", media=PromptMedia("image/png", "QUJD"))),
            message(Role.TOOL, PromptResult("gone", "execute", "no such file", is_error=True)),
        )
    )

    assert said(advisor_prompt.advisor_prompt(snapshot, "?", call_id=CALL))[1:-1] == [
        ("user", "[file a.png (image/png)]"),
        ("user", "[parent used shot, got: image/png a picture]"),
        ("user", "[parent used execute, got (an error): no such file]"),
    ]


PARTS = st.one_of(
    st.builds(PromptText, st.text(max_size=3000)),
    st.builds(PromptReasoning, st.text(max_size=100)),
    st.builds(PromptCall, st.sampled_from(["c1", "c2", CALL]), st.just("execute"), st.just(Raw(b'{"command":"ls"}'))),
    st.builds(PromptResult, st.sampled_from(["c1", "c2", CALL]), st.just("execute"), st.text(max_size=3000)),
    st.builds(PromptFile, st.just("image/png"), st.binary(max_size=10)),
)
MESSAGES = st.lists(
    st.builds(
        PromptMessage,
        role=st.sampled_from([Role.SYSTEM, Role.USER, Role.ASSISTANT, Role.TOOL]),
        parts=st.lists(PARTS, max_size=4).map(tuple),
    ),
    max_size=40,
)


@given(MESSAGES)
def test_prompt_stays_within_its_limits_and_has_no_tool_part_for_any_history(messages: list[PromptMessage]) -> None:
    made = advisor_prompt.advisor_prompt(Prompt(tuple(messages)), "What now?", call_id=CALL)

    *before, question = made.messages
    assert question.parts == (PromptText("What now?"),)
    assert all(isinstance(part, PromptText) for each in made.messages for part in each.parts)
    place = next(place for place, each in enumerate(before) if each.parts == (PromptText(advisor_prompt.INSTRUCTIONS),))
    assert all(each.role is Role.SYSTEM for each in before[:place])
    others = before[place + 1 :]
    assert all(each.role is not Role.SYSTEM for each in others)
    assert len(others) <= advisor_prompt.MAX_MESSAGES
    assert _bytes(before[:place]) <= advisor_prompt.MAX_SYSTEM_BYTES
    assert _bytes(others) <= advisor_prompt.MAX_MESSAGE_BYTES
    assert not others or others[0].role is Role.USER


def _bytes(messages: list[PromptMessage]) -> int:
    return sum(
        len(
            msgspec.json.encode(
                {"role": each.role, "content": [part.text for part in each.parts if isinstance(part, PromptText)]}
            )
        )
        for each in messages
    )
