"""`rookery admin template`: push, show, enable and disable templates."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

from tests.cli.serve.server_process import rookery
from tests.store.people.account_rows import open_pool


async def test_template_is_pushed_shown_disabled_and_removed(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    manifest = folder / "template.toml"
    manifest.write_text('name = "mine"\ndescription = "For tests."\nlimit = 1\n[sandbox]\nnetwork = "some"\n')

    async def run(*words: str) -> tuple[int, dict[str, object], str]:
        done = await asyncio.to_thread(
            rookery, tmp_path, "admin", "template", *words, "--json", ROOKERY_DATABASE_URL=database_url
        )
        return done.returncode, json.loads(done.stdout), done.stderr

    code, _, told = await run("push", str(folder))
    assert code == 2
    assert "limit: " in told
    assert "sandbox.network: " in told

    manifest.write_text('name = "mine"\ndescription = "For tests."\n')
    code, pushed, _ = await run("push", str(folder))
    assert (code, pushed["changed"]) == (0, True)
    assert (await run("push", str(folder)))[1]["changed"] is False
    code, shown, _ = await run("disable", "mine")
    assert code == 0
    assert (await run("show", "none"))[0] == 1
    assert (await run("remove", "mine"))[0] == 0

    async with open_pool(database_url) as pool:
        logged = await pool.fetch("SELECT action, actor_kind FROM audit_log ORDER BY id")
        assert [tuple(row) for row in logged] == [
            ("template.push", "cli"),
            ("template.update", "cli"),
            ("template.delete", "cli"),
        ]
    assert shown["template"]["enabled"] is False  # type: ignore[index]


async def test_network_of_a_template_is_shown_with_what_the_server_allows(database_url: str, tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    manifest = 'name = "mine"\n[sandbox]\nnetwork = "hosts"\nhosts = ["Packages.Example.org", "*.example.com:8443"]\n'
    (folder / "template.toml").write_text(manifest)

    async def run(*words: str) -> str:
        url = {"ROOKERY_DATABASE_URL": database_url}
        return (await asyncio.to_thread(rookery, tmp_path, "admin", "template", *words, **url)).stdout

    allowed = await run("push", str(folder))
    capped = await run("push", str(folder), "--drivers-local-network-max", "none")
    shown = await run("show", "mine")
    lowered = await run("show", "mine", "--drivers-local-network-max", "none")

    assert "network" not in allowed
    assert "get the network none, the most that drivers.local.network_max allows" in capped
    assert "get the network" not in shown
    assert "network hosts packages" in lowered
    assert "its workspaces get the network none, the most that drivers.local.network_max allows" in lowered
    assert "network hosts packages.example.org, *.example.com:8443" in shown
