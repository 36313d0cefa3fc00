"""Creation of the database files (the cluster) by initdb.

initdb writes into another directory, which is renamed when all files are on disk. A crash, a full disk or a cancelled
start therefore leaves no partial database. The next start removes the other directory.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path

from rookery.store.db.embedded import os_account as accounts
from rookery.store.db.embedded import server_log
from rookery.store.db.embedded.os_account import Account
from rookery.store.db.errors import EmbeddedServerError

MAJOR_VERSION = "18"
SUPERUSER = "postgres"
SCRATCH_PREFIX = "postgres.new-"
REMOVE_TIMEOUT_S = 10.0

# The environment of the caller is not used: PG* variables would change the server, and a locale its messages.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}

_INITDB = (
    f"--username={SUPERUSER}",
    "--encoding=UTF8",
    "--locale-provider=builtin",
    "--builtin-locale=C.UTF-8",
    "--data-checksums",
    "--auth-local=trust",  # a process that can open the private socket could read the files as well
    "--auth-host=reject",
    "--no-instructions",
)


class StartAborted(EmbeddedServerError):
    """Raised if the embedded PostgreSQL was stopped while it started."""

    def __init__(self) -> None:
        super().__init__("The embedded PostgreSQL was stopped while it started.")


def ensure_cluster(cluster: Path, initdb: Path, *, abort: threading.Event) -> None:
    """Create the cluster unless it exists. Blocks. The caller holds the lock of the data directory."""
    for leftover in cluster.parent.glob(SCRATCH_PREFIX + "*"):
        _remove_tree(leftover)
    if not _is_usable(cluster):
        _make(cluster, initdb, abort=abort)


def _is_usable(cluster: Path) -> bool:
    """Return whether the cluster exists. Raises `EmbeddedServerError` if this version cannot open it."""
    try:
        version = (cluster / "PG_VERSION").read_text().strip()
    except FileNotFoundError:
        if cluster.exists() and any(cluster.iterdir()):
            raise EmbeddedServerError(
                f"{cluster} is not a PostgreSQL database. Move it away, or choose another --data-dir."
            ) from None
        return False
    if version != MAJOR_VERSION:
        raise EmbeddedServerError(
            f"The database in {cluster} was created by PostgreSQL {version}; this version of rookery has PostgreSQL "
            f"{MAJOR_VERSION}. Use the version that created it, and move the data by backup and restore."
        )
    return True


def _make(cluster: Path, initdb: Path, *, abort: threading.Event) -> None:
    setup_account = accounts.setup_account()
    account = accounts.server_account(cluster)
    scratch = Path(tempfile.mkdtemp(prefix=SCRATCH_PREFIX, dir=cluster.parent))
    try:
        accounts.hand_over(scratch, setup_account)
        # The built-in provider sorts and folds case. Text search uses the locale of libc to distinguish letters from
        # punctuation, and not every machine has C.UTF-8.
        code, output = _initdb(initdb, scratch, locale="C.UTF-8", account=setup_account, abort=abort)
        if code and "invalid locale" in output:
            code, output = _initdb(initdb, scratch, locale="C", account=setup_account, abort=abort)
        if code:
            raise EmbeddedServerError(server_log.explain(output, cluster.parent))
        accounts.hand_over(scratch, account)
        scratch.rename(cluster)
        _sync_directory(cluster.parent)
    except BaseException:
        _remove_tree(scratch)
        raise


def _initdb(
    initdb: Path, target: Path, *, locale: str, account: Account | None, abort: threading.Event
) -> tuple[int, str]:
    arguments = [*_INITDB, f"--locale={locale}", "-D", str(target)]
    # The output is a pipe, so that initdb ends with its next line if rookery is killed.
    with subprocess.Popen(  # noqa: S603 - our own binary
        accounts.command(account, initdb, arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd="/",
        env=ENVIRONMENT,
        start_new_session=True,
        umask=0o077,
    ) as child:
        while True:
            try:
                output, _ = child.communicate(timeout=0.05)
                return child.returncode, output.decode(errors="replace")
            except subprocess.TimeoutExpired:
                if abort.is_set():
                    os.killpg(child.pid, signal.SIGKILL)  # including its bootstrap server
                    child.communicate()
                    raise StartAborted from None


def _remove_tree(folder: Path) -> None:
    """Remove an unfinished cluster. The removal is retried, because an orphaned initdb may still write files there."""
    deadline = time.monotonic() + REMOVE_TIMEOUT_S
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            raise EmbeddedServerError(f"{folder} is left over and cannot be removed. Remove it, then start again.")


def _sync_directory(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
