"""The shared input of the admin commands for providers and models: keys, options and refusals.

A key is read from a prompt or from stdin, never from the arguments, because arguments appear in the process list and in
the shell's history.
"""

from __future__ import annotations

import getpass
import sys
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager

import msgspec

from rookery.app import installation
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.models.options import KEYLESS
from rookery.runtime.secret_str import SecretStr
from rookery.settings.settings import Settings
from rookery.store.db import migrate
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pool import Connection, Database
from rookery.store.db.pubsub import Bus, Notifier
from rookery.store.models.errors import KeysMissing, ModelError, ProviderReadOnly
from rookery.store.models.providers import MAX_KEY_BYTES

# The command-line names of the store's fields. Options are `--option NAME=...`; the others are flags.
_ARGUMENTS = {"name": "NAME", "model": "MODEL", "provider_id": "PROVIDER", "api_key": "the key", "type": "TYPE"}
_FLAGS = {"central_key_enabled": "--no-central-key", "allow_central_fallback": "--no-fallback", "is_default": "MODEL"}


class Outcome:
    """The exit code of a command that may be refused."""

    code: int = Exit.OK


@contextmanager
def refusals(out: Output) -> Iterator[Outcome]:
    """Convert refusals of the store to one line for users, an error for programs, and an exit code."""
    outcome = Outcome()
    try:
        yield outcome
    except InvalidInput as error:
        outcome.code = _refuse(out, Exit.USAGE, f"{_argument(error.field)}: {error}", field=error.field)
    except ModelError as error:
        outcome.code = _refuse(out, _exit_code(error), str(error), code=error.code)
    except Refused as error:
        outcome.code = _refuse(out, error.code, str(error))


@asynccontextmanager
async def opened(settings: Settings, out: Output) -> AsyncIterator[tuple[Database, Connection]]:
    """Open the database and check that this version can use its schema."""
    async with installation.command_database(settings, out.progress) as database, database.api.acquire() as conn:
        await migrate.check(conn, advice="`rookery admin migrate` applies them.")
        yield database, conn


async def announce(database: Database, kind: str, changed: object) -> None:
    """Notify running servers of the change. Without the notification, they would notice it some seconds later."""
    notifier = Notifier(database.worker, Bus())
    notifier.publish([ConfigHint(kind=kind, id=str(changed))])
    await notifier.close()


def read_key(type_: str, name: str, *, from_stdin: bool, none: bool) -> SecretStr | None:
    """Return the key of a provider, from stdin or from a prompt; None if none was given and none is needed."""
    if from_stdin:
        return _piped_key()
    if none or type_ == "scripted":
        return None
    is_needed = type_ not in KEYLESS
    if sys.stdin is None or not sys.stdin.isatty():
        if is_needed:
            raise Refused(
                f"A provider of type {type_} needs a key, and there is no terminal to ask for it. Pipe it in with "
                "--key-stdin.",
                code=Exit.USAGE,
            )
        return None
    typed = getpass.getpass(f"API key for {name}{'' if is_needed else ' (empty for none)'}: ").strip()
    if typed:
        return SecretStr(typed)
    if is_needed:
        raise Refused("No key was typed. Paste it at the prompt, or pipe it in with --key-stdin.", code=Exit.USAGE)
    return None


def parse_options(given: Sequence[str]) -> dict[str, object]:
    """Parse `NAME=VALUE` pairs. A value that is JSON is read as JSON; any other value is text."""
    options: dict[str, object] = {}
    for pair in given:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise Refused("--option is given as NAME=VALUE, for example --option temperature=0.2", code=Exit.USAGE)
        if name in options:
            raise Refused(f"--option {name} is given twice.", code=Exit.USAGE)
        try:
            options[name] = msgspec.json.decode(value)
        except msgspec.DecodeError:
            options[name] = value
    return options


def shown_options(options: msgspec.Struct) -> dict[str, object]:
    """Return options for display. Header values are masked, because they may be secrets."""
    shown: dict[str, object] = msgspec.to_builtins(options)
    headers = shown.get("headers")
    if isinstance(headers, Mapping):
        shown["headers"] = dict.fromkeys(headers, "***")
    return shown


def _piped_key() -> SecretStr:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_KEY_BYTES + 3)
    # `echo` and editors add one line end. The store refuses other unusual input.
    text = data.decode("utf-8", "replace").removesuffix("\n").removesuffix("\r")
    if not text:
        raise Refused("There is no key on stdin. Pipe it in: rookery ... --key-stdin < FILE", code=Exit.USAGE)
    return SecretStr(text)


def _exit_code(error: ModelError) -> Exit:
    match error:
        case ProviderReadOnly():
            return Exit.NOT_ALLOWED
        case KeysMissing():
            return Exit.USAGE
    return Exit.FAILED


def _argument(field: str) -> str:
    if field.startswith("options."):
        return f"--option {field.removeprefix('options.')}"
    return _ARGUMENTS.get(field) or _FLAGS.get(field) or f"--{field.replace('_', '-')}"


def _refuse(out: Output, exit_code: Exit, message: str, **more: object) -> int:
    out.error(message)
    out.result({"error": {"exit_code": int(exit_code), "message": message, **more}})
    return exit_code
