from __future__ import annotations

import pytest

from rookery.domain.chat.approvals import Judgement, Verdict
from rookery.domain.chat.permission_mode import HARMLESS, PermissionMode, asks_without_rule, restrict
from rookery.tools import registry
from rookery.tools.registry import Column

ALLOW, ASK, DENY = (Judgement(verdict) for verdict in (Verdict.ALLOW, Verdict.ASK, Verdict.DENY))


@pytest.mark.parametrize("mode", PermissionMode)
@pytest.mark.parametrize("judged", [ASK, DENY])
@pytest.mark.parametrize("name", ["execute", "read_file", "mcp:files/read"])
def test_no_mode_permits_what_a_rule_restricts(mode: PermissionMode, judged: Judgement, name: str) -> None:
    assert restrict(mode, judged, (name,)).verdict is judged.verdict


@pytest.mark.parametrize(
    "name", ["execute", "write_file", "spawn_agent", "create_workspace", "mcp:files/read", "pick", "READ_FILE"]
)
def test_ask_holds_every_tool_that_may_have_an_effect(name: str) -> None:
    assert restrict(PermissionMode.ASK, ALLOW, (name,)).verdict is Verdict.ASK
    assert restrict(PermissionMode.AUTO, ALLOW, (name,)) is ALLOW


def test_tool_of_a_server_with_the_name_of_a_harmless_tool_is_held() -> None:
    assert restrict(PermissionMode.ASK, ALLOW, ("mcp:evil/read_file", "read_file")).verdict is Verdict.ASK


@pytest.mark.parametrize("name", sorted(HARMLESS))
def test_ask_lets_tools_without_an_effect_run(name: str) -> None:
    assert restrict(PermissionMode.ASK, ALLOW, (name,)) is ALLOW


def test_only_mode_ask_asks_without_a_rule() -> None:
    assert [asks_without_rule(mode, ASK) for mode in PermissionMode] == [True, False, False]
    assert not asks_without_rule(PermissionMode.ASK, DENY)


def test_read_only_has_only_tools_of_plan_mode_that_do_not_write() -> None:
    for name, columns in registry.ACTIVE.items():
        if Column.ROOT_READ_ONLY in columns:
            assert Column.ROOT_PLAN in columns
            assert name not in {"write_file", "edit_files", "stop_workspace", "propose_plan"}
