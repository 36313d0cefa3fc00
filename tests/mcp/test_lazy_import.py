"""The official `mcp` package, which costs a third of a second and 23 MB, is imported only when a server is used."""

from __future__ import annotations

import subprocess
import sys

import pytest

# Each runs in a process of its own, because this one has imported the package.
PARTS = (
    "import rookery",
    "import rookery.cli.main, rookery.cli.serve, rookery.app.replica",
    "import rookery.mcp.connection_pool, rookery.mcp.address_guard, rookery.mcp.tool_names, rookery.mcp.call_results",
    """
import asyncio
from uuid import UUID
from rookery.mcp.connection_pool import McpConnections
from rookery.mcp.address_guard import mcp_guard
from rookery.runtime.clock import SystemClock

async def turn_without_servers():
    connections = McpConnections(mcp_guard(), SystemClock())
    assert await connections.tools_of(UUID(int=1), []) == []
    await connections.close()

asyncio.run(turn_without_servers())
""",
)


@pytest.mark.parametrize("code", PARTS)
def test_package_is_not_imported_without_a_server(code: str) -> None:
    check = "import sys; assert not {'mcp', 'mcp_types', 'jsonschema'} & set(sys.modules), sorted(sys.modules)"
    subprocess.run([sys.executable, "-c", f"{code}\n{check}"], check=True, timeout=60)
