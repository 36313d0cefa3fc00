"""The arguments of bubblewrap for one workspace. Their order matters: a later mount covers an earlier one."""

from __future__ import annotations

import os
import platform
import shlex
from collections.abc import Sequence
from typing import NamedTuple, Union

from rookery.workspaces.drivers.launcher import hidden_files, seccomp
from rookery.workspaces.drivers.launcher.hidden_files import Bound, within
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError, Plan

HOME = "/home/agent"
RUN = "/run/rookery"
AGENT = "/run/rookery-agent.pyz"
EGRESS = "/run/rookery-egress"
BWRAP = "/run/rookery-bwrap"
# The path is as deep as in the package, because the program finds its libraries relative to its own path.
BWRAP_PROGRAM = f"{BWRAP}/package/bin/bwrap"
UID = 1000
MIB = 1024 * 1024

# Only the public parts of /etc/pki: it also holds private keys.
FROM_ETC = (
    *("alternatives", "ssl/certs", "ca-certificates", "localtime", "ld.so.cache", "nsswitch.conf"),
    *("pki/ca-trust", "pki/java", "pki/tls/certs", "pki/tls/cert.pem", "pki/tls/openssl.cnf"),
)
# The parts of a Python installation that it needs. Its directory may contain other files, even the server's data.
FROM_PYTHON = ("bin", "include", "lib", "lib64")
ROOT_DIRECTORIES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
# Templates may not bind a path that contains one of OWN_MOUNTS, or that is in one of SEALED.
OWN_MOUNTS = ("/proc", "/dev", "/sys", "/run", RUN, HOME, "/usr", "/etc", "/tmp")  # noqa: S108 - compared only
SEALED = ("/proc", "/dev", "/sys", RUN, AGENT, EGRESS, BWRAP, HOME)


class Handle(NamedTuple):
    """A folder to bind.

    Bubblewrap gets an open descriptor of the folder instead of its path, because another process could replace the path
    with a link.
    """

    path: str


# A string is an argument. Bytes are content that bubblewrap reads from a descriptor. Bytes and handles are replaced by
# the numbers of their descriptors.
Arguments = list[Union[str, bytes, Handle]]


def build(plan: Plan) -> Arguments:
    shell = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
    return [
        *_namespaces(plan),
        *_environment(plan, shell),
        *_empty_mounts(plan),
        *_root_links(),
        *_trees(plan),
        *_etc(plan, shell),
        *_mounts(plan),
        *_final_arguments(plan),
    ]


def _namespaces(plan: Plan) -> Arguments:
    arguments: Arguments = [
        # Without this option, --unshare-all would continue without a user namespace.
        "--unshare-user",
        "--unshare-all",
        *(["--share-net"] if plan.network == "host" else []),
        *([] if plan.nested else ["--disable-userns"]),
        "--new-session",
        *("--cap-drop", "ALL"),
        *("--uid", str(UID)),
        *("--gid", str(UID)),
        *("--hostname", "workspace"),
    ]
    # A workspace outlives the launcher. The program of the sandbox check does not.
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


def _root_links() -> Arguments:
    arguments: Arguments = []
    for name in ROOT_DIRECTORIES:
        if os.path.islink(f"/{name}"):
            arguments += ["--symlink", os.readlink(f"/{name}"), f"/{name}"]
    return arguments


def bound_trees(python_prefix: str | None) -> list[Bound]:
    """Return the trees of the machine that every workspace can read."""
    paths = ["/usr"]
    paths += [f"/{name}" for name in ROOT_DIRECTORIES if not os.path.islink(f"/{name}")]
    paths += [f"/etc/{name}" for name in FROM_ETC]
    if python_prefix is not None:
        paths += [f"{python_prefix}/{name}" for name in FROM_PYTHON]
    return [Bound(os.path.realpath(path), path) for path in paths if os.path.exists(path)]


def _trees(plan: Plan) -> Arguments:
    """Return the binds of the machine's trees, and the mounts that hide the server's files in them.

    Hiding is needed because the server and its data may be below /usr.
    """
    bounds = bound_trees(plan.python_prefix)
    arguments: Arguments = []
    for bound in bounds:
        arguments += ["--ro-bind", *bound]
    for cover in hidden_files.covers(bounds, plan.hidden, plan.uid):
        arguments += ["--perms", "0755", "--tmpfs", cover.target]
        for text, place in cover.links:
            arguments += ["--symlink", text, place]
        for source, place in cover.binds:
            arguments += ["--ro-bind-try", source, place]
        arguments += ["--remount-ro", cover.target]
    return arguments


def _etc(plan: Plan, shell: str) -> Arguments:
    arguments: Arguments = []
    passwd = (
        f"root:x:0:0:root:/root:/bin/sh\nagent:x:{UID}:{UID}:agent:{HOME}:{shell}\n"
        "nobody:x:65534:65534:nobody:/nonexistent:/bin/false\n"
    )
    group = f"root:x:0:\nagent:x:{UID}:\nnogroup:x:65534:\n"
    hosts = _read("/etc/hosts") if plan.network == "host" else b"127.0.0.1 localhost\n::1 localhost\n"
    resolver = _read("/etc/resolv.conf") if plan.network == "host" else b""
    made = {
        "passwd": passwd.encode(),
        "group": group.encode(),
        "hosts": hosts.rstrip() + b"\n127.0.1.1 workspace\n",
        "resolv.conf": resolver,
    }
    if plan.egress is not None:
        made["ssh/ssh_config"] = _ssh_config(plan)
    for name, content in made.items():
        arguments += ["--perms", "0444", "--ro-bind-data", content, f"/etc/{name}"]
    return arguments


def _ssh_config(plan: Plan) -> bytes:
    """Return the system configuration of ssh, which connects through the proxy by a command.

    Settings of the workspace's user take precedence.
    """
    command = f"{shlex.quote(plan.python)} -I {AGENT} connect".replace("%", "%%")
    return f"Host localhost 127.0.0.1 ::1\n  ProxyCommand none\nHost *\n  ProxyCommand {command} %h %p\n".encode()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(MIB)
    except OSError:
        return b""


def _empty_mounts(plan: Plan) -> Arguments:
    """Return the empty mounts. They come first, because they would cover trees below /tmp and /run."""
    arguments: Arguments = ["--proc", "/proc", "--dev", "/dev"]
    # The default size of each would be half of the machine's memory.
    for target, size_mb in (("/dev/shm", 64), ("/tmp", plan.tmp_mb), ("/run", 16)):  # noqa: S108 - inside
        arguments += ["--perms", "1777", "--size", str(size_mb * MIB), "--tmpfs", target]
    return arguments


def _mounts(plan: Plan) -> Arguments:
    arguments: Arguments = []
    for path in plan.ro_binds:
        arguments += ["--ro-bind-fd", Handle(path), path]
    for path in plan.rw_binds:
        arguments += ["--bind-fd", Handle(path), path]
    arguments += ["--bind", plan.home, HOME, "--bind", plan.run, RUN]
    if plan.egress is not None:
        # The directory of the socket is bound, because a replica that takes over creates a new socket in it.
        # Connections to a socket on a read-only mount are possible.
        arguments += ["--ro-bind", plan.egress, EGRESS]
    return [*arguments, *_nested(plan), "--ro-bind", plan.agent, AGENT]


def bwrap_inside(bwrap: str | None, libraries: str | None) -> str | None:
    """Return the path of bubblewrap inside of a workspace, for nested sandboxes; None if it has none."""
    if bwrap is not None and os.path.realpath(bwrap).startswith("/usr/"):
        return bwrap
    return BWRAP_PROGRAM if bwrap is not None and libraries is not None else None


def _nested(plan: Plan) -> Arguments:
    """Return the mounts of the server's own bubblewrap and its libraries, which are read-only for the workspace."""
    if not plan.nested or plan.bwrap is None or plan.bwrap_libraries is None:
        return []
    libraries = f"{BWRAP}/{os.path.basename(plan.bwrap_libraries)}"
    return [
        *("--perms", "0755", "--tmpfs", BWRAP),
        *("--ro-bind", plan.bwrap, BWRAP_PROGRAM),
        *("--ro-bind", plan.bwrap_libraries, libraries),
        *("--remount-ro", BWRAP),
    ]


def _final_arguments(plan: Plan) -> Arguments:
    program = seccomp.program(platform.machine(), nested=plan.nested)
    if program is None:
        raise LaunchError(f"there is no system call filter for {platform.machine()}", "driver_unavailable")
    return [
        *("--seccomp", program),
        # The root and /dev are in memory, which a workspace must not fill. The root comes last.
        *("--remount-ro", "/dev"),
        *("--remount-ro", "/"),
        *("--chdir", HOME),
    ]


def problem_of_bind(path: str, hidden: Sequence[str]) -> str | None:
    """Return why a template may not bind this path, as the end of a sentence; None if it may.

    `hidden` are the files and directories of the server. The data directory is the first.
    """
    if not path.startswith("/") or os.path.normpath(path) != path:
        return "is not an absolute path in its shortest form"
    try:
        real = os.path.realpath(path)
        for number, own in enumerate(hidden):
            if hidden_files.overlaps(path, own):
                what = "a file that the settings of the server name" if number else "the data of the server"
                return f"holds, or lies in, {what}"
    except (OSError, LaunchError) as error:
        # The path has changed during the check.
        return f"cannot be looked at: {error.strerror if isinstance(error, OSError) else error}"
    if any(within(mount, path) for mount in OWN_MOUNTS) or any(within(path, place) for place in SEALED):
        return "covers a part of the sandbox itself"
    if any(within(real, place) for place in ("/proc", "/sys", "/dev")):
        return "leads to devices or processes of the machine"
    if not os.path.exists(real):
        return "does not exist on this machine"
    if real != path:
        # A user of a shared folder could create a link in it to any folder of the machine.
        return f"leads through a link; name the folder itself, which is {real}"
    return None
