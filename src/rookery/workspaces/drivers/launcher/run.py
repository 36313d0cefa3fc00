"""The main program of the launcher: reads a plan, starts the sandbox, and responds with one line of JSON.

Everything that needs privileges is done first. Then the privileges are dropped, and only then bubblewrap starts: a
sandbox of a bubblewrap that runs as root would be root for the kernel, even if it shows another user. The sandbox waits
until its limits are set and its process is recorded. A crash of the launcher therefore leaves no unrecorded sandbox.
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
    sandbox_processes,
    source_access,
)
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError, Plan

OPEN_FILES = 4096
PROCESSES = 4096  # chosen: stops a fork bomb if the template has no limit
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
    bind_handles = _open_binds(plan) if plan.bwrap else {}
    # Built before the privileges are dropped, because it reads files of the server.
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
        return _start_unconfined(plan, files)
    if os.geteuid() == 0:
        raise LaunchError("the launcher cannot confine root: the sandbox's user would be root for the kernel")
    return _start_confined(plan, files, groups, bind_handles, built)


class _Files:
    """Files that are opened before the privileges are dropped: the workspace's user cannot access them."""

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


def _open_binds(plan: Plan) -> dict[str, int]:
    """Open the folders that the template binds, without following links. Later changes of a path have no effect."""
    paths = [*plan.ro_binds, *plan.rw_binds]
    if paths and plan.bwrap and not _supports_bind_fd(plan.bwrap):
        message = "this bubblewrap is too old to bind folders safely; install one that has --bind-fd (0.10, or patched)"
        raise LaunchError(message, "driver_unavailable")
    return {path: _open_without_links(path) for path in paths}


def _supports_bind_fd(bwrap: str) -> bool:
    told = subprocess.run(  # noqa: S603 - the program of the settings
        [bwrap, "--help"], capture_output=True, check=False, env=ENVIRONMENT, timeout=COMMAND_SECONDS
    )
    return b"--ro-bind-fd" in told.stdout + told.stderr


def _open_without_links(path: str) -> int:
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
    plan: Plan, files: _Files, groups: list[int], bind_handles: dict[str, int], built: bwrap_arguments.Arguments
) -> dict[str, Any]:
    info, info_inside = os.pipe()
    gate_inside, gate = os.pipe()
    inherited = [info_inside, gate_inside, *bind_handles.values()]
    listed: list[str] = ["--info-fd", str(info_inside), "--block-fd", str(gate_inside)]
    for item in built:
        if isinstance(item, bwrap_arguments.Handle):
            listed.append(str(bind_handles[item.path]))
        else:
            listed.append(item if isinstance(item, str) else str(_memory_file(item, inherited)))
    command = plan.command or [plan.python, "-I", bwrap_arguments.AGENT, "--run-dir", bwrap_arguments.RUN]
    # Passed by a descriptor, because every user of the machine can read the arguments of a process.
    listed_in = _memory_file(b"".join(os.fsencode(item) + b"\0" for item in listed), inherited)
    process = subprocess.Popen(  # noqa: S603 - the program of the settings
        [sandbox_processes.mark(plan.workspace_id, plan.generation), "--args", str(listed_in), "--", *command],
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
        # The end of the launcher would open the gate that holds the sandbox, and the sandbox would run without its
        # limits.
        _end(plan, child, process)
        raise
    os.write(gate, b"1")
    return _wait(process, files) if plan.command else record


def _refuse_root(pid: int) -> None:
    """Raise `LaunchError` if the process is root for the kernel. The user inside of the sandbox does not matter."""
    with open(f"/proc/{pid}/status") as file:
        users = next(line.split()[1:] for line in file if line.startswith("Uid:"))
    if "0" in users:
        raise LaunchError("the first process of the sandbox is root for the kernel")


def _end(plan: Plan, pid: int, process: subprocess.Popen[bytes]) -> None:
    start = sandbox_processes.start_time(pid)
    process.kill()
    process.wait(COMMAND_SECONDS)
    if start is not None:
        sandbox_processes.kill(sandbox_processes.Running(plan.workspace_id, plan.generation, pid, start))


def _record(plan: Plan, pid: int, *, monitor: int | None) -> dict[str, Any]:
    start = sandbox_processes.start_time(pid)
    if start is None:
        raise LaunchError("it ended immediately", "agent_exited")
    return {
        "workspace_id": plan.workspace_id,
        "generation": plan.generation,
        "pid": pid,
        "pid_start": start,
        "monitor": monitor,
        "monitor_start": sandbox_processes.start_time(monitor) if monitor else None,
        "boot_id": sandbox_processes.boot_id(),
        "confined": plan.bwrap is not None,
    }


def _memory_file(content: bytes, inherited: list[int]) -> int:
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
        # The address space is not limited, because runtimes reserve much more than they use.
        limits[resource.RLIMIT_DATA] = plan.memory_mb * 1024 * 1024
    return limits


def _limit(pid: int, plan: Plan) -> None:
    """Set the limits of the sandbox's first process. All other processes inherit them."""
    # The process is in the user namespace, so the number of processes counts within it.
    for name, value in {**_limits(plan), resource.RLIMIT_NPROC: plan.pids or PROCESSES}.items():
        _, most = resource.prlimit(pid, name)
        value = value if most == resource.RLIM_INFINITY else min(value, most)
        resource.prlimit(pid, name, (value, value))


def _wait(process: subprocess.Popen[bytes], files: _Files) -> dict[str, Any]:
    try:
        output, _ = process.communicate(timeout=COMMAND_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        raise LaunchError(f"the sandbox did not end within {COMMAND_SECONDS} s") from None
    return {"status": process.returncode, "output": output.decode("utf-8", "replace"), "log": files.tail()}


def _start_unconfined(plan: Plan, files: _Files) -> dict[str, Any]:
    libc = ctypes.CDLL(None)

    def prepare() -> None:
        # The agent, not init, becomes the parent of orphans, so that a stop finds them.
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
        for name, value in _limits(plan).items():
            most = resource.getrlimit(name)[1]
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            resource.setrlimit(name, (value, value))

    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    process = subprocess.Popen(  # noqa: S603 - the interpreter that was found
        # A relative path, because the full path may be too long for a socket.
        [plan.python, "-I", plan.agent, "--run-dir", plan.run, "--listen", "unix:agent.sock"],
        stdin=subprocess.DEVNULL,
        stdout=files.log,
        stderr=files.log,
        env={
            **bwrap_arguments.environment(plan, home=plan.home, shell=shell),
            sandbox_processes.MARK_VARIABLE: sandbox_processes.mark(plan.workspace_id, plan.generation),
        },
        cwd=plan.run,
        start_new_session=True,
        preexec_fn=prepare,
    )
    record = _record(plan, process.pid, monitor=None)
    files.write_record(record)
    return record
