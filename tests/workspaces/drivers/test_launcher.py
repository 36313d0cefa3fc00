"""The launcher as a standalone program: it runs on any workspace machine with the Python installed there."""

from __future__ import annotations

import ast
import io
import struct
import sys
import tarfile
from pathlib import Path

import pytest

from rookery.workspaces.drivers import launcher
from rookery.workspaces.drivers.launcher import bwrap_arguments, seccomp, template_archive
from rookery.workspaces.drivers.launcher.launch_plan import LaunchError, Plan

MODULES = sorted(Path(launcher.__file__).parent.glob("*.py"))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.name)
def test_module_is_python_3_9_and_needs_nothing_installed(module: Path) -> None:
    tree = ast.parse(module.read_text(), feature_version=(3, 9))

    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
    assert not any(isinstance(node, ast.Match) for node in ast.walk(tree))
    foreign = [name for name in names if name.split(".")[0] not in sys.stdlib_module_names]
    assert all(name.startswith("rookery.workspaces.drivers.launcher") for name in foreign)


def plan(**parts: object) -> Plan:
    return Plan(workspace_id="w", generation=1, directory="/d", agent="/a", python="/p", **parts)  # type: ignore[arg-type]


def test_root_becomes_read_only_last() -> None:
    built = bwrap_arguments.build(plan(ro_binds=["/srv/a"]))

    assert built[-2:] == ["--chdir", "/home/agent"]
    assert built[-4:-2] == ["--remount-ro", "/"]
    assert built.index("/srv/a") > max(place for place, item in enumerate(built) if item == "--tmpfs")


@pytest.mark.parametrize(
    ("network", "nested", "present", "absent"),
    [("host", True, "--share-net", "--disable-userns"), ("none", False, "--disable-userns", "--share-net")],
)
def test_namespaces_follow_the_template(network: str, nested: bool, present: str, absent: str) -> None:
    built = bwrap_arguments.build(plan(network=network, nested=nested))

    assert {"--unshare-user", "--unshare-all", "--as-pid-1", "--new-session", present} <= {
        item for item in built if isinstance(item, str)
    }
    assert absent not in built


def test_way_out_is_bound_to_be_read_in_a_network_of_its_own() -> None:
    built = bwrap_arguments.build(plan(network="hosts", egress="/d/egress"))

    place = built.index("/d/egress")
    assert built[place - 1 : place + 2] == ["--ro-bind", "/d/egress", "/run/rookery-egress"]
    assert place > max(number for number, item in enumerate(built) if item == "--tmpfs")
    assert "--share-net" not in built
    assert "/run/rookery-egress" not in bwrap_arguments.build(plan(network="none"))
    assert bwrap_arguments.problem_of_bind("/run/rookery-egress/x", ["/data"]) == "covers a part of the sandbox itself"


def test_of_an_installation_of_python_only_its_programs_and_libraries_are_bound(tmp_path: Path) -> None:
    for name in ("bin", "lib", "data", "etc"):
        (tmp_path / name).mkdir()

    built = bwrap_arguments.build(plan(python_prefix=str(tmp_path)))

    bound = {item for item in built if isinstance(item, str) and item.startswith(str(tmp_path))}
    assert bound == {str(tmp_path / "bin"), str(tmp_path / "lib")}


def test_test_of_the_machine_ends_with_its_parent_and_a_workspace_does_not() -> None:
    assert "--die-with-parent" in bwrap_arguments.build(plan(command=["true"]))
    assert "--die-with-parent" not in bwrap_arguments.build(plan())


def answer(program: bytes, *, arch: int, number: int, first: int = 0, third: int = 0) -> int:
    """Return the kernel's result for a call, by interpreting the few instructions of the filter."""
    data = struct.pack("<IIQQQQ", number, arch, 0, first, 0, third)
    lines = list(struct.iter_unpack("<HBBI", program))
    at, held = 0, 0
    while True:
        code, yes, no, value = lines[at]
        at += 1
        if code == seccomp.LOAD:
            held = struct.unpack_from("<I", data, value)[0]
        elif code == seccomp.RETURN:
            return int(value)
        else:
            fits = {
                seccomp.JUMP_EQUAL: held == value,
                seccomp.JUMP_GREATER_EQUAL: held >= value,
                seccomp.JUMP_ANY_BIT: bool(held & value),
            }[code]
            at += yes if fits else no


@pytest.mark.parametrize("machine", seccomp.ABIS)
def test_filter_refuses_what_it_lists_and_nothing_else(machine: str) -> None:
    abi = seccomp.ABIS[machine]
    nested, tight = seccomp.program(machine, nested=True), seccomp.program(machine, nested=False)
    assert nested is not None
    assert tight is not None

    for name in (*seccomp.REFUSED, *seccomp.REFUSED_WITHOUT_NESTED):
        call = {"arch": abi.audit, "number": abi.numbers[name]}
        assert answer(tight, **call) == seccomp.EPERM
        assert answer(nested, **call) == (seccomp.EPERM if name in seccomp.REFUSED else seccomp.ALLOW)
    assert answer(nested, arch=abi.audit, number=1) == seccomp.ALLOW
    assert answer(nested, arch=0x40000003, number=1) == seccomp.EPERM
    assert answer(nested, arch=abi.audit, number=seccomp.X32 + 1) == seccomp.EPERM
    assert answer(tight, arch=abi.audit, number=abi.numbers["clone"], first=17) == seccomp.ALLOW
    assert answer(tight, arch=abi.audit, number=abi.numbers["clone"], first=0x10000011) == seccomp.EPERM
    assert answer(tight, arch=abi.audit, number=abi.numbers["clone3"]) == seccomp.ENOSYS


@pytest.mark.parametrize("call", ["socket", "socketpair"])
@pytest.mark.parametrize("nested", [True, False])
@pytest.mark.parametrize("machine", seccomp.ABIS)
def test_filter_lets_four_families_of_sockets_pass(machine: str, nested: bool, call: str) -> None:
    abi = seccomp.ABIS[machine]
    program = seccomp.program(machine, nested=nested)
    assert program is not None

    def passes(family: int, protocol: int) -> bool:
        # The kernel ignores the upper half of a register, and the filter must ignore it too.
        answers = {
            answer(program, arch=abi.audit, number=abi.numbers[call], first=family + upper, third=protocol + upper)
            for upper in (0, 1 << 32, 0xFFFFFFFF << 32)
        }
        assert answers in ({seccomp.ALLOW}, {seccomp.EAFNOSUPPORT})
        return answers == {seccomp.ALLOW}

    families = [*range(64), 0x7FFFFFFF, 0xFFFFFFFF, 1 << 31, *(each + (1 << 16) for each in (1, 2, 10, 16))]
    assert [family for family in families if passes(family, 0)] == [1, 2, 10, 16]
    assert [family for family in families if passes(family, 6)] == [1, 2, 10]
    assert [protocol for protocol in range(64) if passes(16, protocol)] == [0]


def test_machine_without_known_calls_has_no_filter() -> None:
    assert seccomp.program("sparc64", nested=True) is None


def packed(*entries: tuple[str, str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for kind, name, content in entries:
            entry = tarfile.TarInfo(name)
            if kind == "link":
                entry.type, entry.linkname = tarfile.SYMTYPE, content
            elif kind == "hard":
                entry.type, entry.linkname = tarfile.LNKTYPE, content
            elif kind == "device":
                entry.type = tarfile.CHRTYPE
            entry.size = len(content) if kind == "file" else 0
            tar.addfile(entry, io.BytesIO(content.encode()) if kind == "file" else None)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([("file", "/etc/x", "")], "leads out"),
        ([("file", "../x", "")], "leads out"),
        ([("file", "a/../../x", "")], "leads out"),
        ([("link", "a", "/etc")], "leads out"),
        ([("link", "a/b", "../../x")], "leads out"),
        ([("link", "a", "b"), ("file", "a/x", "")], "behind a link|cannot be unpacked"),
        ([("link", "d/up", ".."), ("link", "d/up/out", ".."), ("file", "d/up/out/x", "")], "behind a link"),
        ([("hard", "a", "b")], "neither a file"),
        ([("device", "a", "")], "neither a file"),
        ([("file", "big", "0" * 5_000_000)], "far larger"),
    ],
)
def test_archive_that_would_write_elsewhere_is_refused(
    tmp_path: Path, entries: list[tuple[str, str, str]], why: str
) -> None:
    target = tmp_path / "home"
    target.mkdir()

    with pytest.raises(LaunchError, match=why) as refused:
        template_archive.unpack(packed(*entries), target, owner=None)

    assert refused.value.code == "invalid_workspace"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_archive_with_links_that_stay_inside_is_unpacked(tmp_path: Path) -> None:
    template_archive.unpack(packed(("file", "a/b.txt", "text"), ("link", "a/c.txt", "b.txt")), tmp_path, owner=None)

    assert (tmp_path / "a" / "c.txt").read_text() == "text"
