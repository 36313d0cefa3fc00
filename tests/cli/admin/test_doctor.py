"""Reports of `rookery admin doctor` and the server log about local workspaces."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.app import workspaces
from rookery.cli.admin import maintenance
from rookery.settings import settings
from rookery.settings.settings import Settings
from rookery.workspaces import availability
from tests.workspaces.drivers.driver_rig import known_machine

SCRIPT = str(Path(sys.executable).parent / "rookery")


def loaded(home: Path, **variables: str) -> Settings:
    environment = {"HOME": str(home), "ROOKERY_DATA_DIR": str(home / "data")}
    return settings.load(
        {}, {**environment, **{f"ROOKERY_{name}": value for name, value in variables.items()}}
    ).settings


def test_doctor_starts_a_sandbox(tmp_path: Path) -> None:
    known_machine()
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "ROOKERY_DATA_DIR": str(tmp_path / "data")}

    command = [SCRIPT, "admin", "doctor"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)

    line = next(line for line in done.stdout.splitlines() if line.split()[1] == "workspaces")
    assert line.startswith("ok")
    assert "bwrap confines them" in line


async def test_doctor_says_why_there_are_no_workspaces_and_what_to_do(tmp_path: Path) -> None:
    verdict, text = await maintenance._check_workspaces(loaded(tmp_path, DRIVERS_LOCAL_BWRAP="/no/bwrap"))

    assert verdict == "warn"
    assert "unavailable. /no/bwrap cannot be run" in text
    assert "drivers.local.bwrap" in text


async def test_doctor_warns_of_limits_that_cannot_be_set(tmp_path: Path) -> None:
    await asyncio.to_thread(known_machine)
    group = tmp_path / "group"
    group.mkdir()
    (group / "cgroup.controllers").write_text("cpu pids")
    given = loaded(tmp_path, DRIVERS_LOCAL_CGROUP=str(group))

    lacking = await maintenance._check_workspaces(given)
    (group / "cgroup.controllers").write_text("cpu memory pids")
    complete = await maintenance._check_workspaces(given)

    assert lacking[0] == "warn"
    assert "has no controller for memory: templates with limits do not start" in lacking[1]
    assert complete[0] == "ok"
    assert f"hold for each workspace, by {group}" in complete[1]


async def test_doctor_warns_of_workspaces_that_are_not_confined(tmp_path: Path) -> None:
    unsafe = loaded(tmp_path, DRIVERS_LOCAL_BWRAP="/no/bwrap", DRIVERS_LOCAL_UNSAFE="true")

    verdict, text = await maintenance._check_workspaces(unsafe)

    assert verdict == "warn"
    assert "NOT confined" in text


@pytest.mark.parametrize(
    ("unsafe", "event"), [("false", "local_workspaces_unavailable"), ("true", "local_workspaces_unconfined")]
)
async def test_server_says_at_its_start_that_workspaces_are_not_confined(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, unsafe: str, event: str
) -> None:
    given = loaded(tmp_path, DRIVERS_LOCAL_BWRAP="/no/bwrap", DRIVERS_LOCAL_UNSAFE=unsafe)

    with caplog.at_level(logging.WARNING):
        await availability.log_problems(workspaces.all_drivers(given).values())

    assert [record.getMessage() for record in caplog.records] == [event]


async def test_server_says_nothing_when_all_is_well(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    await asyncio.to_thread(known_machine)

    with caplog.at_level(logging.WARNING):
        await availability.log_problems(workspaces.all_drivers(loaded(tmp_path)).values())

    assert caplog.records == []
