"""Which refusals are about the replayed history, and which rung of the ladder answers them.

Pure. The rungs are those of models.md, "Replay ladder". Most providers tell it in words only; backquotes are taken out
of them first.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from rookery.llm.types import ReplayFault

_FAULT_CODES = {
    "invalid_encrypted_content": ReplayFault.UNPROVEN_REASONING,
    "tool_use_failed": ReplayFault.INVALID_CALL,
}
_FAULT_TEXTS: tuple[tuple[re.Pattern[str], ReplayFault], ...] = (
    (re.compile(r"bound to a different conversation"), ReplayFault.STALE_THINKING),
    (
        re.compile(
            r"\A(?=.*signature)(?=.*thinking)|invalid_encrypted_content|item with id .{1,200}not found"
            r"|without its required '?reasoning'? item|without its required following item",
            re.DOTALL,
        ),
        ReplayFault.UNPROVEN_REASONING,
    ),
    (
        re.compile(
            r"no tool (output|call) found for (function|custom tool|computer|tool) call"
            r"|tool_use ids were found without tool_result"
            r"|tool_use ids must be unique|multiple tool_result blocks with id|unexpected tool_use_id found"
            r"|duplicate item found with id|duplicate (tool|call|item)\w* ids?"
            r"|tool_calls'? must be followed by tool messages|'?tool'? must be a response to a prece"
        ),
        ReplayFault.BROKEN_PAIRS,
    ),
    # An item that this API gave out itself, with a field that it does not take back.
    (re.compile(r"unknown parameter: '?input\[\d+\]"), ReplayFault.UNKNOWN_ITEM),
)
# 404 because that is how a stored item that is gone is answered; no status and 200 are errors inside a stream.
_FAULT_STATUSES = frozenset({None, 200, 400, 404})


def find_replay_fault(status: int | None, codes: Iterable[str], text: str) -> ReplayFault | None:
    """Which rung of the ladder answers this refusal, if it is about the replayed history at all."""
    if status not in _FAULT_STATUSES:
        return None
    for code in codes:
        if code in _FAULT_CODES:
            return _FAULT_CODES[code]
    plain = text.replace("`", "").lower()
    return next((fault for pattern, fault in _FAULT_TEXTS if pattern.search(plain)), None)
