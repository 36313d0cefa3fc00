"""The test runner: runs pytest, then runs the few tests that failed once more, alone.

Most tests wait for processes, sockets and databases, and many run in parallel on few cores. A test that fails there and
passes alone shows that the machine was busy, or that the test is unstable: it is listed, and does not fail the run. A
test that also fails alone, or more than a handful of failures, fails the run.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

FAILED = 1  # pytest's exit status for "tests were run, some failed"
MAX_UNSTABLE = 15  # chosen: more than this is a bug in the tree, not a busy machine
LAST_FAILED = Path(".pytest_cache/v/cache/lastfailed")


def main(arguments: list[str]) -> int:
    # A shell starts background jobs with SIGINT ignored, and children inherit this. Tests send SIGINT to servers.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    LAST_FAILED.unlink(missing_ok=True)
    status = _pytest(arguments)
    failed = sorted(json.loads(LAST_FAILED.read_text())) if LAST_FAILED.exists() else []
    if status != FAILED or not failed or len(failed) > MAX_UNSTABLE:
        return status
    # Printed before the second run, so that pytest's summary is the last line of the output.
    print("\n== These tests failed and are run again, alone. Those that pass now are unstable:", *failed, sep="\n   ")
    sys.stdout.flush()
    return _pytest(["-p", "no:randomly", *failed])


def _pytest(arguments: list[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *arguments], check=False).returncode  # noqa: S603


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
