"""The parts of the web application that are made from the server's: its types follow the API's description."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_types_of_the_web_application_follow_the_api() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "web" / "scripts" / "api_types.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert check.returncode == 0, check.stderr
