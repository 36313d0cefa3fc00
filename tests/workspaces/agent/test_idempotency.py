"""One effect for each key, over the wire and over restarts of the agent."""

from __future__ import annotations

import asyncio
import os
from typing import Any

from tests.workspaces.agent.agent_rig import Rig


async def start(rig: Rig, command: str, key: str, **given: Any) -> Any:
    return await rig.ask("POST", "/v1/processes", json={"command": command}, key=key, **given)


async def test_same_key_starts_one_process_and_both_get_its_id(rig: Rig) -> None:
    answers = await asyncio.gather(*(start(rig, "echo x >> effects", "k") for _ in range(10)))
    later = await start(rig, "echo x >> effects", "k")

    assert {answer.status for answer in answers} == {200}
    assert len({answer.body for answer in [*answers, later]}) == 1
    assert later.headers["Idempotent-Replay"] == "1"
    await rig.output(later.json["id"])
    assert (rig.directory / "effects").read_text() == "x\n"


async def test_same_key_with_another_command_is_refused(rig: Rig) -> None:
    await start(rig, "true", "k")
    other = await start(rig, "false", "k")

    assert (other.status, other.code) == (422, "key_reused")


async def test_command_without_a_key_runs_each_time(rig: Rig) -> None:
    first, second = [await rig.run("echo x >> effects") for _ in range(2)]

    assert first["id"] != second["id"]
    assert (rig.directory / "effects").read_text() == "x\nx\n"


async def test_start_that_was_refused_may_be_tried_again(rig: Rig) -> None:
    body = {"command": "pwd", "workdir": str(rig.home / "later")}
    refused = await rig.ask("POST", "/v1/processes", json=body, key="k")
    (rig.home / "later").mkdir()
    again = await rig.ask("POST", "/v1/processes", json=body, key="k")

    assert (refused.status, again.status) == (400, 200)


async def test_key_that_is_no_key_is_refused(rig: Rig) -> None:
    for key in ("", "with space", "x" * 201):
        assert (await start(rig, "true", key)).status == 400


async def test_process_that_ended_before_a_restart_is_found_again(rig: Rig) -> None:
    first = await start(rig, "echo done; exit 7", "k", chat="c1")
    before = await rig.output(first.json["id"], chat="c1")
    await rig.disconnect()
    rig.kill()
    await rig.start(generation=2)

    again = await start(rig, "echo done; exit 7", "k", chat="c1")
    after = await rig.get(f"/v1/processes/{again.json['id']}/output?wait_s=50", chat="c1")
    other = await rig.ask("GET", f"/v1/processes/{again.json['id']}/output", chat="c2")

    assert again.body == first.body
    assert again.headers["Idempotent-Replay"] == "1"
    assert after == before
    assert (after["output"], after["exit_code"]) == ("done\n", 7)
    assert other.status == 404


async def test_process_that_ran_at_a_restart_is_lost_and_not_run_again(rig: Rig) -> None:
    gate = rig.root / "gate"
    os.mkfifo(gate)
    first = await start(rig, f"echo x >> effects; cat {gate}", "k", chat="c1")
    await asyncio.to_thread(_open_and_close, gate)  # the command has come this far
    held = await start(rig, f"echo y >> effects; sleep 1000 < {gate}", "held", chat="c1")
    await rig.disconnect()
    await rig.output(first.json["id"], chat="c1")
    await rig.disconnect()
    left = rig.below()
    rig.kill()
    for pid in left:
        os.kill(pid, 9)
    await rig.start(generation=2)

    for _ in range(2):
        again = await start(rig, f"echo y >> effects; sleep 1000 < {gate}", "held", chat="c1")
        assert (again.status, again.code) == (410, "process_lost")
        assert "restarted" in again.json["message"]
    output = await rig.ask("GET", f"/v1/processes/{held.json['id']}/output", chat="c1")
    signalled = await rig.ask("POST", f"/v1/processes/{held.json['id']}/signal", json={"signal": "kill"}, chat="c1")
    other = await rig.ask("GET", f"/v1/processes/{held.json['id']}/output", chat="c2")
    assert (output.status, signalled.status, other.status) == (410, 410, 404)
    assert (rig.directory / "effects").read_text().count("x") == 1


def _open_and_close(gate: Any) -> None:
    with open(gate, "w"):
        pass


async def test_new_key_runs_after_a_restart_also_with_a_torn_journal(rig: Rig) -> None:
    await rig.output((await start(rig, "true", "k")).json["id"])
    await rig.disconnect()
    rig.kill()
    with (rig.run_dir / "journal").open("ab") as journal:
        journal.write(b'{"line":"started","key":"torn","ki')
    await rig.start(generation=2)

    fresh = await start(rig, "echo fresh", "torn")
    old = await start(rig, "true", "k")

    assert (await rig.output(fresh.json["id"]))["output"] == "fresh\n"
    assert old.headers["Idempotent-Replay"] == "1"
