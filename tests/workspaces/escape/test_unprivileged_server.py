"""The same attempts with an unprivileged server, and with workspaces behind the sshd of an unprivileged user.

Only root can run both.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.workspaces.drivers import driver_rig

ROOT = Path(__file__).parents[3]
USER = 41234

# A user that ssh and sshd know by name, in a separate mount namespace.
BECOME = """
import ctypes, os, sys
from rookery.workspaces.drivers.launcher import source_access
user, root, home = int(sys.argv[1]), sys.argv[2], os.environ["HOME"]
libc = ctypes.CDLL(None, use_errno=True)
source_access._call(libc.unshare, source_access.CLONE_NEWNS)
source_access._mount(libc, None, "/", None, source_access.MS_REC | source_access.MS_PRIVATE, None)
for name, line in (("passwd", f"tester:x:{user}:{user}::{home}:/bin/sh"), ("group", f"tester:x:{user}:")):
    with open(f"/etc/{name}") as known, open(f"{home}/{name}", "w") as made:
        made.write(known.read() + line + chr(10))
    os.chmod(f"{home}/{name}", 0o644)
    source_access._mount(libc, f"{home}/{name}", f"/etc/{name}", None, source_access.MS_BIND, None)
source_access.make_reachable([root, sys.prefix, sys.base_prefix], user)
os.setgroups([])
os.setresgid(user, user, user)
os.setresuid(user, user, user)
os.chdir(root)
os.execv(sys.executable, [sys.executable, *sys.argv[3:]])
"""


ESCAPES = "tests/workspaces/escape/test_escape.py"
REACH = "tests/workspaces/escape/test_network.py"
EGRESS = "tests/workspaces/egress/test_sandbox.py"
SSH = "tests/workspaces/drivers/test_ssh.py::test_workspace_is_confined_where_bubblewrap_is"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
@pytest.mark.parametrize("tests", [ESCAPES, REACH, EGRESS, SSH])
def test_normal_user_confines_as_well_as_root_does(tests: str) -> None:
    driver_rig.known_machine()
    if tests == SSH and not os.environ.get("CI") and shutil.which("ssh") is None:
        pytest.skip("openssh is not installed")
    # Short: the sockets of workspaces are below it.
    with tempfile.TemporaryDirectory(prefix="rk") as home, tempfile.TemporaryFile("w+") as output:
        os.chown(home, USER, USER)
        pytest_arguments = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", f"{home}/base"]
        command = [sys.executable, "-c", BECOME, str(USER), str(ROOT), *pytest_arguments]
        chosen = {name: value for name in ("ROOKERY_TEST_BWRAP",) if (value := os.environ.get(name))}
        done = subprocess.run(
            [*command, tests],
            env={"PATH": os.environ["PATH"], "HOME": home, "TMPDIR": home, "CI": "true", **chosen},
            stdin=subprocess.DEVNULL,
            # A file: a pipe would only end when every process that a workspace has started is gone, too.
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=240,
            check=False,
        )
        output.seek(0)
        said = output.read()

    assert done.returncode == 0, said[-6000:]
    assert " passed" in said
    assert "skipped" not in said
