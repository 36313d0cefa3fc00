"""The error responses of the agent. The message of an error is for the model."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class AgentError(Exception):
    """Raised to send an error response. `fields` are pairs of a request field and its problem."""

    def __init__(
        self,
        status: int,
        code: str,
        message: str,
        detail: str | None = None,
        fields: Iterable[tuple[str, str]] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.detail = detail
        self.fields = tuple(fields)

    def body(self) -> dict[str, Any]:
        """Return the JSON object of the response."""
        answer: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.detail is not None:
            answer["detail"] = self.detail
        if self.fields:
            answer["fields"] = [{"field": field, "detail": detail} for field, detail in self.fields]
        return answer


def invalid(field: str, detail: str) -> AgentError:
    """Return the error for a request with one invalid field."""
    return AgentError(400, "invalid", f"`{field}` {detail}.", fields=[(field, detail)])
