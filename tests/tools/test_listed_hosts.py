"""A workspace that reaches only listed hosts, with a whole server: from the template to the metrics, also after a
restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from rookery.llm.scripted import CallTool, Say, Step, results_since_user
from rookery.llm.types import Call
from rookery.models.connector import default_scripts
from rookery.store.workspaces import templates as stored
from rookery.workspaces import templates
from rookery.workspaces.operation_requests import as_push
from rookery.workspaces.templates import TemplateFile
from tests.required_programs import requires
from tests.tools.replica_rig import ReplicaRig, open_replica_rig
from tests.workspaces.drivers.driver_rig import known_machine
from tests.workspaces.egress.outside_servers import outside


@pytest.fixture(autouse=True)
def sandbox() -> None:
    """Skip the test on a machine without a sandbox."""
    known_machine()


async def push(stead: ReplicaRig, *hosts: str) -> None:
    manifest = f'name = "listed"\n[sandbox]\nnetwork = "hosts"\nhosts = {list(hosts)}\n'
    packed = templates.pack({"template.toml": TemplateFile(manifest.encode())})
    async with stead.database.api.acquire() as conn:
        await stored.push_template(conn, as_push(packed))


@requires("curl")
async def test_chat_reaches_listed_hosts_before_and_after_a_restart(database_url: str, tmp_path: Path) -> None:
    # Every machine resolves this name to the loopback. The proxy variables exclude it.
    loopback = "127.0.0.1/32,::1/128"
    get = "curl -sS --noproxy nothing.test"
    async with outside(tmp_path) as out, open_replica_rig(database_url, net_allow_private=loopback) as stead:
        port = await out.web()
        await push(stead, f"localhost:{port}")

        chat = await stead.ask("create a workspace from listed")
        (made,) = await stead.calls(chat)
        (reached,) = await stead.say(chat, f"run `{get} http://localhost:{port}/`")
        (refused,) = await stead.say(chat, f"run `{get} http://other.test/`")
        before = stead.replica.metrics.render()[1].decode()
        await stead.restart()
        (again,) = await stead.say(chat, f"run `{get} http://localhost:{port}/`")

        assert made.value["created"], made.value
        assert reached.value["output"] == again.value["output"] == "hello from outside"
        assert "other.test is not one of the hosts that this workspace may reach" in refused.value["output"]
        assert f"Allowed: localhost:{port}" in refused.value["output"]
        assert 'rookery_egress_requests_total{decision="allowed"} 1' in before
        assert 'rookery_egress_requests_total{decision="not_listed"} 1' in before
        assert 'rookery_egress_bytes_total{direction="received"} 18' in before
        assert len(out.heard) == 2


async def test_model_is_told_what_a_template_lets_it_reach(database_url: str) -> None:
    def look(call: Call) -> Sequence[Step]:
        if results_since_user(call.prompt):
            return (Say("I see."),)
        return (CallTool("read_template", {"template_id": "listed"}),)

    scripts = default_scripts()
    with scripts.registered("look", look):
        async with open_replica_rig(database_url, scripts=scripts, model="look") as stead:
            await push(stead, "packages.example.org", "*.files.example.net")

            chat = await stead.ask("hello")

            (read,) = await stead.calls(chat)
            assert read.value["template"]["network"] == "hosts"
            assert read.value["template"]["hosts"] == ["packages.example.org", "*.files.example.net"]
