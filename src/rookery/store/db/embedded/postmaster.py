"""The postmaster process: find it by its pid file, check that it serves the cluster, wait for it, and stop it.

The process may be a child of this process, or of an earlier one that has ended. All functions block; call them in a
thread.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rookery.store.db.embedded.data_dir import SOCKET_NAME
from rookery.store.db.errors import EmbeddedServerError

POLL_S = 0.01
UNREADABLE_AFTER_S = 3.0  # a starting server has written its pid by then
ABORT_TIMEOUT_S = 10.0  # after SIGQUIT; the postmaster kills its children after 5 s


@dataclass(frozen=True, slots=True)
class PidFile:
    """The content of postmaster.pid.

    `status` is "starting", "ready", "standby" or "stopping"; it is empty until the server has written it.
    """

    pid: int
    socket_dir: Path | None
    status: str


def read_pid_file(cluster: Path) -> PidFile | None:
    """Return the pid file; None if it is missing or incomplete."""
    try:
        lines = (cluster / "postmaster.pid").read_text(errors="replace").splitlines()
    except FileNotFoundError:
        return None
    if not lines or not lines[0].strip().isdigit():
        return None
    lines += [""] * (8 - len(lines))
    return PidFile(int(lines[0]), Path(lines[4]) if lines[4] else None, lines[7].strip())


class Postmaster:
    """A running postmaster. A pidfd ensures that no signal reaches another process that later has the same pid."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._child = child
        self._pidfd = _open_pidfd(pid)

    def wait(self, timeout_s: float) -> bool:
        """Return True when the process has exited, or False after the timeout. A child is reaped."""
        if self._child is not None and self._pidfd is None:
            return _reaped(self._child, timeout_s)
        if not self._gone(timeout_s):
            return False
        return self._child is None or _reaped(self._child, 1)

    def stop(self, timeout_s: float) -> None:
        """Request a fast shutdown. A server that does not stop in time is killed, and recovers at its next start."""
        for number, patience_s in (
            (signal.SIGINT, timeout_s),
            (signal.SIGQUIT, ABORT_TIMEOUT_S),
            (signal.SIGKILL, 5.0),
        ):
            self._signal(number)
            if self.wait(patience_s):
                return
        raise EmbeddedServerError(f"PostgreSQL (process {self.pid}) cannot be stopped. Its disk may not respond.")

    def close(self) -> None:
        if self._pidfd is not None:
            os.close(self._pidfd)
            self._pidfd = None

    def _gone(self, timeout_s: float) -> bool:
        if self._pidfd is not None:
            poll = select.poll()
            poll.register(self._pidfd, select.POLLIN)
            return bool(poll.poll(timeout_s * 1000))
        deadline = time.monotonic() + timeout_s
        while _is_alive(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(POLL_S)
        return True

    def _signal(self, number: signal.Signals) -> None:
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            elif not self.wait(0):
                os.kill(self.pid, number)
        except ProcessLookupError:
            return
        except PermissionError as error:
            raise EmbeddedServerError(
                f"This user may not stop PostgreSQL (process {self.pid}). Stop it as the user that runs it."
            ) from error


def find_postmaster(cluster: Path, pid_file: PidFile | None) -> Postmaster | None:
    """Return the running postmaster of this cluster, or None.

    The process in the pid file must serve this cluster, because after a crash the pid may belong to another process.
    """
    if pid_file is None or not _exists(pid_file.pid):
        return None
    postmaster = Postmaster(pid_file.pid)
    # Checked after the pidfd was opened, so that the check is about the same process.
    if not postmaster.wait(0) and _serves(cluster, pid_file):
        return postmaster
    postmaster.close()
    return None


def clear_stale_pid_file(cluster: Path, pid_file: PidFile | None) -> None:
    """Remove a pid file with which PostgreSQL would not start, although no postmaster serves the cluster.

    The pid in the file belongs to another process, or a full disk has left the file empty. The removal is safe, because
    PostgreSQL detects running workers by their shared memory.
    """
    path = cluster / "postmaster.pid"
    if pid_file is not None:
        if _exists(pid_file.pid):
            path.unlink(missing_ok=True)
    elif path.exists() and time.time() - path.stat().st_mtime > UNREADABLE_AFTER_S:
        path.unlink(missing_ok=True)


def listens(pid_file: PidFile) -> bool:
    """Return whether this process listens on its socket, as it does even during recovery."""
    if pid_file.socket_dir is None:
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        try:
            probe.connect(str(pid_file.socket_dir / SOCKET_NAME))
            return sys.platform != "linux" or _peer_pid(probe) == pid_file.pid
        except OSError:
            return False


def _serves(cluster: Path, pid_file: PidFile) -> bool:
    """Return whether the process serves this cluster, by its command line, working directory or socket."""
    if sys.platform != "linux":
        shown = subprocess.run(  # noqa: S603 - fixed program, a number as argument
            ["/bin/ps", "-o", "command=", "-p", str(pid_file.pid)], capture_output=True, text=True, check=False
        )
        return f"-D {cluster}" in shown.stdout
    process = Path("/proc", str(pid_file.pid))
    try:
        words = process.joinpath("cmdline").read_bytes().split(b"\0")
        if b"postgres" in words[0] and os.fsencode(cluster) in words:
            return True
        return process.joinpath("cwd").samefile(cluster)
    except OSError:  # the process has ended, or /proc is not readable; then the socket is checked
        return listens(pid_file)


def _peer_pid(connection: socket.socket) -> int:
    """Return the pid of the process that called listen() on the socket."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    pid: int = struct.unpack("3i", credentials)[0]
    return pid


def _reaped(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    try:
        child.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def _exists(pid: int) -> bool:
    """Return whether the process exists. A zombie exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie. In some containers, orphaned zombies are never reaped."""
    if not _exists(pid):
        return False
    try:
        state = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:  # the process has ended, or there is no /proc
        return _exists(pid)
    return state not in (b"Z", b"X")


def _open_pidfd(pid: int) -> int | None:
    """Return a pidfd; None if the kernel or the container does not support it. Then the pid is polled."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
