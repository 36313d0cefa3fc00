"""The tool ask_user_question, for planning turns. It asks the user to decide, and ends the turn."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from rookery.loop.tool import Tool, ToolContext, ToolOutput
from rookery.tools.step_workspace import Refused, make_tool

MIN_OPTIONS, MAX_OPTIONS = 2, 4
MAX_QUESTIONS = 4


class Option(msgspec.Struct):
    label: Annotated[str, Meta(description="A few words.")]
    description: Annotated[str, Meta(description="What choosing it means.")]


class Question(msgspec.Struct):
    header: Annotated[str, Meta(description="One or two words for the subject.")]
    question: Annotated[str, Meta(description="The whole question.")]
    options: Annotated[list[Option], Meta(description="2 to 4 choices. The user can always answer freely instead.")]


class AskUserQuestion(msgspec.Struct):
    questions: Annotated[list[Question], Meta(description="1 to 4 questions.")]


def tools() -> list[Tool]:
    return [
        make_tool(
            "ask_user_question",
            "Ask the user to decide between concrete choices. The turn ends; the answer is the next message. Ask only "
            "what is the user's to decide and cannot be found out.",
            arguments=AskUserQuestion,
            handler=ask_user_question,
            stop_after=True,
        )
    ]


async def ask_user_question(ctx: ToolContext, given: AskUserQuestion) -> ToolOutput:
    if not 1 <= len(given.questions) <= MAX_QUESTIONS:
        raise Refused(f"Ask 1 to {MAX_QUESTIONS} questions, not {len(given.questions)}.")
    for place, question in enumerate(given.questions):
        _check(question, f"questions[{place}]")
    return ToolOutput({"questions": msgspec.to_builtins(given.questions)})


def _check(question: Question, where: str) -> None:
    if not MIN_OPTIONS <= len(question.options) <= MAX_OPTIONS:
        found = len(question.options)
        raise Refused(f"`{where}.options` has {found} entries; a question needs {MIN_OPTIONS} to {MAX_OPTIONS}.")
    texts = {f"{where}.header": question.header, f"{where}.question": question.question}
    for number, option in enumerate(question.options):
        texts[f"{where}.options[{number}].label"] = option.label
        texts[f"{where}.options[{number}].description"] = option.description
    blank = [name for name, text in texts.items() if not text.strip()]
    if blank:
        raise Refused(f"`{blank[0]}` is blank. Write the text that the user should read there.")
