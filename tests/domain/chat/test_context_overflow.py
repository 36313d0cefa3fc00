"""Shortening of chats that are too long: it always ends, and the rest fits."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from rookery.domain.chat import context_overflow, summary_prompt
from rookery.domain.chat.context_overflow import Budget, Cut
from rookery.domain.chat.messages import Role
from rookery.domain.chat.model_prompt import (
    Prompt,
    PromptCall,
    PromptFile,
    PromptMessage,
    PromptPart,
    PromptResult,
    PromptText,
)
from rookery.domain.chat.parts import File, FileReference, Part, Text
from rookery.domain.content.attachments import StoredFile

FILE = UUID(int=5)
TEXTS = st.text(max_size=4000)


def message(role: Role, *content: PromptPart) -> PromptMessage:
    return PromptMessage(role=role, parts=content)


# What is allowed


@pytest.mark.parametrize(
    ("budget", "output", "allowed"),
    [
        (Budget(window_tokens=None), 0, None),
        (Budget(window_tokens=None, max_output_tokens=32_000), 32_000, None),
        (Budget(window_tokens=10_000, max_output_tokens=32_000), 2_500, 6_750),
        (Budget(window_tokens=200_000, max_output_tokens=32_000), 32_000, 151_200),
        (Budget(window_tokens=200_000, max_output_tokens=32_000, refused_tokens=100_000), 32_000, 66_000),
        (Budget(window_tokens=None, refused_tokens=100_000), 0, 66_000),
    ],
)
def test_answer_gets_a_quarter_at_most_and_a_request_is_shorter_than_a_refused_one(
    budget: Budget, output: int, allowed: int | None
) -> None:
    assert (budget.output_tokens, budget.allowed_tokens) == (output, allowed)


@given(st.none() | st.integers(1, 10**7), st.integers(0, 10**6), st.lists(st.integers(1, 10**7), min_size=1))
def test_after_each_refusal_less_is_allowed_than_was_refused(
    window: int | None, output: int, refused: list[int]
) -> None:
    budget = Budget(window_tokens=window, max_output_tokens=output)
    for tokens in refused:
        budget = budget.refuse(tokens, window_tokens=window)

        assert budget.allowed_tokens is not None
        assert budget.allowed_tokens < min(tokens, budget.refused_tokens or tokens)


@given(st.integers(1, 10**8), st.integers(1, 10**8))
def test_turn_that_is_refused_again_and_again_comes_to_an_end(window: int, first: int) -> None:
    """After each refusal, the next request of the turn is at most half as long, down to the minimum."""
    refused = first
    for rungs in range(1, 9):
        target = context_overflow.target_tokens(
            Budget(window_tokens=window, refused_tokens=refused), rungs=rungs, is_guessed=False
        )
        assert target is not None
        assert target <= max(refused // 2, context_overflow.FLOOR_TOKENS)
        refused = max(target, 1)


# Trimming


@given(st.lists(TEXTS, max_size=12), st.integers(8_000, 40_000))
def test_trimmed_prompt_keeps_system_blocks_and_the_request(texts: list[str], max_bytes: int) -> None:
    said = [message(Role.USER, PromptText(text * 3)) for text in texts]
    prompt = summary_prompt.summary_request(Prompt((message(Role.SYSTEM, PromptText("rules")), *said)))

    shorter = context_overflow.trimmed(prompt, max_bytes=max_bytes)

    assert len(shorter.messages) == len(prompt.messages)
    assert (shorter.messages[0], shorter.messages[-1]) == (prompt.messages[0], prompt.messages[-1])
    assert summary_prompt.size_bytes(shorter.messages) <= max(max_bytes, summary_prompt.size_bytes(prompt.messages))


def test_long_results_are_cut_to_their_ends_as_far_as_they_must() -> None:
    result = PromptResult("a", "read", "HEAD " + "x" * 60_000 + " TAIL")
    prompt = summary_prompt.summary_request(Prompt((message(Role.USER, PromptText("go")), message(Role.TOOL, result))))

    shorter = context_overflow.trimmed(prompt, max_bytes=20_000)

    (cut,) = (part for each in shorter.messages for part in each.parts if isinstance(part, PromptResult))
    assert cut.text.startswith("HEAD ")
    assert cut.text.endswith(" TAIL")
    assert summary_prompt.size_bytes(shorter.messages) <= 20_000


# Pieces


def test_transcript_says_who_did_what() -> None:
    entries = context_overflow.transcript(
        [
            message(Role.SYSTEM, PromptText("rules")),
            message(Role.USER, PromptText("look"), PromptFile("image/png", b"png", "a.png")),
            message(Role.ASSISTANT, PromptText("sure"), PromptCall("c", "read", Raw(b'{"path": "a"}'))),
            message(Role.TOOL, PromptResult("c", "read", "y" * 9000)),
        ]
    )

    assert [entry.partition("\n")[0] for entry in entries] == [
        "User:",
        "User:",
        "Assistant:",
        'Assistant called read with {"path": "a"}',
        "Result of read:",
    ]
    assert len(entries[-1]) < 4200


@given(st.lists(TEXTS, max_size=20), st.integers(16, 5000))
def test_pieces_hold_everything_in_order_and_each_fits(entries: list[str], max_bytes: int) -> None:
    left, pieces = list(entries), []
    for _ in range(10_000):
        if not left:
            break
        piece, left = context_overflow.next_piece(left, max_bytes=max_bytes)
        pieces.append(piece)

    assert left == []
    assert all(len(piece.encode("utf-8", "replace")) <= max_bytes for piece in pieces)
    joined = "".join("".join(pieces).split())
    assert joined == "".join("".join(entries).split())


@given(st.lists(TEXTS, min_size=1, max_size=20), st.integers(2_000, 20_000))
def test_text_beyond_the_limit_of_all_pieces_is_cut_evenly(entries: list[str], max_bytes: int) -> None:
    cut = context_overflow.shortened(entries, max_bytes=max_bytes)

    assert len(cut) == len(entries)
    total = sum(len(entry.encode("utf-8", "replace")) for entry in cut)
    assert total <= max(max_bytes, len(entries) * context_overflow.MIN_PART_BYTES)


# The user's message

PARTS = st.lists(
    TEXTS.map(Text)
    | TEXTS.map(lambda text: FileReference("a.py", 1, 2, text))
    | st.just(File("image/png", file_id=FILE)),
    max_size=6,
)


@given(PARTS, st.integers(0, 30_000))
def test_message_is_whole_where_it_fits_and_else_cut_to_what_does(content: list[Part], room: int) -> None:
    files = {FILE: StoredFile(media_type="image/png", data=b"png")}

    fitted = context_overflow.fit(content, files=files, room_bytes=room)
    whole = context_overflow.fit(content, files=files, room_bytes=None)

    assert whole is not None
    assert whole.parts == tuple(content)
    if fitted is None:
        return
    carried = fitted.with_cuts({})
    assert len(carried) == len(content)
    if not fitted.cuts and carried == tuple(content):
        return
    texts = sum(len(part.text.encode("utf-8", "replace")) for part in carried if isinstance(part, Text))
    assert texts <= room + 256


def test_cut_message_has_both_ends_and_says_where_all_of_it_is() -> None:
    text = "HEAD " + "x" * 50_000 + " TAIL"

    fitted = context_overflow.fit([Text("short"), Text(text)], files={}, room_bytes=9_000)

    assert fitted is not None
    assert fitted.cuts == (Cut(1, text, 8_995),)
    short, kept = fitted.with_cuts({1: "/home/me/.rookery/results/message_1"})
    assert short == Text("short")
    assert isinstance(kept, Text)
    assert kept.text.startswith("HEAD ")
    assert kept.text.endswith(" TAIL")
    assert "All of it is in the file /home/me/.rookery/results/message_1" in kept.text
    (_, lost) = fitted.with_cuts({})
    assert isinstance(lost, Text)
    assert "The user can see all of it" in lost.text


def test_text_file_that_is_too_long_is_cut_and_a_picture_gives_way_to_a_note() -> None:
    files = {FILE: StoredFile(media_type="text/plain", data=b"line\n" * 20_000, name="log.txt")}
    fitted = context_overflow.fit([File("text/plain", file_id=FILE)], files=files, room_bytes=6_000)

    assert fitted is not None
    (kept,) = fitted.with_cuts({})
    assert isinstance(kept, Text)
    assert kept.text.startswith("log.txt:\nline")

    pictures: list[Part] = [File("image/png", file_id=FILE)] * 4
    image = {FILE: StoredFile(media_type="image/png", data=b"png", name="a.png")}
    noted = context_overflow.fit(pictures, files=image, room_bytes=8_000)
    assert noted is not None
    assert all(isinstance(part, Text) for part in noted.parts)


def test_without_any_room_there_is_no_message() -> None:
    assert context_overflow.fit([Text("x" * 5000)], files={}, room_bytes=500) is None
    assert context_overflow.fit([Text("x" * 5000)], files={}, room_bytes=-1) is None
