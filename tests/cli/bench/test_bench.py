"""`rookery bench` as a whole, with windows of a fraction of a second, and as a process that is interrupted."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
from io import StringIO
from pathlib import Path

import msgspec
import pytest

from rookery.cli import main as cli
from rookery.cli.bench import bench, cpu
from rookery.cli.bench.bench import Report
from rookery.cli.bench.measures import Effort, Measure
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from tests.cli.serve.server_process import SCRIPT, environment

TINY = Effort(window_seconds=0.2, rounds=1, many=10, first_tokens=1, kills=1)
NAMES = ["cpu_per_token", "added_first_token", "short_turns_per_second", "streams_per_core", "takeover"]


def processes_with(text: str) -> list[str]:
    """Return the command lines of processes that contain a text."""
    found = []
    for entry in cpu.PROC.iterdir():
        try:
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in line:
            found.append(line)
    return found


async def test_every_figure_has_a_unit_and_a_floor_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(bench, "QUICK", TINY)
    shown, show = StringIO(), bench._show

    def show_as_text(
        measures: list[Measure], machine: bench.Machine, seconds: float, _: Output, *, is_quick: bool
    ) -> None:
        show(measures, machine, seconds, Output(shown, StringIO()), is_quick=is_quick)

    monkeypatch.setattr(bench, "_show", show_as_text)
    stdout, stderr = StringIO(), StringIO()
    out = Output(stdout, stderr, json=True)

    code = await bench.run(out, is_quick=True)
    out.finish()

    found = msgspec.json.decode(stdout.getvalue(), type=Report)
    assert (code, found.is_quick, [each.name for each in found.measures]) == (Exit.OK, True, NAMES)
    assert [each.unit for each in found.measures] == ["us", "ms", "turns/s", "streams", "ms"]
    for each in found.measures:
        assert each.value > 0, each
        assert each.floor_is
    # Neither is a matter of the machine: the floor does a part of Rookery's work.
    by_name = {each.name: each for each in found.measures}
    for name in ("short_turns_per_second", "takeover"):
        ratio = by_name[name].ratio
        assert ratio is not None
        assert ratio > 1
    assert by_name["short_turns_per_second"].details["python_ms_per_turn"] > 0
    assert found.machine.cores >= 1
    assert [line.split("]")[0] for line in stderr.getvalue().splitlines() if line.startswith("[")] == [
        f"[{number}/{bench.PARTS}" for number in range(1, bench.PARTS + 1)
    ]
    assert max(map(len, shown.getvalue().splitlines())) <= 80
    assert os.listdir(tmp_path) == []
    assert processes_with(str(tmp_path)) == []


@pytest.mark.parametrize(("number", "part"), [(signal.SIGHUP, 1), (signal.SIGINT, 2)])
def test_signal_removes_everything(tmp_path: Path, number: signal.Signals, part: int) -> None:
    """The first part starts the database. In the second part, all processes run."""
    process = subprocess.Popen(
        [SCRIPT, "bench", "--quick"],
        env=environment(tmp_path, TMPDIR=str(tmp_path), ROOKERY_DATABASE_URL="postgresql://rook@127.0.0.1:1/none"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    lines = []
    for line in process.stderr:
        lines.append(line)
        if line.startswith(f"[{part}/"):
            break
    started = processes_with(str(tmp_path))
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=60)

    assert started or part == 1, lines
    assert (process.returncode, stdout) == (Exit.INTERRUPTED, "")
    assert list(tmp_path.glob("rookery-bench-*")) == []
    assert processes_with(str(tmp_path)) == []


def test_table_fits_80_columns_and_explains_the_floors() -> None:
    stdout = StringIO()
    measures = [
        Measure(
            name="cpu_per_token",
            label="CPU per token, 10 answers at 100 tokens/s",
            unit="us",
            value=123.4,
            floor=61.7,
            floor_is="a bare relay",
        ),
        Measure(
            name="short_turns_per_second",
            label="short turns per second (20 tokens, 8 at once)",
            unit="turns/s",
            value=50.0,
            floor=500.0,
            floor_is="a bare relay",
            is_less_better=False,
        ),
    ]
    machine = bench.Machine(
        cores=2, processor="Chip", memory_bytes=8 << 30, system="Linux 6", python="3.11.7", busy_share=0.0
    )

    bench._show(measures, machine, 100.0, Output(stdout, StringIO()), is_quick=False)

    text = stdout.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"CPU per token, .*  123 us +61\.7 +2\.00x\n", text)
    assert re.search(r"short turns per second .* 50\.0 +500 +10\.00x\n", text)
    assert "Floor of cpu_per_token: a bare relay.\n" in text
    assert "2 cores, Chip, 8 GiB, Python 3.11.7, 100 s.\n" in text


def test_cpu_time_of_a_tree_includes_its_children() -> None:
    before = cpu.of_tree(os.getpid())
    subprocess.run(["sh", "-c", "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"], check=True)

    assert cpu.of_tree(os.getpid()) > before
    assert cpu.of_tree(2**22 + 1) == 0.0


def test_commands_of_the_sizing_page_are_accepted() -> None:
    page = Path(__file__).parents[3] / "docs" / "operations" / "sizing.md"
    commands = re.findall(r"^ *rookery (.+?)(?: +#.*)?$", page.read_text(), re.MULTILINE)

    parsed = [cli.parser().parse_args(shlex.split(command)) for command in commands]
    assert [command.split()[0] for command in commands].count("bench") == 3
    assert len(parsed) == len(commands)
