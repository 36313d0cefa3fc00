"""What can go wrong between the server and a workspace.

WorkspaceError
├── AgentError          the agent refused: status, code and a message that alone helps a model
├── AgentUnreachable    no answer: nothing listens, the connection broke, or it took too long
│   └── AgentCutOff     the agent broke the protocol, and is not talked to until its workspace is started again
├── NoConnection        a turn cannot have a connection; `situation` says why, the message what to do about it
├── NotWatchable        there is no workspace to look into now; `code` says why
└── TooManyWatches      as many show it already as the agent has room for
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from rookery.workspaces.agent_messages import FieldProblem


class WorkspaceError(Exception):
    """Base. The message is text for a model or a person."""


class AgentError(WorkspaceError):
    """An answer of the agent that is a refusal."""

    def __init__(self, status: int, code: str, message: str, fields: Sequence[FieldProblem] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.fields = tuple(fields)


class AgentUnreachable(WorkspaceError):
    """The agent did not answer. `timed_out`: it may be at work on the request."""

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
    """Why a turn has no connection (workspaces.md, "AgentConn")."""

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
    """`code`: no_workspace, workspace_not_running or agent_unreachable."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class TooManyWatches(WorkspaceError):
    def __init__(self, maximum: int) -> None:
        super().__init__(f"The changes of this workspace are shown in {maximum} places already. Close one of them.")
