"""Workspaces, templates, operations, and the workspaces of chats, over HTTP."""

from __future__ import annotations

import io
import json
import re
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from rookery.domain.access.rights import Role
from rookery.store.workspaces import context
from rookery.store.workspaces import templates as stored
from rookery.store.workspaces.context import ContextResource, Snapshot
from rookery.workspaces import agent_bundle, generated_names, manifest, templates
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.operation_requests import as_push
from rookery.workspaces.templates import TemplateFile
from tests.api.api_rig import ApiRig, Person, open_house
from tests.api.chat_rig import text
from tests.api.test_docs_examples import CURL, Reader, blocks
from tests.eventually import until
from tests.required_programs import requires
from tests.workspaces.fake_driver import FakeDriver
from tests.workspaces.workspaces_rig import MANIFEST

WORKSPACES, TEMPLATES = "/api/v1/workspaces", "/api/v1/templates"
GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "workspaces.md"


class Site:
    def __init__(self, rig: ApiRig, driver: FakeDriver, ada: Person, root: Person) -> None:
        self.rig, self.driver, self.ada, self.root = rig, driver, ada, root

    async def create(self, **body: Any) -> dict[str, Any]:
        made = await self.ada.http.post(WORKSPACES, json={"template": "plain", **body})
        assert made.status_code == 202, made.text
        answered: dict[str, Any] = made.json()
        return answered

    async def until(self, workspace_id: str, status: str) -> dict[str, Any]:
        found: dict[str, Any] = {}

        async def is_so() -> bool:
            found.update((await self.ada.http.get(f"{WORKSPACES}/{workspace_id}")).json())
            return found.get("status") == status and found["operation"] is None

        await until(is_so, timeout=30)
        return found


@asynccontextmanager
async def open_site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="rks") as folder:
        driver = FakeDriver(Path(folder))
        async with open_house(database_url, tmp_path, drivers={"local": driver}) as rig:
            packed = templates.pack({"template.toml": TemplateFile(MANIFEST), "README.md": TemplateFile(b"# Plain")})
            async with rig.database.api.acquire() as conn:
                await stored.push_template(conn, as_push(packed))
            yield Site(rig, driver, await rig.add("ada"), await rig.add("root", role=Role.ADMIN))
        await driver.close()


@pytest.fixture
async def site(database_url: str, tmp_path: Path) -> AsyncIterator[Site]:
    async with open_site(database_url, tmp_path) as opened:
        yield opened


@requires("curl")
async def test_examples_of_the_guide_run(site: Site, tmp_path: Path) -> None:
    await site.rig.replica.workspaces.push_templates()
    await site.rig.add_model()
    site.driver.printed = "hello from the script\n"
    (tmp_path / "bin").mkdir()
    curl = tmp_path / "bin" / "curl"
    curl.write_text(CURL.format(curl=shutil.which("curl") or "curl"))
    curl.chmod(0o755)
    reader = Reader(site.rig, tmp_path, site.ada)
    examples = [block for block in blocks(GUIDE) if block.language != "toml"]
    pieces = [block.text for block in blocks(GUIDE) if block.language == "toml"]

    said = [await reader.run(block) for block in examples]

    assert [manifest.parse(f'name = "a"\n{piece}').sandbox.network for piece in pieces] == ["hosts"]
    assert [block.language for block in examples] == ["sh", "python"]
    assert "event: end" in said[0]
    assert '"succeeded"' in said[0]
    rows = await site.rig.database.api.fetch("SELECT name, status FROM workspaces ORDER BY name")
    assert [row["name"] for row in rows] == ["desk", "numbers"]
    assert rows[0]["status"] == "running"
    assert rows[1]["status"] in ("deleting", "deleted")


async def test_workspace_lives_its_life_over_http(site: Site) -> None:
    made = await site.create(name="desk")
    workspace_id = made["workspace"]["id"]
    assert made["operation"]["kind"] == "create"

    running = await site.until(workspace_id, "running")
    assert (running["name"], running["template"], running["idle_stop_after"]) == ("desk", "plain", 3600)
    assert running["stops_at"] is not None
    assert not {"endpoint", "token", "token_enc", "node"} & set(running)
    assert (made["workspace"]["network"], running["network"]) == (None, "public")

    again = await site.ada.http.post(f"{WORKSPACES}/{workspace_id}/start", json={})
    assert (again.status_code, again.json()["operation"]) == (200, None)
    stopping = await site.ada.http.post(f"{WORKSPACES}/{workspace_id}/stop")
    assert (stopping.status_code, stopping.json()["operation"]["kind"]) == (202, "stop")
    await site.until(workspace_id, "stopped")
    assert (await site.ada.http.post(f"{WORKSPACES}/{workspace_id}/stop")).status_code == 200

    renamed = await site.ada.http.patch(f"{WORKSPACES}/{workspace_id}", json={"name": "bench", "idle_stop_after": 60})
    assert (renamed.json()["name"], renamed.json()["idle_stop_after"]) == ("bench", 60)
    assert (await site.ada.http.delete(f"{WORKSPACES}/{workspace_id}")).status_code == 202

    async def is_gone() -> bool:
        return (await site.ada.http.get(f"{WORKSPACES}/{workspace_id}")).status_code == 404

    await until(is_gone, timeout=30)
    assert (await site.ada.http.get(WORKSPACES)).json()["items"] == []


async def test_workspace_without_a_name_gets_one_of_two_words_and_can_be_renamed(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generated_names, "ADJECTIVES", ("amber",))
    monkeypatch.setattr(generated_names, "ANIMALS", ("otter",))
    first, second = (await site.create())["workspace"], (await site.create())["workspace"]
    assert first["name"] == "amber-otter"
    assert re.fullmatch("amber-otter-[0-9]{1,4}", second["name"])  # the two words are taken

    address = f"{WORKSPACES}/{second['id']}"
    renamed = await site.ada.http.patch(address, json={"name": "paper-crane"})
    assert (renamed.status_code, renamed.json()["name"]) == (200, "paper-crane")
    taken = await site.ada.http.patch(address, json={"name": "amber-otter"})
    assert (taken.status_code, taken.json()["code"]) == (409, "already_exists")
    assert "amber-otter" in taken.json()["message"]
    eve = await site.rig.add("eve")
    assert (await eve.http.patch(address, json={"name": "mine"})).status_code == 404
    assert (await eve.http.post(WORKSPACES, json={"template": "plain"})).json()["workspace"]["name"] == "amber-otter"


@pytest.mark.parametrize(
    "name",
    ["", "A-B", "a--b", "-a", "a b", "a\u0000b", "..", "<img>", "\u202ea", "é", "a" * 33, "x" * 5000, 7, None, []],
)
async def test_hostile_name_is_refused_with_a_sentence_about_its_field(site: Site, name: object) -> None:
    made = (await site.create(name="desk"))["workspace"]
    refused = await site.ada.http.patch(f"{WORKSPACES}/{made['id']}", json={"name": name})
    assert refused.status_code == 400
    assert [each["field"] for each in refused.json()["fields"]] == ["name"]
    assert (await site.ada.http.get(f"{WORKSPACES}/{made['id']}")).json()["name"] == "desk"


async def test_workspace_that_stops_soon_says_so(site: Site) -> None:
    made = await site.create()
    workspace_id = made["workspace"]["id"]
    await site.until(workspace_id, "running")
    warnings = []
    for idle in ("49 minutes", "52 minutes"):
        await site.rig.database.api.execute(f"UPDATE workspaces SET last_used_at = now() - interval '{idle}'")
        warnings.append((await site.ada.http.get(f"{WORKSPACES}/{workspace_id}")).json()["warning"])

    assert warnings == [None, "This workspace is unused and stops in 8 min. Its processes end, and its files stay."]


async def test_log_of_an_operation_is_read_and_followed(site: Site) -> None:
    site.driver.gate.clear()
    site.driver.health, site.driver.printed = {"agent_state": "starting"}, "installing\n"
    made = await site.create()
    operation = f"/api/v1/operations/{made['operation']['id']}"
    await site.driver.is_starting.wait()

    events: list[tuple[str, str]] = []
    async with site.ada.http.stream("GET", f"{operation}/log", params={"follow": "true"}) as answered:
        assert answered.headers["content-type"].startswith("text/event-stream")
        name = ""
        async for line in answered.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                events.append((name, json.loads(line.removeprefix("data: "))))
                site.driver.gate.set()
                if "installing" in line:
                    site.driver.health = {"agent_state": "ready"}

    said = "".join(each for kind, each in events if kind == "log")
    assert events[-1] == ("end", "succeeded")
    assert said.count("the driver begins") == 1
    # The start succeeds long before its startup script ends.
    assert said.count("startup: installing") == 1
    assert said.endswith("The workspace is ready.\n")
    assert (await site.ada.http.get(operation)).json()["state"] == "succeeded"
    assert "the driver begins" in (await site.ada.http.get(f"{operation}/log")).text


async def test_log_is_not_followed_with_a_token_that_is_gone(site: Site) -> None:
    site.driver.gate.clear()
    made = await site.create()
    await site.driver.is_starting.wait()
    spare = site.rig.client(await site.rig.token_of(site.ada.user))
    newest = (await site.ada.http.get("/api/v1/tokens")).json()["items"][0]["id"]

    path = f"/api/v1/operations/{made['operation']['id']}/log"
    async with spare.stream("GET", path, params={"follow": "true"}) as followed:
        lines = followed.aiter_lines()
        while not (await anext(lines)).startswith("data: "):
            pass
        assert (await site.ada.http.delete(f"/api/v1/tokens/{newest}")).status_code == 204
        site.driver.gate.set()
        rest = [line async for line in lines]

    assert "event: end" not in rest


async def test_all_problems_of_a_request_come_together(site: Site) -> None:
    refused = await site.ada.http.post(
        WORKSPACES, json={"template": "plain", "name": "No!", "preset": "x", "parameters": {"size": "huge", "a": 1}}
    )

    assert (refused.status_code, refused.json()["code"]) == (400, "invalid")
    assert {each["field"] for each in refused.json()["fields"]} == {
        "name",
        "preset",
        "parameters.size",
        "parameters.a",
    }
    missing = await site.ada.http.post(WORKSPACES, json={"template": "none"})
    assert (missing.status_code, missing.json()["code"]) == (404, "not_found")


async def test_taken_name_quota_and_open_operation_are_conflicts_with_their_facts(site: Site) -> None:
    site.driver.gate.clear()
    first = await site.create(name="desk")
    taken = await site.ada.http.post(WORKSPACES, json={"template": "plain", "name": "desk"})
    assert (taken.status_code, taken.json()["code"]) == (409, "already_exists")

    await site.root.http.put("/api/v1/settings/workspaces", json={"max_per_user": 1})
    refused = await site.ada.http.post(WORKSPACES, json={"template": "plain"})
    assert (refused.status_code, refused.json()["code"]) == (409, "quota_exceeded")
    assert refused.json()["quota"] == {"kind": "max_per_user", "used": 1, "limit": 1}

    path = f"{WORKSPACES}/{first['workspace']['id']}"
    deleting = await site.ada.http.delete(path)
    assert deleting.status_code == 202
    busy = await site.ada.http.post(f"{path}/stop")
    assert (busy.status_code, busy.json()["code"]) in ((409, "operation_in_progress"), (404, "not_found"))


async def test_repeat_of_a_creation_is_answered_as_the_first(site: Site) -> None:
    key = {"Idempotency-Key": uuid4().hex}
    first = await site.ada.http.post(WORKSPACES, json={"template": "plain"}, headers=key)
    again = await site.ada.http.post(WORKSPACES, json={"template": "plain"}, headers=key)
    other = await site.ada.http.post(WORKSPACES, json={"template": "plain", "name": "x"}, headers=key)

    assert again.json() == first.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_mismatch")
    assert len((await site.ada.http.get(WORKSPACES)).json()["items"]) == 1


async def test_lists_are_paged_filtered_and_for_staff_everybodys(site: Site) -> None:
    for number in range(3):
        await site.create(name=f"w{number}")

    page = (await site.ada.http.get(WORKSPACES, params={"limit": 2})).json()
    rest = (await site.ada.http.get(WORKSPACES, params={"limit": 2, "cursor": page["next_cursor"]})).json()
    assert [each["name"] for each in page["items"] + rest["items"]] == ["w2", "w1", "w0"]
    assert rest["next_cursor"] is None
    assert (await site.ada.http.get(WORKSPACES, params={"template": "other"})).json()["items"] == []
    assert len((await site.root.http.get(WORKSPACES, params={"owner": "all"})).json()["items"]) == 3
    assert (await site.root.http.get(WORKSPACES)).json()["items"] == []


async def test_administrator_stops_what_is_not_theirs_and_that_is_written_down(site: Site) -> None:
    made = await site.create()
    await site.until(made["workspace"]["id"], "running")

    stopped = await site.root.http.post(f"{WORKSPACES}/{made['workspace']['id']}/stop")

    assert stopped.status_code == 202
    logged = (await site.root.http.get("/api/v1/audit", params={"action": "workspace"})).json()["items"]
    assert [each["action"] for each in logged] == ["workspace.stop"]


async def test_disabling_an_account_stops_its_workspaces_and_enabling_starts_none(site: Site) -> None:
    made = [(await site.create(name=name))["workspace"]["id"] for name in ("one", "two")]
    for each in made:
        await site.until(each, "running")

    await site.root.http.patch(f"/api/v1/users/{site.ada.id}", json={"status": "disabled"})

    async def status(workspace: str) -> str:
        return str((await site.root.http.get(f"{WORKSPACES}/{workspace}")).json()["status"])

    async def are_down() -> bool:
        return [await status(each) for each in made] == ["stopped", "stopped"]

    await until(are_down, timeout=5)
    await site.root.http.patch(f"/api/v1/users/{site.ada.id}", json={"status": "active"})
    assert await are_down()


def archive(manifest: bytes) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w:gz") as tar:
        info = tarfile.TarInfo("template.toml")
        info.size = len(manifest)
        tar.addfile(info, io.BytesIO(manifest))
    return raw.getvalue()


async def test_template_is_pushed_restricted_and_deleted(site: Site) -> None:
    pushed = await site.root.http.put(f"{TEMPLATES}/mine", content=archive(b'name = "mine"'))
    assert pushed.status_code == 200, pushed.text
    assert len(pushed.json()["revision"]) == 64

    names = [each["name"] for each in (await site.ada.http.get(TEMPLATES)).json()["items"]]
    assert names == ["mine", "plain"]
    plain = (await site.ada.http.get(f"{TEMPLATES}/plain")).json()
    assert plain["readme"] == "# Plain"
    assert [each["name"] for each in plain["parameters"]] == ["size", "verbose"]

    await site.root.http.patch(f"{TEMPLATES}/mine", json={"allowed_roles": ["admin"]})
    assert (await site.ada.http.get(f"{TEMPLATES}/mine")).status_code == 404
    assert (await site.root.http.get(f"{TEMPLATES}/mine")).json()["allowed_roles"] == ["admin"]
    await site.root.http.patch(f"{TEMPLATES}/mine", json={"allowed_roles": [], "enabled": False})
    assert [each["name"] for each in (await site.ada.http.get(TEMPLATES)).json()["items"]] == ["plain"]
    refused = await site.ada.http.post(WORKSPACES, json={"template": "mine"})
    assert refused.status_code == 404

    assert (await site.root.http.delete(f"{TEMPLATES}/mine")).status_code == 204
    await site.create()
    in_use = await site.root.http.delete(f"{TEMPLATES}/plain")
    assert (in_use.status_code, in_use.json()["code"]) == (409, "in_use")
    logged = (await site.root.http.get("/api/v1/audit", params={"action": "template"})).json()["items"]
    assert [each["action"] for each in logged] == [
        "template.delete",
        "template.update",
        "template.update",
        "template.push",
    ]


async def test_template_says_what_its_workspaces_reach(site: Site) -> None:
    manifest = b'name = "mine"\n[sandbox]\nnetwork = "hosts"\nhosts = ["Packages.Example.org", "*.example.com:8443"]'
    pushed = await site.root.http.put(f"{TEMPLATES}/mine", content=archive(manifest))
    mine, plain = (await site.ada.http.get(TEMPLATES)).json()["items"]
    refused = await site.root.http.put(f"{TEMPLATES}/mine", content=archive(manifest + b'\nro_binds = ["/"]\nhost = 1'))

    assert pushed.status_code == 200, pushed.text
    assert (mine["network"], mine["hosts"]) == ("hosts", ["packages.example.org", "*.example.com:8443"])
    assert (plain["network"], plain["granted_network"], plain["hosts"]) == ("public", "public", [])
    assert {each["field"] for each in refused.json()["fields"]} == {"sandbox.ro_binds", "sandbox.host"}


FORBIDDEN = b'#!/bin/sh\necho "bwrap: No permissions to create new namespace" >&2\nexit 1\n'
ELSEWHERE = b"""
name = "elsewhere"
driver = "ssh"
[sandbox]
network = "none"
[ssh]
host = "host.example"
known_hosts = "host.example ssh-ed25519 AAAA"
"""


async def test_server_that_cannot_confine_says_why_and_what_helps_and_offers_what_still_works(
    database_url: str, tmp_path: Path
) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_bytes(FORBIDDEN)
    bwrap.chmod(0o755)
    local = LocalDriver(LocalConfig(data_dir=tmp_path / "data", bwrap=bwrap), agent_bundle.build)
    with tempfile.TemporaryDirectory(prefix="rks") as folder:
        other = FakeDriver(Path(folder))
        async with open_house(database_url, tmp_path, drivers={"local": local, "ssh": other}) as rig:
            async with rig.database.api.acquire() as conn:
                for text_of in (MANIFEST, ELSEWHERE):
                    packed = templates.pack({"template.toml": TemplateFile(text_of)})
                    await stored.push_template(conn, as_push(packed))
            await rig.add("root", role=Role.ADMIN)
            ada = await rig.add("ada")
            listed = await ada.http.get(TEMPLATES)
            assert listed.status_code == 200, listed.text
            elsewhere, plain = listed.json()["items"]
            single = (await ada.http.get(f"{TEMPLATES}/plain")).json()
            can_make = await rig.replica.workspaces.availability.can_make()
            made = (await ada.http.post(WORKSPACES, json={"template": "plain"})).json()["workspace"]["id"]
            failed: dict[str, Any] = {}

            async def has_failed() -> bool:
                failed.update((await ada.http.get(f"{WORKSPACES}/{made}")).json())
                return bool(failed["status"] == "failed")

            await until(has_failed, timeout=30)
        await other.close()

    for said in (plain["unavailable"], single["unavailable"], failed["error"]):
        assert said.startswith("A sandbox cannot be started here: bwrap: No permissions to create new namespace.")
        assert "sysctl -w" in said or "--security-opt" in said
    assert elsewhere["unavailable"] is None
    assert can_make


async def test_template_of_a_server_that_confines_is_available(site: Site) -> None:
    assert (await site.ada.http.get(f"{TEMPLATES}/plain")).json()["unavailable"] is None


async def test_template_of_a_folder_says_that_none_is_shared_and_how_to_share_one(site: Site) -> None:
    await site.rig.replica.workspaces.push_templates()

    found = (await site.ada.http.get(f"{TEMPLATES}/host-folder")).json()

    assert [each["suggestions"] for each in found["parameters"]] == [[]]
    assert "ROOKERY_WORKSPACES_SHARED_FOLDERS" in found["unavailable"]
    assert (await site.ada.http.get(f"{TEMPLATES}/git")).json()["unavailable"] is None


@pytest.mark.parametrize("kind", ["ro_binds", "rw_binds"])
async def test_template_that_binds_what_is_not_shared_is_refused_when_it_is_pushed(site: Site, kind: str) -> None:
    manifest = f'name = "mine"\n[sandbox]\n{kind} = ["/var/lib"]'.encode()

    refused = await site.root.http.put(f"{TEMPLATES}/mine", content=archive(manifest))

    assert refused.status_code == 400
    (field,) = refused.json()["fields"]
    assert field["field"] == f"sandbox.{kind}[0]"
    assert "'/var/lib'" in field["message"]
    assert "workspaces.shared_folders" in field["message"]
    assert (await site.root.http.get(f"{TEMPLATES}/mine")).status_code == 404


async def test_bad_template_is_refused_with_all_its_problems(site: Site) -> None:
    refused = await site.root.http.put(
        f"{TEMPLATES}/mine", content=archive(b'name = "mine"\ncolour = 1\n[limits]\ncpu = 1')
    )

    assert refused.status_code == 400
    assert {each["field"] for each in refused.json()["fields"]} == {"colour", "limits.cpu"}
    other = await site.root.http.put(f"{TEMPLATES}/mine", content=archive(b'name = "other"'))
    assert other.json()["fields"][0]["field"] == "name"


async def test_chat_is_bound_to_a_workspace_of_the_owner_only(site: Site) -> None:
    await site.rig.add_model()
    made = (await site.create())["workspace"]["id"]
    chat = (await site.ada.http.post("/api/v1/chats", json={"content": text("hi"), "workspace_id": made})).json()
    assert chat["workspace_id"] == made
    assert (await site.ada.http.get(f"{WORKSPACES}/{made}")).json()["chats"] == [chat["id"]]

    path = f"/api/v1/chats/{chat['id']}"
    detached = await site.ada.http.patch(path, json={"workspace_id": None})
    assert detached.json()["workspace_id"] is None
    eve = await site.rig.add("eve")
    foreign = await eve.http.post("/api/v1/chats", json={"content": text("hi"), "workspace_id": made})
    unknown = await site.ada.http.patch(path, json={"workspace_id": str(uuid4())})
    assert (foreign.status_code, unknown.status_code) == (400, 400)
    assert foreign.json()["fields"] == unknown.json()["fields"]


async def test_diff_is_a_fresh_look_for_the_owner_and_the_last_one_for_readers(site: Site) -> None:
    await site.rig.add_model()
    made = (await site.create())["workspace"]["id"]
    chat = (await site.ada.http.post("/api/v1/chats", json={"content": text("hi"), "workspace_id": made})).json()
    path = f"/api/v1/chats/{chat['id']}/diff"
    await site.until(made, "running")
    site.driver.repositories = [{"root": "/p", "branch": "main", "diff": "+x", "additions": 1, "changed_files": 1}]
    eve = await site.rig.add("eve")
    await site.ada.http.patch(f"/api/v1/chats/{chat['id']}/acl", json={"users": {str(eve.id): "read"}})

    (fresh,) = (await site.ada.http.get(path)).json()["items"]
    site.driver.repositories = [{"root": "/p", "branch": "main", "diff": "+x+y", "additions": 2, "changed_files": 1}]
    (kept,) = (await eve.http.get(path)).json()["items"]

    assert (fresh["root"], fresh["additions"], fresh["diff"]) == ("/p", 1, "+x")
    assert (kept["root"], kept["additions"], kept["diff"]) == ("/p", 1, None)
    await site.driver.kill(made)
    (last,) = (await site.ada.http.get(path)).json()["items"]
    assert (last["additions"], last["diff"]) == (1, None)


async def test_context_of_a_chat_is_shown_without_bodies_and_refreshed(site: Site) -> None:
    await site.rig.add_model()
    made = (await site.create())["workspace"]["id"]
    chat = (await site.ada.http.post("/api/v1/chats", json={"content": text("hi"), "workspace_id": made})).json()
    path = f"/api/v1/chats/{chat['id']}/context"
    assert (await site.ada.http.get(path)).json()["pinned"] is False

    file = ContextResource(ordinal=0, kind="instruction_file", source="~/AGENTS.md", body="be nice", size=7)
    async with site.rig.database.api.acquire() as conn:
        now = site.rig.clock.now()
        await context.write_snapshot(conn, Snapshot(made, 1, 1, "h", None, (file,), now))
    refreshed = (await site.ada.http.put(path)).json()

    assert refreshed["pinned"] is True
    assert refreshed["items"][0]["source"] == "~/AGENTS.md"
    assert "body" not in refreshed["items"][0]
    assert (await site.ada.http.get(path)).json() == refreshed
