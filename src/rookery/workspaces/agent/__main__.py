"""`python3 rookery-agent.pyz --run-dir DIR`, and `python -m rookery.workspaces.agent`."""

from __future__ import annotations

from rookery.workspaces.agent.main import main

if __name__ == "__main__":
    main()
