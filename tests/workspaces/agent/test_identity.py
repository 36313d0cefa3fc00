"""Nobody without the token of this generation learns anything, on any route."""

from __future__ import annotations

from tests.workspaces.agent.rig import Rig


async def test_health_says_who_answers(rig: Rig) -> None:
    health = await rig.get("/v1/health")

    assert health["api"] == 1
    assert health["generation"] == 1
    assert health["home"] == str(rig.home)
    assert health["directory"] == str(rig.directory)
