"""The zipapp: the same bytes everywhere, only the standard library, and Python 3.9 is enough."""

from __future__ import annotations

import ast
import io
import os
import signal
import subprocess
import sys
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import rookery.workspaces.agent
from rookery.workspaces import agent_bundle
from rookery.workspaces.agent import shared_state as agents
from tests.workspaces import python_versions
from tests.workspaces.agent import agent_rig as rigs

PACKAGE = "rookery.workspaces.agent"
FOLDER = Path(rookery.workspaces.agent.__file__).parent
SOURCES = sorted(FOLDER.rglob("*.py"))


PYTHONS = python_versions.find()
# Modules of the standard library that Python 3.9 does not have.
NEWER = {"tomllib", "annotationlib", "compression"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(FOLDER)))
def test_source_is_python_3_9_and_imports_only_the_standard_library(path: Path) -> None:
    tree = ast.parse(path.read_text(), feature_version=(3, 9))

    foreign = [name for name in imported(tree) if not is_allowed(name)]
    assert foreign == []
    assert unions_at_run_time(tree) == []


def imported(tree: ast.AST) -> list[str]:
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return names


def is_allowed(name: str) -> bool:
    top = name.split(".")[0]
    return name == PACKAGE or name.startswith(f"{PACKAGE}.") or (top in sys.stdlib_module_names and top not in NEWER)


def unions_at_run_time(tree: ast.Module) -> list[int]:
    """Return the lines that evaluate `X | None` at run time, which Python 3.9 cannot. Annotations are not evaluated."""
    found = []
    for node in tree.body:
        if isinstance(node, ast.Assign):
            found += [
                part.lineno
                for part in ast.walk(node.value)
                if isinstance(part, ast.BinOp) and isinstance(part.op, ast.BitOr) and is_none(part.right)
            ]
    return found


def is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def test_the_checks_find_what_they_look_for() -> None:
    assert not is_allowed("msgspec")
    assert not is_allowed("rookery.workspaces.agent_bundle")
    assert not is_allowed("rookery.runtime.clock")
    assert not is_allowed("tomllib")
    assert is_allowed("asyncio.streams")
    assert unions_at_run_time(ast.parse("A = int | None")) == [1]
    with pytest.raises(SyntaxError):
        ast.parse("match x:\n    case 1:\n        pass", feature_version=(3, 9))


def test_every_source_says_that_annotations_are_not_evaluated() -> None:
    modules = [path for path in SOURCES if path.name != "__init__.py"]

    assert [path.name for path in modules if "from __future__ import annotations" not in path.read_text()] == []


def test_bytes_depend_on_the_source_alone(tmp_path: Path) -> None:
    first = agent_bundle.build(tmp_path / "a")
    code = "import sys, pathlib, rookery.workspaces.agent_bundle as made; made.build(pathlib.Path(sys.argv[1]))"
    environment = {**os.environ, "TZ": "Asia/Tokyo", "PYTHONHASHSEED": "7"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "b")], env=environment, check=True)

    (second,) = (tmp_path / "b").iterdir()
    assert second.name == first.name
    assert second.read_bytes() == first.read_bytes() == agent_bundle.archive()


def test_agent_has_the_version_of_its_server() -> None:
    assert rookery.__version__ == agents.VERSION


def test_zipapp_holds_the_agent_and_nothing_else(tmp_path: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(agent_bundle.archive())) as zipped:
        names = zipped.namelist()

    own = {f"rookery/workspaces/agent/{path.relative_to(FOLDER)}" for path in SOURCES}
    assert set(names) == own | {"__main__.py", "rookery/__init__.py", "rookery/workspaces/__init__.py"}
    assert len(agent_bundle.archive()) < 1024 * 1024


def test_damaged_file_is_replaced_and_a_whole_one_left_alone(tmp_path: Path) -> None:
    path = agent_bundle.build(tmp_path)
    before = path.stat().st_ino
    assert agent_bundle.build(tmp_path).stat().st_ino == before

    path.write_bytes(b"half")
    assert agent_bundle.build(tmp_path).read_bytes() == agent_bundle.archive()
    assert list(tmp_path.iterdir()) == [path]


def test_many_builders_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        paths = set(pool.map(lambda _: agent_bundle.build(tmp_path / "x"), range(64)))

    (path,) = paths
    assert list((tmp_path / "x").iterdir()) == [path]
    assert path.read_bytes() == agent_bundle.archive()


def test_directory_that_cannot_be_written_is_an_error_without_leftovers(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(OSError):
        agent_bundle.build(tmp_path / "file")


def test_zipapp_needs_no_rookery_around_it(tmp_path: Path) -> None:
    path = agent_bundle.build(tmp_path)
    shown = subprocess.run(
        [sys.executable, "-I", "-S", str(path), "--help"], capture_output=True, text=True, cwd=tmp_path, env={}
    )

    assert shown.returncode == 0
    assert "--run-dir" in shown.stdout


@pytest.mark.parametrize("python", PYTHONS, ids=lambda path: Path(path).name)
async def test_agent_does_all_it_can_on_every_python_that_is_here(python: str) -> None:
    async with rigs.rig(python=python) as rig:
        (rig.directory / "AGENTS.md").write_text("Be brief.\n")
        await rig.start()
        await rig.run("git init -q", workdir=str(rig.directory))
        path = f"{rig.directory}/a/b.txt"
        edit = {"files": [{"path": path, "edits": [{"old_text": "old", "new_text": "new"}]}]}

        health = await rig.get("/v1/health")
        written = await rig.ask("PUT", f"/v1/files?path={path}", data=b"old\n", chat="c1", key="k1")
        edited = await rig.post("/v1/files/edit", edit, chat="c1", key="k2")
        replayed = await rig.ask("POST", "/v1/files/edit", json=edit, chat="c1", key="k2")
        lines = await rig.get(f"/v1/files/lines?path={path}")
        listed = await rig.post("/v1/files/list", {"path": str(rig.directory)})
        shown = await rig.run("echo hello; exit 3", chat="c1", key="k3")
        long = await rig.post("/v1/processes", {"command": "exec sleep 600"}, chat="c1", key="k4")
        await rig.post(f"/v1/processes/{long['id']}/signal", {"signal": "terminate"}, chat="c1")
        ended = await rig.output(long["id"], chat="c1")
        context = await rig.get("/v1/context?after=0&wait_s=30")
        scanned = await rig.post("/v1/git/scan", {"chat_id": "c1"})
        await rig.post("/v1/shutdown", {})

        assert (health["generation"], health["home"]) == (1, str(rig.home))
        assert written.status == 200
        assert "-old\n+new\n" in edited["files"][0]["diff"]
        assert (replayed.json, replayed.headers["idempotent-replay"]) == (edited, "1")
        assert lines["content"] == "1\tnew"
        assert "AGENTS.md" in [entry["name"] for entry in listed["entries"]]
        assert (shown["output"], shown["exit_code"]) == ("hello\n", 3)
        assert ended["exit_code"] == 128 + signal.SIGTERM
        assert [each["body"] for each in context["resources"] if each["kind"] == "instruction_file"] == ["Be brief.\n"]
        assert "+new" in scanned["repositories"][0]["diff"]
        assert "Traceback" not in rig.log()
