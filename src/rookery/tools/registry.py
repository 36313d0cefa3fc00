"""The registry of built-in tools: their order, and the kinds of steps that may use each.

The order is part of the prompt's prefix, so it depends on this file alone. A test compares the table with the
specification.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from rookery.domain.chat.system_blocks import Mode
from rookery.loop.tool import Tool

# Former names of tools, which old histories contain, and the current names.
ALIASES = {"close_agent": "interrupt_agent"}


class Column(StrEnum):
    """A column of the table `ACTIVE`: the kind of chat and turn that a step belongs to.

    A root chat in explore mode is in the column EXPLORE.
    """

    ROOT = "root"
    ROOT_PLAN = "root, plan"
    ROOT_READ_ONLY = "root, read only"
    CHILD = "child"
    CHILD_PLAN = "child, plan"
    CHILD_READ_ONLY = "child, read only"
    EXPLORE = "explore child"


_ALL = frozenset(Column)
ROOT = frozenset({Column.ROOT, Column.ROOT_PLAN, Column.ROOT_READ_ONLY})
_NORMAL = frozenset({Column.ROOT, Column.CHILD})
# Steps of these columns may use tools of the workspace's MCP servers.
NORMAL = _NORMAL

# In the order of the prompt. On planning turns `write_file` and `edit_files` accept the plan file only.
ACTIVE: dict[str, frozenset[Column]] = {
    "list_templates": ROOT,
    "read_template": ROOT,
    "create_workspace": ROOT,
    "start_workspace": ROOT,
    "stop_workspace": ROOT - {Column.ROOT_READ_ONLY},
    "read_file": _ALL,
    "write_file": _NORMAL | {Column.ROOT_PLAN},
    "edit_files": _NORMAL | {Column.ROOT_PLAN},
    "execute": _ALL,
    "process_output": _ALL,
    "process_list": _NORMAL,
    "process_signal": _NORMAL,
    "attach_file": _NORMAL | {Column.ROOT_PLAN, Column.ROOT_READ_ONLY},
    "ask_user_question": frozenset({Column.ROOT_PLAN, Column.ROOT_READ_ONLY}),
    "propose_plan": frozenset({Column.ROOT_PLAN}),
    "spawn_agent": ROOT,
    "wait_agent": ROOT,
    "list_agents": ROOT,
    "read_agent_report": ROOT,
    "list_subagent_models": ROOT,
    "message_agent": frozenset({Column.ROOT}),
    "interrupt_agent": frozenset({Column.ROOT}),
    "read_skill": _ALL,
    "read_skill_file": _ALL,
    "advisor": frozenset({Column.ROOT}),
}
# `find_tools` is not in the table: it is added to a step whose tools of servers are not all sent.
_RESERVED = frozenset(name.casefold() for name in (*ACTIVE, *ALIASES, "find_tools"))
# In these columns commands run in the read-only view of the workspace.
READ_ONLY = frozenset(Column) - _NORMAL


def column(*, mode: Mode, is_root: bool) -> Column:
    match mode:
        case Mode.EXPLORE:
            return Column.EXPLORE
        case Mode.PLAN:
            return Column.ROOT_PLAN if is_root else Column.CHILD_PLAN
        case Mode.READ_ONLY:
            return Column.ROOT_READ_ONLY if is_root else Column.CHILD_READ_ONLY
        case Mode.NORMAL:
            return Column.ROOT if is_root else Column.CHILD


def is_reserved(name: str) -> bool:
    """Return whether a current or former built-in tool has this name. Clients may not use it for their tools."""
    return name.casefold() in _RESERVED


def ordered(tools: Iterable[Tool]) -> list[Tool]:
    """Return the tools in the order of the table. A tool that is missing from the table raises KeyError."""
    places = {name: place for place, name in enumerate(ACTIVE)}
    return sorted(tools, key=lambda tool: places[tool.spec.name])


def active_names(tools: Iterable[Tool], at: Column) -> frozenset[str]:
    return frozenset(tool.spec.name for tool in tools if at in ACTIVE[tool.spec.name])
