"""The launcher's main function: reads a plan, starts it, and responds with one line of JSON.

The order makes it safe: everything that needs rights happens first, then the rights are dropped, and only then does
bubblewrap start. As root it would keep all capabilities and remain root for the kernel, whatever user the sandbox
shows. The sandbox waits at a gate until its limits are set and its process is recorded, so that a crash of the launcher
never leaves an untracked sandbox.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import stat
import subprocess
import sys
from typing import Any, NoReturn

from rookery.workspaces.drivers.launcher import (
    bwrap_arguments,
    cgroups,
    process_identity,
    sandbox_processes,
    source_access,
)
from rookery.workspaces.drivers.launcher.plan import LaunchError, Plan

OPEN_FILES = 4096
PROCESSES = 4096  # chosen: stops a fork bomb when the template sets no limit
COMMAND_SECONDS = 30
ENVIRONMENT = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
PR_SET_CHILD_SUBREAPER = 36
LOG_TAIL = 2000


def main() -> NoReturn:
    try:
        answer = launch(Plan.read(sys.stdin.buffer.read()))
    except LaunchError as error:
        answer = {"error": {"code": error.code, "message": str(error)}}
    except OSError as error:
        answer = {"error": {"code": "sandbox_failed", "message": f"{error.filename or ''} {error.strerror}".strip()}}
    print(json.dumps(answer), flush=True)
    sys.exit(1 if "error" in answer else 0)


def launch(plan: Plan) -> dict[str, Any]:
    os.umask(0o022)
    files = _Files(plan)
    held = _hold_binds(plan) if plan.bwrap else {}
    # With the rights of the server: the workspace's user cannot access the server's files.
    built = bwrap_arguments.build(plan) if plan.bwrap else []
    groups = cgroups.prepare(plan) if plan.bwrap else []
    if os.geteuid() == 0 and plan.uid is not None and plan.bwrap:
        own = [plan.home, plan.run, plan.egress, plan.agent, plan.bwrap, plan.bwrap_libraries, plan.python_prefix]
        sources = [*own, *plan.ro_binds, *plan.rw_binds]
        source_access.make_reachable([path for path in sources if path], plan.uid)
        os.setgroups([])
        os.setresgid(plan.uid, plan.uid, plan.uid)
        os.setresuid(plan.uid, plan.uid, plan.uid)
    if plan.bwrap is None:
        return _start_plainly(plan, files)
    if os.geteuid() == 0:
        raise LaunchError("a sandbox of root is none: its user would be root for the kernel")
    return _start_confined(plan, files, groups, held, built)


class _Files:
    """Files that are opened with the rights of the server and kept open: the workspace's user may not reach them."""

    def __init__(self, plan: Plan) -> None:
        self.log_path = f"{plan.directory}/sandbox.log"
        flags = os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        self.log = os.open(self.log_path, flags | os.O_WRONLY | os.O_APPEND, 0o600)
        self._readable = os.open(self.log_path, os.O_RDONLY | os.O_CLOEXEC)
        self.record = -1 if plan.command else os.open(f"{plan.directory}/sandbox.json", flags | os.O_WRONLY, 0o600)

    def write_record(self, record: dict[str, Any]) -> None:
        os.write(self.record, json.dumps(record).encode())

    def tail(self) -> str:
        size = os.fstat(self.log).st_size
        return os.pread(self._readable, LOG_TAIL, max(0, size - LOG_TAIL)).decode("utf-8", "replace").strip()


def _hold_binds(plan: Plan) -> dict[str, int]:
    """Open the folders that a template binds, without following links. Their names may change from now on: bubblewrap
    fails if a name leads elsewhere.
    """
    paths = [*plan.ro_binds, *plan.rw_binds]
    if paths and plan.bwrap and not _binds_by_handle(plan.bwrap):
        message = "this bubblewrap is too old to bind folders safely; install one that has --bind-fd (0.10, or patched)"
        raise LaunchError(message, "driver_unavailable")
    return {path: _open_plainly(path) for path in paths}


def _binds_by_handle(bwrap: str) -> bool:
    told = subprocess.run(  # noqa: S603 - the program that the settings name
        [bwrap, "--help"], capture_output=True, check=False, env=ENVIRONMENT, timeout=COMMAND_SECONDS
    )
    return b"--ro-bind-fd" in told.stdout + told.stderr


def _open_plainly(path: str) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    found = os.open("/", flags)
    for name in path.strip("/").split("/"):
        try:
            below = os.open(name, flags, dir_fd=found)
        finally:
            os.close(found)
        found = below
        if stat.S_ISLNK(os.fstat(found).st_mode):
            os.close(found)
            raise LaunchError(f"the template's bind {path!r:.200} leads through a link", "invalid_workspace")
    return found


def _start_confined(
    plan: Plan, files: _Files, groups: list[int], held: dict[str, int], built: bwrap_arguments.Arguments
) -> dict[str, Any]:
    info, info_inside = os.pipe()
    gate_inside, gate = os.pipe()
    inherited = [info_inside, gate_inside, *held.values()]
    listed: list[str] = ["--info-fd", str(info_inside), "--block-fd", str(gate_inside)]
    for item in built:
        if isinstance(item, bwrap_arguments.Handle):
            listed.append(str(held[item.path]))
        else:
            listed.append(item if isinstance(item, str) else str(_held(item, inherited)))
    command = plan.command or [plan.python, "-I", bwrap_arguments.AGENT, "--run-dir", bwrap_arguments.RUN]
    # By a descriptor: every user of the machine can read process arguments.
    listed_in = _held(b"".join(os.fsencode(item) + b"\0" for item in listed), inherited)
    process = subprocess.Popen(  # noqa: S603 - the program that the settings name
        [process_identity.mark(plan.workspace_id, plan.generation), "--args", str(listed_in), "--", *command],
        executable=plan.bwrap,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if plan.command else files.log,
        stderr=files.log,
        env=ENVIRONMENT,
        cwd="/",
        pass_fds=inherited,
        start_new_session=True,
    )
    for descriptor in inherited:
        os.close(descriptor)
    told = _read_all(info)
    if not told:
        process.wait(COMMAND_SECONDS)
        raise LaunchError(files.tail() or f"bubblewrap ended with status {process.returncode}")
    child = int(json.loads(told)["child-pid"])
    record: dict[str, Any] = {}
    try:
        _refuse_root(child)
        _limit(child, plan)
        for group in groups:
            os.write(group, str(child).encode())
        if plan.command is None:
            record = _record(plan, child, monitor=process.pid)
            files.write_record(record)
    except BaseException:
        # The gate also opens when its other end is closed: the sandbox would then run without its limits.
        _end(plan, child, process)
        raise
    os.write(gate, b"1")
    return _wait(process, files) if plan.command else record


def _refuse_root(pid: int) -> None:
    """Check the real user of the process in the kernel; the user shown inside the sandbox proves nothing."""
    with open(f"/proc/{pid}/status") as file:
        users = next(line.split()[1:] for line in file if line.startswith("Uid:"))
    if "0" in users:
        raise LaunchError("its first process is root for the kernel")


def _end(plan: Plan, pid: int, process: subprocess.Popen[bytes]) -> None:
    start = process_identity.start_of(pid)
    process.kill()
    process.wait(COMMAND_SECONDS)
    if start is not None:
        sandbox_processes.kill(sandbox_processes.Running(plan.workspace_id, plan.generation, pid, start))


def _record(plan: Plan, pid: int, *, monitor: int | None) -> dict[str, Any]:
    start = process_identity.start_of(pid)
    if start is None:
        raise LaunchError("it ended immediately", "agent_exited")
    return {
        "workspace_id": plan.workspace_id,
        "generation": plan.generation,
        "pid": pid,
        "pid_start": start,
        "monitor": monitor,
        "monitor_start": process_identity.start_of(monitor) if monitor else None,
        "boot_id": process_identity.boot_id(),
        "confined": plan.bwrap is not None,
    }


def _held(content: bytes, inherited: list[int]) -> int:
    descriptor = os.memfd_create("rookery")
    os.write(descriptor, content)
    os.lseek(descriptor, 0, os.SEEK_SET)
    inherited.append(descriptor)
    return descriptor


def _read_all(descriptor: int) -> bytes:
    chunks = []
    while chunk := os.read(descriptor, 4096):
        chunks.append(chunk)
    os.close(descriptor)
    return b"".join(chunks)


def _limits(plan: Plan) -> dict[int, int]:
    limits = {resource.RLIMIT_CORE: 0, resource.RLIMIT_NOFILE: OPEN_FILES}
    if plan.disk_mb:
        limits[resource.RLIMIT_FSIZE] = plan.disk_mb * 1024 * 1024
    if plan.memory_mb:
        # Not the address space: runtimes reserve much more than they use.
        limits[resource.RLIMIT_DATA] = plan.memory_mb * 1024 * 1024
    return limits


def _limit(pid: int, plan: Plan) -> None:
    """Set the limits of the sandbox's first process, which all others inherit."""
    # The number of processes counts within the user namespace, because it is set on a process that is in it.
    for name, value in {**_limits(plan), resource.RLIMIT_NPROC: plan.pids or PROCESSES}.items():
        _, most = resource.prlimit(pid, name)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.prlimit(pid, name, (value, value))


def _wait(process: subprocess.Popen[bytes], files: _Files) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise LaunchError(f"the sandbox did not come to its end within {COMMAND_SECONDS} s") from None
    return {"status": process.returncode, "output": output.decode("utf-8", "replace"), "log": files.tail()}


def _start_plainly(plan: Plan, files: _Files) -> dict[str, Any]:
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        # Orphans are reparented to the agent instead of init, so that a stop finds them.
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for name, value in _limits(plan).items():
            most = resource.getrlimit(name)[1]
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(name, (value, value))

    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    process = subprocess.Popen(  # noqa: S603 - the interpreter that was found for it
        # By a relative name: the whole path may exceed the length limit of socket paths.
        [plan.python, "-I", plan.agent, "--run-dir", plan.run, "--listen", "unix:agent.sock"],
        stdin=subprocess.DEVNULL,
        stdout=files.log,
        stderr=files.log,
        env={
            **bwrap_arguments.environment(plan, home=plan.home, shell=shell),
            process_identity.VARIABLE: process_identity.mark(plan.workspace_id, plan.generation),
        },
        cwd=plan.run,
        start_new_session=True,
        preexec_fn=prepare,
    )
    record = _record(plan, process.pid, monitor=None)
    files.write_record(record)
    return record
