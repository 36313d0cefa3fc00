"""The postmaster process: find it by its pid file, verify that it serves our cluster, watch it and stop it.

The process may be a child of this one, or may have been started by an earlier Rookery process that has ended. Both are
handled in the same way. All functions block: call them in a thread.
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
ABORT_TIMEOUT_S = 10.0  # of SIGQUIT: the postmaster itself kills its children after 5 s


@dataclass(frozen=True, slots=True)
class PidFile:
    """The content of postmaster.pid.

    `status` is "starting", "ready", "standby" or "stopping", and empty until the server has written one.
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
    """A running server. With a pidfd it can never signal another process that got the same pid later."""

    def __init__(self, pid: int, child: subprocess.Popen[bytes] | None = None) -> None:
        self.pid = pid
        self._child = child
        self._pidfd = _open_pidfd(pid)

    def wait(self, timeout_s: float) -> bool:
        """Return True as soon as it has exited, False after the timeout. A child is reaped, so that no zombie stays."""
        if self._child is not None and self._pidfd is None:
            return _reaped(self._child, timeout_s)
        if not self._gone(timeout_s):
            return False
        return self._child is None or _reaped(self._child, 1)

    def stop(self, timeout_s: float) -> None:
        """Request a fast shutdown; a server that does not stop in time is aborted and recovers at its next start."""
        for number, patience_s in (
            (signal.SIGINT, timeout_s),
            (signal.SIGQUIT, ABORT_TIMEOUT_S),
            (signal.SIGKILL, 5.0),
        ):
            self._signal(number)
            if self.wait(patience_s):
                return
        raise EmbeddedServerError(f"PostgreSQL (process {self.pid}) cannot be stopped. Its disk may hang.")

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
                f"This user may not stop PostgreSQL (process {self.pid}). Stop it as the user it runs as."
            ) from error


def find_postmaster(cluster: Path, pid_file: PidFile | None) -> Postmaster | None:
    """Return the running postmaster of this cluster, or None.

    The process in the pid file must be alive and must serve this cluster: after a crash its pid may have been reused.
    """
    if pid_file is None or not _exists(pid_file.pid):
        return None
    postmaster = Postmaster(pid_file.pid)
    # Checked after the pidfd was opened, so the answer is about the process of the pidfd.
    if not postmaster.wait(0) and _serves(cluster, pid_file):
        return postmaster
    postmaster.close()
    return None


def clear_stale_pid_file(cluster: Path, pid_file: PidFile | None) -> None:
    """Remove a pid file that names no postmaster of ours but would keep PostgreSQL from starting.

    Its pid belongs to another process by now, or a full disk left it unreadable. This is safe: workers that outlived
    their postmaster are still detected by their shared memory.
    """
    path = cluster / "postmaster.pid"
    if pid_file is not None:
        if _exists(pid_file.pid):
            path.unlink(missing_ok=True)
    elif path.exists() and time.time() - path.stat().st_mtime > UNREADABLE_AFTER_S:
        path.unlink(missing_ok=True)


def listens(pid_file: PidFile) -> bool:
    """Return whether exactly this process accepts connections at its socket (it does so even while it recovers)."""
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
    """Return whether the process serves this cluster. A pid in a file proves nothing: after a reboot it may be
    reused.
    """
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
    except OSError:  # gone, or hidden from us: its socket still shows it
        return listens(pid_file)


def _peer_pid(connection: socket.socket) -> int:
    """Return the pid of the listener at the other end: the kernel recorded it when the postmaster called listen()."""
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
    """Return whether the process exists, zombies included."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _is_alive(pid: int) -> bool:
    """Return whether the process lives, zombies excluded: in a container whose first process does not reap, orphans
    stay.
    """
    if not _exists(pid):
        return False
    try:
        state = Path("/proc", str(pid), "stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:  # gone in between, or no such file system here
        return _exists(pid)
    return state not in (b"Z", b"X")


def _open_pidfd(pid: int) -> int | None:
    """Return a pidfd; None where the kernel has none or a container forbids it; then the pid is polled."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:
        return None
