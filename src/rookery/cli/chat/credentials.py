"""The server and the token of the terminal client: from arguments, the environment, or a file of the user.

A token is stored with its server's address, and is sent only to that server. Only its owner can read the file.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from rookery.cli.exit_codes import Exit, Refused
from rookery.client.async_client import DEFAULT_URL
from rookery.client.http import normal_url, require_token

URL_VARIABLE = "ROOKERY_URL"
TOKEN_VARIABLE = "ROOKERY_TOKEN"  # noqa: S105 - the name of a variable
FILE_NAME = "credentials.json"


class Login(msgspec.Struct, frozen=True, kw_only=True):
    """A token for one server, and its user."""

    token: str
    token_id: str | None = None
    user: str | None = None


class Logins(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. `last` is the server to use if none is named."""

    servers: dict[str, Login] = {}
    last: str | None = None


class Credentials(msgspec.Struct, frozen=True):
    url: str
    token: str | None
    is_from_environment: bool = False


class CredentialsFile:
    def __init__(self, environ: Mapping[str, str]) -> None:
        # According to the XDG specification, a relative path is invalid and must be ignored.
        given = Path(environ.get("XDG_CONFIG_HOME", ""))
        home = Path(environ["HOME"]) if environ.get("HOME") else Path("~").expanduser()
        self.path = (given if given.is_absolute() else home / ".config") / "rookery" / FILE_NAME

    def load(self) -> Logins:
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return Logins()
        self._require_private()
        try:
            return msgspec.json.decode(data, type=Logins)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise Refused(
                f"{self.path} cannot be read: {error}. Remove it and log in again.", code=Exit.USAGE
            ) from None

    def save(self, logins: Logins) -> None:
        """Replace the file atomically. Only its owner can read it from its creation on."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self.path.with_name(f".{FILE_NAME}.{os.getpid()}")
        with suppress(FileNotFoundError):
            draft.unlink()
        with open(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(logins), indent=2) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        draft.replace(self.path)

    def add(self, url: str, login: Login) -> None:
        known = self.load()
        self.save(Logins(servers={**known.servers, url: login}, last=url))

    def remove(self, url: str) -> Login | None:
        """Remove a server. Return its login."""
        known = self.load()
        if url not in known.servers:
            return None
        others = {name: login for name, login in known.servers.items() if name != url}
        self.save(Logins(servers=others, last=None if known.last == url else known.last))
        return known.servers[url]

    def _require_private(self) -> None:
        if stat.S_IMODE(self.path.stat().st_mode) & 0o077:
            raise Refused(
                f"{self.path} can be read by others. Run `chmod 600 {self.path}`, and revoke its tokens.",
                code=Exit.NOT_ALLOWED,
            )


def find(flag: str | None, environ: Mapping[str, str], file: CredentialsFile) -> Credentials:
    """Return the server and its token. The environment takes precedence over the file."""
    url = address(flag, environ, file)
    if given := environ.get(TOKEN_VARIABLE):
        try:
            require_token(given)
        except ValueError as error:
            raise Refused(f"{TOKEN_VARIABLE}: {error}", code=Exit.USAGE) from None
        return Credentials(url, given, is_from_environment=True)
    login = file.load().servers.get(url)
    return Credentials(url, None if login is None else login.token)


def address(flag: str | None, environ: Mapping[str, str], file: CredentialsFile) -> str:
    given = flag or environ.get(URL_VARIABLE) or file.load().last or DEFAULT_URL
    try:
        return normal_url(given)
    except ValueError as error:
        raise Refused(str(error), code=Exit.USAGE) from None
