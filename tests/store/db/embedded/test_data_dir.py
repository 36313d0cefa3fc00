"""The data directory: the refused directories, the error messages, and that nothing is left behind."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

import pytest

from rookery.store.db.embedded import data_dir as data_dirs
from rookery.store.db.embedded import os_account as accounts
from rookery.store.db.embedded.data_dir import DataDirLock, Holder, Use, prepare_data_dir
from rookery.store.db.errors import DataDirInUse, EmbeddedServerError
from tests.store.db.embedded.embedded_rig import Rig, fetch, rig, run_python, seed

__all__ = ["rig", "seed"]  # fixtures

# Runs in a mount namespace of its own with a small disk at argv[1]; a normal user needs a user namespace for that.
IN_NAMESPACE = """
import asyncio, ctypes, os, sys
from pathlib import Path

disk = Path(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWUSER, REMOUNT, RDONLY, PRIVATE = 0x20000, 0x10000000, 32, 1, 16384 | (1 << 18)

def check(result):
    if result:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))

def mount(flags=0, data=b""):
    check(libc.mount(b"tmpfs", os.fsencode(disk), b"tmpfs", flags, data))

uid, gid = os.geteuid(), os.getegid()
check(libc.unshare(NEWNS if uid == 0 else NEWNS | NEWUSER))
if uid:
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
    Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
check(libc.mount(b"none", b"/", None, PRIVATE, None))
mount(data=b"mode=0755,size=20m")
"""

FULL_DISK = (
    IN_NAMESPACE
    + """
from rookery.store.db.embedded.server import EmbeddedServer
from rookery.store.db.errors import EmbeddedServerError

async def refused(server):
    try:
        await server.start()
    except EmbeddedServerError as error:
        assert "no space left on the disk" in str(error) and "\\n" not in str(error), error
    else:
        sys.exit("started on a full disk")

async def main():
    data_dir = disk / "data"
    server = EmbeddedServer(data_dir, options={"fsync": "off", "shared_buffers": "16MB"})

    await refused(server)
    assert not list(data_dir.glob("postgres*")), list(data_dir.iterdir())

    mount(REMOUNT, b"size=120m")
    await server.start()
    await server.stop()

    with (disk / "filler").open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)) == 4096:
                pass
        except OSError:
            pass
    await refused(server)

    (disk / "filler").unlink()
    await server.start()
    await server.stop()

asyncio.run(main())
"""
)

READ_ONLY_DISK = (
    IN_NAMESPACE
    + """
from rookery.store.db.embedded.data_dir import prepare_data_dir
from rookery.store.db.errors import EmbeddedServerError

(disk / "data").mkdir(mode=0o700)
mount(REMOUNT | RDONLY)
for name in ("data", "new"):
    try:
        prepare_data_dir(disk / name)
    except EmbeddedServerError as error:
        assert "read-only file system" in str(error), error
    else:
        sys.exit(f"{name} was accepted")
"""
)


def test_data_directory_is_made_private_with_its_parents(tmp_path: Path) -> None:
    made = prepare_data_dir(tmp_path / "a" / "b")

    assert made == tmp_path / "a" / "b"
    assert made.stat().st_mode & 0o777 == 0o700
    assert prepare_data_dir(made) == made


def test_data_directory_is_private_with_any_umask(tmp_path: Path) -> None:
    before = os.umask(0o777)
    try:
        made = prepare_data_dir(tmp_path / "data")
    finally:
        os.umask(before)

    assert made.stat().st_mode & 0o777 == 0o700


def test_relative_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert prepare_data_dir(Path("data")) == tmp_path / "data"


@pytest.mark.parametrize("mode", [0o750, 0o701, 0o777])
def test_directory_that_others_can_enter_is_refused_with_the_remedy(tmp_path: Path, mode: int) -> None:
    data_dir = tmp_path / "my data"
    data_dir.mkdir()
    data_dir.chmod(mode)

    assert _refusal(data_dir).endswith(f"chmod 700 '{data_dir}'")
    assert data_dir.stat().st_mode & 0o777 == mode


def test_read_only_directory_is_refused_with_the_remedy(tmp_path: Path) -> None:
    data_dir = tmp_path / "data"
    data_dir.mkdir()
    data_dir.chmod(0o500)

    assert f"chmod 700 {data_dir}" in _refusal(data_dir)


def test_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("mine")

    assert "is not a directory" in _refusal(tmp_path / "data")
    assert (tmp_path / "data").read_text() == "mine"


def test_file_among_the_parents_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    assert "is not a directory" in _refusal(tmp_path / "file" / "a" / "data")


def test_link_to_nowhere_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to(tmp_path / "nowhere")

    assert "is not a directory" in _refusal(tmp_path / "data")


def test_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    data_dir = Path("/usr")  # root's, for everybody else
    if os.geteuid() == 0:
        data_dir = tmp_path / "data"
        data_dir.mkdir(mode=0o700)
        os.chown(data_dir, 65534, 65534)

    assert "belongs to" in _refusal(data_dir)


def test_directory_that_cannot_be_finished_leaves_no_parents_behind(tmp_path: Path) -> None:
    assert _refusal(tmp_path / "a" / "b" / ("x" * 300))

    assert list(tmp_path.iterdir()) == []


def test_unprintable_name_is_refused(tmp_path: Path) -> None:
    assert "unprintable" in _refusal(tmp_path / "two\nlines")


@pytest.mark.parametrize(
    ("number", "remedy"),
    [
        (errno.ENOSPC, "Free some space"),
        (errno.EDQUOT, "Free some space"),
        (errno.EROFS, "Choose another directory"),
        (errno.EACCES, "Give it access"),
        (errno.EPERM, "Give it access"),
        (errno.ENOTDIR, "Move it away"),
        (errno.ENOLCK, "Choose another directory"),
    ],
)
def test_refusal_of_the_system_says_what_to_do(tmp_path: Path, number: int, remedy: str) -> None:
    error = OSError(number, os.strerror(number), str(tmp_path / "file"))

    sentence = data_dirs.explain_os_error(error, tmp_path)

    assert remedy in sentence
    assert str(tmp_path) in sentence


# The lock.


def test_second_process_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    script = """
import sys
from pathlib import Path
from rookery.store.db.embedded.data_dir import DataDirLock
from rookery.store.db.errors import DataDirInUse
try:
    DataDirLock(Path(sys.argv[1])).acquire()
except DataDirInUse as refusal:
    print(refusal.pid, refusal)
"""
    with DataDirLock(tmp_path):
        refused = run_python(script, tmp_path)
    accepted = run_python(script, tmp_path)

    assert refused.stdout.startswith(f"{os.getpid()} {tmp_path} is in use by process {os.getpid()}.")
    assert (accepted.returncode, accepted.stdout, accepted.stderr) == (0, "", "")


def test_lock_is_exclusive_within_a_process_too(tmp_path: Path) -> None:
    with DataDirLock(tmp_path), pytest.raises(DataDirInUse):
        DataDirLock(tmp_path).acquire()


def test_lock_says_who_holds_it_and_for_what(tmp_path: Path) -> None:
    with DataDirLock(tmp_path, Use.STARTING) as lock:
        starting = DataDirLock(tmp_path).holder()
        lock.change_use(Use.SERVING)
        serving = DataDirLock(tmp_path).holder()

    assert (starting, serving) == (Holder(os.getpid(), Use.STARTING), Holder(os.getpid(), Use.SERVING))
    assert DataDirLock(tmp_path).holder() == Holder(None, None)


@pytest.mark.parametrize(("text", "pid"), [("", None), ("77\n", 77), ("x serving?", None), ("\xff\xfe", None)])
def test_lock_file_that_says_less_is_read_as_far_as_it_goes(tmp_path: Path, text: str, pid: int | None) -> None:
    (tmp_path / "rookery.lock").write_text(text, encoding="latin-1")

    assert DataDirLock(tmp_path).holder() == Holder(pid, None)


def test_lock_file_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (tmp_path / "rookery.lock").symlink_to(tmp_path / "target")

    with pytest.raises(EmbeddedServerError):
        DataDirLock(tmp_path).acquire()
    assert (tmp_path / "target").read_text() == "mine"


# The socket's directory.


@pytest.mark.parametrize("name", ["long" * 40, "a,comma", 'qu"ote and space', "größe"])
async def test_server_starts_below_any_path(rig: Rig, name: str) -> None:
    server = await rig.started(rig.made_data_dir(name))
    sockets = Path(str(await fetch(server.superuser_url, "SHOW unix_socket_directories")).strip('"').replace('""', '"'))

    assert await fetch(server.url, "SELECT 1") == 1
    assert _modes(sockets, sockets.parent) == [0o700, 0o700]
    assert _owner(sockets.parent) == os.geteuid()
    await server.stop()
    if not sockets.is_relative_to(server.data_dir):
        assert sockets.parent.name not in os.listdir(sockets.parent.parent)


def test_planted_socket_directory_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runtime = _short_directory(tmp_path_factory)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    data_dir = prepare_data_dir(tmp_path / ("long" * 40))
    planned = data_dirs.make_socket_dir(data_dir, None).parent
    shutil.rmtree(planned)
    planned.symlink_to(tmp_path)

    with pytest.raises(EmbeddedServerError, match="belongs to another user"):
        data_dirs.make_socket_dir(data_dir, None)

    assert planned.parent == runtime


def test_runtime_directory_that_others_can_write_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    runtime = _short_directory(tmp_path_factory)
    runtime.chmod(0o777)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    data_dir = prepare_data_dir(tmp_path / ("long" * 40))

    sockets = data_dirs.make_socket_dir(data_dir, None)

    assert not sockets.is_relative_to(runtime)
    data_dirs.remove_socket_dir(data_dir, sockets)


# Who runs it.


def test_server_account_has_no_name_and_a_cluster_keeps_its_owner(tmp_path: Path) -> None:
    account = accounts.server_account(tmp_path / "new")
    if os.geteuid() != 0:
        assert account is None
        return
    assert account is not None
    assert account.uid >= accounts.FIRST_UID
    os.chown(tmp_path, 4321, 8765)

    assert accounts.server_account(tmp_path) == accounts.Account(4321, 8765)


# Disks. Mounting one needs root or user namespaces, which not every machine grants; the words are tested elsewhere.

if run_python(IN_NAMESPACE, os.path.dirname(__file__)).returncode == 0:

    def test_full_disk_leaves_nothing_half_made_and_is_said_in_one_sentence(tmp_path: Path) -> None:
        done = run_python(FULL_DISK, tmp_path)

        assert (done.returncode, done.stderr) == (0, "")

    def test_read_only_disk_is_said_in_one_sentence(tmp_path: Path) -> None:
        done = run_python(READ_ONLY_DISK, tmp_path)

        assert (done.returncode, done.stderr) == (0, "")


def _refusal(path: Path) -> str:
    with pytest.raises(EmbeddedServerError) as refused:
        prepare_data_dir(path)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def _short_directory(factory: pytest.TempPathFactory) -> Path:
    """Return a directory with a path that is short enough for a socket."""
    return factory.mktemp("xdg")


def _modes(*folders: Path) -> list[int]:
    return [folder.stat().st_mode & 0o777 for folder in folders]


def _owner(folder: Path) -> int:
    return folder.stat().st_uid
