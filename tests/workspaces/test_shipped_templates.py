"""The templates that come with Rookery: they are valid, pushed once, and their scripts do what they say."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.store.workspaces import templates as stored
from rookery.store.workspaces.templates import TemplatePatch
from rookery.workspaces import manifest, operation_requests, shipped_templates, start_parameters, templates
from rookery.workspaces.drivers.driver_interface import Limits
from rookery.workspaces.template_errors import ParametersInvalid
from rookery.workspaces.templates import TemplateFile
from tests.required_programs import requires
from tests.store.builders import StoreRig, open_store_rig
from tests.store.machine.machine_rig import Recorder

FOLDERS = {folder.name: folder for folder in shipped_templates.folders()}


@pytest.fixture
async def world(database_url: str) -> AsyncIterator[StoreRig]:
    async with open_store_rig(database_url) as made:
        yield made


def run(template: str, home: Path, **given: str) -> subprocess.CompletedProcess[str]:
    """Run the startup script as the agent does: in the directory of the template, with parameters as variables."""
    (home / "project").mkdir(exist_ok=True)
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "GIT_CONFIG_GLOBAL": "/dev/null"}
    named = {f"ROOKERY_PARAM_{name}": value for name, value in given.items()}
    return subprocess.run(
        ["sh", FOLDERS[template] / "startup.sh"],
        cwd=home / "project",
        env=environment | named,
        capture_output=True,
        text=True,
        timeout=120,
    )


def repository(folder: Path, *messages: str) -> str:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, timeout=60)

    folder.mkdir()
    git("init", "-q")
    for message in messages:
        (folder / "file.txt").write_text(message)
        git("add", ".")
        git("commit", "-q", "-m", message)
    return f"file://{folder}"


def test_all_of_them_are_there_and_valid() -> None:
    names = {each.manifest.name for each in shipped_templates.packed()}

    assert names == {"blank", "python", "node", "git", "host-folder"} == set(FOLDERS)
    for each in shipped_templates.packed():
        assert each.readme.startswith("# ")
        assert each.manifest.description
        assert each.manifest.idle_stop_after_s > 0
        assert each.manifest.limits == Limits(memory_mb=4096, cpus=4, pids=2048)


async def test_they_are_pushed_once_and_again_when_they_change(world: StoreRig) -> None:
    published = Recorder()

    assert len(await shipped_templates.push(world.conn, published)) == 5
    assert await shipped_templates.push(world.conn, published) == []

    await world.conn.execute(
        "WITH old AS (INSERT INTO template_revisions SELECT template, repeat('0', 64), manifest, readme, archive"
        "              FROM template_revisions WHERE template = 'blank')"
        " UPDATE templates SET revision = repeat('0', 64) WHERE name = 'blank'"
    )
    await stored.update_template(world.conn, "blank", TemplatePatch(enabled=False))
    assert await shipped_templates.push(world.conn, published) == ["blank"]
    assert not (await stored.get_template(world.conn, "blank")).enabled


async def test_template_of_an_administrator_with_the_same_name_stays(world: StoreRig) -> None:
    own = templates.pack({"template.toml": TemplateFile(b'name = "blank"')})
    await stored.push_template(world.conn, operation_requests.as_push(own))

    await shipped_templates.push(world.conn, Recorder())

    assert (await stored.get_template(world.conn, "blank")).revision == own.revision


def test_git_clones_shallow_once_and_leaves_work_alone(tmp_path: Path) -> None:
    address = repository(tmp_path / "origin", "one", "two")
    home = tmp_path / "home"
    home.mkdir()

    first = run("git", home, repository=address, depth="1", branch="")
    (home / "project" / "file.txt").write_text("mine")
    second = run("git", home, repository=address, depth="1", branch="")

    assert (first.returncode, second.returncode) == (0, 0), first.stderr
    assert "Checked out" in first.stdout
    assert "here already" in second.stdout
    assert (home / "project" / "file.txt").read_text() == "mine"
    log = subprocess.run(["git", "log", "--oneline"], cwd=home / "project", capture_output=True, text=True)
    assert len(log.stdout.splitlines()) == 1


def test_git_takes_the_whole_history_and_a_branch(tmp_path: Path) -> None:
    address = repository(tmp_path / "origin", "one", "two")
    subprocess.run(["git", "branch", "side", "HEAD~1"], cwd=tmp_path / "origin", check=True)
    home = tmp_path / "home"
    home.mkdir()

    done = run("git", home, repository=address, depth="0", branch="side")

    assert done.returncode == 0, done.stderr
    assert (home / "project" / "file.txt").read_text() == "one"


def test_git_keeps_credentials_out_of_the_repository_and_for_later(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    with tempfile.TemporaryFile() as secrets:
        secrets.write(b"ROOKERY_SECRET_repository='https://me:hunter2@git.example/a.git'\n")
        secrets.flush()
        done = subprocess.run(
            ["sh", FOLDERS["git"] / "startup.sh"],
            cwd=tmp_path / "project",
            env={
                "PATH": os.environ["PATH"],
                "HOME": str(tmp_path),
                "ROOKERY_SECRETS_FD": str(secrets.fileno()),
                "ROOKERY_PARAM_repository": repository(tmp_path / "origin", "first"),
            },
            pass_fds=[secrets.fileno()],
            capture_output=True,
            text=True,
            timeout=120,
        )

    assert done.returncode == 0, done.stderr
    assert "hunter2" not in done.stdout + done.stderr
    assert (tmp_path / ".git-credentials").read_text().strip() == "https://me:hunter2@git.example"
    assert (tmp_path / ".git-credentials").stat().st_mode & 0o077 == 0
    assert "hunter2" not in (tmp_path / "project/.git/config").read_text()


def test_git_that_cannot_clone_says_so_and_leaves_the_folder_empty(tmp_path: Path) -> None:
    done = run("git", tmp_path, repository=f"file://{tmp_path}/nowhere", depth="1", branch="")

    assert done.returncode != 0
    assert list((tmp_path / "project").iterdir()) == []


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_git_takes_a_path_that_the_workspace_sees_and_says_what_it_does_not_see(tmp_path: Path, scheme: str) -> None:
    repository(tmp_path / "origin", "one")
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()

    there = run("git", tmp_path / "a", repository=f"{scheme}{tmp_path}/origin", depth="1", branch="")
    nowhere = run("git", tmp_path / "b", repository=f"{scheme}{tmp_path}/nowhere", depth="1", branch="")

    assert there.returncode == 0, there.stderr
    assert nowhere.returncode == 1
    assert f"There is no {tmp_path}/nowhere in this workspace" in nowhere.stdout
    assert "host-folder" in nowhere.stdout


@pytest.mark.parametrize(
    ("repository", "branch", "wrong"),
    [
        ("https://example.org/a.git", "main", set()),
        ("git@example.org:a/b.git", "release/1.2", set()),
        ("/usr/share/origin", "", set()),
        ("../origin", "", {"parameters.repository"}),
        ("--upload-pack=evil", "", {"parameters.repository"}),
        ("https://example.org/a.git", "--evil", {"parameters.branch"}),
    ],
)
def test_git_takes_no_options_for_addresses(repository: str, branch: str, wrong: set[str]) -> None:
    rules = manifest.parse((FOLDERS["git"] / "template.toml").read_text(), files=("startup.sh",))
    try:
        start_parameters.resolve(rules, {"repository": repository, "branch": branch})
        found = set()
    except ParametersInvalid as error:
        found = {each.field for each in error.problems}

    assert found == wrong


def test_python_makes_an_environment_and_keeps_it(tmp_path: Path) -> None:
    first = run("python", tmp_path, packages="[]")
    second = run("python", tmp_path)

    assert (first.returncode, second.returncode) == (0, 0), first.stdout + first.stderr
    assert "Making a virtual environment" in first.stdout
    assert "Making" not in second.stdout
    assert (tmp_path / "project" / ".venv" / "bin" / "python").exists()


@requires("node")
def test_node_makes_a_project_and_installs_nothing_unasked(tmp_path: Path) -> None:
    done = run("node", tmp_path, packages="[]")

    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "project" / "package.json").read_text())["private"] is True
    assert not (tmp_path / "project" / "node_modules").exists()
