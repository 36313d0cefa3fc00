"""Without the token of this boot, every route refuses without revealing anything."""

from __future__ import annotations

import ast
import stat
from pathlib import Path

import pytest

from rookery.workspaces.agent import main
from tests.workspaces.agent import agent_rig as rigs
from tests.workspaces.agent.agent_rig import TOKEN, Rig


def added_routes() -> list[tuple[str, str]]:
    """Return every route, from the calls that add them."""
    found = []
    for path in sorted(Path(main.__file__).parent.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            is_add = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "add"
            if is_add and isinstance(node, ast.Call) and len(node.args) == 3:
                method, target = node.args[0], node.args[1]
                if isinstance(method, ast.Constant) and isinstance(target, ast.Constant):
                    found.append((str(method.value), str(target.value)))
    return found


ROUTES = added_routes()


def test_routes_are_found() -> None:
    assert {("GET", "/v1/health"), ("POST", "/v1/processes"), ("PUT", "/v1/files"), ("POST", "/v1/shutdown")} <= set(
        ROUTES
    )


async def test_health_says_who_answers(rig: Rig) -> None:
    health = await rig.get("/v1/health")

    assert set(health) == {
        "version",
        "api",
        "generation",
        "ready",
        "agent_state",
        "startup_exit_code",
        "os",
        "arch",
        "user",
        "home",
        "directory",
        "uptime_s",
        "processes",
        "context_version",
        "disk_used",
        "disk_limit",
    }
    assert health["api"] == 2
    assert health["generation"] == 1
    assert health["os"] == "linux"
    assert health["home"] == str(rig.home)
    assert health["directory"] == str(rig.directory)


BAD_IDENTITIES = [
    ({"authorization": ""}, 401),
    ({"authorization": "Bearer"}, 401),
    ({"authorization": f"Basic {TOKEN}"}, 401),
    ({"authorization": f"Bearer {TOKEN[:-1]}"}, 401),
    ({"authorization": f"Bearer {TOKEN}x"}, 401),
    ({"authorization": "Bearer ä"}, 401),
    ({"x-rookery-generation": "0"}, 409),
    ({"x-rookery-generation": "2"}, 409),
    ({"x-rookery-generation": "01"}, 409),
    ({"x-rookery-generation": ""}, 409),
]


@pytest.mark.parametrize(("method", "path"), [*ROUTES, ("GET", "/"), ("GET", "/v1/nothing"), ("DELETE", "/v1/health")])
async def test_every_route_asks_for_token_and_generation(shared: Rig, method: str, path: str) -> None:
    path = path.replace("{id}", "x")

    answers = [(await shared.ask(method, path, headers=headers)).status for headers, _ in BAD_IDENTITIES]

    assert answers == [status for _, status in BAD_IDENTITIES]


async def test_refusal_by_generation_says_which_one_is_there(shared: Rig) -> None:
    answer = await shared.ask("GET", "/v1/health", headers={"x-rookery-generation": "7"})

    assert answer.code == "generation"
    assert "generation 1" in answer.json["message"]


async def test_token_is_checked_before_the_body_is_read(shared: Rig) -> None:
    head = b"POST /v1/processes HTTP/1.1\r\nauthorization: Bearer no\r\ncontent-length: 1000000\r\n\r\n"

    assert (await shared.raw(head + b"x" * 1_000_000)).startswith(b"HTTP/1.1 401 ")


async def test_socket_and_records_belong_to_the_user_alone(rig: Rig) -> None:
    await rig.run("true")

    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in rig.run_dir.iterdir()}

    assert modes["agent.sock"] == modes["agent.log"] == modes["journal"] == 0o600
    assert TOKEN not in rig.log()


async def test_agent_says_which_process_it_is(rig: Rig) -> None:
    record = rig.record()

    assert rig.process is not None
    assert record["pid"] == rig.process.pid
    assert record["generation"] == 1
    assert record["pid_start"] == ticks_at_start(record["pid"])


def ticks_at_start(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


async def test_agent_listens_on_the_loopback_when_told() -> None:
    async with rigs.rig() as rig:
        await rig.start(listen="tcp:127.0.0.1:0")
        port = int(rig.log().split("tcp:127.0.0.1:")[1].split()[0])

        answer = await rig.ask("GET", "/v1/health", port=port)

    assert answer.status == 200


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        ({"config": None}, "config.json"),
        ({"config": "{"}, "config.json"),
        ({"config": "[]"}, "not an object"),
        ({"config": '{"home": "/"}'}, "generation"),
        ({"config": '{"generation": true}'}, "generation"),
        ({"config": '{"generation": 1, "directory": "relative"}'}, "directory"),
        ({"config": '{"generation": 1, "env": {"A": 1}}'}, "env"),
        ({"config": '{"generation": 1, "startup": {"timeout_s": "soon"}}'}, "startup"),
        ({"token": None}, "token"),
        ({"token": "short"}, "token"),
        ({"listen": "tcp:0.0.0.0:0"}, "loopback"),
        ({"listen": "tcp:127.0.0.1:x"}, "loopback"),
        ({"listen": "carrier pigeon"}, "--listen"),
    ],
)
async def test_start_that_cannot_work_ends_with_a_reason(spoil: dict[str, str | None], said: str) -> None:
    async with rigs.rig() as rig:
        code, errors = rig.fail_to_start(spoil)

        assert code == 1
        assert said in errors
        assert "Traceback" not in errors
        assert said in rig.log()
