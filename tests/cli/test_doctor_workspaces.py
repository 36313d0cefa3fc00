"""What `rookery admin doctor` says about local workspaces."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.workspaces.drivers.yard import known_machine

SCRIPT = str(Path(sys.executable).parent / "rookery")


def workspaces_line(home: Path, **variables: str) -> str:
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "ROOKERY_DATA_DIR": str(home / "data"), **variables}
    done = subprocess.run(
        [SCRIPT, "admin", "doctor"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    return next(line for line in done.stdout.splitlines() if line.split()[1] == "workspaces")


def test_doctor_starts_a_sandbox(tmp_path: Path) -> None:
    known_machine()

    line = workspaces_line(tmp_path)

    assert line.startswith("ok")
    assert "bwrap confines them" in line


def test_doctor_says_why_there_are_no_workspaces_and_what_to_do(tmp_path: Path) -> None:
    line = workspaces_line(tmp_path, ROOKERY_DRIVERS_LOCAL_BWRAP="/no/bwrap")

    assert line.startswith("warn")
    assert "unavailable because /no/bwrap cannot be run" in line
    assert "drivers.local.bwrap" in line


def test_doctor_warns_of_workspaces_that_are_not_confined(tmp_path: Path) -> None:
    line = workspaces_line(tmp_path, ROOKERY_DRIVERS_LOCAL_BWRAP="/no/bwrap", ROOKERY_DRIVERS_LOCAL_UNSAFE="true")

    assert line.startswith("warn")
    assert "NOT confined" in line
