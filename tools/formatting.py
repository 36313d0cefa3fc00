"""The formatter for generated code: it formats, sorts imports and removes unused ones."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
NAME = "src/rookery/client/generated.py"


def formatted(source: str) -> str:
    fixed = _ruff("check", "--fix", "--select", "F401,F811,I", "--quiet", source=source)
    return _ruff("format", source=fixed)


def _ruff(*arguments: str, source: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own linter, with arguments from here
        [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", NAME, "-"],
        input=source,
        capture_output=True,
        text=True,
        cwd=ROOT,
        check=False,
    )
    if done.returncode != 0:
        raise RuntimeError(f"{done.stderr}\n{done.stdout}")
    return done.stdout
