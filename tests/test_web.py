"""The parts of the web application that are made from the server's: its types follow the API's description."""

from __future__ import annotations

import gzip
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "src" / "rookery" / "web_dist"


def test_types_of_the_web_application_follow_the_api() -> None:
    check = subprocess.run(
        [sys.executable, ROOT / "web" / "scripts" / "api_types.py", "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert check.returncode == 0, check.stderr


@pytest.mark.skipif(not (DIST / "index.html").exists(), reason="the web application is not built: make web")
def test_files_loaded_before_the_first_chat_stay_small() -> None:
    page = (DIST / "index.html").read_text()
    scripts = {name: packed(name) for name in re.findall(r'(?:src|href)="/(assets/[^"]+\.js)"', page)}
    styles = {name: packed(name) for name in re.findall(r'href="/(assets/[^"]+\.css)"', page)}

    assert scripts
    assert sum(scripts.values()) <= 260 * 1024, scripts
    assert max(scripts.values()) <= 90 * 1024, scripts
    assert sum(styles.values()) <= 25 * 1024, styles


def packed(name: str) -> int:
    return len(gzip.compress((DIST / name).read_bytes(), compresslevel=9))
