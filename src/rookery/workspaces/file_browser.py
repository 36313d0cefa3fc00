"""The read-only file browser of a workspace, for users.

It does not write: only tools change files, so that every change is visible in the chat.
"""

from __future__ import annotations

import posixpath
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeVar
from uuid import UUID

from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId
from rookery.telemetry.log import get_logger
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.agent_messages import Listing
from rookery.workspaces.connection import WorkspaceLocation
from rookery.workspaces.drivers.driver_interface import DriverError
from rookery.workspaces.errors import AgentError, NotWatchable, WorkspaceError
from rookery.workspaces.workspace_lookup import StoreWorkspaceDirectory, find_reachable, require_reachable

log = get_logger("workspaces.file_browser")

# The folder of spill files below the home (`agent/process/spill_file.py`).
RESULTS = ".rookery/results"

_NOT_THERE = frozenset({400, 403, 404})

T = TypeVar("T")


class FileBytes(NamedTuple):
    """The beginning of a file. `path` is relative to the working directory for files in it, else absolute."""

    path: str
    data: bytes
    is_cut: bool


class ChatFolders:
    def __init__(self, directory: StoreWorkspaceDirectory) -> None:
        self._directory = directory

    async def list(self, chat_id: ChatId, path: str) -> Listing:
        """List a folder below the chat's working directory. Raise `NotWatchable` if the workspace is not reachable."""
        return await self._list(await find_reachable(self._directory, chat_id), path)

    async def list_of(self, workspace_id: UUID, path: str) -> Listing:
        """List a folder below the working directory of a workspace."""
        return await self._list(await require_reachable(self._directory, workspace_id), path)

    async def read(self, chat_id: ChatId, path: str, *, max_bytes: int) -> FileBytes:
        """Read the first bytes of a file below the chat's working directory, or of a spill file."""
        location = await find_reachable(self._directory, chat_id)
        wanted = _file(location, path)
        data = await self._ask(location, lambda conn: conn.read_bytes(wanted, max_bytes=max_bytes + 1))
        return FileBytes(_shown(location, wanted), data[:max_bytes], len(data) > max_bytes)

    async def _list(self, location: WorkspaceLocation, path: str) -> Listing:
        inside = posixpath.normpath(path) if path else "."
        if posixpath.isabs(inside) or inside.split("/", 1)[0] == ".." or "\0" in inside:
            raise InvalidInput("path", "This must be a folder below the working directory of the chat.")
        folder = posixpath.normpath(posixpath.join(location.directory or "/", inside))
        return await self._ask(location, lambda conn: conn.list_dir(folder))

    async def _ask(self, location: WorkspaceLocation, request: Callable[[AgentConn], Awaitable[T]]) -> T:
        try:
            return await request(self._directory.connect(location, ChatHeaders()))
        except AgentError as error:
            if error.status in _NOT_THERE:
                raise InvalidInput("path", error.message) from error
            raise _not_watchable(location, error) from error
        except (WorkspaceError, DriverError, LookupError) as error:
            raise _not_watchable(location, error) from error


def _file(location: WorkspaceLocation, path: str) -> str:
    """Return the absolute path of a file. Raise `InvalidInput` if it may not be read."""
    wanted = posixpath.normpath(posixpath.join(location.directory or "/", path))
    results = [] if location.home is None else [posixpath.join(location.home, RESULTS)]
    if not path or "\0" in path or not any(_is_below(wanted, root) for root in (location.directory or "/", *results)):
        raise InvalidInput("path", "This must be a file below the working directory of the chat.")
    return wanted


def _shown(location: WorkspaceLocation, path: str) -> str:
    root = location.directory or "/"
    return posixpath.relpath(path, root) if _is_below(path, root) else path


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def _not_watchable(location: WorkspaceLocation, error: Exception) -> NotWatchable:
    log.info("workspace_not_looked_into", workspace_id=location.id, error=str(error))
    return NotWatchable("agent_unreachable", f"The workspace {location.name} does not answer.")
