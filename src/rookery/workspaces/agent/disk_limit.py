"""The disk limit of a workspace: measures the size of the home, and refuses writes that do not fit.

A measurement walks the whole home, so its result is cached: for a minute, or for two seconds if more than half of the
limit is used. The agent adds its own writes to the cached size. Before a refusal the size is measured again, so that
writes succeed immediately after files were deleted.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable

from rookery.workspaces.agent.config import Config
from rookery.workspaces.agent.errors import AgentError

MEBIBYTE = 1024 * 1024
FRESH_S = 60.0
NEARLY_FRESH_S = 2.0
WATCH_S = 600.0
NEARLY_FULL = 0.9
_BLOCK_BYTES = 512


class Disk:
    """The disk usage of a workspace and its limit. Threads use it without a lock, so the sum is approximate."""

    def __init__(self, config: Config, monotonic: Callable[[], float]) -> None:
        self._limit = config.disk_mb * MEBIBYTE
        self._roots = _distinct(config.home, config.directory)
        self._monotonic = monotonic
        self._used = 0
        self._measured_at: float | None = None

    @property
    def limit(self) -> int:
        """Return the limit in bytes. 0 means no limit."""
        return max(self._limit, 0)

    @property
    def used(self) -> int:
        """Return the last measured usage plus the agent's writes since then; 0 without a limit."""
        return self._used if self._limit > 0 else 0

    def require(self, growth: int) -> None:
        """Raise 507 if this many more bytes do not fit. Blocks while it measures."""
        if self._limit <= 0 or growth <= 0:
            return
        wanted = self._used + growth
        fresh_s = FRESH_S if wanted < self._limit / 2 else NEARLY_FRESH_S
        stale = self._measured_at is None or self._monotonic() - self._measured_at > fresh_s
        if stale or wanted > self._limit:
            self._measure()
        if self._used + growth > self._limit:
            message = (
                f"The disk of the workspace is full: {self._used} of {self._limit} bytes are used and {growth} more do "
                "not fit. Delete what is not needed."
            )
            raise AgentError(507, "disk_limit", message)
        self._used += growth

    def claim(self, growth: int) -> bool:
        """Return whether this many more bytes fit, according to the cached size. Never blocks."""
        if self._limit > 0 and self._used + growth > self._limit:
            return False
        self._used += growth
        return True

    async def watch(self, log: Callable[[str], None]) -> None:
        """Measure every ten minutes and log when the limit is near, because commands write files without asking the
        agent.
        """
        while self._limit > 0:
            # `_measured_at` is unchanged, so the next `require` measures again.
            self._used = await asyncio.to_thread(self._sum)
            if self._used >= NEARLY_FULL * self._limit:
                log(f"disk: {self._used} of {self._limit} bytes are used")
            await asyncio.sleep(WATCH_S)

    def _measure(self) -> None:
        self._used = self._sum()
        self._measured_at = self._monotonic()

    def _sum(self) -> int:
        return sum(used_bytes(root) for root in self._roots)


def used_bytes(root: str) -> int:
    """Return the disk usage of the files below a folder. Hard links count once. Symbolic links are not followed."""
    total = 0
    seen: set[tuple[int, int]] = set()
    folders = [root]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    status = entry.stat(follow_symlinks=False)
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    elif status.st_nlink > 1:
                        if (status.st_dev, status.st_ino) in seen:
                            continue
                        seen.add((status.st_dev, status.st_ino))
                    total += status.st_blocks * _BLOCK_BYTES
        except OSError:
            continue  # deleted meanwhile, or not readable
    return total


def _distinct(home: str, directory: str) -> tuple[str, ...]:
    return (home,) if directory == home or directory.startswith(home.rstrip("/") + "/") else (home, directory)
