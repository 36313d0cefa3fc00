"""Files of a workspace as its owner looks at them beside the conversation: names in folders, and what a file holds.

Nothing is written here: changes are for tools, which leave a trace in the conversation.
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
from rookery.workspaces.connection import Place
from rookery.workspaces.directory import StorePlaces
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.errors import AgentError, NotWatchable, WorkspaceError
from rookery.workspaces.reachability import find_reachable, require_reachable

log = get_logger("workspaces.file_browser")

# Where the agent keeps what was too much for the model, below its home (`agent/spill.py`).
RESULTS = ".rookery/results"

_NOT_THERE = frozenset({400, 403, 404})

T = TypeVar("T")


class FileBytes(NamedTuple):
    """The beginning of a file. `path` is below the place of work where it can be, else absolute."""

    path: str
    data: bytes
    is_cut: bool


class ChatFolders:
    def __init__(self, places: StorePlaces) -> None:
        self._places = places

    async def list(self, chat_id: ChatId, path: str) -> Listing:
        """A folder below where the chat works. `NotWatchable` when there is nobody to ask."""
        return await self._list(await find_reachable(self._places, chat_id), path)

    async def list_of(self, workspace_id: UUID, path: str) -> Listing:
        """The same of a workspace, for whoever has no chat in it yet."""
        return await self._list(await require_reachable(self._places, workspace_id), path)

    async def read(self, chat_id: ChatId, path: str, *, max_bytes: int) -> FileBytes:
        """The first bytes of a file below where the chat works, or of a result that was kept for it."""
        place = await find_reachable(self._places, chat_id)
        wanted = _file(place, path)
        data = await self._ask(place, lambda conn: conn.read_bytes(wanted, max_bytes=max_bytes + 1))
        return FileBytes(_shown(place, wanted), data[:max_bytes], len(data) > max_bytes)

    async def _list(self, place: Place, path: str) -> Listing:
        inside = posixpath.normpath(path) if path else "."
        if posixpath.isabs(inside) or inside.split("/", 1)[0] == ".." or "\0" in inside:
            raise InvalidInput("path", "This must be a folder below the one in which the chat works.")
        folder = posixpath.normpath(posixpath.join(place.directory or "/", inside))
        return await self._ask(place, lambda conn: conn.list_dir(folder))

    async def _ask(self, place: Place, question: Callable[[AgentConn], Awaitable[T]]) -> T:
        try:
            return await question(self._places.connect(place, ChatHeaders()))
        except AgentError as error:
            if error.status in _NOT_THERE:
                raise InvalidInput("path", error.message) from error
            raise _silent(place, error) from error
        except (WorkspaceError, DriverError, LookupError) as error:
            raise _silent(place, error) from error


def _file(place: Place, path: str) -> str:
    """The absolute path of a file that may be asked for."""
    wanted = posixpath.normpath(posixpath.join(place.directory or "/", path))
    results = [] if place.home is None else [posixpath.join(place.home, RESULTS)]
    if not path or "\0" in path or not any(_is_below(wanted, root) for root in (place.directory or "/", *results)):
        raise InvalidInput("path", "This must be a file below the folder in which the chat works.")
    return wanted


def _shown(place: Place, path: str) -> str:
    root = place.directory or "/"
    return posixpath.relpath(path, root) if _is_below(path, root) else path


def _is_below(path: str, root: str) -> bool:
    return path.startswith(root.rstrip("/") + "/")


def _silent(place: Place, error: Exception) -> NotWatchable:
    log.info("workspace_not_looked_into", workspace_id=place.id, error=str(error))
    return NotWatchable("agent_unreachable", f"The workspace {place.name} does not answer.")
