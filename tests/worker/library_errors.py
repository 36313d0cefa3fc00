"""Exceptions in the forms in which provider libraries raise them, and their expected classification."""

from __future__ import annotations

from rookery.llm.types import ErrorKind
from rookery.worker.error_classification import Classified

OVERLOADED = (ErrorKind.OVERLOADED, True)
USAGE = (ErrorKind.USAGE_LIMIT, False)
AUTH = (ErrorKind.AUTH, False)
RATE = (ErrorKind.RATE_LIMIT, True)
DISABLED = (ErrorKind.PROVIDER_DISABLED, False)
TIMEOUT = (ErrorKind.TIMEOUT, True)
CONFIG = (ErrorKind.CONFIG, False)
OVERFLOW = (ErrorKind.CONTEXT_OVERFLOW, False)
AGAIN = (ErrorKind.GENERIC, True)
UNKNOWN = (ErrorKind.GENERIC, False)


class Answered(Exception):
    """An exception of a provider library, with status, body and headers in attributes."""

    def __init__(
        self,
        text: str = "",
        *,
        status: int | None = None,
        body: object = None,
        headers: dict[str, str] | None = None,
        code: str | None = None,
    ) -> None:
        self.status_code = status
        self.body = body
        self.headers = headers
        self.code = code
        super().__init__(text)


def verdict(failure: Classified) -> tuple[ErrorKind, bool]:
    return failure.kind, failure.retryable
