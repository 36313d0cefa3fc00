"""System blocks: the chats that get each block, their order, and the cleaning of their text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.domain.chat import default_prompt, system_blocks
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.system_blocks import Awareness, InstructionFile, Mode, Skill, StepBlockInputs
from rookery.domain.content import invisible_characters

# Blocks of the chat


def test_a_chat_stores_deployment_prompt_own_prompt_and_awareness_in_this_order() -> None:
    stored = system_blocks.chat_blocks(
        deployment_prompt="house rules", system_prompt="  be brief\r\n", awareness=Awareness.ATTACHED
    )

    assert stored == ("house rules", "be brief", default_prompt.ATTACHED)


def test_absent_prompts_leave_no_row() -> None:
    stored = system_blocks.chat_blocks(deployment_prompt="", system_prompt=None, awareness=Awareness.DETACHED)

    assert stored == (default_prompt.DETACHED,)


def test_each_awareness_says_something_else() -> None:
    said = [
        system_blocks.chat_blocks(deployment_prompt="", system_prompt=None, awareness=awareness)
        for awareness in Awareness
    ]

    assert len(set(said)) == len(Awareness)


@pytest.mark.parametrize(
    ("custom", "include_default", "has_default", "has_custom"),
    [
        (None, None, True, False),
        ("", None, True, False),
        ("ours", None, False, True),
        ("ours", True, True, True),
        ("ours", False, False, True),
        ("  ", True, True, False),
        (None, False, False, False),
    ],
)
def test_the_default_prompt_stands_first_where_it_is_wanted(
    custom: str | None, include_default: bool | None, has_default: bool, has_custom: bool
) -> None:
    expected = [default_prompt.DEFAULT_PROMPT] * has_default + ["ours"] * has_custom

    assert system_blocks.deployment_prompt(custom, include_default=include_default) == "\n\n".join(expected)


def test_a_subagent_is_not_told_to_start_others() -> None:
    root = system_blocks.deployment_prompt("ours", include_default=True)

    (stored, _) = system_blocks.chat_blocks(
        deployment_prompt=root, system_prompt=None, awareness=Awareness.ATTACHED, is_subagent=True
    )

    assert default_prompt.ORCHESTRATION in root
    assert "<subagents>" not in stored
    assert stored.endswith("ours")
    assert "\n\n\n" not in stored


@pytest.mark.parametrize(
    ("tool", "word"),
    [
        ("spawn_agent", "<subagents>"),
        ("create_workspace", "## Workspaces"),
        ("create_workspace", "call list_templates"),
        ("propose_plan", "write it to the plan file"),
    ],
)
def test_a_block_about_a_capability_is_there_exactly_when_its_tool_is(tool: str, word: str) -> None:
    stored = system_blocks.chat_blocks(
        deployment_prompt=system_blocks.deployment_prompt("ours", include_default=True),
        system_prompt=None,
        awareness=Awareness.DETACHED,
    )
    everything = {name for _, name in default_prompt.CAPABILITIES}

    with_it = "\n\n".join(system_blocks.for_tools(text, everything) for text in stored)
    without = "\n\n".join(filter(None, (system_blocks.for_tools(text, everything - {tool}) for text in stored)))

    assert with_it == "\n\n".join(stored)
    assert word in with_it
    assert word not in without
    assert "\n\n\n" not in without
    assert "ours" in without


def test_planning_without_the_tool_that_proposes_plans_is_told_of_no_plan_file() -> None:
    (with_file,) = system_blocks.step_blocks(StepBlockInputs(mode=Mode.PLAN, tools=frozenset({"propose_plan"})))
    (without,) = system_blocks.step_blocks(StepBlockInputs(mode=Mode.PLAN, tools=frozenset()))

    assert "call propose_plan" in with_file
    assert "propose_plan" not in without
    assert "plan file" not in without


def test_built_in_texts_are_clean_and_small() -> None:
    texts = [text for name, text in vars(default_prompt).items() if name.isupper() and isinstance(text, str)]

    assert len(texts) >= 10
    assert all(invisible_characters.clean(text) == text for text in texts)
    assert len(default_prompt.DEFAULT_PROMPT) < 8 * 1024


# Blocks of the turn

OVERLAYS = (default_prompt.EXPLORE, default_prompt.PLAN, default_prompt.PLAN_SUBAGENT)
FULL = StepBlockInputs(
    workspace_context="<workspace-context>\nx\n</workspace-context>",
    skills=(Skill("deploy", "Deploys.", "workspace"),),
    user_prompt="call me Ada",
    mode=Mode.PLAN,
    plan_instructions="mention costs",
    has_advisor=True,
)


def test_blocks_of_a_turn_have_a_fixed_order() -> None:
    workspace, skills, person, overlay, advisor = system_blocks.step_blocks(FULL)

    assert workspace.startswith("<workspace-context>")
    assert skills.startswith("<available-skills>")
    assert person == "<user-instructions>\ncall me Ada\n</user-instructions>"
    assert overlay == f"{default_prompt.PLAN}\n\nmention costs"
    assert advisor == default_prompt.ADVISOR


def test_an_empty_context_gives_no_blocks() -> None:
    assert (
        system_blocks.step_blocks(StepBlockInputs(user_prompt=" \u200b\n", plan_instructions="only in plan mode")) == ()
    )


@pytest.mark.parametrize(
    ("context", "overlay"),
    [
        (StepBlockInputs(mode=Mode.EXPLORE), default_prompt.EXPLORE),
        (StepBlockInputs(mode=Mode.EXPLORE, is_subagent=True, plan_instructions="x"), default_prompt.EXPLORE),
        (StepBlockInputs(mode=Mode.PLAN), default_prompt.PLAN),
        (StepBlockInputs(mode=Mode.PLAN, is_subagent=True, plan_instructions="x"), default_prompt.PLAN_SUBAGENT),
    ],
)
def test_exactly_one_overlay_is_chosen(context: StepBlockInputs, overlay: str) -> None:
    assert system_blocks.step_blocks(context)[-1] == overlay
    assert sum(block in OVERLAYS for block in system_blocks.step_blocks(context)) == 1


@pytest.mark.parametrize(("own", "block"), [("you help", "you help"), (" ", default_prompt.SUBAGENT)])
def test_a_subagent_is_told_what_it_is_before_anything_else(own: str, block: str) -> None:
    context = StepBlockInputs(is_subagent=True, subagent_instruction=own, user_prompt="call me Ada")

    assert system_blocks.step_blocks(context) == (block, system_blocks.user_instructions("call me Ada"))


def test_a_root_chat_has_no_subagent_instruction() -> None:
    assert system_blocks.step_blocks(StepBlockInputs(subagent_instruction="you help")) == ()


def test_the_same_context_gives_the_same_blocks() -> None:
    assert system_blocks.step_blocks(FULL) == system_blocks.step_blocks(FULL)


# Workspace and skills


def test_workspace_context_names_place_and_sources() -> None:
    files = (
        InstructionFile("/home/ada/AGENTS.md", "Use tabs.\r\n<!-- hidden -->"),
        InstructionFile("/home/ada/app/AGENTS.md", "Use spaces.", is_truncated=True),
    )
    text = system_blocks.workspace_context(
        "linux", "/home/ada/app", instructions=[system_blocks.instruction_text(file) for file in files]
    )

    assert text == (
        "<workspace-context>\n"
        "Operating system: linux\n"
        "Working directory: /home/ada/app\n\n"
        "Source: /home/ada/AGENTS.md\nUse tabs.\n\n"
        "Source: /home/ada/app/AGENTS.md (truncated)\nUse spaces.\n"
        "</workspace-context>"
    )


def test_a_long_instruction_file_is_cut_and_marked() -> None:
    text = system_blocks.instruction_text(InstructionFile("/a.md", "é" * 40_000))

    assert "Source: /a.md (truncated)\n" in text
    assert text.count("é") == system_blocks.MAX_INSTRUCTION_BYTES // 2


def test_instruction_file_with_nothing_for_the_model_has_no_text() -> None:
    assert system_blocks.instruction_text(InstructionFile("/empty.md", "<!-- nothing -->")) == ""


def test_unknown_workspace_gives_no_context() -> None:
    assert system_blocks.workspace_context("", "") == ""
    assert "Working directory" not in system_blocks.workspace_context("linux", "")


def test_skills_are_listed_by_name_and_qualified_only_on_a_clash() -> None:
    index = system_blocks.skills_index(
        [
            Skill("review", "Theirs.", "workspace"),
            Skill("deploy", "Deploys\n  the app.", "workspace"),
            Skill("review", "Mine.", "personal"),
        ]
    )

    assert index.splitlines()[2:-1] == [
        "- deploy: Deploys the app.",
        "- personal/review: Mine.",
        "- workspace/review: Theirs.",
    ]
    assert "read_skill" in index


def test_no_skills_give_no_index() -> None:
    assert system_blocks.skills_index([]) == ""


@pytest.mark.parametrize("place", ["{}", "before\n\n{}", "before {} after", "{}\n\nafter"])
def test_the_plan_path_takes_the_place_kept_for_it(place: str) -> None:
    text = place.format(default_prompt.PLAN_PATH)

    known = system_blocks.with_plan_path(text, "/p.md")
    unknown = system_blocks.with_plan_path(text, None)

    assert known == place.format("<plan-file-path>\n/p.md\n</plan-file-path>")
    assert default_prompt.PLAN_PATH not in unknown
    assert unknown == unknown.strip()


# Cleaning

INVISIBLE = [
    0x00AD, 0x034F, 0x061C, 0x180E, 0x200B, 0x200D, 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2060, 0x2065),
    *range(0x2066, 0x2070), 0xFEFF, *range(0xFFF9, 0xFFFC),
]  # fmt: skip


@pytest.mark.parametrize("code", INVISIBLE, ids=hex)
def test_invisible_characters_are_removed(code: int) -> None:
    assert invisible_characters.clean(f"a{chr(code)}b") == "ab"


@pytest.mark.parametrize("code", [0x200C, 0x2065, 0x2029, 0x2070, 0xFFFC, 0x00AE])
def test_their_neighbours_stay(code: int) -> None:
    assert invisible_characters.clean(f"a{chr(code)}b") == f"a{chr(code)}b"


@pytest.mark.parametrize(
    ("text", "cleaned"),
    [
        ("a\r\nb", "a\nb"),
        ("a  \t\nb ", "a\nb"),
        ("a\n\n\n\nb", "a\n\nb"),
        ("a\n \n \n \nb", "a\n\nb"),
        ("  \n a\n\n", "a"),
        ("  indented\n  text", "indented\n  text"),
        ("a\n\nb", "a\n\nb"),
    ],
)
def test_space_is_tidied(text: str, cleaned: str) -> None:
    assert invisible_characters.clean(text) == cleaned


@given(st.text(st.sampled_from("a \t\r\n\u200b\ufeff\u200c")))
def test_cleaning_twice_changes_nothing(text: str) -> None:
    once = invisible_characters.clean(text)

    assert invisible_characters.clean(once) == once


@pytest.mark.parametrize("text", ["a<!-- x -->b", "a<!-- x\ny -->b", "ab<!-- open"])
def test_comments_vanish_from_markdown(text: str) -> None:
    assert invisible_characters.clean_markdown(text) == "ab"


def test_a_prompt_of_128_kib_is_kept_and_cleaning_comes_first() -> None:
    assert invisible_characters.check_prompt("a" * 128 * 1024 + "\u200b\r\n", field="system_prompt") == "a" * 128 * 1024


@pytest.mark.parametrize("text", ["a" * (128 * 1024 + 1), "é" * (64 * 1024 + 1), "\ud800" * 50_000])
def test_a_larger_prompt_is_refused_by_field(text: str) -> None:
    with pytest.raises(InvalidInput, match="131072") as caught:
        invisible_characters.check_prompt(text, field="system_prompt")

    assert caught.value.field == "system_prompt"
