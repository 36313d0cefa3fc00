"""Titles, labels and summaries of the scripted model, requested as from any model."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.demo import short_texts
from rookery.domain.chat import titles
from rookery.llm.scripted import ScriptedModel
from rookery.models.connector import default_scripts
from rookery.titles import generate

TOUR = """There is no workspace yet, so I make one first.

A short tour: I write a file, read it, edit it, and run a command on it.

The file is written.

The command finished:

```
# A tour

Linux x86_64
```"""


def model() -> ScriptedModel:
    return ScriptedModel("guide", default_scripts(), provider_id=UUID(int=1), tokens_per_second=0)


@pytest.mark.parametrize(
    ("asked", "title"),
    [
        ("take the tour", "Take the tour"),
        ("run `uname -a`.", "Run uname -a"),
        ("please write a Python script that counts to five", "Please write a Python script that counts to"),
        ("  ", "New chat"),
    ],
)
async def test_title_is_the_beginning_of_the_request(asked: str, title: str) -> None:
    assert (await generate.make_title(model(), asked)).text == title


@pytest.mark.parametrize(
    ("state", "answer", "label"),
    [
        ("the turn is finished", TOUR, "Command finished"),
        ("the turn is finished", "The file is written.", "File is written"),
        ("the turn is finished", "The command finished with exit code 3.", "Step failed"),
        ("the turn is finished", "You denied that, so I did not run it.", "Waiting for other instructions"),
        ("the turn is finished", "No workspace could be made: no template.", "No workspace"),
        ("the turn is finished", "It reads:\n\n```\nx\n```", "Turn finished"),
        ("the turn is finished and waits for the user's decision", "I have a question.", "Waiting for a decision"),
    ],
)
async def test_label_says_how_it_ended(state: str, answer: str, label: str) -> None:
    made = await generate.make_label(model(), title="Take the tour", state=state, last_answer=answer)

    assert made.text == label


async def test_summary_names_what_was_asked_and_how_the_last_answer_ended() -> None:
    turns = [("User", "read /a. Then stop!"), ("Assistant", "It reads:\n\n```\nx\n```"), ("User", "take the tour")]

    made = await generate.make_summary(model(), [*turns, ("Assistant", TOUR)])

    assert made.text == ("Requests: read /a Then stop; take the tour. Last answer: The command finished.")


@given(st.lists(st.tuples(st.sampled_from(["User", "Assistant"]), st.text(max_size=400)), min_size=1, max_size=12))
def test_summary_of_anything_keeps_to_its_bounds(turns: list[tuple[str, str]]) -> None:
    text = titles.transcript(turns, per_turn=generate.SUMMARY_PER_TURN, limit=generate.SUMMARY_INPUT)

    assert titles.clean_summary(short_texts.summary(text)) is not None
