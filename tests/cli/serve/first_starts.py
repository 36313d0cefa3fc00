"""First starts of the server. Each is set up at the moment it reports that it is ready.

    python -m tests.cli.serve.first_starts [--starts 20] [--replicas 1]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}.
"""

from __future__ import annotations

import argparse
import json
import socket
import stat
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from rookery.store.people import first_admin
from tests.cli.serve.server_process import SCRIPT, environment

START_SECONDS = 60.0
STOP_SECONDS = 60.0
LOOK_SECONDS = 0.005


@dataclass(frozen=True, slots=True)
class Token:
    """The setup token file at the moment when the server reported that it was ready."""

    text: str
    mode: int


class NotReady(Exception):
    """The server ended, was not ready in time, or had no token when it was ready."""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port: int = listening.getsockname()[1]
    return port


def arguments(data_dir: Path, port: int, *, replicas: int) -> list[str]:
    return ["serve", "--listen", f"127.0.0.1:{port}", "--data-dir", str(data_dir), "--replicas", str(replicas)]


def wait_ready(process: subprocess.Popen[bytes], port: int, data_dir: Path) -> Token:
    """Poll until the status is 200, and read the token file immediately."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise NotReady(f"The server ended with {process.returncode}.")
        if _is_ready(port):
            path = data_dir / first_admin.TOKEN_FILE
            try:
                return Token(path.read_text().strip(), stat.S_IMODE(path.stat().st_mode))
            except FileNotFoundError:
                raise NotReady("The server said that it is ready before the file of its token was there.") from None
        time.sleep(LOOK_SECONDS)
    raise NotReady(f"The server was not ready within {START_SECONDS:g} s.")


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=START_SECONDS) as answer:
            return bool(answer.status == 200)
    except OSError:
        # The server does not listen yet, or answers 503.
        return False


def set_up(port: int, token: str) -> int:
    """Create the first administrator. Return the status."""
    body = {"token": token, "email": "ada@example.org", "password": "correct horse battery"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/api/v1/setup", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            return error.code


def start(folder: Path, arguments: list[str], **variables: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([SCRIPT, *arguments], env=environment(folder, **variables), stdout=subprocess.DEVNULL)


def start_once(folder: Path, *, replicas: int) -> str:
    """Start once. Return the problems."""
    data_dir, port = folder / "data", free_port()
    process = start(folder, arguments(data_dir, port, replicas=replicas))
    try:
        token = wait_ready(process, port, data_dir)
        if token.mode != 0o600:
            return f"The file of the token has mode {token.mode:o}."
        status = set_up(port, token.text)
        return "" if status == 201 else f"Setting up was answered with {status}."
    except NotReady as error:
        return str(error)
    finally:
        process.terminate()
        process.wait(STOP_SECONDS)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--starts", type=int, default=20)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    failures = []
    for number in range(1, options.starts + 1):
        with tempfile.TemporaryDirectory(prefix="rookery-first-") as folder:
            found = start_once(Path(folder), replicas=options.replicas)
        print(f"{number}: {found or 'ready, and set up at once'}", flush=True)
        if found:
            failures.append(found)
    claims = {
        "first starts that could not be set up at once": {"value": len(failures), "budget": 0, "ok": not failures}
    }
    print(json.dumps(claims))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
