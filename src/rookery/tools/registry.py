"""The registry of built-in tools: their order, and which chats may use which.

The order is part of the prompt's prefix, so it depends on nothing but this file. The table is data, and a test compares
it with the specified table column by column.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from rookery.domain.chat.system_blocks import Mode
from rookery.loop.tool import Tool

# Names found in old history, and the tool's current name.
ALIASES = {"close_agent": "interrupt_agent"}


class Column(StrEnum):
    """The kind of chat and turn a step belongs to. A root chat that explores is in the column of exploring children."""

    ROOT = "root"
    ROOT_PLAN = "root, plan"
    CHILD = "child"
    CHILD_PLAN = "child, plan"
    EXPLORE = "explore child"


_ALL = frozenset(Column)
_ROOT = frozenset({Column.ROOT, Column.ROOT_PLAN})
_NORMAL = frozenset({Column.ROOT, Column.CHILD})
# The columns that may use tools of the workspace's MCP servers.
NORMAL = _NORMAL

# In the order of registration. `write_file` and `edit_files` accept only the plan file while planning.
ACTIVE: dict[str, frozenset[Column]] = {
    "list_templates": _ROOT,
    "read_template": _ROOT,
    "create_workspace": _ROOT,
    "start_workspace": _ROOT,
    "stop_workspace": _ROOT,
    "read_file": _ALL,
    "write_file": _NORMAL | {Column.ROOT_PLAN},
    "edit_files": _NORMAL | {Column.ROOT_PLAN},
    "execute": _ALL,
    "process_output": _ALL,
    "process_list": _NORMAL,
    "process_signal": _NORMAL,
    "attach_file": _NORMAL | {Column.ROOT_PLAN},
    "ask_user_question": frozenset({Column.ROOT_PLAN}),
    "propose_plan": frozenset({Column.ROOT_PLAN}),
    "spawn_agent": _ROOT,
    "wait_agent": _ROOT,
    "list_agents": _ROOT,
    "list_subagent_models": _ROOT,
    "message_agent": frozenset({Column.ROOT}),
    "interrupt_agent": frozenset({Column.ROOT}),
    "read_skill": _ALL,
    "read_skill_file": _ALL,
    "advisor": frozenset({Column.ROOT}),
}
_RESERVED = frozenset(name.casefold() for name in (*ACTIVE, *ALIASES))
# The columns in which processes may only read: here this is enforced, elsewhere the model is only asked.
READ_ONLY = frozenset({Column.ROOT_PLAN, Column.CHILD_PLAN, Column.EXPLORE})


def column(*, mode: Mode, is_root: bool) -> Column:
    match mode:
        case Mode.EXPLORE:
            return Column.EXPLORE
        case Mode.PLAN:
            return Column.ROOT_PLAN if is_root else Column.CHILD_PLAN
        case Mode.NORMAL:
            return Column.ROOT if is_root else Column.CHILD


def is_reserved(name: str) -> bool:
    """Return whether clients may not use this name for their tools: it is, was or will be that of a built-in tool."""
    return name.casefold() in _RESERVED


def ordered(tools: Iterable[Tool]) -> list[Tool]:
    """Return the tools in the order of registration. A tool that is missing from the table is a bug."""
    places = {name: place for place, name in enumerate(ACTIVE)}
    return sorted(tools, key=lambda tool: places[tool.spec.name])


def active_names(tools: Iterable[Tool], at: Column) -> frozenset[str]:
    return frozenset(tool.spec.name for tool in tools if at in ACTIVE[tool.spec.name])
