"""Escape attempts of code in a workspace, and how they are refused.

Each command is run by a shell inside. Its output must match, and must not contain any of the secrets outside. A command
that was refused for another reason than the one named here, such as a typing error, fails its test.
"""

from __future__ import annotations

import platform
import struct
from typing import NamedTuple

from rookery.workspaces.drivers.launcher import seccomp

OPEN, TIGHT = "open", "tight"  # with user namespaces inside, and without
PROXIED = "proxied"  # reaches listed hosts

ABSENT = "No such file or directory"
READ_ONLY = "Read-only file system"
DENIED = "Permission denied"
FORBIDDEN = "Operation not permitted"
UNSUPPORTED = "Address family not supported"


class Attempt(NamedTuple):
    name: str
    command: str
    refused: str  # a pattern
    where: str = OPEN


def python(code: str) -> str:
    """Return code without double quotes or dollars as a command that prints the error it ends with."""
    return f'python3 -c "{code}" 2>&1 | tail -n 1'


def write(path: str, text: str) -> str:
    return python(f"import os; print(os.write(os.open('{path}', os.O_WRONLY), b'{text}'))")


def connect(family: str, address: str) -> str:
    return python(f"import socket; socket.socket(socket.{family}).connect({address}); print('CONNECTED')")


def system_call(number: int, *arguments: int) -> str:
    given = ", ".join(str(value) for value in (number, *arguments))
    return python(
        f"import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); print('done' if libc.syscall({given}) >= 0 "
        "else os.strerror(ctypes.get_errno()))"
    )


def family(call: str, number: int, kind: int, protocol: int = 0) -> str:
    """Use the system call itself: libraries check families, too."""
    return python(
        f"import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); made = (ctypes.c_int * 2)(); "
        f"print('MADE' if libc.syscall({NUMBERS[call]}, ctypes.c_ulong({number}), {kind}, {protocol}, made) >= 0 "
        "else os.strerror(ctypes.get_errno()))"
    )


def add_interface(name: str) -> str:
    """Ask the kernel for a network interface, as `ip link add NAME type dummy` does on machines that have it."""
    is_named = struct.pack("=HH4s", 8, 3, name.encode())
    is_dummy = struct.pack("=HHHH8s", 16, 18, 9, 1, b"dummy")
    body = bytes(16) + is_named + is_dummy
    request = struct.pack("=IHHII", 16 + len(body), 16, 0x605, 1, 0) + body  # RTM_NEWLINK, made and acknowledged
    return python(
        f"import os, socket, struct; route = socket.socket(16, 3, 0); route.send(bytes.fromhex('{request.hex()}')); "
        "print(os.strerror(-struct.unpack_from('=i', route.recv(4096), 16)[0]))"
    )


NUMBERS = seccomp.ABIS[platform.machine()].numbers
CLONED = 0x10000000 | 17  # a user namespace; SIGCHLD

FILES = [
    Attempt("read a key of the server", "cat {data}/secret.key", ABSENT),
    Attempt("list the server's data", "ls {data}", ABSENT),
    Attempt("read another workspace", "cat {victim}/home/private", ABSENT),
    Attempt("read another workspace's token", "cat {victim}/run/token", ABSENT),
    Attempt("follow a link to another workspace", "ln -sf {victim}/home ~/theirs; cat ~/theirs/private", ABSENT),
    Attempt("read the machine's passwords", "cat /etc/shadow", ABSENT),
    Attempt("follow a link to the passwords", "ln -sf /etc/shadow ~/link; cat ~/link", ABSENT),
    Attempt("read the home of root", "ls /root", ABSENT),
    Attempt("find other homes", "ls -A /home", r"^agent\n$"),
    Attempt("climb out of the home", "cat ~/../../../../../../..{data}/secret.key", ABSENT),
    Attempt("go through the root of the agent", "cat /proc/1/root{data}/secret.key", ABSENT),
    Attempt("go above one's own root", "cd /proc/self/root/../..; cat .{data}/secret.key", ABSENT),
    Attempt("go through the agent's directory", "cat /proc/1/cwd/../../..{data}/secret.key", ABSENT),
    Attempt("find a directory that was left open", "ls -d /proc/1/fd/*/.; ls -d /proc/self/fd/*/.", ABSENT),
    Attempt("hard link a program of the machine", "ln /usr/bin/env ~/hard", "Invalid cross-device link"),
    Attempt("hard link the agent", "ln /run/rookery-agent.pyz ~/agent", "Invalid cross-device link"),
    Attempt("replace the agent's program", "cp /bin/true /run/rookery-agent.pyz", f"{READ_ONLY}|{DENIED}|{FORBIDDEN}"),
    Attempt("remove the agent's program", "rm -f /run/rookery-agent.pyz", "Device or resource busy"),
    Attempt("find the file system of devices", "ls /sys", ABSENT),
    Attempt("write where all programs are", "touch /usr/bin/new", READ_ONLY),
    Attempt("add a user", "echo x >> /etc/passwd", f"{READ_ONLY}|{DENIED}"),
    Attempt("write to the root", "touch /new", READ_ONLY),
    Attempt("write to /etc", "touch /etc/new", READ_ONLY),
    Attempt("write to /dev", "touch /dev/new", READ_ONLY),
]

DEVICES = [
    Attempt("make a disk", "mknod ~/disk b 8 0", FORBIDDEN),
    Attempt("make the kernel's memory", "mknod ~/mem c 1 1", FORBIDDEN),
    Attempt("read the disks", "cat /dev/sda /dev/vda /dev/nvme0n1", ABSENT),
    Attempt("read the kernel's memory", "cat /dev/mem /dev/kmem", ABSENT),
    Attempt("read the kernel's log", "cat /dev/kmsg", ABSENT),
]

MOUNTS = [
    Attempt("make the programs writable", "mount -o remount,rw /usr", f"{FORBIDDEN}|{DENIED}|superuser"),
    Attempt("mount something", "mount -t tmpfs none /tmp", f"{FORBIDDEN}|{DENIED}|superuser"),
    Attempt("unmount the home", "umount -n /home/agent", f"{FORBIDDEN}|{DENIED}|superuser|umount failed"),
    Attempt(
        "make the programs writable from a nested namespace",
        "unshare -Urm mount -o remount,rw,bind /usr && unshare -Urm touch /usr/bin/new",
        f"{FORBIDDEN}|{DENIED}|{READ_ONLY}",
    ),
    Attempt(
        "take the programs away to see what is below",
        "unshare -Urm umount /usr",
        f"{FORBIDDEN}|not mounted|Invalid argument|{DENIED}",
    ),
    Attempt(
        "change the root from a nested namespace",
        "unshare -Ur "
        + python(
            "import os; os.mkdir('/tmp/r'); os.chroot('/tmp/r'); os.chdir('/../../../..'); print(os.listdir('{data}'))"
        ),
        ABSENT,
    ),
    Attempt(
        "mount a disk from a nested namespace",
        "unshare -Urm mount -t ext4 /dev/vda /tmp",
        f"{FORBIDDEN}|{DENIED}|does not exist|{ABSENT}",
    ),
]

NAMESPACES = [
    Attempt("enter the mounts of a process outside", "nsenter -t {outside} -m true", ABSENT),
    Attempt("enter the processes of the machine", "nsenter -t {outside} -p true", ABSENT),
    Attempt("become another user", python("import os; os.setuid(0)"), f"{FORBIDDEN}|Invalid argument"),
    Attempt("take another group", python("import os; os.setgroups([0])"), FORBIDDEN),
    Attempt("give a file to root", "chown 0:0 ~", f"{FORBIDDEN}|Invalid argument"),
    Attempt("map more users", write("/proc/self/uid_map", "0 0 9"), f"{FORBIDDEN}|{DENIED}"),
    Attempt("use a program that runs as root", "su root -c id", "su: |Authentication|failure|cannot"),
    Attempt("rename the machine", "hostname other", "must be root|not permitted|you don't have permission"),
    Attempt("set the clock", "date -s 2001-01-01", FORBIDDEN),
    Attempt("raise the limit of open files", "ulimit -n 1000000", "(?i)not permitted|cannot modify"),
    Attempt("make core files", "ulimit -c unlimited", "(?i)not permitted|cannot modify"),
    Attempt("nest where it is off", "unshare -Ur true", f"{FORBIDDEN}|No space left", TIGHT),
    Attempt("nest a sandbox where it is off", "bwrap --ro-bind / / true", "bwrap: ", TIGHT),
    Attempt("mount where it is off", system_call(NUMBERS["mount"], 0, 0, 0, 0, 0), FORBIDDEN, TIGHT),
    Attempt("clone a namespace where it is off", system_call(NUMBERS["clone"], CLONED, 0, 0, 0, 0), FORBIDDEN, TIGHT),
    Attempt("clone in the newer way where it is off", system_call(NUMBERS["clone3"], 0, 0), "not implemented", TIGHT),
]

PROCESSES = [
    Attempt("see processes outside", "cat /proc/{outside}/cmdline", ABSENT),
    Attempt("read the environment of the first process", "tr '\\0' '\\n' < /proc/1/environ", "PATH="),
    Attempt("read every environment", "cat /proc/[0-9]*/environ | tr '\\0' '\\n'", "PATH="),
    Attempt("read the arguments of the first process", "tr '\\0' ' ' < /proc/1/cmdline", "--run-dir /run/rookery"),
    Attempt("count processes", "ls -d /proc/[0-9]* | wc -l", r"^\d\d?\n$"),
    Attempt("end a process outside", "kill -9 {outside}", "No such process"),
    Attempt(
        "trace a process outside",
        python(
            "import ctypes, os; libc = ctypes.CDLL(None, use_errno=True); "
            "print('done' if libc.ptrace(16, {outside}, 0, 0) == 0 else os.strerror(ctypes.get_errno()))"
        ),
        "No such process",
    ),
    Attempt("read the memory of a process outside", "cat /proc/{outside}/mem", ABSENT),
    Attempt(
        "run something as root at a crash",
        "echo '|/home/agent/x' > /proc/sys/kernel/core_pattern",
        f"{READ_ONLY}|{DENIED}",
    ),
    Attempt("restart the machine", "cat > /proc/sysrq-trigger", f"{READ_ONLY}|{DENIED}|nonexistent"),
    Attempt("drop the machine's caches", "echo 3 > /proc/sys/vm/drop_caches", f"{READ_ONLY}|{DENIED}"),
    Attempt("send others to be killed first", write("/proc/self/oom_score_adj", "-1000"), DENIED),
    Attempt(
        "type into a terminal", python("import fcntl, termios; fcntl.ioctl(0, termios.TIOCSTI, b'x')"), "Error|error"
    ),
]

NETWORK = [
    Attempt("reach a service of the machine", connect("AF_INET", "('127.0.0.1', {port})"), "Connection refused"),
    Attempt("reach the network", connect("AF_INET", "('192.0.2.1', 80)"), "unreachable"),
    Attempt("reach the database", connect("AF_UNIX", "'{socket}'"), ABSENT),
    Attempt("reach the server's own listener", connect("AF_UNIX", "'{internal}'"), ABSENT),
    Attempt(
        "hold a socket of the server by a link",
        "ln -sf {internal} /run/rookery/i.sock; " + connect("AF_UNIX", "'/run/rookery/i.sock'"),
        ABSENT,
    ),
    Attempt("reach the container engine", connect("AF_UNIX", "'/var/run/docker.sock'"), ABSENT),
    Attempt("reach a socket without a path", connect("AF_UNIX", "b'\\0rookery-{outside}'"), "Connection refused"),
    Attempt("read the network", family("socket", 17, 3), UNSUPPORTED),
]

# Every family that a kernel may have, by its number: Python does not define all of them.
FAMILIES = {
    **{"ax25": 3, "ipx": 4, "appletalk": 5, "x25": 9, "key": 15, "packet": 17, "rds": 21, "llc": 26, "can": 29},
    **{"tipc": 30, "bluetooth": 31, "rxrpc": 33, "phonet": 35, "alg": 38, "nfc": 39, "vsock": 40, "kcm": 41},
    **{"qipcrtr": 42, "smc": 43, "xdp": 44, "mctp": 45},
}
SOCKETS = [
    *(
        Attempt(f"make {call} of {name}", family(call, number, kind), UNSUPPORTED)
        for name, number in FAMILIES.items()
        for call, kind in (("socket", 1), ("socketpair", 5))
    ),
    Attempt("make a socket of datagrams to the hypervisor", family("socket", 40, 2), UNSUPPORTED),
    Attempt("make a vsock where nesting is off", family("socket", 40, 1), UNSUPPORTED, TIGHT),
    Attempt("make a vsock behind the upper half of a register", family("socket", 40 + (1 << 32), 1), UNSUPPORTED),
    Attempt("read the kernel's firewall", family("socket", 16, 3, 12), UNSUPPORTED),
    Attempt("hear of devices", family("socket", 16, 3, 15), UNSUPPORTED),
    Attempt("list sockets by netlink", family("socket", 16, 3, 4), UNSUPPORTED),
    Attempt("make a packet socket in a network of one's own", "unshare -Urn " + family("socket", 17, 3), UNSUPPORTED),
    Attempt("enter the network of a process outside", "nsenter -t {outside} -n true", ABSENT),
    Attempt("enter the network of the machine", "nsenter --net=/proc/1/ns/net true", FORBIDDEN),
    Attempt("find another network in /var/run", "ls /var/run/netns /run/netns", ABSENT),
    Attempt("add a way out", "unshare -Ur " + add_interface("out"), FORBIDDEN),
]

PAST_THE_PROXY = [
    *(each._replace(name=f"{each.name} past the proxy", where=PROXIED) for each in NETWORK),
    Attempt(
        "take the socket of the proxy away", "rm /run/rookery-egress/egress.sock", f"{READ_ONLY}|{ABSENT}", PROXIED
    ),
    Attempt("put another in its place", "touch /run/rookery-egress/x", READ_ONLY, PROXIED),
    Attempt("see what is beside it", "ls -A /run/rookery-egress/..", "rookery", PROXIED),
    Attempt("see what others may reach", "cat {data}/egress/*.json", ABSENT, PROXIED),
]

LIMITS = [
    Attempt("fill /tmp", "head -c 20M /dev/zero > /tmp/full; rm /tmp/full", "No space left", TIGHT),
    Attempt("fill shared memory", "head -c 90M /dev/zero > /dev/shm/full; rm /dev/shm/full", "No space left", TIGHT),
    Attempt("fill /run", "head -c 20M /dev/zero > /run/full; rm /run/full", "No space left", TIGHT),
    Attempt("fill the disk with one file", "head -c 20M /dev/zero > ~/full; rm ~/full", "File size limit"),
    Attempt("fill the memory", python("bytearray(2_000_000_000)"), "MemoryError"),
    Attempt(
        "start processes without end",
        python(
            "import subprocess as s\nall = []\ntry:\n while len(all) < 300: all.append(s.Popen(['sleep', '300'], "
            "stdout=s.DEVNULL, stderr=s.DEVNULL))\nexcept OSError as e: print(e.strerror)\nfor one in all: one.kill()"
        ),
        "Resource temporarily unavailable",
    ),
]

# Listed again on purpose: a call that is missing in the filter must be noticed.
CALLS = (
    *("keyctl", "add_key", "request_key", "bpf", "perf_event_open", "userfaultfd"),
    *("io_uring_setup", "io_uring_enter", "io_uring_register", "kexec_load", "kexec_file_load"),
    *("init_module", "finit_module", "delete_module", "swapon", "swapoff", "reboot"),
    *("settimeofday", "clock_settime", "open_by_handle_at", "quotactl", "quotactl_fd"),
)
CALLS_OF_NESTED = (
    *("umount2", "pivot_root", "unshare", "setns", "open_tree", "move_mount"),
    *("fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr"),
)
SYSTEM_CALLS = [Attempt(f"call {name}", system_call(NUMBERS[name], 0, 0, 0, 0, 0), FORBIDDEN) for name in CALLS]
SYSTEM_CALLS += [
    Attempt(f"call {name} where it is off", system_call(NUMBERS[name], 0, 0, 0, 0, 0), FORBIDDEN, TIGHT)
    for name in CALLS_OF_NESTED
]

ATTEMPTS = [
    *FILES,
    *DEVICES,
    *MOUNTS,
    *NAMESPACES,
    *PROCESSES,
    *NETWORK,
    *SOCKETS,
    *PAST_THE_PROXY,
    *LIMITS,
    *SYSTEM_CALLS,
]
