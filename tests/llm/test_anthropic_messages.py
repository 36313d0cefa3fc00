"""The messages of a Messages request: order, files, reasoning, pairs, cache marks, prefixes."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from rookery.domain.chat.messages import Effort
from rookery.domain.chat.model_prompt import Prompt, PromptCall, PromptFile, PromptReasoning, PromptResult, PromptText
from rookery.llm.anthropic.wire import AnthropicFormat, AnthropicOptions
from rookery.llm.types import (
    Call,
    Capabilities,
)
from rookery.llm.wire import PromptInvalid, Request
from tests.llm.anthropic_rig import (
    ADAPTIVE,
    BINDING,
    DEFAULT_ON,
    THINKS,
    Json,
    body,
    built,
    said,
    sent,
    text,
    unmarked,
)
from tests.wire.difficult_prompts import (
    PNG,
    READ,
    assistant,
    call,
    image,
    prompts,
    result,
    searched,
    system,
    tool,
    user,
)


def test_results_come_before_everything_else_a_user_says() -> None:
    made = said(
        user("Look."),
        assistant(call("call_1"), call("call_2")),
        tool(result("call_1")),
        user("Wait."),
        tool(result("call_2", "no", is_error=True)),
        user("Go on."),
    )

    assert made[-1]["content"] == [
        {"type": "tool_result", "tool_use_id": "call_1", "content": "# Rookery"},
        {"type": "tool_result", "tool_use_id": "call_2", "content": "no", "is_error": True},
        text("Wait."),
        text("Go on."),
    ]


def test_image_of_a_result_stands_before_its_text() -> None:
    picture = {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": base64.b64encode(PNG).decode()},
    }

    with_text = said(user("Look."), assistant(call("call_1")), tool(result("call_1", "dot.png", media=image())))
    alone = said(user("Look."), assistant(call("call_1")), tool(result("call_1", "", media=image())))
    other = said(user("Look."), assistant(call("call_1")), tool(result("call_1", "dot", media=image("image/bmp"))))

    assert with_text[-1]["content"][0]["content"] == [picture, text("dot.png")]
    assert alone[-1]["content"][0]["content"] == [picture]
    assert other[-1]["content"][0]["content"] == "dot"


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        (PromptFile("image/jpg", b"j", "a"), {"type": "base64", "media_type": "image/jpeg", "data": "ag=="}),
        (PromptFile("application/pdf", b"p", "a"), {"type": "base64", "media_type": "application/pdf", "data": "cA=="}),
        (
            PromptFile("text/markdown; charset=utf-8", b"# hi", "a.md"),
            {"type": "text", "media_type": "text/plain", "data": "# hi"},
        ),
    ],
)
def test_files_have_the_source_of_their_type(file: PromptFile, expected: Json) -> None:
    assert said(user(file))[0]["content"][0]["source"] == expected


def test_file_no_block_exists_for_is_named_and_files_of_answers_are_left_out() -> None:
    named = said(user(PromptFile("audio/wav", b"w", "song.wav")))
    answered = said(user("a"), assistant(PromptFile("image/png", PNG), "b"), user("c"))

    assert named[0]["content"] == [text('<attachment-omitted name="song wav" type="audio/wav"/>')]
    assert answered[1]["content"] == [text("b")]


@pytest.mark.parametrize(
    ("name", "title"),
    [
        ("Report (final)_v2.pdf", "Report (final) v2 pdf"),
        ("a  b\n[c]-d", "a b [c]-d"),
        ("日本語", "Document"),
        (None, "Document"),
    ],
)
def test_titles_of_documents_keep_only_what_is_allowed(name: str | None, title: str) -> None:
    assert said(user(PromptFile("application/pdf", b"p", name)))[0]["content"][0]["title"] == title


def test_empty_texts_and_empty_messages_are_left_out() -> None:
    made = said(user("Hello.", "  \n"), assistant(" ", PromptReasoning("unproven")), user("?"))

    assert made == [{"role": "user", "content": [text("Hello."), text("?")]}]


def test_neighbouring_answers_merge_unless_one_is_signed() -> None:
    signed = PromptReasoning("hm", {"signature": "s"})
    merged = said(user("a"), assistant("b"), assistant("c"), user("d"))
    apart = said(user("a"), assistant("b"), assistant(signed, "c"), assistant("d"), user("e"))

    assert [len(one["content"]) for one in merged] == [1, 2, 1]
    assert [one["role"] for one in apart] == ["user", "assistant", "assistant", "assistant", "user"]


def test_only_proven_reasoning_of_whole_native_answers_is_replayed() -> None:
    proven = PromptReasoning("hm", {"signature": "s"})
    redacted = PromptReasoning("", {"redacted_data": "r"})
    blocks = [{"type": "thinking", "thinking": "hm", "signature": "s"}, {"type": "redacted_thinking", "data": "r"}]

    def replayed(**fields: Any) -> Json:
        made = said(user("a"), assistant(proven, redacted, PromptReasoning("no"), "b", **fields), user("c"))
        return made[1]["content"][:-1]

    assert replayed() == blocks
    assert replayed(is_native=False) == []
    assert replayed(is_whole=False) == []


def test_reasoning_can_be_kept_from_the_provider() -> None:
    proven = PromptReasoning("hm", {"signature": "s"})

    made = said(user("a"), assistant(proven, "b"), user("c"), options=AnthropicOptions(send_reasoning=False))

    assert made[1]["content"] == [text("b")]


def test_request_starts_with_the_user() -> None:
    made = said(assistant("Hi."), user("Hello."))

    assert [one["role"] for one in made] == ["user", "assistant", "user"]


@pytest.mark.parametrize(
    "messages",
    [
        pytest.param((), id="nothing"),
        pytest.param((system("Be brief."),), id="only system"),
        pytest.param((user("a"), assistant("b")), id="ends with an answer"),
        pytest.param((user("a"), assistant(call("c1"))), id="open call"),
        pytest.param((user("a"), assistant(call("c1")), user("b")), id="call without result"),
        pytest.param(
            (user("a"), assistant(searched("anthropic")[0], call("c1"), finish_reason="pause")),
            id="open call at a pause",
        ),
        pytest.param((user("a"), tool(result("c1"))), id="result without call"),
        pytest.param(
            (user("a"), assistant(call("c1"), call("c1")), tool(result("c1")), tool(result("c1"))), id="same id twice"
        ),
        pytest.param(
            (user("a"), assistant(call("c1")), tool(result("c1")), assistant(call("c1")), tool(result("c1"))),
            id="id used again",
        ),
    ],
)
def test_prompt_that_no_server_takes_is_not_sent(messages: tuple[Any, ...]) -> None:
    with pytest.raises(PromptInvalid):
        built(Prompt(messages))


def test_unknown_block_is_sent_back_as_it_came() -> None:
    raw = {"type": "crystal", "b": [1, 2.5], "a": {"y": 1, "x": None}}
    kept = PromptReasoning("", {"raw": raw})

    assert said(user("a"), assistant(kept, "b"), user("c"))[1]["content"][0] == raw
    assert said(user("a"), assistant(kept, "b"), user("c"), plain_history=True)[1]["content"] == [text("b")]


# Provider-executed pairs


SEARCHED = searched("anthropic")
RAW_CALL = SEARCHED[0].meta["raw"] if SEARCHED[0].meta else None
RAW_RESULT = SEARCHED[1].meta["raw"] if SEARCHED[1].meta else None
FOUND = text("Rooks https://example.org/rooks")


def test_pair_in_one_answer_is_sent_as_it_came() -> None:
    made = said(user("a"), assistant(*SEARCHED, "b"), user("c"))

    assert made[1]["content"] == [RAW_CALL, RAW_RESULT, text("b")]


def test_pair_over_two_answers_is_sent_as_it_came() -> None:
    made = said(user("a"), assistant(SEARCHED[0], finish_reason="pause"), assistant(SEARCHED[1], "b"), user("c"))

    assert made[1]["content"] == [RAW_CALL, RAW_RESULT, text("b")]


def test_pair_over_more_answers_is_none() -> None:
    made = said(
        user("a"), assistant(SEARCHED[0], "b"), user("c"), assistant("d"), user("e"), assistant(SEARCHED[1]), user("f")
    )

    assert [one["content"] for one in made] == [
        [text("a")], [text("b")], [text("c")], [text("d")], [text("e")], [FOUND], [text("f")]
    ]  # fmt: skip


def test_call_without_result_is_removed_and_its_empty_message_too() -> None:
    assert said(user("a"), assistant(SEARCHED[0]), user("b")) == [{"role": "user", "content": [text("a"), text("b")]}]


def test_result_without_call_becomes_text() -> None:
    assert said(user("a"), assistant(SEARCHED[1]), user("b"))[1]["content"] == [FOUND]


def test_result_without_call_and_text_is_removed() -> None:
    silent = msgspec.structs.replace(SEARCHED[1], text=" ")

    assert said(user("a"), assistant(silent, "b"), user("c"))[1]["content"] == [text("b")]


def test_result_of_an_unreadable_call_becomes_text() -> None:
    broken = PromptCall("srvtoolu_1", "web_search", Raw("{}"), True, {"raw": {**(RAW_CALL or {}), "input": '{"que'}})

    assert said(user("a"), assistant(broken, SEARCHED[1], "b"), user("c"))[1]["content"] == [FOUND, text("b")]


def test_second_pair_with_the_same_id_is_none() -> None:
    made = said(user("a"), assistant(*SEARCHED), user("b"), assistant(*SEARCHED), user("c"))

    assert made[1]["content"] == [RAW_CALL, RAW_RESULT]
    assert made[3]["content"] == [FOUND]


def test_call_of_a_paused_answer_stays_open_at_the_end() -> None:
    paused = assistant("b", SEARCHED[0], finish_reason="pause")

    assert said(user("a"), paused)[-1] == {"role": "assistant", "content": [text("b"), RAW_CALL]}
    assert said(user("a"), paused, user("c"))[1]["content"] == [text("b")]


def test_call_beside_local_calls_stays_open_for_the_next_response() -> None:
    made = said(user("a"), assistant(SEARCHED[0], call("call_1")), tool(result("call_1")))
    later = said(
        user("a"), assistant(SEARCHED[0], call("call_1")), tool(result("call_1")), assistant(SEARCHED[1]), user("b")
    )

    assert made[1]["content"][0] == RAW_CALL
    assert later[1]["content"][0] == RAW_CALL
    assert later[3]["content"] == [RAW_RESULT]


def test_call_of_an_interrupted_answer_does_not_stay_open() -> None:
    made = said(user("a"), assistant(SEARCHED[0], call("call_1"), is_whole=False), tool(result("call_1")))

    assert [block["type"] for block in made[1]["content"]] == ["tool_use"]


def test_newest_signed_answer_loses_only_orphan_calls() -> None:
    signed = PromptReasoning("hm", {"signature": "s"})

    orphan_call = said(user("a"), assistant(signed, SEARCHED[0], "b"), user("c"))
    orphan_result = said(user("a"), assistant(signed, SEARCHED[1], "b"), user("c"))

    assert [block["type"] for block in orphan_call[1]["content"]] == ["thinking", "text"]
    assert orphan_result[1]["content"] == [text("b")]


def test_plain_history_has_neither_reasoning_nor_what_the_provider_executed() -> None:
    made = said(*prompts("anthropic")["provider tools"].messages, plain_history=True)

    assert made[1]["content"] == [text("They are birds.")]


def test_paused_answer_of_which_nothing_is_left_is_continued_by_a_word() -> None:
    made = said(user("a"), assistant("b", SEARCHED[0], finish_reason="pause"), plain_history=True)

    assert made[-1] == {"role": "user", "content": [text("Continue.")]}


def test_results_of_other_wires_are_sent_as_text() -> None:
    foreign = PromptResult(
        "ws_1", "web_search", "found", provider_executed=True, meta={"raw": {"type": "web_search_call"}}
    )

    assert said(user("a"), assistant(foreign, PromptText("b")), user("c"))[1]["content"] == [text("found"), text("b")]


# Cache marks


def marked(value: Json, path: str = "") -> list[str]:
    if isinstance(value, dict):
        here = [path] if "cache_control" in value else []
        return here + [found for key, child in value.items() for found in marked(child, f"{path}.{key}")]
    if isinstance(value, list):
        return [found for number, child in enumerate(value) for found in marked(child, f"{path}.{number}")]
    return []


@pytest.mark.parametrize(
    ("name", "places"),
    [
        ("text chat", [".tools.0", ".system.0", ".messages.0.content.0", ".messages.2.content.0"]),
        ("several system messages", [".tools.0", ".system.1", ".messages.0.content.0"]),
        ("files", [".tools.0", ".messages.0.content.2"]),
        ("tools", [".tools.0", ".system.0", ".messages.0.content.0", ".messages.2.content.0"]),
        ("parallel tools with image results", [".tools.0", ".messages.0.content.0", ".messages.2.content.2"]),
        ("thinking", [".tools.0", ".system.0", ".messages.2.content.0", ".messages.4.content.0"]),
    ],
)
def test_cache_marks_are_at_the_stated_places(name: str, places: list[str]) -> None:
    assert marked(body(prompts("anthropic")[name], tools=(READ,))) == places


def test_mark_of_a_paused_answer_avoids_thinking_and_empty_results() -> None:
    signed = PromptReasoning("hm", {"signature": "s"})
    made = body(
        Prompt(
            (
                user("a"),
                assistant(call("call_1")),
                tool(result("call_1", "")),
                assistant(SEARCHED[0], signed, finish_reason="pause"),
            )
        )
    )

    assert marked(made) == [".messages.3.content.0"]


def test_cache_lifetime_is_an_option() -> None:
    for_an_hour = body(options=AnthropicOptions(cache_ttl="1h"))

    assert for_an_hour["messages"][0]["content"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


# Prefixes


def test_second_request_starts_with_the_bytes_of_the_first() -> None:
    first = built(Prompt((system("s"), user("a"))), tools=(READ,))
    second = built(Prompt((system("s"), user("a"), assistant("b"), user("c"))), tools=(READ,))

    head = msgspec.json.encode(unmarked(sent(first))).removesuffix(b"]}")
    assert msgspec.json.encode(unmarked(sent(second))).startswith(head)
    assert msgspec.json.encode(second.body) == msgspec.json.encode(
        built(Prompt((system("s"), user("a"), assistant("b"), user("c"))), tools=(READ,)).body
    )


def thought(fingerprint: bytes | None, overlay: str = "s", *, caps: Capabilities = BINDING, **fields: Any) -> Request:
    """Return a second request whose first answer has thinking with this prefix hash."""
    answer = assistant(PromptReasoning("hm", {"signature": "s"}), "b", prefix_fp=fingerprint)
    return built(Prompt((system(overlay), user("a"), answer, user("c"))), caps=caps, tools=(READ,), **fields)


def test_unchanged_prefix_is_sent_without_ado() -> None:
    first = built(Prompt((system("s"), user("a"))), caps=BINDING, tools=(READ,))

    second = thought(first.prefix_fp)

    assert "block_binding" not in sent(second)["thinking"]
    assert "anthropic-beta" not in second.headers
    assert second.warnings == ()


def test_changed_overlay_on_a_binding_model_drops_stale_thinking_at_once() -> None:
    first = built(Prompt((system("s"), user("a"))), caps=BINDING, tools=(READ,))

    second = thought(first.prefix_fp, "another overlay")

    assert sent(second)["thinking"] == {**THINKS, "block_binding": {"prefix_mismatch_behavior": "drop_block"}}
    assert second.headers["anthropic-beta"] == "thinking-binding-controls-2026-08-01"
    assert [note.setting for note in second.warnings] == ["thinking"]


def test_changed_overlay_on_another_model_changes_nothing() -> None:
    first = built(Prompt((system("s"), user("a"))), caps=DEFAULT_ON, tools=(READ,))

    second = thought(first.prefix_fp, "another overlay", caps=DEFAULT_ON)

    assert sent(second)["thinking"] == THINKS


def test_unknown_prefix_is_not_a_changed_one() -> None:
    assert "block_binding" not in sent(thought(None))["thinking"]


def test_stale_thinking_is_left_out_where_thinking_is_switched_off() -> None:
    request = thought(None, drop_stale_thinking=True, effort=Effort.NONE)

    made = sent(request)
    assert made["thinking"] == {"type": "disabled"}
    assert "anthropic-beta" not in request.headers
    assert [block["type"] for block in made["messages"][1]["content"]] == ["text"]


def test_fingerprint_sees_everything_but_cache_marks() -> None:
    prompt = Prompt((system("s"), user("a")))
    plain = built(prompt, tools=(READ,)).prefix_fp

    assert plain is not None
    assert len(plain) == 16
    assert built(prompt, tools=(READ,), options=AnthropicOptions(cache_ttl="1h"), effort=Effort.LOW).prefix_fp == plain
    changed = [
        built(prompt),
        built(Prompt((system("t"), user("a"))), tools=(READ,)),
        built(Prompt((system("s"), user("b"))), tools=(READ,)),
        AnthropicFormat("other", ADAPTIVE).build(Call(prompt=prompt, tools=(READ,))),
    ]
    assert len({plain, *(request.prefix_fp for request in changed)}) == 5


def test_fingerprint_sees_who_said_what() -> None:
    asked = built(Prompt((user("a"), assistant("b"), user("c"))))
    told = built(Prompt((user("a"), user("b"), user("c"))))

    assert asked.prefix_fp != told.prefix_fp


def test_kept_blocks_have_the_same_bytes_however_the_database_orders_their_keys() -> None:
    one = {"type": "crystal", "b": {"y": 1, "x": 2}, "a": 1}
    other = {"a": 1, "b": {"x": 2, "y": 1}, "type": "crystal"}

    first, second = (
        built(Prompt((user("a"), assistant(PromptReasoning("", {"raw": raw}), "b"), user("c")))) for raw in (one, other)
    )

    assert msgspec.json.encode(first.body) == msgspec.json.encode(second.body)
    assert first.prefix_fp == second.prefix_fp
