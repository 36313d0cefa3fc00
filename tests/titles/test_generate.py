from __future__ import annotations

import json
from uuid import uuid4

import pytest

from rookery.demo.guide import guide
from rookery.domain.chat import titles
from rookery.domain.chat.messages import Effort
from rookery.llm.errors import NoObject
from rookery.llm.scripted import Say, Script, ScriptedModel, Scripts, last_user_text
from rookery.llm.types import Capabilities, Purpose, Thinking, Wire
from rookery.models import capability_catalog
from rookery.titles import generate


def answering(script: Script, caps: Capabilities | None = None) -> ScriptedModel:
    model = ScriptedModel("quick", Scripts({"quick": script}), provider_id=uuid4(), tokens_per_second=0)
    if caps is not None:
        model.caps = caps
    return model


def saying(**fields: str) -> Script:
    return [Say(json.dumps(fields))]


async def test_title_is_cleaned_and_its_call_is_small_and_tagged() -> None:
    model = answering(saying(title='"Fix the login test."'))

    made = await generate.make_title(model, "please fix the login test")

    assert made.text == "Fix the login test"
    assert made.usage.output
    (call,) = model.calls
    assert (call.purpose, call.max_output_tokens, call.temperature) == (Purpose.TITLE, 256, 0.0)


async def test_title_of_nine_words_is_refused() -> None:
    made = await generate.make_title(answering(saying(title="a b c d e f g h i")), "x")

    assert made.text is None


async def test_always_thinking_model_gets_room_and_its_lowest_effort() -> None:
    caps = Capabilities(
        json_schema=True, sampling=False, thinking=Thinking(always_on=True), efforts=(Effort.HIGH, Effort.LOW)
    )
    model = answering(saying(title="Fix it"), caps)

    await generate.make_title(model, "x")

    (call,) = model.calls
    assert (call.max_output_tokens, call.temperature, call.effort) == (256 + 4096, None, Effort.LOW)


@pytest.mark.parametrize(
    ("type_", "model", "wire", "effort", "tokens"),
    [
        ("openai", "gpt-5", "responses", Effort.MINIMAL, 256 + 4096),
        ("openai", "gpt-5.1", "responses", Effort.NONE, 256),
        ("openai", "o3", "completions", Effort.LOW, 256 + 4096),
        ("openai", "gpt-4o", "responses", None, 256),
        ("anthropic", "claude-opus-5", "anthropic", Effort.NONE, 256),
        ("anthropic", "claude-sonnet-5-5", "anthropic", Effort.NONE, 256),
        ("anthropic", "claude-fable-5", "anthropic", Effort.LOW, 256 + 4096),
        ("google", "gemini-2.5-pro", "bridge", Effort.LOW, 256 + 4096),
        ("google", "gemini-2.5-flash", "bridge", Effort.NONE, 256),
    ],
)
async def test_known_models_think_as_little_as_they_can_and_have_room_for_it(
    type_: str, model: str, wire: Wire, effort: Effort | None, tokens: int
) -> None:
    talker = answering(saying(title="Fix it"), capability_catalog.capabilities(type_, model, wire=wire))

    await generate.make_title(talker, "x")

    (call,) = talker.calls
    assert (call.effort, call.max_output_tokens) == (effort, tokens)


async def test_label_falls_back_when_the_model_babbles_and_is_not_asked_about_nothing() -> None:
    good, bad = answering(saying(label="Login test fixed")), answering(saying(label="I have fixed it for you."))
    unasked = answering(saying(label="Never said"))

    made = [
        await generate.make_label(model, title="t", state="waiting", last_answer=said)
        for model, said in ((good, "done"), (bad, "done"), (unasked, "  "))
    ]

    assert [each.text for each in made] == ["Login test fixed", titles.FINISHED_LABEL, titles.FINISHED_LABEL]
    assert unasked.calls == []


async def test_long_conversation_is_cut_before_it_is_summarised() -> None:
    model = answering(saying(summary="It is about logins."))

    made = await generate.make_summary(model, [("User", "x" * 10_000), ("Agent", "y" * 10_000)] * 5)

    assert made.text == "It is about logins."
    assert len(last_user_text(model.calls[0].prompt)) <= generate.SUMMARY_INPUT


async def test_model_that_gives_no_object_is_the_callers_to_handle() -> None:
    with pytest.raises(NoObject):
        await generate.make_title(answering([Say("no json here\nand two lines")]), "x")


@pytest.mark.parametrize(
    ("said", "title"),
    [
        ("Fix the login test", "Fix the login test"),
        ("  'Fix the login test.'\n", "Fix the login test"),
        ("one two three four five six seven eight nine", None),
        ("x" * 81, None),
        ("Sure!\nFix the login test", None),
        ('{"subject": "Fix the login test"}', None),
        ("<title>Fix it</title>", None),
        ("", None),
    ],
)
async def test_plain_text_of_one_line_within_the_limit_is_a_title(said: str, title: str | None) -> None:
    model = answering([Say(said)])
    try:
        made = (await generate.make_title(model, "x")).text
    except NoObject:
        made = None

    assert made == title
    # Accepted at the first try if plain text is accepted.
    assert len(model.calls) == (1 if title else 2)


async def test_plain_text_is_a_label_or_a_summary_too_and_a_refusal_is_none() -> None:
    label = await generate.make_label(answering([Say("Login test fixed")]), title="t", state="s", last_answer="a")
    summary = await generate.make_summary(answering([Say("They fixed the login test.")]), [("User", "x")])

    assert (label.text, summary.text) == ("Login test fixed", "They fixed the login test.")


async def test_offline_model_names_chats_too() -> None:
    made = await generate.make_title(answering(guide), "please fix the failing login test")

    assert made.text == "Please fix the failing login test"
