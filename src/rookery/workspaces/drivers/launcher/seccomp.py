"""The system call filter of workspaces, as a BPF program.

It refuses system calls that build tools do not need and that often had kernel bugs, and all socket families except
four. All other calls are allowed, including ptrace, because a workspace sees only its own processes. Calls of other
ABIs are refused, because their numbers would bypass the filter.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

LOAD, JUMP_EQUAL, JUMP_GREATER_EQUAL, JUMP_ANY_BIT, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# Offsets of the lower halves of arguments. The kernel ignores the upper half of a family or protocol.
NUMBER, ARCH, FIRST_ARGUMENT, THIRD_ARGUMENT = 0, 4, 16, 32
ALLOW = 0x7FFF0000
EPERM, ENOSYS, EAFNOSUPPORT = 0x00050000 | 1, 0x00050000 | 38, 0x00050000 | 97
NAMESPACE_FLAGS = 0x00000080 | 0x00020000 | 0x02000000 | 0x04000000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
X32 = 0x40000000

# The allowed socket families. Others bypass the network namespace (vsock), access the network card (packet), or use
# rarely reviewed code of the kernel. For netlink only the protocol for reading one's own addresses is allowed.
AF_UNIX, AF_INET, AF_INET6, AF_NETLINK = 1, 2, 10, 16
FAMILIES = (AF_UNIX, AF_INET, AF_INET6)
NETLINK_ROUTE = 0

REFUSED = [
    "keyctl",
    "add_key",
    "request_key",
    "bpf",
    "perf_event_open",
    "userfaultfd",
    "io_uring_setup",
    "io_uring_enter",
    "io_uring_register",
    "kexec_load",
    "kexec_file_load",
    "init_module",
    "finit_module",
    "delete_module",
    "swapon",
    "swapoff",
    "reboot",
    "settimeofday",
    "clock_settime",
    "open_by_handle_at",
    "quotactl",
    "quotactl_fd",
]
REFUSED_WITHOUT_NESTED = [
    "mount",
    "umount2",
    "pivot_root",
    "unshare",
    "setns",
    "open_tree",
    "move_mount",
    "fsopen",
    "fsconfig",
    "fsmount",
    "fspick",
    "mount_setattr",
]

_SINCE_2019 = {
    "io_uring_setup": 425,
    "io_uring_enter": 426,
    "io_uring_register": 427,
    "open_tree": 428,
    "move_mount": 429,
    "fsopen": 430,
    "fsconfig": 431,
    "fsmount": 432,
    "fspick": 433,
    "clone3": 435,
    "mount_setattr": 442,
    "quotactl_fd": 443,
}
_X86_64 = {
    "socket": 41,
    "socketpair": 53,
    "clone": 56,
    "pivot_root": 155,
    "settimeofday": 164,
    "mount": 165,
    "umount2": 166,
    "swapon": 167,
    "swapoff": 168,
    "reboot": 169,
    "init_module": 175,
    "delete_module": 176,
    "quotactl": 179,
    "clock_settime": 227,
    "kexec_load": 246,
    "add_key": 248,
    "request_key": 249,
    "keyctl": 250,
    "unshare": 272,
    "perf_event_open": 298,
    "open_by_handle_at": 304,
    "setns": 308,
    "finit_module": 313,
    "kexec_file_load": 320,
    "bpf": 321,
    "userfaultfd": 323,
}
_AARCH64 = {
    "umount2": 39,
    "mount": 40,
    "pivot_root": 41,
    "quotactl": 60,
    "unshare": 97,
    "kexec_load": 104,
    "init_module": 105,
    "delete_module": 106,
    "clock_settime": 112,
    "reboot": 142,
    "settimeofday": 170,
    "socket": 198,
    "socketpair": 199,
    "add_key": 217,
    "request_key": 218,
    "keyctl": 219,
    "clone": 220,
    "swapon": 224,
    "swapoff": 225,
    "perf_event_open": 241,
    "open_by_handle_at": 265,
    "setns": 268,
    "finit_module": 273,
    "bpf": 280,
    "userfaultfd": 282,
    "kexec_file_load": 294,
}


class Abi(NamedTuple):
    audit: int
    numbers: dict[str, int]


ABIS = {
    "x86_64": Abi(0xC000003E, {**_X86_64, **_SINCE_2019}),
    "aarch64": Abi(0xC00000B7, {**_AARCH64, **_SINCE_2019}),
}


def program(machine: str, *, nested: bool) -> bytes | None:
    """Return the compiled filter; None for an unknown machine type."""
    abi = ABIS.get(machine)
    if abi is None:
        return None
    names = REFUSED if nested else [*REFUSED, *REFUSED_WITHOUT_NESTED]
    refused = [abi.numbers[name] for name in names]
    # Every test has two instructions, and the second one returns. No jump therefore skips more than one instruction.
    lines = [
        (LOAD, 0, 0, ARCH),
        *_return_unless(JUMP_EQUAL, abi.audit, EPERM),
        (LOAD, 0, 0, NUMBER),
        *_return_if(JUMP_GREATER_EQUAL, X32, EPERM),
    ]
    for number in refused:
        lines += _return_if(JUMP_EQUAL, number, EPERM)
    for name in ("socket", "socketpair"):
        families = _families()
        lines += [(JUMP_EQUAL, 0, len(families), abi.numbers[name]), *families]
    if not nested:
        # A filter cannot read the flags of clone3, which are in memory. Callers fall back to clone.
        lines += _return_if(JUMP_EQUAL, abi.numbers["clone3"], ENOSYS)
        lines += [(JUMP_EQUAL, 0, 3, abi.numbers["clone"]), (LOAD, 0, 0, FIRST_ARGUMENT)]
        lines += _return_if(JUMP_ANY_BIT, NAMESPACE_FLAGS, EPERM)
    lines.append((RETURN, 0, 0, ALLOW))
    return b"".join(struct.pack("<HBBI", *line) for line in lines)


Line = tuple[int, int, int, int]


def _families() -> list[Line]:
    """Return the checks of a socket family, which always return. Other families fail like unknown families."""
    lines: list[Line] = [(LOAD, 0, 0, FIRST_ARGUMENT)]
    for family in FAMILIES:
        lines += _return_if(JUMP_EQUAL, family, ALLOW)
    lines += _return_unless(JUMP_EQUAL, AF_NETLINK, EAFNOSUPPORT)
    lines.append((LOAD, 0, 0, THIRD_ARGUMENT))
    lines += _return_unless(JUMP_EQUAL, NETLINK_ROUTE, EAFNOSUPPORT)
    return [*lines, (RETURN, 0, 0, ALLOW)]


def _return_if(jump: int, value: int, answer: int) -> list[Line]:
    return [(jump, 0, 1, value), (RETURN, 0, 0, answer)]


def _return_unless(jump: int, value: int, answer: int) -> list[Line]:
    return [(jump, 1, 0, value), (RETURN, 0, 0, answer)]
