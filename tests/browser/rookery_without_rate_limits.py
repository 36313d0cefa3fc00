"""`rookery`, with so high a limit of requests that tests in a browser, which share their users, do not reach it."""

from __future__ import annotations

import sys

from rookery.api import rate_limits
from rookery.cli.main import main

assert isinstance(rate_limits.PER_MINUTE, dict)
rate_limits.PER_MINUTE[rate_limits.Limit.API] = 1_000_000

if __name__ == "__main__":
    sys.exit(main())
