"""The errors of requests to workspaces.

WorkspaceError
├── AgentError          the agent refused the request, with a status, a code and a message for the model
├── AgentUnreachable    the agent did not respond: no listener, a broken connection, or a timeout
│   └── AgentCutOff     the agent broke the protocol, and is ignored until its workspace is started again
├── NoConnection        a turn has no connection; `situation` is the reason, and the message says what to do
├── NotWatchable        the workspace is not running or not reachable; `code` is the reason
└── TooManyWatches      the workspace has the maximum number of watches
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from rookery.workspaces.agent_messages import FieldProblem


class WorkspaceError(Exception):
    """The base class. The message is for the model or the user."""


class AgentError(WorkspaceError):
    """Raised when the agent refuses a request."""

    def __init__(self, status: int, code: str, message: str, fields: Sequence[FieldProblem] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = tuple(fields)


class AgentUnreachable(WorkspaceError):
    """Raised when the agent does not respond. With `timed_out` it may still execute the request."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class AgentCutOff(AgentUnreachable):
    """Raised when the agent was cut off. `reason` is a clause such as "its agent sent ..."."""

    def __init__(self, reason: str) -> None:
        super().__init__(cut_off_sentence(reason))
        self.reason = reason


def cut_off_sentence(reason: str) -> str:
    return f"The server cut off this workspace, because {reason}. Stop it and start it again; its files are kept."


class Situation(StrEnum):
    """The reasons why a turn has no connection."""

    NONE = "none"
    NONE_IN_CHILD = "none_in_child"
    DELETED = "deleted"
    STOPPED = "stopped"
    FAILED = "failed"
    BUSY = "busy"
    TIMED_OUT = "timed_out"
    SILENT = "silent"
    CUT_OFF = "cut_off"
    NODE_OFFLINE = "node_offline"
    OUT_OF_REACH = "out_of_reach"
    AGENT_TOO_OLD = "agent_too_old"
    CHANGED = "changed"
    OTHER = "other"


class NoConnection(WorkspaceError):
    def __init__(self, situation: Situation, message: str) -> None:
        super().__init__(message)
        self.situation = situation


class NotWatchable(WorkspaceError):
    """Raised when no workspace can be watched. `code` is no_workspace, workspace_not_running or agent_unreachable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TooManyWatches(WorkspaceError):
    def __init__(self, maximum: int) -> None:
        super().__init__(f"The changes of this workspace are shown in {maximum} places already. Close one of them.")
