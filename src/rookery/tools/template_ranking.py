"""The ranking of templates for list_templates: matches of a query, their order, and a recommendation. Pure.

A template is recommended if its name matches best, or if the owner and others use it clearly more than the next one.
Otherwise the result tells the model to ask the user.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from rookery.domain.content import front_matter, invisible_characters
from rookery.store.workspaces.templates import Signals

PAGE_SIZE = 10
HALF_LIFE_DAYS = 14.0
DESCRIPTION_CHARS = 200
EXCERPT_CHARS = 1000
MAX_README_CHARS = 64 * 1024
# The score difference between two active users and one. The difference between sixteen and fifteen is smaller.
LEAD = math.log(3) - math.log(2)
ENOUGH = math.log(3)
_ROUNDING = 1e-9
_IGNORED = re.compile(r"[\s_-]+")

_MARKDOWN: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"^```.*?$", re.MULTILINE), ""),
    (re.compile(r"!\[([^\]]*)\]\([^)]*\)"), r"\1"),
    (re.compile(r"\[([^\]]+)\]\([^)]*\)"), r"\1"),
    (re.compile(r"^\s{0,3}(?:#{1,6}|>)\s*", re.MULTILINE), ""),
    (re.compile(r"</?[A-Za-z][^>\n]*>"), ""),
    (re.compile(r"(\*\*|__|`)"), ""),
)


class Facts(msgspec.Struct, frozen=True):
    """The properties of a template that the ranking uses. The name is the id."""

    name: str
    display_name: str = ""
    description: str = ""
    readme: str = ""


class _Ranked(msgspec.Struct, frozen=True):
    facts: Facts
    tier: int
    affinity: float
    signals: Signals


def shortlist(
    visible: Sequence[Facts],
    *,
    query: str | None,
    page: int,
    signals: Mapping[str, Signals] | None,
    now: datetime,
) -> dict[str, Any]:
    """Return the result of list_templates. `signals` is None if they could not be read."""
    wanted = _folded(query or "")
    page = max(page, 1)
    ranked = sorted(
        (each for each in (_rank(facts, wanted, signals, now=now) for facts in visible) if each.tier or not wanted),
        key=lambda each: (-each.tier, -each.affinity, each.facts.name),
    )
    start = (page - 1) * PAGE_SIZE
    shown = ranked[start : start + PAGE_SIZE]
    best = _recommended(ranked, is_only=len(visible) == 1, has_query=bool(wanted), has_signals=signals is not None)
    result: dict[str, Any] = {"templates": [_item(each) for each in shown], "page": page}
    if start + PAGE_SIZE < len(ranked):
        result["next_page"] = page + 1
    if best is not None and page == 1:
        result["recommended_template_id"] = best
    result["next_step"] = _next_step(best, has_results=bool(ranked), has_visible=bool(visible), has_query=bool(wanted))
    return result


def affinity(signals: Signals, *, now: datetime) -> float:
    """Return a score of how much the owner uses a template. Recent use counts more, use by others counts less."""
    own = 0.0
    used = signals.active + 0.5 * signals.deleted
    if used and signals.last_used_at is not None:
        days = max((now - signals.last_used_at).total_seconds() / 86400, 0.0)
        own = 10 * used * 0.5 ** (days / HALF_LIFE_DAYS)
    return own + math.log(1 + signals.active_users)


def tier(facts: Facts, wanted: str) -> int:
    """Return how well the query matches.

    4: the name; 3: its beginning; 2: a part of it; 1: the description; 0: no match.
    """
    names = [_folded(name) for name in (facts.name, facts.display_name) if name]
    if wanted in names:
        return 4
    if any(name.startswith(wanted) for name in names):
        return 3
    if any(wanted in name for name in names):
        return 2
    return 1 if wanted in _folded(facts.description) else 0


def excerpt(readme: str, max_chars: int = EXCERPT_CHARS) -> str:
    """Return the beginning of a README as plain text, without Markdown."""
    text = invisible_characters.clean_markdown(front_matter.split(readme[:MAX_README_CHARS])[1])
    for pattern, replacement in _MARKDOWN:
        text = pattern.sub(replacement, text)
    return _cut(invisible_characters.clean(text), max_chars)


def _rank(facts: Facts, wanted: str, signals: Mapping[str, Signals] | None, *, now: datetime) -> _Ranked:
    own = (signals or {}).get(facts.name, Signals())
    return _Ranked(facts, tier(facts, wanted) if wanted else 0, affinity(own, now=now), own)


def _recommended(ranked: Sequence[_Ranked], *, is_only: bool, has_query: bool, has_signals: bool) -> str | None:
    if not ranked:
        return None
    best, second = ranked[0], ranked[1] if len(ranked) > 1 else None
    lead = best.affinity - (second.affinity if second else 0.0)
    if is_only:
        is_clear = True
    elif has_query:
        is_clear = second is None or best.tier > second.tier or (has_signals and lead >= LEAD - _ROUNDING)
    else:
        is_rival = second is not None and second.affinity >= ENOUGH - _ROUNDING and lead < LEAD - _ROUNDING
        is_clear = has_signals and best.affinity >= ENOUGH - _ROUNDING and not is_rival
    return best.facts.name if is_clear else None


def _item(each: _Ranked) -> dict[str, Any]:
    facts, signals = each.facts, each.signals
    item = {
        "id": facts.name,
        "name": facts.name,
        "display_name": facts.display_name,
        "description": _cut(invisible_characters.clean(facts.description), DESCRIPTION_CHARS),
        "active_users": signals.active_users,
        "your_workspace_count": signals.active,
        "last_used_by_you": signals.last_used_at.isoformat() if signals.last_used_at else None,
        "readme_excerpt": excerpt(facts.readme),
    }
    return {key: value for key, value in item.items() if value}


def _next_step(best: str | None, *, has_results: bool, has_visible: bool, has_query: bool) -> str:
    if best is not None:
        return f"Use {best} with create_workspace. Call read_template only when you need its details or parameters."
    if has_results:
        return "Do not create a workspace yet. Ask the user which template to use, unless they have named one."
    if has_visible and has_query:
        return "Nothing matches. Call list_templates without a query, or ask the user what they need."
    return "There is no template for this user. Tell the user that an administrator has to add or allow one."


def _folded(text: str) -> str:
    return _IGNORED.sub("", text.casefold())


def _cut(text: str, max_chars: int) -> str:
    return text if len(text) <= max_chars else text[: max_chars - 1].rstrip() + "\N{HORIZONTAL ELLIPSIS}"
