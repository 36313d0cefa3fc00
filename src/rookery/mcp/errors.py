"""The errors of MCP servers.

McpError            anything that keeps a server or a call from working; its problem has a kind and a text for users
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class ProblemKind(StrEnum):
    """`blocked`: the address guard refused the address. `unauthorized` and `forbidden`: the server wants another login.

    `session`: the server has forgotten the session. `refused`: the server answered with an error. `invalid`: it broke
    the protocol.
    """

    UNREACHABLE = "unreachable"
    BLOCKED = "blocked"
    REDIRECTED = "redirected"
    UNAUTHORIZED = "unauthorized"
    FORBIDDEN = "forbidden"
    HTTP = "http"
    SESSION = "session"
    REFUSED = "refused"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    TIMEOUT = "timeout"
    CLOSED = "closed"


class Problem(msgspec.Struct, frozen=True):
    """`text` is a sentence for users and for the model; it never has a query or a user name of an address in it.

    `may_have_run` tells whether the server may have executed the call. `status` is that of the HTTP response.
    """

    kind: ProblemKind
    text: str
    may_have_run: bool = False
    status: int | None = None

    @property
    def needs_login(self) -> bool:
        return self.kind in (ProblemKind.UNAUTHORIZED, ProblemKind.FORBIDDEN)


class McpError(Exception):
    """Raised when a server cannot be connected, listed or called."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.text)
        self.problem = problem

    @property
    def kind(self) -> ProblemKind:
        return self.problem.kind
