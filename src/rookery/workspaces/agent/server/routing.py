"""The routes of the agent. A route lists its query parameters; others are refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

from rookery.workspaces.agent.errors import AgentError
from rookery.workspaces.agent.server.http import Head, Request, Response

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True)
class Route:
    """A method and a path. A segment in braces, as in `/v1/processes/{id}`, matches any segment and is a parameter."""

    method: str
    segments: tuple[str, ...]
    handler: Handler
    query: frozenset[str]

    def match(self, segments: tuple[str, ...]) -> dict[str, str] | None:
        if len(segments) != len(self.segments):
            return None
        params: dict[str, str] = {}
        for mine, given in zip(self.segments, segments):
            if mine.startswith("{"):
                params[mine[1:-1]] = given
            elif mine != given:
                return None
        return params


class Router:
    """The table of routes. Each module adds its routes at the start of the agent."""

    def __init__(self) -> None:
        self.routes: list[Route] = []

    def add(self, method: str, path: str, handler: Handler, *, query: Iterable[str] = ()) -> None:
        self.routes.append(Route(method, _segments(path), handler, frozenset(query)))

    def find(self, head: Head) -> tuple[Route, dict[str, str]]:
        """Return the route of a request, and its path parameters. Raise 404 or 405 if there is none."""
        segments = _segments(head.path)
        allowed = []
        for route in self.routes:
            params = route.match(segments)
            if params is None:
                continue
            if route.method == head.method:
                return route, params
            allowed.append(route.method)
        if allowed:
            methods = ", ".join(sorted(allowed))
            raise AgentError(405, "method_not_allowed", f"This path takes {methods}, not {head.method}.")
        raise AgentError(404, "not_found", "The workspace agent has no such path.")


def checked_query(route: Route, head: Head) -> Mapping[str, str]:
    """Return the query parameters. Raise 400 for unknown, repeated or invalid ones."""
    query: dict[str, str] = {}
    wrong: list[tuple[str, str]] = []
    for name, value in head.query:
        if name not in route.query:
            wrong.append((name[:100], "is not known here"))
        elif name in query:
            wrong.append((name, "is given twice"))
        elif "\x00" in value:
            wrong.append((name, "has a NUL character"))
        query[name] = value
    if wrong:
        problems = "; ".join(f"`{name}` {detail}" for name, detail in wrong[:10])
        raise AgentError(400, "invalid", f"The query is wrong: {problems}.", fields=wrong[:10])
    return query


def _segments(path: str) -> tuple[str, ...]:
    return tuple(path.split("/")[1:])
