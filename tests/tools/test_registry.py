"""The table of tools and the chats that may use them, against the specified table."""

from __future__ import annotations

import pytest

from rookery.domain.chat.system_blocks import Mode
from rookery.tools import registry
from rookery.tools.registry import Column

# The specified table. It has no rows for tools that are not built in (mcp, dynamic, web_search).
TABLE = """
| Tool | root | root, plan | root, read only | child | child, plan | child, read only | explore child |
| --- | --- | --- | --- | --- | --- | --- | --- |
| read_file, execute, process_output, read_skill, read_skill_file | yes | yes | yes | yes | yes | yes | yes |
| write_file, edit_files | yes | plan file only | no | yes | no | no | no |
| attach_file | yes | yes | yes | yes | no | no | no |
| process_list, process_signal | yes | no | no | yes | no | no | no |
| list_templates, read_template, create_workspace, start_workspace | yes | yes | yes | no | no | no | no |
| stop_workspace | yes | yes | no | no | no | no | no |
| ask_user_question | no | yes | yes | no | no | no | no |
| propose_plan | no | yes | no | no | no | no | no |
| spawn_agent, wait_agent, list_agents, read_agent_report, list_subagent_models | yes | yes | yes | no | no | no | no |
| message_agent, interrupt_agent | yes | no | no | no | no | no | no |
| advisor | if eligible | no | no | no | no | no | no |
"""


# The column for each mode, for root chats and other chats.
COLUMNS = [
    (Mode.NORMAL, True, Column.ROOT),
    (Mode.NORMAL, False, Column.CHILD),
    (Mode.PLAN, True, Column.ROOT_PLAN),
    (Mode.PLAN, False, Column.CHILD_PLAN),
    (Mode.READ_ONLY, True, Column.ROOT_READ_ONLY),
    (Mode.READ_ONLY, False, Column.CHILD_READ_ONLY),
    (Mode.EXPLORE, True, Column.EXPLORE),
    (Mode.EXPLORE, False, Column.EXPLORE),
]


def cells() -> list[tuple[str, str, bool]]:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in TABLE.strip().splitlines()]
    columns = rows[0][1:]
    return [
        (tool, column, cell != "no")
        for row in rows[2:]
        for tool in row[0].split(", ")
        for column, cell in zip(columns, row[1:], strict=True)
    ]


def test_tools_are_active_where_the_design_says() -> None:
    active = {(tool, column): Column(column) in registry.ACTIVE[tool] for tool, column, _ in cells()}

    assert active == {(tool, column): is_active for tool, column, is_active in cells()}


def test_every_tool_of_the_table_is_registered_and_no_other() -> None:
    assert set(registry.ACTIVE) == {tool for tool, _, _ in cells()}


@pytest.mark.parametrize(("mode", "is_root", "column"), COLUMNS)
def test_mode_and_family_choose_the_column(mode: Mode, is_root: bool, column: Column) -> None:
    assert registry.column(mode=mode, is_root=is_root) is column


def test_processes_only_look_where_nothing_may_be_changed() -> None:
    assert set(Column) - {Column.ROOT, Column.CHILD} == registry.READ_ONLY
