"""Run a program under another user id: `python -I -S launch.py UID GID PROGRAM ARG...`

This is a script for a separate process and is not imported, because changing the user id between fork and exec is not
safe in a process with threads. PostgreSQL refuses to run as root, but the data directory belongs to root and may be
below directories that only root can open. The process therefore keeps one capability, to open and read them.
"""

from __future__ import annotations

import ctypes
import os
import sys

CAP_DAC_OVERRIDE = 1
CAP_DAC_READ_SEARCH = 2

_PR_SET_KEEPCAPS = 8
_PR_SET_SECUREBITS = 28
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_RAISE = 2
_SECBIT_NO_SETUID_FIXUP = 1 << 2
_CAPABILITY_VERSION_3 = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


class _Header(ctypes.Structure):
    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Sets(ctypes.Structure):
    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def main(arguments: list[str]) -> None:
    uid, gid, program, *rest = arguments
    kept = _capability_to_keep(program)
    # Without this bit, access(2) ignores capabilities of users other than root. PostgreSQL checks its own binary with
    # it, and would not start from a virtual environment below /root.
    _prctl(_PR_SET_SECUREBITS, _SECBIT_NO_SETUID_FIXUP)
    _prctl(_PR_SET_KEEPCAPS, 1)
    os.setgroups([])
    os.setresgid(int(gid), int(gid), int(gid))
    os.setresuid(int(uid), int(uid), int(uid))
    _keep_only(kept)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    os.execv(program, [program, *rest])  # noqa: S606 - without a shell


def _capability_to_keep(program: str) -> int | None:
    """Return the capability to keep: CAP_DAC_READ_SEARCH or CAP_DAC_OVERRIDE. Return None if neither is permitted.

    CAP_DAC_READ_SEARCH is preferred. CAP_DAC_OVERRIDE is used if the first is not permitted (as in some containers), or
    if other users may not execute the program.
    """
    permitted = _permitted()
    wanted = [CAP_DAC_READ_SEARCH, CAP_DAC_OVERRIDE]
    if not os.stat(program).st_mode & 0o001:
        wanted.remove(CAP_DAC_READ_SEARCH)
    return next((capability for capability in wanted if permitted & (1 << capability)), None)


def _permitted() -> int:
    sets = (_Sets * 2)()
    if _libc.capget(ctypes.byref(_Header(_CAPABILITY_VERSION_3, 0)), ctypes.byref(sets)):
        raise OSError(ctypes.get_errno(), "capget")
    return int(sets[0].permitted)


def _keep_only(capability: int | None) -> None:
    mask = 0 if capability is None else 1 << capability
    sets = (_Sets * 2)(_Sets(mask, mask, mask), _Sets(0, 0, 0))
    if _libc.capset(ctypes.byref(_Header(_CAPABILITY_VERSION_3, 0)), ctypes.byref(sets)):
        raise OSError(ctypes.get_errno(), "capset")
    if capability is not None:
        _prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_RAISE, capability)


def _prctl(option: int, *arguments: int) -> None:
    """Call prctl and ignore errors. If it fails, PostgreSQL reports the cause."""
    padded = (*arguments, 0, 0, 0, 0)[:4]
    _libc.prctl(option, *(ctypes.c_ulong(argument) for argument in padded))


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except OSError as error:
        sys.exit(f"FATAL:  could not become user {sys.argv[1]}: {error}")
