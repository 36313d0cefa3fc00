"""Reports of subagents: the outcome of a child's turn, and the notice to its parent.

A parent learns of each end once: from a result of `wait_agent`, which names the end, or from a notice in its history.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

import msgspec
from msgspec import UnsetType

from rookery.domain.chat import truncation
from rookery.domain.chat.messages import NewMessage, Role
from rookery.domain.chat.parts import AgentNotice, ToolResult
from rookery.domain.content.attachments import cut_utf8

WAIT_TOOL = "wait_agent"
# The limit of a notice. The parent reads the whole report with `read_agent_report`.
MAX_NOTICE_BYTES = 8 * 1024
# Chosen: the limit of all reports that are told together. They are in the prompt, and a small model must have room for
# them.
MAX_TOGETHER_BYTES = 32 * 1024
# Chosen: a shorter piece of a report is useless.
MIN_REPORT_BYTES = 256
# The room for `report_bytes` in a result.
_CUT_BYTES = 32

_CLOSING = re.compile(r"<\s*/\s*subagent-notice", re.IGNORECASE)
# An end in the text of a result. A title or a report cannot contain this: their quotes are escaped.
_NAMED_END = re.compile(r'"chat_id":"[0-9a-f-]{36}","end_id":(\d{1,18})[,}]')


class AgentOutcome(StrEnum):
    """The outcome of a subagent's turn. `interrupted`: a user or the parent stopped it."""

    FINISHED = "finished"
    ERROR = "error"
    INTERRUPTED = "interrupted"
    DEADLINE = "deadline"


_ENDED = {
    AgentOutcome.FINISHED: "has finished",
    AgentOutcome.ERROR: "has stopped with an error",
    AgentOutcome.INTERRUPTED: "was stopped before it finished",
    AgentOutcome.DEADLINE: "was stopped at its time limit",
}


def cut_reports(reports: Sequence[str]) -> list[str]:
    """Return the beginnings of reports that are told together, so that each fits into a notice."""
    encoded = [report.encode("utf-8", "replace") for report in reports]
    longest = min(truncation.common_length([len(data) for data in encoded], MAX_TOGETHER_BYTES), MAX_NOTICE_BYTES)
    return [
        report if len(data) <= longest else cut_utf8(data, longest).decode()
        for report, data in zip(reports, encoded, strict=True)
    ]


def notice_text(notice: AgentNotice) -> str:
    """Return the notice as the parent's model reads it."""
    try:
        ended = _ENDED[AgentOutcome(notice.outcome)]
    except ValueError:
        ended = "has ended"
    title = " ".join(notice.title.split())
    lines = [f'The subagent "{title}" ({notice.kind}, chat_id {notice.chat_id}) {ended}.']
    if notice.error:
        lines.append(f"Error: {notice.error}")
    if notice.report:
        lines.append(f"Its report:\n{notice.report}")
        if notice.report_bytes > len(notice.report.encode("utf-8", "replace")):
            lines.append(f"[The report has {notice.report_bytes} bytes. Read the rest with read_agent_report.]")
    else:
        lines.append("It left no report.")
    # A report may quote anything. Without the replacement, it could close the block and continue as if the user had
    # written it.
    body = _CLOSING.sub("< /subagent-notice", "\n\n".join(lines))
    return f"<subagent-notice>\n{body}\n</subagent-notice>"


def fit_reports(results: Sequence[Mapping[str, Any]], max_bytes: int) -> list[Mapping[str, Any]]:
    """Return results of `wait_agent` with their longest reports cut to one length, so that their JSON fits.

    Otherwise the whole result would be cut as text, and some subagents would be missing in it. A result without a
    report is left as it is.
    """
    sizes = [_json_bytes(each["report"]) for each in results if each.get("report")]
    room = max_bytes - (_json_bytes(results) - sum(sizes))
    if sum(sizes) <= room:
        return list(results)
    longest = max(truncation.common_length(sizes, room - _CUT_BYTES * len(sizes)), MIN_REPORT_BYTES)
    return [_with_report_cut(each, longest) if _json_bytes(each.get("report")) > longest else each for each in results]


def _with_report_cut(result: Mapping[str, Any], max_bytes: int) -> Mapping[str, Any]:
    report: str = result["report"]
    cut, allowed = report, max_bytes
    for _ in range(4):
        cut = truncation.cut_middle(report, allowed, _left_out)
        if (size := _json_bytes(cut)) <= max_bytes:
            break
        # Quotes and line ends take more bytes in JSON.
        allowed = allowed * max_bytes // size - 16
    return {**result, "report": cut, "report_bytes": len(report.encode("utf-8", "replace"))}


def _left_out(removed: int) -> str:
    return f"\n\n[... {removed} bytes of this report are left out. Read it whole with read_agent_report. ...]\n\n"


def _json_bytes(value: object) -> int:
    return len(msgspec.json.encode(value))


class _Told(msgspec.Struct, frozen=True):
    end_id: int | None = None


class _Waited(msgspec.Struct, frozen=True):
    """A result of `wait_agent`. `output` is its JSON as text, if there was no room for all of it."""

    end_id: int | None = None
    agents: Sequence[_Told] = ()
    output: str = ""


_results = msgspec.json.Decoder(_Waited)


def told_ends(rows: Iterable[NewMessage]) -> tuple[int, ...]:
    """Return the ids of the ends that are reported by results of `wait_agent` in these rows."""
    found: list[int] = []
    for row in rows:
        if row.role is not Role.TOOL:
            continue
        for part in row.content:
            if isinstance(part, ToolResult) and part.tool_name == WAIT_TOOL and not part.is_error:
                found.extend(_ends_in(part))
    return tuple(found)


def _ends_in(part: ToolResult) -> list[int]:
    if isinstance(part.result, UnsetType):
        return []
    try:
        result = _results.decode(part.result)
    except (msgspec.DecodeError, ValueError):
        return []
    ids = (result.end_id, *(each.end_id for each in result.agents))
    # Of a result that was cut as text, only those ends count that can be read in it. The others are told by a notice.
    return [*(end_id for end_id in ids if end_id is not None), *map(int, _NAMED_END.findall(result.output))]
