"""The command line: real processes, their output and their exit codes."""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from io import StringIO
from pathlib import Path
from typing import IO

import pytest

from rookery import __version__
from rookery.cli import main as cli
from rookery.cli.exit_codes import Exit, exit_code
from rookery.cli.output import Output
from rookery.cli.parser import Parser
from rookery.settings import keys
from rookery.store.db import errors

SCRIPT = str(Path(sys.executable).parent / "rookery")
ADMIN_COMMANDS = [
    "migrate",
    "status",
    "doctor",
    "config",
    "run",
    "rotate-secrets",
    "provider",
    "model",
    "mcp",
    "template",
    "debug",
]
GROUPS = {
    "provider": ["list", "add", "set-key", "remove"],
    "model": ["list", "add", "default", "remove"],
    "mcp": ["list", "add", "test", "remove"],
    "template": ["list", "push", "show", "enable", "disable", "remove"],
    "debug": ["list", "show", "export", "replay"],
}


def environment(home: Path, **variables: str) -> dict[str, str]:
    return {"HOME": str(home), "PATH": os.environ["PATH"], **variables}


def rookery(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return run([SCRIPT, *arguments], environment(home, **variables))


def run(command: Sequence[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def output(*, json: bool = False) -> tuple[Output, StringIO, StringIO]:
    stdout, stderr = StringIO(), StringIO()
    return Output(stdout, stderr, json=json), stdout, stderr


def test_version_is_the_package_s(tmp_path: Path) -> None:
    done = rookery(tmp_path, "--version")

    assert (done.returncode, done.stdout, done.stderr) == (0, f"rookery {__version__}\n", "")


@pytest.mark.parametrize("module", ["rookery", "rookery.cli.main"])
def test_module_is_the_same_program(tmp_path: Path, module: str) -> None:
    done = run([sys.executable, "-m", module, "--version"], environment(tmp_path))

    assert (done.returncode, done.stdout) == (0, f"rookery {__version__}\n")


def test_process_does_not_collect_what_ends_with_it() -> None:
    # The function registered first runs last.
    code = (
        "import atexit, gc; atexit.register(lambda: print(gc.get_freeze_count() > 1000)); "
        "from rookery.cli.main import main; raise SystemExit(main(['admin', 'config', '--json']))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert ended.stdout.splitlines()[-1] == "True", ended.stderr


def test_help_names_the_commands(tmp_path: Path) -> None:
    top, admin = rookery(tmp_path, "--help"), rookery(tmp_path, "admin", "--help")

    assert top.returncode == admin.returncode == 0
    assert re.findall(r"^  (\w+)", top.stdout, re.MULTILINE) == ["serve", "admin", "chat", "bench"]
    assert re.findall(r"^  ([a-z][a-z-]+)", admin.stdout, re.MULTILINE) == ADMIN_COMMANDS


def commands(parser: Parser) -> Iterator[Parser]:
    """Yield a parser and those of its commands."""
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                yield from commands(each)


def test_help_of_each_command_fits_a_screen_and_help_all_has_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for parser in commands(cli.parser()):
        short, full = parser.format_help(), parser.format_help(is_full=True)
        assert short.count("\n") <= 24, short
        assert max(map(len, short.splitlines())) <= 80
        assert ("--help-all" in short) is ("--help-all" in full), parser.prog
        flags = [
            flag for action in parser._actions if action.help != argparse.SUPPRESS for flag in action.option_strings
        ]
        assert [flag for flag in flags if flag not in full] == [], parser.prog


def test_rare_commands_and_options_are_only_in_help_all(tmp_path: Path) -> None:
    short, full = (rookery(tmp_path, "chat", flag) for flag in ("--help", "--help-all"))

    assert (short.returncode, full.returncode) == (0, 0)
    assert "  accesses " in full.stdout
    assert "accesses" not in short.stdout
    assert "--help-all shows the rest" in short.stdout


def test_command_that_needs_another_word_shows_its_help(tmp_path: Path) -> None:
    done = rookery(tmp_path, "admin")

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == rookery(tmp_path, "admin", "--help").stdout


@pytest.mark.parametrize("command", [["serve"], ["admin", "migrate"], ["admin", "config"]])
def test_every_setting_but_secrets_is_a_flag_of_every_command(tmp_path: Path, command: list[str]) -> None:
    text = rookery(tmp_path, *command, "--help-all").stdout

    assert "\nsettings:\n" in text
    for key in keys.KEYS:
        assert bool(re.search(rf"^  {key.flag} ", text, re.MULTILINE)) is key.has_flag, key.flag
        # The settings would fill a screen among the command's own arguments.
        assert f"[{key.flag}" not in text


@pytest.mark.parametrize("task", ADMIN_COMMANDS)
def test_every_admin_command_has_json(tmp_path: Path, task: str) -> None:
    commands = [[task, name] for name in GROUPS[task]] if task in GROUPS else [[task]]

    for command in commands:
        assert "--json" in rookery(tmp_path, "admin", *command, "--help").stdout


def test_help_loads_neither_driver_nor_framework_nor_event_loop(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom rookery.cli import main\n"
        "try: main.main(['--help'])\nexcept SystemExit: pass\n"
        "print(*sorted({'asyncpg', 'starlette', 'uvicorn', 'pydantic', 'asyncio'} & set(sys.modules)), file=sys.stderr)"
    )

    done = run([sys.executable, "-c", program], environment(tmp_path))

    assert done.stderr == "\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["serv"], "rookery: There is no command serv. Did you mean serve? Try: rookery --help\n"),
        (
            ["admin", "config", "--lisen", "x"],
            "rookery: There is no option --lisen. Try: rookery admin config --help\n",
        ),
        (["admin", "config", "x"], "rookery: There is no argument x. Try: rookery admin config --help\n"),
        (["admin", "config", "--listen"], "rookery: --listen needs a value. Try: rookery admin config --help\n"),
        (["admin", "config", "--sources=1"], "rookery: --sources takes no value. Try: rookery admin config --help\n"),
        (["serve", "--log"], "rookery: There is no option --log. Try: rookery serve --help\n"),
        (["chat", "new"], "rookery: PROMPT is missing. Try: rookery chat new --help\n"),
        (
            ["chat", "list", "--limit", "x"],
            "rookery: --limit must be a whole number, not x. Try: rookery chat list --help\n",
        ),
        (
            ["chat", "send", "c", "p", "--busy", "no"],
            "rookery: --busy must be one of queue, steer, interrupt; not no. Try: rookery chat send --help\n",
        ),
        (
            ["chat", "rules", "--server", "--chat", "x"],
            "rookery: --chat and --server cannot be used together. Try: rookery chat rules --help\n",
        ),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_2(tmp_path: Path, arguments: list[str], said: str) -> None:
    done = rookery(tmp_path, *arguments)

    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(said)
    assert done.stderr.count("\n") == 1


def test_three_wrong_settings_are_three_messages_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "r.toml").write_text("drain_timeout = -1\n")

    done = rookery(
        tmp_path, "serve", "--config", str(tmp_path / "r.toml"), "--listen", "x", ROOKERY_DATABASE_POOL_API="many"
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert [line.split(": ")[:2] for line in done.stderr.splitlines()] == [
        ["rookery", "listen (from --listen)"],
        ["rookery", f"drain_timeout (from {tmp_path}/r.toml)"],
        ["rookery", "database_pool_api (from ROOKERY_DATABASE_POOL_API)"],
    ]


def test_wrong_settings_are_listed_for_programs_too(tmp_path: Path) -> None:
    done = rookery(tmp_path, "admin", "config", "--json", "--listen", "x", "--log-level", "y")

    error = json.loads(done.stdout)["error"]
    assert done.returncode == error["exit_code"] == 2
    assert [problem["key"] for problem in error["problems"]] == ["listen", "log_level"]


def test_unknown_variable_is_a_warning_and_an_error_when_strict(tmp_path: Path) -> None:
    lax = rookery(tmp_path, "admin", "config", ROOKERY_LISEN=":1")
    strict = rookery(tmp_path, "admin", "config", "--strict-config", ROOKERY_LISEN=":1")

    said = "ROOKERY_LISEN (from environment): there is no such setting. Did you mean ROOKERY_LISTEN?\n"
    assert (lax.returncode, lax.stderr) == (0, f"rookery: warning: {said}")
    assert (strict.returncode, strict.stderr) == (2, f"rookery: {said}")


def test_config_shows_effective_settings_with_secrets_masked(tmp_path: Path) -> None:
    done = rookery(
        tmp_path,
        *("admin", "config", "--sources", "--log-access", "--auto-migrate=no"),
        ROOKERY_DATABASE_URL="postgresql://rook:hunter22@db.example.org/rookery",
    )

    rows = [re.split(r"  +", line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert "hunter22" not in done.stdout + done.stderr
    assert rows[0] == ["key", "value", "source"]
    assert ["database_url", "postgresql://rook:***@db.example.org/rookery", "ROOKERY_DATABASE_URL"] in rows
    assert ["log_access", "true", "--log-access"] in rows
    assert ["auto_migrate", "false", "--auto-migrate"] in rows
    assert ["config", "-", "default"] in rows
    assert [row[0] for row in rows[1:]] == [key.name for key in keys.KEYS]
    assert len({line.index(row[-1], 30) for line, row in zip(done.stdout.splitlines(), rows, strict=True)}) == 1


def test_config_as_json_is_one_document_with_values_and_sources(tmp_path: Path) -> None:
    variables = {"ROOKERY_DATABASE_URL": "postgresql://rook:hunter22@db/rookery", "ROOKERY_UNKNOWN": "1"}

    plain = rookery(tmp_path, "admin", "config", "--json", **variables)
    sources = rookery(tmp_path, "admin", "config", "--json", "--sources", **variables)

    assert plain.returncode == sources.returncode == 0
    assert json.loads(plain.stdout)["database_pool_api"] == 8
    assert json.loads(plain.stdout)["auto_migrate"] is True
    assert json.loads(plain.stdout)["config"] is None
    assert json.loads(sources.stdout)["database_url"] == {
        "value": "postgresql://rook:***@db/rookery",
        "source": "ROOKERY_DATABASE_URL",
    }
    assert "ROOKERY_UNKNOWN" in plain.stderr


def test_reader_that_leaves_early_is_no_complaint(tmp_path: Path) -> None:
    read, write = os.pipe()
    os.close(read)
    with open(write, "wb") as closed:
        done = subprocess.run(
            [SCRIPT, "admin", "config"],
            env=environment(tmp_path),
            stdout=closed,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )

    assert (done.returncode, done.stderr) == (1, b"")


def test_full_disk_is_one_line(tmp_path: Path) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [SCRIPT, "admin", "config"],
            env=environment(tmp_path),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=30,
            check=False,
        )

    assert done.returncode == 1
    assert done.stderr == b"rookery: The output cannot be written: No space left on device.\n"


def test_closed_streams_are_survived(tmp_path: Path) -> None:
    done = run(["sh", "-c", f"'{SCRIPT}' admin config >&- 2>&-"], environment(tmp_path))

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize("command", ["admin status", "serve --listen 127.0.0.1:0"])
def test_closed_streams_do_not_hurt_what_opens_files_and_sockets(tmp_path: Path, command: str, closed: str) -> None:
    shell = f"'{SCRIPT}' {command} --database-url postgresql://x@127.0.0.1:1/x {closed}"

    done = run(["sh", "-c", shell], environment(tmp_path))

    said = (
        ""
        if "2>&-" in closed
        else "rookery: No server answers at 127.0.0.1:1/x. Check that PostgreSQL is running there.\n"
    )
    assert (done.returncode, done.stdout, done.stderr) == (4, "", said)


WAITING = """
import asyncio, sys
from rookery.cli import main
from rookery.cli.output import Output

async def wait():
    print("ready", flush=True)
    await asyncio.Event().wait()

out = Output(sys.stdout, sys.stderr)
sys.exit(main.run(lambda out: main.run_async(wait(), out, log_format="json", log_level="info"), out))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_is_exit_130_without_a_traceback(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", WAITING]
    with subprocess.Popen(
        command, env=environment(tmp_path), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert _stream(process.stdout).readline() == "ready\n"
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)

    assert (process.returncode, stderr) == (130, "rookery: Interrupted.\n")


def _stream(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def test_async_commands_run_on_uvloop_and_flush_the_log(capfd: pytest.CaptureFixture[str]) -> None:
    import asyncio

    from rookery.telemetry import log

    async def command() -> int:
        log.get_logger("x").info("said", loop=type(asyncio.get_running_loop()).__module__)
        return 3

    out, _, _ = output()
    code = cli.run_async(command(), out, log_format="json", log_level="info")

    assert code == 3
    assert json.loads(capfd.readouterr().err)["loop"].startswith("uvloop")


def _all_kinds(kind: type[Exception]) -> list[type[Exception]]:
    return [kind, *(below for child in kind.__subclasses__() for below in _all_kinds(child))]


def test_exit_codes_of_store_errors_are_those_their_module_states() -> None:
    stated = dict(re.findall(r"(\w+) +exit (\d)", errors.__doc__ or ""))
    assert set(stated) >= {"DatabaseUnreachable", "DatabaseUnsuitable", "SchemaUnusable", "EmbeddedServerError"}

    for kind in _all_kinds(errors.StoreError):
        expected = next((int(stated[base.__name__]) for base in kind.__mro__ if base.__name__ in stated), 1)
        assert exit_code(kind.__new__(kind)) == expected, kind


@pytest.mark.parametrize(
    ("error", "code", "said"),
    [
        (errors.DatabaseUnreachable("Nobody answers\nat db:5432."), Exit.UNREACHABLE, "Nobody answers at db:5432."),
        (errors.SchemaUnusable("Schema 9 is too new."), Exit.SCHEMA, "Schema 9 is too new."),
        (PermissionError(13, "Permission denied", "/srv/x"), Exit.NOT_ALLOWED, "/srv/x: Permission denied."),
        (OSError(98, "Address already in use"), Exit.FAILED, "Address already in use."),
        (
            ExceptionGroup("tasks", [ValueError("later"), errors.DatabaseUnreachable("Nobody answers.")]),
            Exit.UNREACHABLE,
            "Nobody answers.",
        ),
    ],
)
def test_expected_error_is_one_line_and_its_exit_code(error: Exception, code: Exit, said: str) -> None:
    def fail(_: Output) -> int:
        raise error

    for is_json in (False, True):
        out, stdout, stderr = output(json=is_json)

        assert cli.run(fail, out) == code
        assert stderr.getvalue() == f"rookery: {said}\n"
        document = json.loads(stdout.getvalue()) if is_json else None
        assert document == ({"error": {"exit_code": code, "message": said}} if is_json else None)


@pytest.mark.parametrize("error", [KeyError("chat"), TimeoutError(), ExceptionGroup("x", [KeyError("chat")])])
def test_unexpected_error_is_one_line_that_says_where_to_look(error: Exception) -> None:
    def fail(_: Output) -> int:
        raise error

    out, _, stderr = output()

    assert cli.run(fail, out) == Exit.FAILED
    assert stderr.getvalue().count("\n") == 1
    assert "ROOKERY_LOG_LEVEL=debug" in stderr.getvalue()


def test_traceback_is_shown_to_those_who_asked_without_secrets() -> None:
    def fail(_: Output) -> int:
        raise KeyError("correct horse")

    out, _, stderr = output()
    out.show_tracebacks = True
    out.secrets.add("database_url", "correct horse")

    assert cli.run(fail, out) == Exit.FAILED
    first, *_, last = stderr.getvalue().splitlines()
    assert first == "Traceback (most recent call last):"
    assert last.startswith("rookery: Unexpected KeyError")
    assert "correct horse" not in stderr.getvalue()
    assert "[REDACTED:database_url]" in last


def test_table_aligns_columns_and_puts_numbers_to_the_right() -> None:
    out, stdout, _ = output()

    out.table(["name", "chats", "note"], [["a", 5, None], ["longer", 1200, True], ["x\x1b[2J", 0, ["p", "q"]]])

    assert stdout.getvalue() == (
        "name        chats  note\na               5  -\nlonger       1200  true\nx\\u001b[2J      0  p, q\n"
    )


def test_json_mode_prints_the_document_and_nothing_else_on_stdout() -> None:
    out, stdout, stderr = output(json=True)

    out.line("for people")
    out.table(["a"], [["b"]])
    out.progress("half way")
    out.result({"path": Path("/x"), "ok": True})
    out.finish()

    assert json.loads(stdout.getvalue()) == {"path": "/x", "ok": True}
    assert stderr.getvalue() == "half way\n"


def test_progress_beside_a_log_is_told_in_lines_on_a_terminal_too() -> None:
    leader, follower = pty.openpty()
    try:
        with open(follower, "w") as terminal:
            out = Output(StringIO(), terminal)
            out.has_log_beside = True
            out.progress("one")
            out.finish()
            seen = b""
            while not seen.endswith(b"\n"):
                seen += os.read(leader, 1024)
    finally:
        os.close(leader)

    assert seen == b"one\r\n"


def test_progress_is_one_changing_line_on_a_terminal() -> None:
    expected = b"\r\x1b[2Kone\r\x1b[2Ktwo\r\x1b[2K"
    leader, follower = pty.openpty()
    try:
        with open(follower, "w") as terminal:
            out = Output(StringIO(), terminal)
            out.progress("one")
            out.progress("two")
            out.line("done")
            out.finish()
            seen = b""
            while len(seen) < len(expected):  # a terminal delivers input in pieces
                seen += os.read(leader, 1024)
    finally:
        os.close(leader)

    assert seen == expected
