"""Two builds of the web application give the same files, so that a build can be verified by repeating it."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rookery.api import web_app

WEB = Path(__file__).parents[2] / "web"
SOURCES = ("src", "public", "sandbox", "scripts", "index.html", "package.json", "tsconfig.json", "vite.config.ts")
MAX_SECONDS = 120


def digests(folder: Path) -> dict[str, str]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def newest(*paths: Path) -> float:
    files = [path for each in paths for path in ([each] if each.is_file() else each.rglob("*"))]
    return max(path.stat().st_mtime for path in files if path.is_file() and ".test." not in path.name)


def test_build_elsewhere_gives_the_same_files_byte_for_byte(tmp_path: Path) -> None:
    built = web_app.packaged().files[web_app.PAGE].path
    if newest(WEB / "src", WEB / "public", WEB / "vite.config.ts") > built.stat().st_mtime and "CI" not in os.environ:
        pytest.skip("The web application was built from other sources: make web.")
    elsewhere = tmp_path / "another" / "folder"
    elsewhere.mkdir(parents=True)
    for name in SOURCES:
        copy = shutil.copytree if (WEB / name).is_dir() else shutil.copy
        copy(WEB / name, elsewhere / name)
    (elsewhere / "node_modules").symlink_to(WEB / "node_modules")

    # Node may be the one of the environment. Nothing else of this process's surroundings is the same, either.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    surroundings = {"PATH": path, "HOME": str(tmp_path), "TZ": "Pacific/Auckland", "LC_ALL": "C"}
    vite = ("node", "node_modules/vite/bin/vite.js", "build", "--logLevel", "warn", "--outDir", str(tmp_path / "out"))
    subprocess.run(vite, cwd=elsewhere, env=surroundings, check=True, timeout=MAX_SECONDS)

    ours, theirs = digests(built.parent), digests(tmp_path / "out")
    assert ours.keys() == theirs.keys()
    assert {name for name, digest in ours.items() if theirs[name] != digest} == set()
    assert {".br", ".gz", ".html", ".js", ".css"} <= {Path(name).suffix for name in ours}
