"""The system blocks of a prompt: their texts and their order.

Blocks of the chat are stored when it is created, so later changes by an administrator do not affect it. Blocks of the
step are built for every generation. The order of both is fixed, because it is part of the prefix.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum

import msgspec

from rookery.domain.chat import default_prompt
from rookery.domain.chat.default_prompt import PLAN_PATH
from rookery.domain.chat.messages import NewMessage, Role, Visibility
from rookery.domain.chat.parts import Text
from rookery.domain.content import invisible_characters
from rookery.domain.content.attachments import cut_utf8

MAX_INSTRUCTION_BYTES = 64 * 1024
# The group of runtime settings that has the deployment's prompt.
PROMPTS_SETTING = "prompts"


class Awareness(StrEnum):
    """The kind of text about the workspace that a new chat gets."""

    ATTACHED = "attached"
    DETACHED = "detached"
    DETACHED_SUBAGENT = "detached_subagent"


class Mode(StrEnum):
    """The mode of a generation. Each mode except `normal` adds its own instructions."""

    NORMAL = "normal"
    EXPLORE = "explore"
    PLAN = "plan"
    READ_ONLY = "read_only"


class InstructionFile(msgspec.Struct, frozen=True):
    """A captured instruction file. `is_truncated`: the workspace has cut it."""

    path: str
    text: str
    is_truncated: bool = False


class Skill(msgspec.Struct, frozen=True):
    """A skill in the index of skills. `source` is `personal` or `workspace`."""

    name: str
    description: str
    source: str


class StepBlockInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The inputs of the blocks of one step. A missing or blank input gives no block.

    `subagent_instruction` is for subagents. If it is blank, they get the built-in one.
    """

    is_subagent: bool = False
    subagent_instruction: str = ""
    workspace_context: str = ""
    skills: Sequence[Skill] = ()
    user_prompt: str = ""
    mode: Mode = Mode.NORMAL
    plan_instructions: str = ""
    has_advisor: bool = False
    # The tools of this step; None if they are not known.
    tools: frozenset[str] | None = None


_AWARENESS = {
    Awareness.ATTACHED: default_prompt.ATTACHED,
    Awareness.DETACHED: default_prompt.DETACHED,
    Awareness.DETACHED_SUBAGENT: default_prompt.DETACHED_SUBAGENT,
}


def chat_blocks(
    *, deployment_prompt: str, system_prompt: str | None, awareness: Awareness, is_subagent: bool = False
) -> tuple[str, ...]:
    """Return the blocks that are stored when a chat is created, in order."""
    if is_subagent:
        deployment_prompt = without_orchestration(deployment_prompt)
    texts = (deployment_prompt, invisible_characters.clean(system_prompt or ""), _AWARENESS[awareness])
    return tuple(text for text in texts if text.strip())


def deployment_prompt(custom: str | None = None, *, include_default: bool | None = None) -> str:
    """Return the built-in prompt and the administrator's. If the flag is not set, a custom prompt replaces the built-in
    one.

    Without arguments, return the built-in prompt. The caller does this if the setting cannot be read.
    """
    own = invisible_characters.clean(custom or "")
    if include_default is None:
        include_default = not own
    texts = (default_prompt.DEFAULT_PROMPT if include_default else "", own)
    return "\n\n".join(text for text in texts if text)


def without_orchestration(prompt: str) -> str:
    """Return the prompt for a subagent: without the text about subagents, because a subagent cannot start others."""
    return invisible_characters.clean(prompt.replace(default_prompt.ORCHESTRATION, ""))


def step_blocks(context: StepBlockInputs) -> tuple[str, ...]:
    """Return the blocks of one step that are not empty, in order."""
    texts = (
        _subagent_instruction(context),
        context.workspace_context.strip(),
        skills_index(context.skills),
        user_instructions(context.user_prompt),
        _overlay(context),
        default_prompt.ADVISOR if context.has_advisor else "",
    )
    return tuple(text for text in texts if text)


def _subagent_instruction(context: StepBlockInputs) -> str:
    if not context.is_subagent:
        return ""
    return invisible_characters.clean(context.subagent_instruction) or default_prompt.SUBAGENT


def _overlay(context: StepBlockInputs) -> str:
    match context.mode:
        case Mode.NORMAL:
            return ""
        case Mode.EXPLORE:
            return default_prompt.EXPLORE
        case Mode.READ_ONLY:
            return default_prompt.READ_ONLY
        case Mode.PLAN if context.is_subagent:
            return default_prompt.PLAN_SUBAGENT
        case Mode.PLAN:
            extra = invisible_characters.clean(context.plan_instructions)
            has_file = context.tools is None or "propose_plan" in context.tools
            plan = default_prompt.PLAN if has_file else default_prompt.PLAN_WITHOUT_FILE
            return f"{plan}\n\n{extra}" if extra else plan


def user_instructions(text: str) -> str:
    cleaned = invisible_characters.clean(text)
    return f"<user-instructions>\n{cleaned}\n</user-instructions>" if cleaned else ""


def workspace_context(
    operating_system: str, directory: str, *, instructions: Sequence[str] = (), held_servers: Sequence[str] = ()
) -> str:
    """Return the block about the workspace, with the texts of its captured instruction files.

    `held_servers` are MCP servers of the workspace to which the owner has not consented.
    """
    lines = [f"Operating system: {operating_system}", f"Working directory: {directory}"]
    shown = [line for line in lines if not line.endswith(": ")]
    if held_servers:
        names = ", ".join(held_servers)
        shown.append(f"MCP servers that the user has not agreed to, so that they do not run and have no tools: {names}")
    if not shown and not instructions:
        return ""
    body = "\n\n".join(("\n".join(shown), *instructions)).strip()
    return f"<workspace-context>\n{body}\n</workspace-context>"


def instruction_text(file: InstructionFile) -> str:
    """Return the text of an instruction file for the block; empty if nothing of it is for the model."""
    text = invisible_characters.clean_markdown(file.text)
    if not text:
        return ""
    data = text.encode("utf-8", "replace")
    kept = cut_utf8(data, MAX_INSTRUCTION_BYTES)
    is_cut = file.is_truncated or len(kept) < len(data)
    note = " (truncated)" if is_cut else ""
    return f"Source: {file.path}{note}\n{kept.decode()}"


def skills_index(skills: Iterable[Skill]) -> str:
    """Return the index of skills. The source is part of a name only if two skills have the same name."""
    ordered = sorted(skills, key=lambda skill: (skill.name, skill.source))
    if not ordered:
        return ""
    times = Counter(skill.name for skill in ordered)
    lines = [f"- {_alias(skill, is_shared=times[skill.name] > 1)}: {_one_line(skill.description)}" for skill in ordered]
    return (
        "<available-skills>\n"
        "Instructions for certain tasks. When one fits what you are doing, load it with read_skill before you start.\n"
        + "\n".join(lines)
        + "\n</available-skills>"
    )


def _alias(skill: Skill, *, is_shared: bool) -> str:
    return f"{skill.source}/{skill.name}" if is_shared else skill.name


def _one_line(text: str) -> str:
    return " ".join(invisible_characters.clean(text).split())


def for_tools(text: str, tools: Collection[str]) -> str:
    """Return the text without the built-in texts about tools that are not in `tools`."""
    for block, tool in default_prompt.CAPABILITIES:
        if tool not in tools and block in text:
            text = text.replace(f"\n\n{block}", "").replace(f"\n{block}", "").replace(block, "").strip()
    return text


def with_plan_path(text: str, path: str | None) -> str:
    """Replace the placeholder `PLAN_PATH` by the path of the plan file, or remove it if the path is unknown."""
    if path:
        block = f"<plan-file-path>\n{path}\n</plan-file-path>"
        return text.replace(PLAN_PATH, block)
    return text.replace(f"\n\n{PLAN_PATH}", "").replace(PLAN_PATH, "").strip()


def system_rows(
    stored: object,
    *,
    system_prompt: str | None = None,
    awareness: Awareness = Awareness.DETACHED,
    is_subagent: bool = False,
) -> tuple[NewMessage, ...]:
    """Return the hidden rows that a new chat starts with.

    They have the deployment's instructions, the instructions given for this chat, and the text about its workspace.
    `stored` is the stored group `prompts`. A group that cannot be read counts as not set.
    """
    group = stored if isinstance(stored, dict) else {}
    custom, include = group.get("system_prompt"), group.get("include_default")
    deployment = deployment_prompt(
        custom if isinstance(custom, str) else None, include_default=include if isinstance(include, bool) else None
    )
    texts = chat_blocks(
        deployment_prompt=deployment, system_prompt=system_prompt, awareness=awareness, is_subagent=is_subagent
    )
    return tuple(NewMessage(role=Role.SYSTEM, visibility=Visibility.MODEL, content=(Text(text),)) for text in texts)
