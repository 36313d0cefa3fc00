"""The permission mode of a chat: whether its tool calls ask first, follow the rules, or may only read. Pure.

The mode of a root chat applies to its subagents. It only restricts: a rule that denies a call denies it in every mode.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from rookery.domain.chat.approvals import Judgement, Verdict


class PermissionMode(StrEnum):
    """The modes.

    `ask`: every call with an effect waits for the user. `auto`: the approval rules decide. `read_only`: the model has
    only tools that read, and commands run in the read-only view of the workspace.
    """

    ASK = "ask"
    AUTO = "auto"
    READ_ONLY = "read_only"


# Built-in tools without an effect. All others, also those of MCP servers and of clients, count as having one.
HARMLESS = frozenset(
    {
        "advisor",
        "ask_user_question",
        "attach_file",
        "find_tools",
        "list_agents",
        "list_subagent_models",
        "list_templates",
        "process_list",
        "process_output",
        "propose_plan",
        "read_agent_report",
        "read_file",
        "read_skill",
        "read_skill_file",
        "read_template",
        "wait_agent",
    }
)


def restrict(mode: PermissionMode, judged: Judgement, names: Collection[str]) -> Judgement:
    """Return the judgement of a call in this mode. `names` are those by which the rules judged the call."""
    if mode is not PermissionMode.ASK or judged.verdict is not Verdict.ALLOW:
        return judged
    return judged if HARMLESS.issuperset(names) else Judgement(Verdict.ASK)


def asks_without_rule(mode: PermissionMode, judged: Judgement) -> bool:
    """Return whether the user is asked because of the mode, not because of a rule.

    The answer "always" is then not offered, because a rule would change nothing.
    """
    return mode is PermissionMode.ASK and judged.verdict is Verdict.ASK
