"""The overhead of the workspace agent on tools, and the cost of an idle workspace.

Each operation (read_file, edit_files, execute "true") is done through the agent with the server's own client, and by a
bare program in the same sandbox, asked over a socket too (`_bare_workspace.py`); calls take turns, so that a noisy
moment hits both. The claim is the median of one over the median of the other, and the milliseconds between them.
The same operations through a replica of another machine (the relay), against the agent asked directly. Then: the
memory of the agent while a command prints 200 MB, the memory of idle workspaces (as shares, so that pages of the
interpreter that all have in common count once), and the time from a stopped workspace to the end of its first command,
over a bare sandbox that imports what the agent imports. Then requests beside a hostile agent that floods the server
(`_hostile_agent.py`), against the same requests without it. Last, what approval rules take: 200 of them against a
command of 1 MB and against one of 16 KiB, a hostile set (patterns that come as far as they can before they fail, in all
arguments), and a rule that asks, with what "always" would permit; each with the longest time for which the event loop
got nowhere else.

    python benchmarks/tools.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}. All budgets were chosen.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import uvloop

from rookery.domain.chat import approvals
from rookery.domain.chat.approvals import Policy, Rule, RuleAction, Verdict
from rookery.runtime.clock import SystemClock
from rookery.runtime.time_slices import in_pieces
from rookery.server.listener import serving
from rookery.stream.relay import dial_tokens
from rookery.stream.relay.dial_tokens import TokenCheck
from rookery.stream.relay.workspace_agents import AgentGate
from rookery.workspaces import agent_bundle
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import Edit, FileEdits, StartProcess
from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.protocol import Connector, WorkspaceSpec
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.drivers.workspace_directory import Layout
from rookery.workspaces.relay import Peer, RelayedConnector

TOKEN = "t" * 43
HOME, RUN = "/home/agent", "/run/rookery"
FILE = f"{HOME}/source.py"
LOG_BYTES = 200_000_000
LOG_LINE = "[ 42%] Building CXX object src/CMakeFiles/core.dir/very/long/path/to/a/source/file/number/one.cpp.o"
# All chosen. A tool call stands between two calls of a model, which take seconds: what the agent adds must not show.
ADDED_MS = {"read_file": 5.0, "edit_files": 8.0, "execute": 10.0}
# A replica of the other machine passes each request on; a command is two.
RELAY_MS, OVER_AGENT = 5.0, 3.0
# The bare edit makes no diff, knows no key and looks for one text only.
OVER_BARE = {"read_file": 8.0, "edit_files": 3.0, "execute": 4.0}
LOG_MEMORY_MIB = 8.0
IDLE_MIB = 20.0
START_SECONDS, START_OVER_BARE = 2.0, 4.0
# 200 rules stand between the model's answer and the call; the loop serves everybody else meanwhile.
RULES_MS, RULES_LAG_MS = 20.0, 5.0
PLAIN_RULES = ("200 rules, 1 MB", "200 rules, 16 KiB")
# Judging stops there and counts what is left as too long; the clock of a busy machine runs on.
HOSTILE_MS = 60.0
# One hostile workspace, with as many requests under way as this.
FLOOD_MS, FLOOD_REQUESTS = 5.0, 8

Call = Callable[[], Awaitable[object]]


class Workspace:
    """A started workspace and the client of its agent."""

    def __init__(self, driver: LocalDriver, spec: WorkspaceSpec, place: Layout) -> None:
        self.driver = driver
        self.spec = spec
        self.place = place
        self.http = AgentHttp(driver.connector(spec), token=TOKEN, generation=spec.generation, clock=SystemClock())
        self.agent = AgentConn(self.http)

    async def execute(self, command: str, *, wait: float = 120.0) -> str:
        started = await self.agent.start_process(StartProcess(command=command), key=uuid4())
        output = await self.agent.process_output(started.id, wait=wait)
        assert not output.running, "a command did not end"
        assert output.exit_code == 0, output.output
        return output.output

    def pids(self) -> list[int]:
        found = sandbox_processes.find(self.place.directory)
        return [pid for one in found for pid in (one.pid, one.monitor) if pid is not None]

    async def stop(self) -> None:
        await self.http.close()
        await self.driver.stop(self.spec, 0)


class Workshop:
    """Where workspaces of the benchmark are made."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self.driver = LocalDriver(LocalConfig(data_dir=data_dir), agent_bundle.build)

    async def start(self, name: str, *, generation: int = 1) -> Workspace:
        spec = WorkspaceSpec(id=name, generation=generation, token=TOKEN)
        await self.driver.start(spec, _ignore)
        return Workspace(self.driver, spec, Layout.of(self._data_dir, name))


def _ignore(line: str) -> None:
    return


class Bare:
    """The client of the bare program."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, *call: str) -> dict[str, Any]:
        self._writer.write(json.dumps(call).encode() + b"\n")
        answer: dict[str, Any] = json.loads(await self._reader.readline())
        return answer

    def close(self) -> None:
        self._writer.close()


async def connected(path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    deadline = time.monotonic() + 30
    while True:
        try:
            return await asyncio.open_unix_connection(path, limit=1 << 20)
        except OSError:
            assert time.monotonic() < deadline, "the bare program did not start"
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def bare_program(workspace: Workspace) -> AsyncIterator[Bare]:
    source = Path(__file__).with_name("_bare_workspace.py").read_bytes()
    await workspace.agent.write_file(f"{HOME}/bare.py", source)
    command = f"exec python3 -I {HOME}/bare.py {RUN}/bare.sock"
    await workspace.agent.start_process(StartProcess(command=command, background=True))
    path = workspace.place.run / "bare.sock"
    bare = Bare(*await connected(str(path)))
    try:
        yield bare
    finally:
        bare.close()


def calls_of(agent: AgentConn, path: str) -> dict[str, Call]:
    """The operations through an agent, on a file of its own."""
    texts = turning()

    async def read() -> None:
        lines = await agent.read_lines(path)
        assert lines.total_lines == 6000, lines.error

    async def edit() -> None:
        old, new = next(texts)
        edits = (Edit(old_text=old, new_text=new),)
        (edited,) = await agent.edit_files([FileEdits(path=path, edits=edits)], key=uuid4())
        assert edited.diff

    async def execute() -> None:
        started = await agent.start_process(StartProcess(command="true"), key=uuid4())
        assert (await agent.process_output(started.id, wait=120.0)).exit_code == 0

    return {"read_file": read, "edit_files": edit, "execute": execute}


def bare_calls(bare: Bare, path: str) -> dict[str, Call]:
    texts = turning()

    async def read() -> None:
        assert (await bare.ask("read", path))["total"] == 6000

    async def edit() -> None:
        assert (await bare.ask("edit", path, *next(texts)))["ok"]

    async def execute() -> None:
        assert (await bare.ask("execute", "true"))["exit_code"] == 0

    return {"read_file": read, "edit_files": edit, "execute": execute}


def turning() -> Iterator[tuple[str, str]]:
    """What is replaced by what: there and back."""
    pair = ("argument + 1000\n", "argument - 1000\n")
    return itertools.cycle([pair, pair[::-1]])


async def write_source(agent: AgentConn, *paths: str) -> None:
    source = "".join(f"def function_{n}(argument: int) -> int:\n    return argument + {n}\n\n" for n in range(2000))
    for path in paths:
        await agent.write_file(path, source.encode())


async def in_turns(ours: dict[str, Call], theirs: dict[str, Call], count: int) -> dict[str, tuple[float, float]]:
    """Milliseconds of each operation on both ways, the medians; calls take turns."""
    found: dict[str, tuple[float, float]] = {}
    for name in ours:
        times: tuple[list[float], list[float]] = ([], [])
        for turn in range(count + 10):
            for call, taken in zip((ours[name], theirs[name]), times, strict=True):
                began = time.perf_counter()
                await call()
                if turn >= 10:
                    taken.append((time.perf_counter() - began) * 1000)
        found[name] = (statistics.median(times[0]), statistics.median(times[1]))
    return found


class Neighbour:
    """The replica of the other machine, as `Peers` of this one."""

    tls = None

    def __init__(self, url: str, key: bytes) -> None:
        self._peer = Peer(uuid4(), url)
        self._key = key
        self._me = uuid4()

    @property
    def id(self) -> UUID:
        return self._peer.id

    async def of_node(self, node: str) -> list[Peer]:
        return [self._peer]

    def mint(self, peer: Peer) -> str:
        return dial_tokens.mint(self._key, src=self._me, dst=peer.id, clock=SystemClock())


@contextlib.asynccontextmanager
async def relayed(workspace: Workspace) -> AsyncIterator[AgentConn]:
    """A client that reaches the agent through a replica of its machine: its listener, its check of who asks, its way to
    the socket. Only the look at the row is left out, which is a query of the database."""
    key = os.urandom(32)

    async def find(workspace_id: UUID) -> Connector:
        return workspace.driver.connector(workspace.spec)

    async def is_live(replica_id: UUID) -> bool:
        return True

    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = Neighbour(f"http://127.0.0.1:{listening.getsockname()[1]}", key)
        gate = AgentGate(find, TokenCheck(key, me=there.id, clock=SystemClock(), is_live=is_live))
        async with serving(gate, listening):
            connector = RelayedConnector(there, "there", uuid4(), SystemClock())
            generation = workspace.spec.generation
            http = AgentHttp(connector, token=TOKEN, generation=generation, clock=SystemClock())
            try:
                yield AgentConn(http)
            finally:
                await http.close()


async def log_memory(workspace: Workspace) -> tuple[float, float]:
    """MiB that the agent grows by while a command prints a build log, and the seconds that takes."""
    pid = workspace.pids()[0]
    before = peak = memory_mib(pid, "VmRSS")

    async def watch() -> None:
        nonlocal peak
        while True:
            peak = max(peak, memory_mib(pid, "VmRSS"))
            await asyncio.sleep(0.02)

    watching = asyncio.create_task(watch())
    began = time.perf_counter()
    view = await workspace.execute(f"yes '{LOG_LINE}' | head -c {LOG_BYTES}; echo; echo the last line")
    seconds = time.perf_counter() - began
    watching.cancel()
    assert len(view.encode()) <= 32 * 1024
    assert view.endswith("the last line\n")
    return peak - before, seconds


async def idle_memory(workshop: Workshop, count: int) -> tuple[float, float]:
    """MiB that each of some idle workspaces takes, as a share, and all of the resident pages of one agent."""
    workspaces = [await workshop.start(f"idle-{n}") for n in range(count)]
    try:
        for workspace in workspaces:
            await workspace.agent.health()
        shares = [sum(share_mib(pid) for pid in workspace.pids()) for workspace in workspaces]
        return statistics.fmean(shares), memory_mib(workspaces[0].pids()[0], "VmRSS")
    finally:
        for workspace in workspaces:
            await workspace.stop()


async def warm_start(workshop: Workshop, rounds: int) -> tuple[float, float]:
    """Seconds from a stopped workspace to the end of its first command, and of a bare sandbox; the medians."""
    warm: list[float] = []
    bare: list[float] = []
    await (await workshop.start("warm")).stop()
    for generation in range(2, rounds + 2):
        began = time.perf_counter()
        workspace = await workshop.start("warm", generation=generation)
        await workspace.execute("true")
        warm.append(time.perf_counter() - began)
        await workspace.stop()
        began = time.perf_counter()
        await asyncio.to_thread(bare_sandbox)
        bare.append(time.perf_counter() - began)
    return statistics.median(warm), statistics.median(bare)


async def beside_a_hostile_agent(read: Call, data_dir: Path, count: int) -> tuple[float, float]:
    """The median of a request beside an agent that floods the server, and without it; milliseconds."""
    quiet = await median_ms(read, count)
    path = str(data_dir / "hostile.sock")
    program = await asyncio.create_subprocess_exec(
        sys.executable, str(Path(__file__).with_name("_hostile_agent.py")), path, stdout=subprocess.PIPE
    )
    assert program.stdout is not None
    await program.stdout.readline()
    http = AgentHttp(UnixSocket(path), token=TOKEN, generation=1, clock=SystemClock())
    floods = [asyncio.create_task(drain(AgentConn(http))) for _ in range(FLOOD_REQUESTS)]
    try:
        return await median_ms(read, count), quiet
    finally:
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        await http.close()
        program.kill()
        await program.wait()


async def drain(agent: AgentConn) -> None:
    async for _ in agent.read_file("/x"):
        pass


async def median_ms(call: Call, count: int) -> float:
    times = []
    for _ in range(count):
        began = time.perf_counter()
        await call()
        times.append(time.perf_counter() - began)
    return statistics.median(times) * 1000


class UnixSocket:
    """The way to an agent that no driver started."""

    def __init__(self, path: str) -> None:
        self.unix_path: str | None = path

    async def prepare(self) -> None:
        pass

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        assert self.unix_path is not None
        return await asyncio.open_unix_connection(self.unix_path)

    async def close(self) -> None:
        pass


def bare_sandbox() -> None:
    program = "import asyncio, json, subprocess; subprocess.run(['sh', '-c', 'true'])"
    binds = ["--ro-bind", "/", "/", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    command = ["bwrap", "--unshare-user", "--unshare-all", *binds, "python3", "-I", "-c", program]
    subprocess.run(command, check=True)


def rule_sets() -> dict[str, tuple[tuple[Rule, ...], dict[str, str]]]:
    """Rules and the arguments they are tried with. None of the 200 rules matches what it can read, so all are tried;
    the one that asks matches in all arguments, with as much work as its bounds leave."""
    plain = tuple(
        Rule(tool="execute", action=RuleAction.DENY, match={"command": f"*git push origin release-{place}*"})
        for place in range(200)
    )
    long = "*".join(["a" * 15] * 15)
    hostile = tuple(
        Rule(tool="*", action=RuleAction.DENY, match={f"a{at}": f"{long}{place:03}b" for at in range(16)})
        for place in range(200)
    )
    words = "echo 'one two' | grep x; cd /srv/app && make all\n"
    longest = {f"a{at}": "a" * 16_384 for at in range(16)}
    asking = Rule(tool="*", action=RuleAction.ASK, match=dict.fromkeys(longest, "*".join(["a" * 16] * 15)))
    return {
        "200 rules, 1 MB": (plain, {"command": (words * 30_000)[:1_000_000]}),
        "200 rules, 16 KiB": (plain, {"command": (words * 400)[:16_384]}),
        "200 rules, hostile": (hostile, longest),
        "a rule that asks": ((asking,), longest),
    }


def gate_steps(policy: Policy, args: dict[str, str]) -> Generator[None, None, None]:
    found = yield from approvals.judging(policy, ("execute",), args)
    if found.verdict is Verdict.ASK:
        yield from approvals.offering(found.rule, ("execute",), args)


async def judged(rules: tuple[Rule, ...], args: dict[str, str], rounds: int) -> tuple[float, float]:
    """The median time of judging one call as the worker does, and the longest time without a turn of the loop; ms.

    The latter is time of the processor: what other processes take meanwhile is not held by the loop.
    """
    times, lags = [], []
    for _ in range(rounds):
        done = asyncio.Event()

        async def tick(done: asyncio.Event = done) -> float:
            longest, last = 0.0, time.thread_time()
            while not done.is_set():
                await asyncio.sleep(0)
                longest, last = max(longest, time.thread_time() - last), time.thread_time()
            return longest

        ticking = asyncio.create_task(tick())
        await asyncio.sleep(0)
        began = time.perf_counter()
        await in_pieces(gate_steps(Policy(rules=rules), args))
        times.append(time.perf_counter() - began)
        done.set()
        lags.append(await ticking)
    return 1000 * statistics.median(times), 1000 * statistics.median(lags)


def memory_mib(pid: int, field: str) -> float:
    return _kib(f"/proc/{pid}/status", field) / 1024


def share_mib(pid: int) -> float:
    return _kib(f"/proc/{pid}/smaps_rollup", "Pss") / 1024


def _kib(path: str, field: str) -> int:
    for line in Path(path).read_text().splitlines():
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0])
    raise AssertionError(f"{path} has no {field}")


async def run(*, quick: bool) -> int:
    count, idle, rounds = (60, 8, 3) if quick else (500, 50, 10)
    claims: dict[str, dict[str, object]] = {}
    # Below /tmp, for the user of the sandboxes must reach it, and the address of a socket is short.
    data_dir = Path(tempfile.mkdtemp(prefix="rkb-"))
    os.chmod(data_dir, 0o755)
    try:
        workshop = Workshop(data_dir)
        workspace = await workshop.start("tools")
        await write_source(workspace.agent, FILE, f"{FILE}.bare", f"{FILE}.relayed")
        through_agent = calls_of(workspace.agent, FILE)
        async with bare_program(workspace) as bare:
            times = await in_turns(through_agent, bare_calls(bare, f"{FILE}.bare"), count)
        print(f"{'ms, median of ' + str(count):24}{'agent':>9}{'bare':>9}{'added':>9}{'ratio':>9}")
        for name, (ours, floor) in times.items():
            print(f"  {name:22}{ours:9.2f}{floor:9.2f}{ours - floor:9.2f}{ours / floor:9.2f}")
            claims[f"{name}: added, ms"] = claim(ours - floor, ADDED_MS[name])
            claims[f"{name}: over bare"] = claim(ours / floor, OVER_BARE[name])
        async with relayed(workspace) as far:
            times = await in_turns(calls_of(far, f"{FILE}.relayed"), through_agent, count // 2)
        print(f"\n{'ms, median of ' + str(count // 2):24}{'relayed':>9}{'agent':>9}{'added':>9}{'ratio':>9}")
        for name, (ours, near) in times.items():
            print(f"  {name:22}{ours:9.2f}{near:9.2f}{ours - near:9.2f}{ours / near:9.2f}")
            claims[f"{name} on another machine: added, ms"] = claim(ours - near, RELAY_MS)
            claims[f"{name} on another machine: over the agent"] = claim(ours / near, OVER_AGENT)
        beside, alone = await beside_a_hostile_agent(through_agent["read_file"], data_dir, 2 * count)
        print(f"\nread_file beside a hostile workspace: {beside:.2f} ms, without it {alone:.2f} ms")
        claims["beside a hostile workspace: added, ms"] = claim(beside - alone, FLOOD_MS)
        grown, seconds = await log_memory(workspace)
        print(f"\n{LOG_BYTES / 1e6:.0f} MB of output: the agent grows by {grown:.1f} MiB, {seconds:.1f} s")
        claims["200 MB of output: agent grows by, MiB"] = claim(grown, LOG_MEMORY_MIB)
        await workspace.stop()
        warm, sandbox = await warm_start(workshop, rounds)
        print(f"\nwarm start to the end of the first command: {warm:.2f} s; a bare sandbox: {sandbox:.2f} s")
        claims["warm start, s"] = claim(warm, START_SECONDS)
        claims["warm start: over bare"] = claim(warm / sandbox, START_OVER_BARE)
        share, resident = await idle_memory(workshop, idle)
        print(f"\n{idle} idle workspaces: {share:.1f} MiB each (resident pages of one agent: {resident:.1f} MiB)")
        claims["idle workspace, MiB"] = claim(share, IDLE_MIB)
        print(f"\n{'approval rules, ms':24}{'judged':>9}{'lag':>9}")
        for name, (rules, args) in rule_sets().items():
            taken, lag = await judged(rules, args, rounds)
            print(f"  {name:22}{taken:9.2f}{lag:9.2f}")
            claims[f"{name}: judged, ms"] = claim(taken, RULES_MS if name in PLAIN_RULES else HOSTILE_MS)
            claims[f"{name}: loop held, ms"] = claim(lag, RULES_LAG_MS)
    finally:
        await end_all(data_dir)
        await asyncio.to_thread(shutil.rmtree, data_dir, ignore_errors=True)
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


async def end_all(data_dir: Path) -> None:
    """Nothing of the benchmark outlives it, also when it failed half-way."""
    for one in await sandboxes.find_all(data_dir / "workspaces"):
        await sandboxes.kill(one)


def claim(value: float, budget: float) -> dict[str, object]:
    return {"value": round(value, 3), "budget": budget, "ok": value <= budget}


def main() -> int:
    parser = argparse.ArgumentParser(description="What the workspace agent adds to the work of tools.")
    parser.add_argument("--quick", action="store_true", help="fewer calls and workspaces, under 40 seconds")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run(quick=arguments.quick))


if __name__ == "__main__":
    sys.exit(main())
