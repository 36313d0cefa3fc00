"""The entry point of `rookery`: arguments, settings, exit codes, and the dispatch to commands.

Commands are imported when they are chosen. An expected failure is reported by one line on stderr and an exit code from
one table. A traceback is shown only at log level debug.
"""

from __future__ import annotations

import argparse
import atexit
import gc
import os
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from rookery import __version__
from rookery.cli.admin import arguments as admin_arguments
from rookery.cli.bench import arguments as bench_arguments
from rookery.cli.chat import arguments as chat_arguments
from rookery.cli.exit_codes import Exit, exit_code
from rookery.cli.parser import Parser, rare
from rookery.settings import keys, settings
from rookery.settings.settings import Loaded, SettingsError

if TYPE_CHECKING:
    # At run time it is imported late, because it loads the log and asyncio, which take half the time of `rookery
    # --help`.
    from rookery.cli.output import Output

SETTINGS = "settings"
# The settings in `--help`. `--help-all` has all of them.
COMMON_SETTINGS = ("data_dir", "database_url")
COMMON_SETTINGS_OF_A_SERVER = ("config", *COMMON_SETTINGS, "listen", "external_url", "replicas")

Command: TypeAlias = "Callable[[argparse.Namespace, Loaded, Output], int]"


def main(argv: Sequence[str] | None = None) -> int:
    _open_missing_streams()
    # At exit, the interpreter would search for cycles several times. That takes 0.3 s and frees memory that the exit
    # frees anyway.
    atexit.register(gc.freeze)
    try:
        arguments = parser().parse_args(argv)
        from rookery.cli.output import Output

        return run(lambda out: _execute(arguments, out), Output(sys.stdout, sys.stderr, json=arguments.json))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    finally:
        # There is nothing left to interrupt. Another signal would only replace the exit code.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def _open_missing_streams() -> None:
    """Open closed standard streams.

    Otherwise the next file or socket would get the number of a standard stream and receive output for users. libuv
    aborts when it closes such a number.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one, because the lower ones are open by now.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    # Python sets these to None if they were closed at the start.
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115 - open as long as the process
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def run(command: Callable[[Output], int], out: Output) -> int:
    """Run a command and return its exit code. No exception is raised."""
    from rookery.cli.output import OutputClosed

    try:
        code = _guarded(command, out)
        out.finish()
    except OutputClosed as closed:
        out.abandon()
        if closed.reason:
            out.error(f"The output cannot be written: {closed.reason}.")
        return Exit.FAILED
    return code


def _guarded(command: Callable[[Output], int], out: Output) -> int:
    from rookery.cli.output import OutputClosed

    try:
        return command(out)
    except OutputClosed:
        raise
    except KeyboardInterrupt:
        out.error("Interrupted.")
        return _failed(out, Exit.INTERRUPTED, "Interrupted.")
    except SettingsError as error:
        return _refuse_settings(error, out)
    except Exception as error:
        if out.show_tracebacks:
            out.traceback(error)
        return _report(_cause(error), out)


def _execute(arguments: argparse.Namespace, out: Output) -> int:
    if not hasattr(arguments, "strict_config"):
        # A client command ignores the settings of a server on this machine. Only the log level is read, so that
        # debugging is enabled in the same way for all commands.
        out.show_tracebacks = os.environ.get("ROOKERY_LOG_LEVEL") == "debug"
        code: int = arguments.run(arguments, out)
        return code
    flags = {key.name: value for key in keys.KEYS if (value := getattr(arguments, key.field, None)) is not None}
    if refused := settings.secret_flags(flags):
        raise SettingsError(refused, [])
    loaded = settings.load(flags, os.environ, strict=arguments.strict_config)
    for name, literal in settings.secret_literals(loaded.settings):
        out.secrets.add(name, literal)
    out.show_tracebacks = loaded.settings.log_level == "debug"
    for warning in loaded.warnings:
        out.warning(str(warning))
    command: Command = arguments.run
    return command(arguments, loaded, out)


# The commands


def _serve(_: argparse.Namespace, loaded: Loaded, out: Output) -> int:
    from rookery.cli.serve import serve
    from rookery.runtime import heap

    heap.share_heap()
    form, level = loaded.settings.log_format, loaded.settings.log_level
    out.has_log_beside = True
    return run_async(serve.run(loaded.settings, out), out, log_format=form, log_level=level)


def _migrate(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
    from rookery.cli.admin import maintenance

    return _run_admin(maintenance.migrate(loaded.settings, out, dry_run=arguments.dry_run), loaded, out)


def _status(_: argparse.Namespace, loaded: Loaded, out: Output) -> int:
    from rookery.cli.admin import maintenance

    return _run_admin(maintenance.status(loaded.settings, out), loaded, out)


def _doctor(_: argparse.Namespace, loaded: Loaded, out: Output) -> int:
    from rookery.cli.admin import maintenance

    return _run_admin(maintenance.doctor(loaded.settings, out), loaded, out)


def _config(arguments: argparse.Namespace, loaded: Loaded, out: Output) -> int:
    values = settings.masked(loaded.settings)
    headers = ["key", "value", "source"] if arguments.sources else ["key", "value"]
    rows = [[name, value, loaded.sources[name]][: len(headers)] for name, value in values.items()]
    out.table(headers, rows)
    sources = {name: {"value": value, "source": loaded.sources[name]} for name, value in values.items()}
    out.result(sources if arguments.sources else values)
    return Exit.OK


def _run_admin(command: Coroutine[Any, Any, int], loaded: Loaded, out: Output) -> int:
    """Run an admin command. These commands print for users, so they log only warnings unless a level was set."""
    is_default = loaded.sources["log_level"] == settings.DEFAULT
    level = "warning" if is_default else loaded.settings.log_level
    return run_async(command, out, log_format=loaded.settings.log_format, log_level=level)


def _run_client(command: Coroutine[Any, Any, int], out: Output) -> int:
    return run_async(command, out, log_format="auto", log_level="warning")


def run_async(command: Coroutine[Any, Any, int], out: Output, *, log_format: str, log_level: str) -> int:
    """Run on uvloop if it is installed, with the log on stderr until the command has ended."""
    import asyncio

    from rookery.telemetry import log

    handle = log.configure(log_level, log_format, replica="", stream=sys.stderr, secrets=out.secrets)
    try:
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            code = runner.run(_until_sigterm(command))
    finally:
        handle.close()
    if code is None:
        raise KeyboardInterrupt
    return code


async def _until_sigterm(command: Coroutine[Any, Any, int]) -> int | None:
    """Cancel the command on SIGTERM, as Ctrl-C does, so that it stops what it has started.

    Return None if it was cancelled.
    """
    import asyncio

    task, is_told_to_end = asyncio.current_task(), False
    assert task is not None

    def cancel() -> None:
        nonlocal is_told_to_end
        is_told_to_end = True
        task.cancel()

    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel)
    try:
        return await command
    except asyncio.CancelledError:
        if is_told_to_end:
            return None
        raise


def _loop_factory() -> Callable[[], Any] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


# Error messages


def _refuse_settings(error: SettingsError, out: Output) -> int:
    for warning in error.warnings:
        out.warning(str(warning))
    for problem in error.problems:
        out.error(str(problem))
    return _failed(out, Exit.USAGE, "The settings cannot be used.", problems=error.problems)


def _cause(error: Exception) -> Exception:
    """Return the cause of a failed task group: an expected error if there is one, else the first error."""
    while isinstance(error, ExceptionGroup):
        error = next((one for one in error.exceptions if exit_code(one) is not None), error.exceptions[0])
    return error


def _report(error: Exception, out: Output) -> int:
    from rookery.telemetry.redaction import hide_secrets

    code = exit_code(error)
    text = hide_secrets(_sentence(error) if code is not None else _bug(error), out.secrets)
    out.error(text)
    return _failed(out, code or Exit.FAILED, text)


def _failed(out: Output, code: Exit, message: str, **more: object) -> int:
    out.result({"error": {"exit_code": int(code), "message": message, **more}})
    return code


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}." if error.filename else f"{error.strerror}."
    return " ".join(str(error).split()) or type(error).__name__


def _bug(error: Exception) -> str:
    """Return one line with the error and its location. The traceback is shown on request."""
    import traceback

    frames = traceback.extract_tb(error.__traceback__)
    package = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
    own = [frame for frame in frames if frame.filename.startswith(package)] or frames
    where = f" at {os.path.relpath(own[-1].filename, package)}:{own[-1].lineno}" if own else ""
    text = " ".join(str(error).split())[:200]
    return f"Unexpected {type(error).__name__}{where}: {text} (ROOKERY_LOG_LEVEL=debug shows the traceback)"


# The arguments


def parser() -> Parser:
    top = Parser(prog="rookery", description="A self-hosted server for durable AI agent chats.", allow_abbrev=False)
    top.add_argument("--version", action="version", version=f"rookery {__version__}", help="show the version")
    commands = top.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add(commands, "serve", _serve, "start the server, with its database unless another is set", has_json=False)
    admin = commands.add_parser("admin", help="administer an installation", description="Administer an installation.")
    tasks = admin.add_subparsers(title="commands", metavar="COMMAND", required=True)
    migrate = _add(tasks, "migrate", _migrate, "bring the database schema up to date")
    migrate.add_argument("--dry-run", action="store_true", help="show the pending migrations, and change nothing")
    _add(tasks, "status", _status, "show replicas, running chats and the schema")
    _add(tasks, "doctor", _doctor, "check the installation; exit 1 if a check fails")
    config = _add(tasks, "config", _config, "show the effective settings, with secrets masked")
    config.add_argument("--sources", action="store_true", help="show the source of each value")
    admin_arguments.add_to(tasks, _add, _run_admin)
    chat_arguments.add_to(commands, _run_client)
    bench_arguments.add_to(commands, _run_client)
    return top


def _add(commands: Any, name: str, run: Command, summary: str, *, has_json: bool = True) -> argparse.ArgumentParser:
    command: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=f"{summary[0].upper()}{summary[1:]}.", allow_abbrev=False
    )
    command.set_defaults(run=run, json=False)
    if has_json:
        command.add_argument("--json", action="store_true", help="print one JSON document instead of text")
    group = command.add_argument_group(
        SETTINGS, "A flag takes precedence over its ROOKERY_ variable, and the variable over the file."
    )
    rare(group.add_argument("--strict-config", action="store_true", help="refuse unknown setting names"))
    common = COMMON_SETTINGS if has_json else COMMON_SETTINGS_OF_A_SERVER
    for key in keys.KEYS:
        flag = _add_flag(group, key)
        if key.field not in common:
            rare(flag)
    return command


def _add_flag(group: Any, key: keys.Key) -> argparse.Action:
    default = key.otherwise or key.default
    text = f"{key.meaning} Default: {str(default).lower() if key.kind.is_switch else default}.".replace("`", "")
    metavar = key.kind.name.replace("`", "").replace(" or ", "|").replace(" ", "-")
    # `--log-access` alone is true, `--log-access false` is false.
    options = {"nargs": "?", "const": "true"} if key.kind.is_switch else {}
    # argparse expands percent signs. A flag that is always refused is accepted, so that the reason can be explained,
    # and is not shown in the help.
    shown = text.replace("%", "%%") if key.has_flag else argparse.SUPPRESS
    flag: argparse.Action = group.add_argument(key.flag, dest=key.field, metavar=metavar, help=shown, **options)
    return flag


if __name__ == "__main__":
    raise SystemExit(main())
