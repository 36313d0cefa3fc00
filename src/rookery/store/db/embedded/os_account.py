"""The operating system account of the embedded PostgreSQL, and commands that run under it."""

from __future__ import annotations

import grp
import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rookery.store.db.errors import EmbeddedServerError

FIRST_UID = 57117  # chosen: far from the ranges of distributions and user namespaces
CANDIDATES = 100
LAUNCHER = Path(__file__).with_name("launch.py")

NOT_AS_ROOT = "Run rookery as a normal user, or set database_url to use a PostgreSQL of your own."


@dataclass(frozen=True, slots=True)
class Account:
    uid: int
    gid: int


def server_account(cluster: Path) -> Account | None:
    """Return the account of the server; None means the account of this process. An existing cluster keeps its owner."""
    if os.geteuid() != 0:
        return None
    if sys.platform != "linux":
        raise EmbeddedServerError(f"The embedded PostgreSQL cannot run as root on this system. {NOT_AS_ROOT}")
    if cluster.exists() and (owner := cluster.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    return _unused_account()


def setup_account() -> Account | None:
    """Return the account for initdb, which needs a user with a name. The account of the server has none."""
    if os.geteuid() == 0:
        return _nobody()
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise EmbeddedServerError(
            f"User id {os.geteuid()} has no name on this machine, and PostgreSQL cannot be set up without one. "
            "Add the user to /etc/passwd, or set database_url to use a PostgreSQL of your own."
        ) from None
    return None


def command(account: Account | None, program: Path, arguments: Sequence[str]) -> list[str]:
    """Return the command line that runs the program as this account."""
    if account is None:
        return [str(program), *arguments]
    launcher = [sys.executable, "-I", "-S", str(LAUNCHER), str(account.uid), str(account.gid)]
    return [*launcher, str(program), *arguments]


def hand_over(tree: Path, account: Account | None) -> None:
    """Change the owner of a directory and of all files in it to the account.

    The owner of the directory itself is changed last. After an interruption, the directory still has its old owner, and
    the change is repeated.
    """
    if account is None:
        return
    try:
        for _, folders, files, folder_fd in os.fwalk(tree):
            for name in (*folders, *files):
                os.chown(name, account.uid, account.gid, dir_fd=folder_fd, follow_symlinks=False)
        os.chown(tree, account.uid, account.gid)
    except OSError as error:
        raise EmbeddedServerError(
            f"Root may not change the owner of files here ({error.strerror}), "
            f"and PostgreSQL refuses to run as root. {NOT_AS_ROOT}"
        ) from error


def _unused_account() -> Account:
    for number in range(FIRST_UID, FIRST_UID + CANDIDATES):
        if not _is_known(number):
            return Account(number, number)
    raise EmbeddedServerError(
        f"All user ids from {FIRST_UID} to {FIRST_UID + CANDIDATES - 1} are taken on this machine. {NOT_AS_ROOT}"
    )


def _is_known(number: int) -> bool:
    try:
        pwd.getpwuid(number)
    except KeyError:
        pass
    else:
        return True
    try:
        grp.getgrgid(number)
    except KeyError:
        return False
    return True


def _nobody() -> Account:
    try:
        entry = pwd.getpwnam("nobody")
    except KeyError:
        raise EmbeddedServerError(
            f"This machine has no user `nobody`, which is needed to set up PostgreSQL. {NOT_AS_ROOT}"
        ) from None
    return Account(entry.pw_uid, entry.pw_gid)
