"""The client scenarios of the official conformance kit, in both protocol eras. `tests/mcp/oauth` has the login
scenarios.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.mcp.node_servers import ENVIRONMENT, NODE_MODULES, needs_node_packages

KIT = NODE_MODULES / "@modelcontextprotocol/conformance/dist/index.js"
SHIM = NODE_MODULES.parent / "node20.mjs"
SESSIONS, STATELESS = "2025-11-25", "2026-07-28"
SECONDS = 90

SCENARIOS = (
    ("initialize", SESSIONS),
    ("tools_call", SESSIONS),
    ("elicitation-sep1034-client-defaults", SESSIONS),
    ("sse-retry", SESSIONS),
    ("json-schema-2020-12-preservation", SESSIONS),
    ("tools_call", STATELESS),
    ("request-metadata", STATELESS),
    ("sep-2322-client-request-state", STATELESS),
    ("http-standard-headers", STATELESS),
    ("http-custom-headers", STATELESS),
    ("http-invalid-tool-headers", STATELESS),
    ("json-schema-ref-no-deref", STATELESS),
    ("json-schema-2020-12-preservation", STATELESS),
)


@needs_node_packages
@pytest.mark.parametrize(("scenario", "version"), SCENARIOS)
async def test_client_conforms(scenario: str, version: str, tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = f"{sys.executable} -m tests.mcp.conformance_client"
    kit = await asyncio.create_subprocess_exec(
        *("node", "--import", str(SHIM), str(KIT), "client", "--command", command),
        *("--scenario", scenario, "--spec-version", version, "--output-dir", str(tmp_path), "--timeout", "80000"),
        cwd=root,
        env={**ENVIRONMENT, "PYTHONPATH": str(root)},
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
