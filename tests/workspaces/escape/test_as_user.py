"""The same attempts once more, with a server that is a normal user; only root can try both."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.workspaces.drivers import yard

ROOT = Path(__file__).parents[3]
USER = 41234

BECOME = """
import os, sys
from rookery.workspaces.drivers.launcher import reach
user, root = int(sys.argv[1]), sys.argv[2]
reach.make_reachable([root, sys.prefix, sys.base_prefix], user)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.chdir(root)
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_normal_user_confines_as_well_as_root_does() -> None:
    yard.known_machine()
    with tempfile.TemporaryDirectory(prefix="escape-") as home:
        os.chown(home, USER, USER)
        pytest_arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", f"{home}/base"]
        command = [sys.executable, "-c", BECOME, str(USER), str(ROOT), *pytest_arguments]
        done = subprocess.run(
            [*command, "tests/workspaces/escape/test_escape.py"],
            env={"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "CI": "true"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=240,
            check=False,
        )

    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
