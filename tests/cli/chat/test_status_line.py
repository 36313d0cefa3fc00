"""The status line of the interactive session names what the chat does, in every state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec
import pytest

from rookery.cli.chat.status_line import Shown, state_words
from rookery.client.models import Chat, ContextUsage, PublicUser
from rookery.client.reducer import View

AT = datetime(2030, 1, 1, tzinfo=UTC)
CHAT = Chat(
    id=UUID(int=1),
    owner=PublicUser(id=UUID(int=2), username="ada", name="Ada"),
    my_role="owner",
    root_chat_id=UUID(int=1),
    title="A chat",
    status="waiting",
    archived=False,
    plan_mode=False,
    permission_mode="auto",
    last_model_config_id=UUID(int=3),
    mcp_server_ids=(),
    labels={},
    client_type="cli",
    has_unread=False,
    shared=False,
    queue_len=0,
    usage=ContextUsage(),
    created_at=AT,
    updated_at=AT,
    last_activity_at=AT,
    snapshot_version=5,
    history_version=1,
    meta_version=1,
)
REST = Shown(view=View(status="waiting", snapshot_version=5), chat=CHAT, has_chat=True, is_synced=True)
TURN = msgspec.structs.replace(REST, view=View(status="running"), turn_seconds=12.4)


def words(shown: Shown, **changes: Any) -> str:
    return " | ".join(state_words(msgspec.structs.replace(shown, **changes)))


def test_chat_at_rest_says_what_waits_for_the_user() -> None:
    def waiting(needs: str | None, **fields: Any) -> str:
        return words(REST, chat=msgspec.structs.replace(CHAT, needs_user=needs, **fields))

    assert waiting(None) == "idle"
    assert waiting("plan") == "a plan waits for you"
    assert waiting("question") == "a question waits for you"
    assert waiting("approval") == "needs you"  # of a subagent
    # The list of chats is behind: the user has already answered.
    assert waiting("plan", snapshot_version=4) == "idle"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"view": View(), "chat": None, "has_chat": False, "is_synced": False}, "idle"),
        ({"view": View(), "chat": None, "has_chat": False, "starting": "starting"}, "starting"),
        ({"view": View(), "is_synced": False}, "loading"),
        ({"is_lost": True}, "reconnecting"),
        ({"view": replace(REST.view, status="error")}, "failed"),
        ({"view": replace(REST.view, archived=True)}, "archived"),
        ({"view": replace(REST.view, status="requires_action", action={"kind": "approval"})}, "needs you"),
        ({"view": replace(REST.view, status="requires_action")}, "waits for tools of its client"),
    ],
)
def test_other_states_have_words_of_their_own(changes: dict[str, Any], said: str) -> None:
    assert words(REST, **changes) == said


def test_running_turn_says_its_age_and_phase() -> None:
    waiting = msgspec.structs.replace(CHAT, status="running", queued_for_capacity=True)

    assert words(TURN) == "working 12 s"
    assert words(TURN, phase=("thinking", 3.2)) == "working 12 s | thinking 3 s"
    assert words(TURN, chat=waiting) == "waiting for a free slot 12 s"
    assert words(TURN, is_stopping=True) == words(TURN, view=View(status="interrupting")) == "stopping 12 s"
    assert words(TURN, is_asked=True) == "needs you"
