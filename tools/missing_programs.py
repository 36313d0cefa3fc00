"""Prints which tests were skipped because a program is missing, and the command that installs the programs."""

from __future__ import annotations

import os
import shutil
import sys

# The program, its use in the tests, and its Debian packages.
PROGRAMS = (
    ("chromium", "the web application in a browser", "chromium fonts-dejavu-core"),
    ("sshd", "workspaces on other machines", "openssh-server openssh-client"),
    ("curl", "the examples of the guide to the API, and the network of workspaces", "curl"),
    ("bwrap", "sandboxes inside a workspace", "bubblewrap"),
    ("node", "the shipped template for Node", "nodejs"),
)


def main() -> None:
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [row for row in PROGRAMS if shutil.which(row[0], path=path) is None]
    if not missing:
        return
    print("\nTests that need these programs were skipped:")
    for name, subject, _ in missing:
        print(f"  {name:10} {subject}")
    print(f"To run them too: sudo apt-get install --no-install-recommends {' '.join(row[2] for row in missing)}")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
