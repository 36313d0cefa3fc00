"""The Python interpreters of this machine that workspaces may use."""

from __future__ import annotations

import os
import sys
from pathlib import Path

OLDEST, NEWEST = 9, 15


def find() -> list[str]:
    """Return one Python of each version here that the agent supports, oldest first; that of the tests is always
    included, and last.
    """
    places = [Path(name) for name in os.environ.get("PATH", "").split(os.pathsep)]
    places += sorted(Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin"))
    found: dict[str, str] = {}
    for place in places:
        for minor in range(OLDEST, NEWEST + 1):
            path = place / f"python3.{minor}"
            if minor != sys.version_info.minor and os.access(path, os.X_OK) and "shims" not in path.parts:
                found.setdefault(path.name, str(path))
    return [*(found[name] for name in sorted(found, key=lambda name: int(name.split(".")[1]))), sys.executable]
