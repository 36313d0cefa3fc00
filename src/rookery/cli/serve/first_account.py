"""The instructions for the first account, printed at the first start.

They are printed, never logged, because the token allows its holder to become the administrator.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from pathlib import Path

from rookery.api import web_app
from rookery.cli.output import Output
from rookery.runtime.clock import SystemClock
from rookery.settings.settings import Settings
from rookery.store.db.pool import Database
from rookery.store.people import first_admin

PROGRAM = "rookery"


async def find_token(settings: Settings, database: Database) -> str | None:
    """Return the setup token; None if there is an administrator."""
    async with database.api.acquire() as conn:
        now = SystemClock().now()
        return await first_admin.ensure_token(conn, settings.data_dir, now=now, configured=settings.setup_token)


def show(url: str, token: str | None, out: Output) -> None:
    """Print the instructions for the first account, if there is none."""
    if token is None:
        return
    body = json.dumps({"token": token, "email": "you@example.org", "password": "..."})
    out.line()
    if web_app.packaged().is_built:
        out.line(
            "There is no account yet. Create the first one, the administrator's, with this link, which works once:"
        )
        out.line(f"  {url}/setup#token={token}")
        out.line("Or in another terminal:")
    else:
        out.line("There is no account yet. Create the first one, the administrator's, in another terminal:")
    out.line(f"  {_program()} chat login {url}")
    out.line("It asks for this setup token, which works once:")
    out.line(f"  {token}")
    out.line("Or, without logging in:")
    out.line(f"  curl -X POST {url}/api/v1/setup -H 'Content-Type: application/json' -d {shlex.quote(body)}")
    out.line()


def _program() -> str:
    """Return the command that starts this program. A program in a virtual environment is not on the PATH."""
    is_ours = Path(sys.argv[0]).name == PROGRAM
    return shlex.quote(sys.argv[0]) if is_ours and shutil.which(PROGRAM) is None else PROGRAM
