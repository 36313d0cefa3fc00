"""The arguments of the admin commands for secrets, providers and models.

`main` passes in how a command gets its common flags and how it is run; the modules that do the work are imported when
their command is chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeAlias

from rookery.settings import Loaded

if TYPE_CHECKING:
    from rookery.cli.output import Output

Add: TypeAlias = Callable[..., argparse.ArgumentParser]
Run: TypeAlias = "Callable[[Coroutine[Any, Any, int], Loaded, Output], int]"


def add_to(tasks: Any, add: Add, run: Run) -> None:
    """The commands below `rookery admin`."""
    _add_secrets(tasks, add, run)


def _add_secrets(tasks: Any, add: Add, run: Run) -> None:
    def rotate(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
        from rookery.cli import admin_secrets

        if arguments.status:
            return run(admin_secrets.status(loaded.settings, out), loaded, out)
        return run(admin_secrets.rotate(loaded.settings, out, full=arguments.full), loaded, out)

    command = add(tasks, "rotate-secrets", rotate, "seal every stored key with the active key of the ring")
    what = command.add_mutually_exclusive_group()
    what.add_argument("--status", action="store_true", help="only show how many values are under which key")
    what.add_argument("--full", action="store_true", help="encrypt the values anew too, not only their data keys")
