"""The paths each chat has touched: by writing, by editing, or as the directory of a command that ended.

In memory only: after a restart the diff of the working directory's repository is still available, and the others
reappear with the next touch.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from rookery.workspaces.agent.server.http import ChatHeaders

MAX_CHATS = 1024
MAX_PATHS = 2048

Listener = Callable[[frozenset[str], str], None]


class Touched:
    """Paths per chat, the most recent last. Listeners are called on every touch, even of a known path."""

    def __init__(self) -> None:
        self._paths: OrderedDict[str, OrderedDict[str, None]] = OrderedDict()
        self._listeners: list[Listener] = []

    def record(self, chat: ChatHeaders, path: str) -> None:
        """Record an absolute path for the chat and its ancestors. The server's own requests touch nothing."""
        if chat.chat_id is None:
            return
        chats = (chat.chat_id, *chat.ancestor_ids)
        for chat_id in chats:
            paths = self._paths.setdefault(chat_id, OrderedDict())
            self._paths.move_to_end(chat_id)
            paths[path] = None
            paths.move_to_end(path)
            if len(paths) > MAX_PATHS:
                paths.popitem(last=False)
        while len(self._paths) > MAX_CHATS:
            self._paths.popitem(last=False)
        for listener in tuple(self._listeners):
            listener(frozenset(chats), path)

    def paths(self, chat_id: str) -> tuple[str, ...]:
        return tuple(self._paths.get(chat_id, ()))

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call `listener(chat_ids, path)` on every touch, until the returned function is called."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)
