"""The Python client of a Rookery server. It imports nothing of the server.

`AsyncRookery` is the asynchronous client, and `Rookery` the blocking one; `client.chats.stream` follows a chat live.
`reducer` computes the view of a chat from the events of its stream. `errors` shows the tree of exceptions. Start
reading at `async_client`, then `http` for requests and `live_streams` for streams.
"""

from rookery.client import errors
from rookery.client.async_client import AsyncRookery
from rookery.client.blocking_client import Rookery
from rookery.client.content import ApprovalAnswer, ApprovalSettings, DynamicTool, ToolOutput, file_part
from rookery.client.errors import (
    ActionRequired,
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    RateLimited,
    RookeryError,
    StreamEnded,
    TimedOut,
    TurnFailed,
    Unauthenticated,
    Unavailable,
    UnexpectedAnswer,
    Unreachable,
)
from rookery.client.live_streams import Change, LiveChat, Watch, WatchEvent
from rookery.client.models import Chat, Message, Part, PersonalOverride, QueuedMessage, Rule, User
from rookery.client.pages import Page

__all__ = [
    "ActionRequired",
    "ApiError",
    "ApprovalAnswer",
    "ApprovalSettings",
    "AsyncRookery",
    "Change",
    "Chat",
    "Conflict",
    "DynamicTool",
    "Forbidden",
    "Invalid",
    "LiveChat",
    "Message",
    "NotFound",
    "Page",
    "Part",
    "PersonalOverride",
    "QueuedMessage",
    "RateLimited",
    "Rookery",
    "RookeryError",
    "Rule",
    "StreamEnded",
    "TimedOut",
    "ToolOutput",
    "TurnFailed",
    "Unauthenticated",
    "Unavailable",
    "UnexpectedAnswer",
    "Unreachable",
    "User",
    "Watch",
    "WatchEvent",
    "errors",
    "file_part",
]
