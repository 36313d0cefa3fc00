"""The arguments of bubblewrap for one workspace. Their order matters: a later mount covers an earlier one.

Each line that looks odd answers a trap that was tried out; debug-and-operations.md, "Sandbox of local workspaces".
"""

from __future__ import annotations

import os
import platform
from typing import NamedTuple, Union

from rookery.workspaces.drivers.launcher import seccomp
from rookery.workspaces.drivers.launcher.plan import LaunchError, Plan

HOME = "/home/agent"
RUN = "/run/rookery"
AGENT = "/run/rookery-agent.pyz"
EGRESS = "/run/rookery-egress"
UID = 1000
MIB = 1024 * 1024

FROM_ETC = ("alternatives", "ssl/certs", "ca-certificates", "pki", "localtime", "ld.so.cache", "nsswitch.conf")
# Where templates may not put anything: the sandbox's own mounts, and what would reveal the machine's processes.
OWN_MOUNTS = ("/proc", "/dev", "/sys", "/run", RUN, HOME, "/usr", "/etc", "/tmp")  # noqa: S108 - compared only
SEALED = ("/proc", "/dev", "/sys", RUN, AGENT, EGRESS, HOME)


class Handle(NamedTuple):
    """A folder of the machine, by an open handle: whoever may write beside it could put a link in its place."""

    path: str


# Text is an argument; bytes are contents that bubblewrap reads from a descriptor, whose number takes their place. So
# does that of a handle.
Arguments = list[Union[str, bytes, Handle]]


def build(plan: Plan) -> Arguments:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return [
        *_namespaces(plan),
        *_environment(plan, shell),
        *_system(),
        *_etc(plan, shell),
        *_agent(plan),
        *_mounts(plan),
        *_hidden(plan),
        *_closing(plan),
    ]


def _namespaces(plan: Plan) -> Arguments:
    arguments: Arguments = [
        # By itself --unshare-all only tries the user namespace, and would go on without one.
        "--unshare-user",
        "--unshare-all",
        *(["--share-net"] if plan.network == "full" else []),
        *([] if plan.nested else ["--disable-userns"]),
        "--new-session",
        *("--cap-drop", "ALL"),
        *("--uid", str(UID)),
        *("--gid", str(UID)),
        *("--hostname", "workspace"),
    ]
    # A workspace outlives the process that started it; a test of the machine must not.
    return [*arguments, "--die-with-parent"] if plan.command else [*arguments, "--as-pid-1"]


def environment(plan: Plan, *, home: str, shell: str) -> dict[str, str]:
    return {
        "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": home,
        "USER": "agent",
        "SHELL": shell,
        "LANG": "C.UTF-8",
        "TZ": ":/etc/localtime" if os.path.exists("/etc/localtime") else "UTC",
        "TMPDIR": "/tmp",  # noqa: S108 - a mount of its own inside
        **plan.env,
    }


def _environment(plan: Plan, shell: str) -> Arguments:
    arguments: Arguments = ["--clearenv"]
    for name, value in environment(plan, home=HOME, shell=shell).items():
        arguments += ["--setenv", name, value]
    return arguments


def _system() -> Arguments:
    arguments: Arguments = ["--ro-bind", "/usr", "/usr"]
    for name in ("bin", "sbin", "lib", "lib32", "lib64", "libx32"):
        if os.path.islink(f"/{name}"):
            arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
        elif os.path.isdir(f"/{name}"):
            arguments += ["--ro-bind", f"/{name}", f"/{name}"]
    return [*arguments, "--ro-bind-try", "/opt", "/opt"]


def _etc(plan: Plan, shell: str) -> Arguments:
    arguments: Arguments = []
    for name in FROM_ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    passwd = (
        f"root:x:0:0:root:/root:/bin/sh\nagent:x:{UID}:{UID}:agent:{HOME}:{shell}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    )
    group = f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n"
    hosts = _read("/etc/hosts") if plan.network == "full" else b"127.0.0.1 localhost\n::1 localhost\n"
    resolver = _read("/etc/resolv.conf") if plan.network == "full" else b""
    made = {
        "passwd": passwd.encode(),
        "group": group.encode(),
        "hosts": hosts.rstrip() + b"\n127.0.1.1 workspace\n",
        "resolv.conf": resolver,
    }
    for name, content in made.items():
        arguments += ["--perms", "0444", "--ro-bind-data", content, f"/etc/{name}"]
    return arguments


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MIB)
    except OSError:
        return b""


def _agent(plan: Plan) -> Arguments:
    if plan.python_prefix is None:
        return []
    return ["--ro-bind", plan.python_prefix, plan.python_prefix]


def _mounts(plan: Plan) -> Arguments:
    arguments: Arguments = ["--proc", "/proc", "--dev", "/dev"]
    # Without a size, each would be half of the machine's memory.
    for target, size_mb in (("/dev/shm", 64), ("/tmp", plan.tmp_mb), ("/run", 16)):  # noqa: S108 - inside
        arguments += ["--perms", "1777", "--size", str(size_mb * MIB), "--tmpfs", target]
    # Behind the empty ones: a bind below /tmp or /run would be covered otherwise.
    for path in plan.ro_binds:
        arguments += ["--ro-bind-fd", Handle(path), path]
    for path in plan.rw_binds:
        arguments += ["--bind-fd", Handle(path), path]
    arguments += ["--bind", plan.home, HOME, "--bind", plan.run, RUN]
    if plan.egress is not None:
        # The directory, because each replica that comes to serve it puts a new socket there. A socket can be connected
        # to where nothing can be written.
        arguments += ["--ro-bind", plan.egress, EGRESS]
    return [*arguments, "--ro-bind", plan.agent, AGENT]


def _hidden(plan: Plan) -> Arguments:
    """A server may be installed below /opt or /usr, with its data: a workspace of the same user could read them."""
    seen = ["/usr", "/opt", plan.python_prefix, *plan.ro_binds, *plan.rw_binds]
    arguments: Arguments = []
    for path in dict.fromkeys([*plan.hidden, *(os.path.realpath(path) for path in plan.hidden)]):
        if not any(place and _within(path, place) for place in seen):
            continue
        if os.path.isdir(path):
            arguments += ["--tmpfs", path, "--remount-ro", path]
        elif os.path.exists(path):
            arguments += ["--ro-bind-data", b"", path]
    return arguments


def _closing(plan: Plan) -> Arguments:
    program = seccomp.program(platform.machine(), nested=plan.nested)
    if program is None:
        raise LaunchError(f"there is no system call filter for {platform.machine()}", "driver_unavailable")
    return [
        *("--seccomp", program),
        # What is left of the root and of /dev is memory that could be filled; the root comes last.
        *("--remount-ro", "/dev"),
        *("--remount-ro", "/"),
        *("--chdir", HOME),
    ]


def problem_of_bind(path: str, data_dir: str) -> str | None:
    """Why a template may not bind this path, as the end of a sentence; None when it may."""
    if not path.startswith("/") or os.path.normpath(path) != path:
        return "is not an absolute path in its shortest form"
    try:
        real, data = os.path.realpath(path), os.path.realpath(data_dir)
    except OSError as error:
        # It changed under the look.
        return f"cannot be looked at: {error.strerror}"
    if any(_within(one, data) or _within(data, one) for one in (path, real)):
        return "holds, or lies in, the data of the server"
    if any(_within(mount, path) for mount in OWN_MOUNTS) or any(_within(path, place) for place in SEALED):
        return "covers a part of the sandbox itself"
    if any(_within(real, place) for place in ("/proc", "/sys", "/dev")):
        return "leads to devices or processes of the machine"
    if not os.path.exists(real):
        return "does not exist on this machine"
    if real != path:
        # Whoever may write to a shared folder could make one in it, to any other folder of the machine.
        return f"leads through a link; name the folder itself, which is {real}"
    return None


def _within(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")
