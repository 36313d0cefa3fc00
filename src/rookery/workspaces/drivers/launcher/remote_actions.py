"""The actions of the ssh driver on the remote machine.

The first line of standard input is JSON with the action; data follows it. Nothing is passed as command line arguments,
because every user of the machine can read them. The response is one line of JSON.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NoReturn

from rookery.workspaces.drivers.launcher import bwrap_arguments, sandbox_processes, tree_removal
from rookery.workspaces.drivers.launcher.directory_setup import File, fill, tail
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError, Plan
from rookery.workspaces.drivers.launcher.run import launch
from rookery.workspaces.drivers.launcher.workspace_users import NOBODY, SSH_RANGE, Users


def main() -> NoReturn:
    header: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    try:
        answer = ACTIONS[header["action"]](header)
    except LaunchError as error:
        answer = {"error": {"code": error.code, "message": str(error)}}
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        answer = {"error": {"code": header.get("on_error", "sandbox_failed"), "message": f"{where}{error.strerror}"}}
    print(json.dumps(answer), flush=True)
    sys.exit(0)


def root() -> Path:
    return Path("~/.rookery").expanduser().resolve()


def hello(_: dict[str, Any]) -> dict[str, Any]:
    """Return the paths of Rookery, Python and bubblewrap on this machine."""
    return {
        "root": str(root()),
        "python": os.path.realpath(sys.executable),
        "python_prefix": os.path.realpath(sys.base_prefix),
        "bwrap": shutil.which("bwrap"),
    }


def put(header: dict[str, Any]) -> dict[str, Any]:
    """Store the agent's zipapp. It is written to a temporary file first, so it is always complete."""
    content = sys.stdin.buffer.read(header["size"])
    if hashlib.sha256(content).hexdigest() != header["sha256"]:
        raise LaunchError("the agent was damaged in transit")
    directory = root() / "agents"
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = directory / f".{header['name']}.{os.getpid()}"
    fresh.write_bytes(content)
    fresh.chmod(0o755)
    fresh.rename(directory / header["name"])
    return {}


def start(header: dict[str, Any]) -> dict[str, Any]:
    plan = Plan(**header["plan"])
    directory = Path(plan.directory)
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in (*plan.ro_binds, *plan.rw_binds):
        if problem := bwrap_arguments.problem_of_bind(path, [str(root())]):
            raise LaunchError(f"the template's bind {path!r:.200} {problem}", "invalid_workspace")
    # All workspaces that may write to shared folders have the same user, so that they can share files.
    users = Users(root(), SSH_RANGE, NOBODY, range_name="the range of workspaces on other machines")
    shares_user = plan.bwrap is not None and users.problem() is not None
    ended, same = [], None
    with _locked(directory):
        for one in sandbox_processes.find(directory):
            if one.generation == plan.generation and same is None:
                same = one
            else:
                ended.append(one.generation)
                sandbox_processes.kill(one)
        if same is not None:
            return {"running": asdict(same), "already": True, "ended": ended, "shares_user": shares_user}
        if not os.path.exists(plan.agent):
            return {"lacks_agent": True, "ended": ended}
        files = [File(name, sys.stdin.buffer.read(size), mode) for name, size, mode in header["files"]]
        archive = sys.stdin.buffer.read(header["archive"])
        if plan.bwrap:
            plan = replace(plan, uid=users.choose(directory, writes_shared=bool(plan.rw_binds)))
        fill(directory, files, archive, owner=plan.uid)
        return {"running": launch(plan), "already": False, "ended": ended, "shares_user": shares_user}


def stop(header: dict[str, Any]) -> dict[str, Any]:
    directory = Path(header["directory"])
    if not directory.is_dir():
        return {"ended": 0}
    with _locked(directory):
        found = sandbox_processes.find(directory)
        for one in found:
            sandbox_processes.kill(one)
        with contextlib.suppress(FileNotFoundError):
            (directory / "sandbox.json").unlink()
    return {"ended": len(found)}


def delete(header: dict[str, Any]) -> dict[str, Any]:
    stop(header)
    directory = Path(header["directory"])
    gone = directory.with_name(f".gone-{directory.name}")
    tree_removal.remove(gone)
    with contextlib.suppress(FileNotFoundError):
        directory.rename(gone)
    tree_removal.remove(gone)
    return {}


def probe(header: dict[str, Any]) -> dict[str, Any]:
    directory = Path(header["directory"])
    return {
        "running": [asdict(one) for one in sandbox_processes.find(directory)],
        "log": tail(directory / "sandbox.log"),
    }


@contextlib.contextmanager
def _locked(directory: Path) -> Iterator[None]:
    descriptor = os.open(directory / "lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


ACTIONS = {"hello": hello, "put": put, "start": start, "stop": stop, "delete": delete, "probe": probe}
