"""Detection of refusals that are about the replayed history, and the rung of the replay ladder for each.

Pure. Most providers report such a refusal only in words; backquotes are removed from them first.
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
    # An item that this API produced itself, with a field that it does not accept back.
    (re.compile(r"unknown parameter: '?input\[\d+\]"), ReplayFault.UNKNOWN_ITEM),
)
# 404 is the answer for a stored item that is gone; errors inside a stream have no status or 200.
_FAULT_STATUSES = frozenset({None, 200, 400, 404})


def find_replay_fault(status: int | None, codes: Iterable[str], text: str) -> ReplayFault | None:
    """Return the rung of the ladder for this refusal, or None if it is not about the replayed history."""
    if status not in _FAULT_STATUSES:
        return None
    for code in codes:
        if code in _FAULT_CODES:
            return _FAULT_CODES[code]
    plain = text.replace("`", "").lower()
    return next((fault for pattern, fault in _FAULT_TEXTS if pattern.search(plain)), None)
