"""Tool names for the model, unique within a step. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable

MAX_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9_-]")


def unique_names(tools: Iterable[tuple[str, str]], taken: Collection[str] = ()) -> dict[tuple[str, str], str]:
    """Return a name for each pair of slug and original name.

    Names are assigned in the order of the pairs, so that they do not depend on the order in which servers answer.
    """
    used = set(taken)
    names: dict[tuple[str, str], str] = {}
    for slug, tool in sorted(set(tools)):
        name = joined(slug, tool)
        base, number = name, 1
        while name in used:
            number += 1
            suffix = f"_{number}"
            name = base[: MAX_NAME - len(suffix)] + suffix
        used.add(name)
        names[slug, tool] = name
    return names


def joined(slug: str, tool: str) -> str:
    return f"{_UNSAFE.sub('_', slug)}__{_UNSAFE.sub('_', tool)}"[:MAX_NAME]


def is_offered(tool: str, *, allow: Collection[str], deny: Collection[str]) -> bool:
    """Return whether the allow list and the deny list of a server offer a tool. Both contain original names; the deny
    list takes precedence.
    """
    return tool not in deny and (not allow or tool in allow)
