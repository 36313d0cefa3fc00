"""Errors between the server and a workspace.

WorkspaceError
├── AgentError          the agent refused: status, code and a message that a model can act on
├── AgentUnreachable    no response: nothing listens, the connection broke, or it took too long
│   └── AgentCutOff     the agent broke the protocol; it is ignored until its workspace is started again
├── NoConnection        a turn cannot have a connection; `situation` is the reason, the message what to do about it
├── NotWatchable        there is no workspace to look into now; `code` is the reason
└── TooManyWatches      the workspace is watched by as many clients as the agent supports
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from rookery.workspaces.agent_messages import FieldProblem


class WorkspaceError(Exception):
    """Base class. The message is text for a model or a user."""


class AgentError(WorkspaceError):
    """Raised for a refusal by the agent."""

    def __init__(self, status: int, code: str, message: str, fields: Sequence[FieldProblem] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = tuple(fields)


class AgentUnreachable(WorkspaceError):
    """Raised when the agent did not respond. With `timed_out` it may still be working on the request."""

    def __init__(self, message: str, *, timed_out: bool = False) -> None:
        super().__init__(message)
        self.timed_out = timed_out


class AgentCutOff(AgentUnreachable):
    """`reason` is a clause about the workspace: "its agent sent ..."."""

    def __init__(self, reason: str) -> None:
        super().__init__(cut_off_sentence(reason))
        self.reason = reason


def cut_off_sentence(reason: str) -> str:
    return f"The server cut this workspace off, because {reason}. Stop it and start it again; its files are kept."


class Situation(StrEnum):
    """Reasons why a turn has no connection."""

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
    """`code` is no_workspace, workspace_not_running or agent_unreachable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TooManyWatches(WorkspaceError):
    def __init__(self, maximum: int) -> None:
        super().__init__(f"The changes of this workspace are shown in {maximum} places already. Close one of them.")
