"""The login scenarios of the official conformance kit. The kit's server judges every request of a login."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pytest

from tests.mcp.node_servers import needs_node_packages
from tests.mcp.test_conformance import KIT, SECONDS, SESSIONS, SHIM, STATELESS

BOTH = (
    "metadata-default",
    "metadata-var1",
    "metadata-var2",
    "metadata-var3",
    "basic-cimd",
    "scope-from-www-authenticate",
    "scope-from-scopes-supported",
    "scope-omitted-when-undefined",
    "scope-step-up",
    "scope-retry-limit",
    "token-endpoint-auth-basic",
    "token-endpoint-auth-post",
    "token-endpoint-auth-none",
    "pre-registration",
)
NEW = (
    "resource-mismatch",
    "offline-access-scope",
    "offline-access-not-supported",
    "authorization-server-migration",
    "iss-supported",
    "iss-not-advertised",
    "iss-supported-missing",
    "iss-wrong-issuer",
    "iss-unexpected",
    "iss-normalized",
    "metadata-issuer-mismatch",
)


@needs_node_packages
@pytest.mark.parametrize(
    ("scenario", "version"), [*((name, SESSIONS) for name in BOTH), *((name, STATELESS) for name in (*BOTH, *NEW))]
)
async def test_login_conforms(scenario: str, version: str, database_url: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[3]
    command = f"{sys.executable} -m tests.mcp.oauth.conformance_client"
    kit = await asyncio.create_subprocess_exec(
        *("node", "--import", str(SHIM), str(KIT), "client", "--command", command),
        *("--scenario", f"auth/{scenario}", "--spec-version", version),
        *("--output-dir", str(tmp_path), "--timeout", "80000"),
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(root), "CONFORMANCE_DATABASE_URL": database_url},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(SECONDS):
            output, _ = await kit.communicate()
    finally:
        if kit.returncode is None:
            kit.kill()
            await kit.wait()
    said = output.decode()
    assert kit.returncode == 0, said
    assert "OVERALL: PASSED" in said, said
