"""Names of files in a chat's workspace, so that its owner can mention them. Contents are for tools only."""

from __future__ import annotations

import posixpath

from rookery.chat.errors import InvalidInput
from rookery.chat.messages import ChatId
from rookery.log import get_logger
from rookery.workspaces.agent_http import ChatHeaders
from rookery.workspaces.answers import Listing
from rookery.workspaces.drivers.protocol import DriverError
from rookery.workspaces.errors import AgentError, NotWatchable, WorkspaceError
from rookery.workspaces.places import StorePlaces
from rookery.workspaces.reach import find_reachable

log = get_logger("workspaces.folders")

_NOT_A_FOLDER = frozenset({400, 403, 404})


class ChatFolders:
    def __init__(self, places: StorePlaces) -> None:
        self._places = places

    async def list(self, chat_id: ChatId, path: str) -> Listing:
        """A folder below where the chat works. `NotWatchable` when there is nobody to ask."""
        inside = posixpath.normpath(path) if path else "."
        if posixpath.isabs(inside) or inside.split("/", 1)[0] == ".." or "\0" in inside:
            raise InvalidInput("path", "This must be a folder below the one in which the chat works.")
        place = await find_reachable(self._places, chat_id)
        folder = posixpath.normpath(posixpath.join(place.directory or "/", inside))
        try:
            return await self._places.connect(place, ChatHeaders()).list_dir(folder)
        except AgentError as error:
            if error.status in _NOT_A_FOLDER:
                raise InvalidInput("path", error.message) from error
            raise self._silent(chat_id, place.name, error) from error
        except (WorkspaceError, DriverError, LookupError) as error:
            raise self._silent(chat_id, place.name, error) from error

    def _silent(self, chat_id: ChatId, name: str, error: Exception) -> NotWatchable:
        log.info("folder_not_listed", chat_id=chat_id, error=str(error))
        return NotWatchable("agent_unreachable", f"The workspace {name} does not answer.")
