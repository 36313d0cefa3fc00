"""What a person needs who starts Rookery for the first time: how to make the first account.

Printed for people, never logged: whoever holds the token becomes the administrator.
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
    """The setup token, while there is no administrator."""
    async with database.api.acquire() as conn:
        now = SystemClock().now()
        return await first_admin.ensure_token(conn, settings.data_dir, now=now, configured=settings.setup_token)


def show(url: str, token: str | None, out: Output) -> None:
    """Say how to make the first account, if there is none."""
    if token is None:
        return
    body = json.dumps({"token": token, "email": "you@example.org", "password": "..."})
    out.line()
    if web_app.packaged().is_built:
        out.line("Nobody has an account yet. Make the first one, the administrator's, here; the link works once:")
        out.line(f"  {url}/setup#token={token}")
        out.line("Or in another terminal:")
    else:
        out.line("Nobody has an account yet. Make the first one, the administrator's, in another terminal:")
    out.line(f"  {_program()} chat login {url}")
    out.line("It asks for this setup token, which works once:")
    out.line(f"  {token}")
    out.line("Or, without logging in:")
    out.line(f"  curl -X POST {url}/api/v1/setup -H 'Content-Type: application/json' -d {shlex.quote(body)}")
    out.line()


def _program() -> str:
    """How this program is called from here: the one of a virtual environment is on nobody's path."""
    is_ours = Path(sys.argv[0]).name == PROGRAM
    return shlex.quote(sys.argv[0]) if is_ours and shutil.which(PROGRAM) is None else PROGRAM
