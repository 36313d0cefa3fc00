"""Every block of docs/guide/testing.md runs unchanged."""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "testing.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def examples() -> dict[str, Callable[[], Awaitable[None]]]:
    """Return the test functions of all blocks. Each block has its own namespace."""
    found: dict[str, Callable[[], Awaitable[None]]] = {}
    for place, block in enumerate(BLOCKS):
        names: dict[str, Any] = {"__name__": f"testing_guide_{place}"}
        exec(compile(block, f"{PAGE.name}, block {place + 1}", "exec"), names)
        found |= {name: value for name, value in names.items() if name.startswith("test_")}
    return found


EXAMPLES = examples()


@pytest.mark.parametrize("name", EXAMPLES)
async def test_example_of_the_guide_works_as_it_stands(name: str) -> None:
    assert inspect.iscoroutinefunction(EXAMPLES[name])

    await EXAMPLES[name]()


def test_every_block_of_the_guide_is_an_example() -> None:
    assert len(EXAMPLES) >= len(BLOCKS) >= 5
