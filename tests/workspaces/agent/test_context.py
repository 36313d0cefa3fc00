"""Context discovery: which files, in which order, with which limits, and when a change is seen."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from rookery.workspaces.agent import context_discovery
from rookery.workspaces.agent.context_discovery import Discovery, Resource
from tests.eventually import until
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import PATIENCE_S, Rig


class Place:
    """A home with a project, and the resources that discovery finds in them."""

    def __init__(self, root: Path) -> None:
        self.home = root / "home"
        self.project = self.home / "project"
        self.project.mkdir(parents=True)
        self.outside = root / "outside"
        self.outside.mkdir()

    def find(self, *sources: str) -> context_discovery.Found:
        return Discovery(str(self.home), str(self.project), sources).find()

    def one(self) -> Resource:
        (resource,) = self.find().resources
        return resource

    def hash(self) -> str:
        return self.find().hash()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def put(path: Path, text: str = "text\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_roots_come_in_order_and_the_project_after_the_home(place: Place) -> None:
    files = [
        put(place.home / ".rookery/AGENTS.md"),
        put(place.home / ".rookery/CLAUDE.md", "other\n"),
        put(place.project / "AGENTS.md", "project\n"),
        put(place.project / ".cursorrules", "rules\n"),
        put(place.home / "shared/AGENTS.md", "shared\n"),
    ]
    put(place.project / "deeper/AGENTS.md")
    put(place.home / "AGENTS.md")

    found = place.find("~/shared")

    assert [item.source for item in found.resources] == [str(path) for path in files]
    assert {item.status for item in found.resources} == {"ok"}
    assert found.resources[2].body == "project\n"
    assert found.error is None


def test_names_count_in_their_exact_case(place: Place) -> None:
    put(place.project / "agents.md")
    put(place.project / "Claude.md")

    assert place.find().resources == ()


def test_two_names_of_one_file_are_one_resource(place: Place) -> None:
    put(place.project / "AGENTS.md")
    (place.project / "CLAUDE.md").symlink_to("AGENTS.md")

    assert place.one().source.endswith("AGENTS.md")


def test_root_that_is_there_twice_counts_once(place: Place) -> None:
    put(place.project / "AGENTS.md")
    (place.home / "link").symlink_to("project")

    assert len(place.find("~/project", "~/link", str(place.project)).resources) == 1


def test_source_may_be_a_file(place: Place) -> None:
    file = put(place.home / "notes/team.md", "team\n")

    (resource,) = place.find("~/notes/team.md").resources

    assert (resource.kind, resource.source, resource.body) == ("instruction_file", str(file), "team\n")


@pytest.mark.parametrize("source", ["relative", "~/../x", "/etc", "~other/x"])
def test_source_outside_is_refused_with_a_reason(place: Place, source: str) -> None:
    found = place.find(source)

    assert found.resources == ()
    assert found.error is not None
    assert source in found.error


def test_source_that_is_a_link_out_of_the_home_is_refused(place: Place) -> None:
    put(place.outside / "AGENTS.md")
    (place.home / "away").symlink_to(place.outside)

    assert place.find("~/away").resources == ()


def test_skills_are_found_in_every_folder(place: Place) -> None:
    for folder in ("skills", ".agents/skills", ".claude/skills", ".codex/skills"):
        put(place.project / folder / "tidy" / "SKILL.md", f"{folder}\n")
        put(place.project / folder / "README.md")
    put(place.project / "skills/empty/other.md")

    found = place.find().resources

    assert [(item.kind, item.body) for item in found] == [
        ("skill", "skills\n"),
        ("skill", ".agents/skills\n"),
        ("skill", ".claude/skills\n"),
        ("skill", ".codex/skills\n"),
    ]


def test_link_out_of_its_root_is_invalid_and_a_broken_one_unreadable(place: Place) -> None:
    put(place.outside / "secret", "secret\n")
    (place.project / "AGENTS.md").symlink_to(place.outside / "secret")
    (place.project / "CLAUDE.md").symlink_to("nowhere")
    (place.project / ".cursorrules").symlink_to(".cursorrules")
    put(place.outside / "tidy/SKILL.md", "secret\n")
    (place.project / "skills").mkdir()
    (place.project / "skills/tidy").symlink_to(place.outside / "tidy")

    found = place.find().resources

    assert [item.status for item in found] == ["invalid", "unreadable", "unreadable", "invalid"]
    assert all(item.body is None and item.error for item in found)


def test_special_files_are_never_read(place: Place) -> None:
    (place.project / "AGENTS.md").mkdir()
    os.mkfifo(place.project / "CLAUDE.md")

    assert [item.status for item in place.find().resources] == ["invalid", "invalid"]


def test_long_instructions_are_cut_between_characters_and_marked(place: Place) -> None:
    put(place.project / "AGENTS.md", "a" + "ä" * 40_000)

    resource = place.one()

    assert resource.status == "truncated"
    assert resource.size == 80_001
    assert resource.body is not None
    assert resource.body == "a" + "ä" * 32_767
    assert resource.error


def test_file_of_exactly_the_limit_is_whole(place: Place) -> None:
    put(place.project / "AGENTS.md", "a" * 65_536)

    assert (place.one().status, len(place.one().body or "")) == ("ok", 65_536)


def test_skill_that_is_too_long_is_dropped(place: Place) -> None:
    put(place.project / "skills/long/SKILL.md", "a" * 65_537)

    assert (place.one().status, place.one().body) == ("oversize", None)


def test_bytes_that_are_no_text_are_replaced(place: Place) -> None:
    (place.project / "AGENTS.md").write_bytes(b"a\xffb")

    assert place.one().body == "a�b"


def test_resources_beyond_the_limits_are_excluded_in_order(place: Place) -> None:
    for number in range(40):
        put(place.project / f"skills/s{number:03}/SKILL.md", f"{number:03}" + "x" * 60_000)
    put(place.project / ".mcp.json", '{"mcpServers": {}}')

    statuses = [item.status for item in place.find().resources]

    fitting = context_discovery.TOTAL_BYTES // 60_003
    assert statuses == ["ok"] * fitting + ["excluded"] * (40 - fitting) + ["ok"]


def test_five_hundred_resources_are_kept_and_a_hundred_more_named(place: Place) -> None:
    for number in range(610):
        put(place.project / f"skills/s{number:03}/SKILL.md", f"{number}")

    found = place.find()

    statuses = [item.status for item in found.resources]
    assert statuses == ["ok"] * 500 + ["excluded"] * 100
    assert found.error is not None
    assert found.error.startswith("10 more")


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ('{"mcpServers": {"a": {"command": "x", "env": {"KEY": "secret"}}, "b": {"url": "http://x"}}}', "ok"),
        ('{"mcpServers": {}}', "ok"),
        ("{", "invalid"),
        ("[]", "invalid"),
        ("{}", "invalid"),
        ('{"mcpServers": []}', "invalid"),
        ('{"mcpServers": {"a": {}}}', "invalid"),
        ('{"mcpServers": {"a": "x"}}', "invalid"),
        ("[" * 60_000, "invalid"),
        ('{"mcpServers": {}}' + " " * 65_536, "oversize"),
    ],
)
def test_mcp_configuration_is_judged_and_its_contents_stay(place: Place, text: str, status: str) -> None:
    put(place.project / ".mcp.json", text)

    resource = place.one()

    assert (resource.kind, resource.status, resource.body) == ("mcp_config", status, None)
    assert "secret" not in json.dumps(resource.described(0))


def test_hash_follows_instructions_and_skills_only(place: Place) -> None:
    file = put(place.project / "AGENTS.md", "one\n")
    first = place.hash()
    put(place.project / ".mcp.json", '{"mcpServers": {}}')
    with_servers = place.hash()
    file.write_text("two\n")
    changed = place.hash()
    file.write_text("one\n")

    assert first == with_servers == place.hash()
    assert changed != first


@pytest.mark.parametrize(
    "change",
    [
        lambda place: put(place.project / "AGENTS.md", "new\n"),
        lambda place: (place.project / "AGENTS.md").unlink(),
        lambda place: put(place.project / "CLAUDE.md"),
        lambda place: put(place.project / ".claude/skills/x/SKILL.md"),
        lambda place: put(place.home / ".rookery/AGENTS.md"),
        lambda place: put(place.project / ".mcp.json"),
        lambda place: (place.project / "CLAUDE.md").symlink_to("AGENTS.md"),
    ],
)
def test_signature_notices_every_change_at_the_fixed_places(place: Place, change: Any) -> None:
    put(place.project / "AGENTS.md", "first\n")
    watch = Discovery(str(place.home), str(place.project), ())
    before = watch.signature()

    put(place.project / "unrelated.txt")
    assert watch.signature() == before
    change(place)

    assert watch.signature() != before


async def context(rig: Rig) -> Any:
    await until(lambda: has_context(rig), timeout=PATIENCE_S)
    return await rig.get("/v1/context")


async def has_context(rig: Rig) -> bool:
    return bool((await rig.get("/v1/health"))["context_version"])


async def test_context_is_given_and_a_change_wakes_who_waits(rig: Rig) -> None:
    put(rig.directory / "AGENTS.md", "first\n")
    await until(lambda: instructions(rig, ["first\n"]), timeout=PATIENCE_S)
    before = await rig.get("/v1/context")
    unchanged = await rig.ask("GET", f"/v1/context?after={before['version']}")
    waiting = asyncio.create_task(rig.get(f"/v1/context?after={before['version']}&wait_s=50"))

    os.replace(put(rig.directory / "next", "second\n"), rig.directory / "AGENTS.md")
    after = await waiting

    assert (unchanged.status, unchanged.body) == (304, b"")
    assert after["version"] == before["version"] + 1
    assert after["hash"] != before["hash"]
    (resource,) = after["resources"]
    assert resource["body"] == "second\n"
    assert (resource["ordinal"], resource["kind"], resource["status"]) == (0, "instruction_file", "ok")
    assert (resource["root"], resource["source"]) == (str(rig.directory), str(rig.directory / "AGENTS.md"))


async def instructions(rig: Rig, bodies: list[str]) -> bool:
    return [item.get("body") for item in (await rig.get("/v1/context"))["resources"]] == bodies


async def test_nothing_is_told_before_the_startup_script_has_ended() -> None:
    async with rigs.rig() as rig:
        gate = rig.root / "gate"
        os.mkfifo(gate)
        script = put(rig.run_dir / "startup.sh", f"cat {gate}; echo made by the script > AGENTS.md\n")
        rig.config["startup"] = {"script": str(script), "timeout_s": 50}
        await rig.start()

        early = await rig.get("/v1/context")
        unchanged = await rig.ask("GET", "/v1/context?after=0")
        await asyncio.to_thread(gate.write_text, "")
        late = await context(rig)

    assert early == {"version": 0, "hash": "", "resources": []}
    assert unchanged.status == 304
    assert [item["body"] for item in late["resources"]] == ["made by the script\n"]


async def test_versions_go_on_after_a_restart_in_the_same_generation(rig: Rig) -> None:
    first = await context(rig)
    rig.kill()
    await rig.start()
    same = await context(rig)
    rig.kill()
    await rig.start(generation=2)

    assert same["version"] > first["version"]
    assert (await context(rig))["version"] == 1


@pytest.mark.parametrize("query", ["after=-1", "after=x", "wait_s=-1", "wait_s=soon", "since=1"])
async def test_wrong_query_of_the_context_is_refused(shared: Rig, query: str) -> None:
    assert (await shared.ask("GET", f"/v1/context?{query}")).status == 400
