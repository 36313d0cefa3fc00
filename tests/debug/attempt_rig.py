"""A step that collects attempts, and clients that report to it."""

from __future__ import annotations

from collections.abc import Callable

from rookery.debug.recorded_http import AttemptRecord, RecordedHttp, StoredAttempt, redact_attempt
from rookery.debug.redaction import Redactor
from rookery.llm.http import HttpClient, HttpClients, Tls


class CollectingStep:
    """A step that keeps its attempts. `reason` is why this server ends the call. Its methods fail if it is broken."""

    def __init__(self) -> None:
        self.started = 0
        self.records: list[AttemptRecord] = []
        self.reason: str | None = None
        self.is_broken_at_start = self.is_broken_at_end = False

    def next_attempt(self) -> int:
        if self.is_broken_at_start:
            raise RuntimeError("The recorder is broken.")
        self.started += 1
        return self.started

    def attempt_ended(self, record: AttemptRecord) -> None:
        if self.is_broken_at_end:
            raise RuntimeError("The recorder is broken.")
        self.records.append(record)

    def abort_reason(self) -> str | None:
        return self.reason

    def attempts(self, redactor: Redactor | None = None) -> list[StoredAttempt]:
        """Return the attempts by number; a later record of a number replaces an earlier one."""
        latest = {record.number: record for record in self.records}
        return [redact_attempt(record, redactor or Redactor()) for record in latest.values()]

    def only(self, redactor: Redactor | None = None) -> StoredAttempt:
        (attempt,) = self.attempts(redactor)
        return attempt


class RecordedClients(HttpClients):
    """Connections whose exchanges are reported to a step."""

    def __init__(self, find_step: Callable[[], CollectingStep | None]) -> None:
        super().__init__()
        self._find_step = find_step

    def client(self, base_url: str, tls: Tls = Tls()) -> HttpClient:  # noqa: B008 - frozen
        return RecordedHttp(super().client(base_url, tls), self._find_step)
