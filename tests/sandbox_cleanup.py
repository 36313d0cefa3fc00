"""Cleanup of sandboxes, which keep running when a server stops."""

from __future__ import annotations

from pathlib import Path

from rookery.workspaces.drivers import sandboxes


async def end_sandboxes(data: Path) -> None:
    """Kill the sandboxes of a data directory that still run."""
    own = data / "workspaces"
    for directory in own.iterdir() if own.is_dir() else ():
        for running in await sandboxes.find(directory):
            await sandboxes.kill(running)
