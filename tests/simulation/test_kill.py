"""`serve --replicas 3` with two hundred clients, and the kill of one replica."""

from __future__ import annotations

import os
import signal
import statistics
import time
from collections import Counter
from pathlib import Path
from random import Random
from uuid import UUID

import httpx2

from rookery.domain.access.rights import Scope
from rookery.runtime.clock import SystemClock
from rookery.store.people import tokens, users
from rookery.store.people.users import UserDraft
from tests.cli.serve.replicas_rig import FIRST, REST, ReplicasRig, open_fleet
from tests.eventually import until
from tests.machine_load import slowdown
from tests.simulation.light_clients import Spectator, watching

PEOPLE, EACH = 10, 20
BUDGET_SECONDS = 5.0
WAIT_SECONDS = 120.0


async def test_clients_of_a_killed_replica_are_back_and_complete_within_five_seconds(
    database_url: str, tmp_path: Path
) -> None:
    """The time is compared with a loss of connections without a kill on the same machine."""
    async with open_fleet(database_url, tmp_path, replicas=3) as rig:
        chats = [await start_chat(rig, f"person{index}") for index in range(PEOPLE)]
        crowd = [
            Spectator(rig.served.url, chat_id, token, rng=Random(index * EACH + n))
            for index, (chat_id, token) in enumerate(chats)
            for n in range(EACH)
        ]
        async with watching(crowd):
            await until(lambda: all(each.replica_id and each.view.status for each in crowd), timeout=WAIT_SECONDS)
            baseline = await times_to_return(crowd[::3])

            served = Counter(each.replica_id for each in crowd)
            victim = max(served, key=lambda replica: served[replica])
            assert victim is not None
            pids = await rig.replicas()
            hit = [each for each in crowd if each.replica_id == victim]
            began = time.monotonic()
            os.kill(pids[victim], signal.SIGKILL)
            for chat_id, token in chats:
                await send(rig, chat_id, token)
            returned = await times_until_back(hit, began, not_by=victim)
            for each in crowd:
                await until(lambda each=each: len(each.view.queue) == 1, timeout=WAIT_SECONDS)  # type: ignore[misc]

            rig.story.gate.set()
            stored = {chat_id: await rest(rig, chat_id) for chat_id, _ in chats}
            await until(lambda: all(list(each.view.messages) == stored[each.chat_id] for each in crowd), timeout=30)

        print(
            f"{len(hit)} of {len(crowd)} clients lost their replica; back and synced after {quantiles(returned)};"
            f" after a mere cut {quantiles(baseline)}"
        )
        assert max(returned) < max(BUDGET_SECONDS * slowdown(), 3 * max(baseline))
        assert [each.repeated for each in crowd] == [[]] * len(crowd)
        assert all(text_of(each).count(FIRST + REST) == 2 for each in crowd)


async def start_chat(rig: ReplicasRig, name: str) -> tuple[UUID, str]:
    """Create a chat of a new user, whose answer waits for a signal."""
    draft = UserDraft(email=f"{name}@example.test", username=name, name=name)
    user = await users.create_user(rig.database, draft, password_hash=None)
    made = await tokens.create_token(
        rig.database, user.id, name="test", scopes=frozenset({Scope.ALL}), now=SystemClock().now()
    )
    async with httpx2.AsyncClient(base_url=rig.served.url, headers=bearer(made.secret), timeout=30.0) as http:
        answer = await http.post("/api/v1/chats", json={"content": [{"type": "text", "text": "Tell me a story."}]})
    assert answer.status_code == 201, answer.text
    chat_id = UUID(answer.json()["id"])
    await rig.until_owned(chat_id)
    return chat_id, made.secret


async def send(rig: ReplicasRig, chat_id: UUID, token: str) -> None:
    """Send another question during the first answer. Connections to the dead replica are lost, so try again."""

    async def is_sent() -> bool:
        body = {"content": [{"type": "text", "text": "And another one."}], "client_id": "the-second"}
        try:
            async with httpx2.AsyncClient(base_url=rig.served.url, headers=bearer(token), timeout=30.0) as http:
                answer = await http.post(f"/api/v1/chats/{chat_id}/messages", json=body)
        except httpx2.TransportError:
            return False
        assert answer.status_code in (200, 201, 202), answer.text
        return True

    await until(is_sent, timeout=WAIT_SECONDS)


async def rest(rig: ReplicasRig, chat_id: UUID) -> list[int]:
    """Return the ids of all visible messages after both questions are answered."""

    async def is_done() -> bool:
        row = await rig.database.fetchrow("SELECT status, queue_len FROM chats WHERE id = $1", chat_id)
        return row is not None and (row["status"], row["queue_len"]) == ("waiting", 0)

    await until(is_done, timeout=WAIT_SECONDS)
    rows = await rig.database.fetch(
        "SELECT id FROM chat_messages WHERE chat_id = $1 AND NOT deleted AND visibility <> 'model' ORDER BY id",
        chat_id,
    )
    return [row["id"] for row in rows]


async def times_to_return(crowd: list[Spectator]) -> list[float]:
    began = time.monotonic()
    for each in crowd:
        each.hang_up()
    return await times_until_back(crowd, began)


async def times_until_back(crowd: list[Spectator], began: float, *, not_by: str | None = None) -> list[float]:
    await until(
        lambda: all(each.synced_at > began and each.replica_id not in (None, not_by) for each in crowd),
        timeout=WAIT_SECONDS,
    )
    return [each.synced_at - began for each in crowd]


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def text_of(each: Spectator) -> str:
    return "\n".join(str(part.get("text")) for message in each.view.messages.values() for part in message["content"])


def quantiles(seconds: list[float]) -> str:
    return f"{statistics.median(seconds):.2f} s (median), {max(seconds):.2f} s (last)"
