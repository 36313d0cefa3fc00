"""The overhead of the workspace agent on tools, and the cost of an idle workspace.

The benchmark measures:

- read_file, edit_files and execute "true" through the agent, compared with a bare program in the same sandbox that is
  also called over a socket (`_bare_workspace.py`). The two alternate, so that noise affects both. The claims are the
  quotient of the medians, and their difference in milliseconds.
- the same operations through a replica on another machine (the relay), compared with direct calls of the agent.
- the memory of the agent while a command prints 200 MB.
- the memory of idle workspaces. Shared pages of the interpreter count once.
- the time from a stopped workspace to the end of its first command, compared with a bare sandbox that imports the same
  modules as the agent.
- requests while another agent floods the server (`_hostile_agent.py`), compared with requests without it.
- the time of approval rules, and the longest time that they block the event loop: 200 rules for a command of 1 MB and
  for one of 16 KiB, a hostile set of patterns that fail as late as possible, and a rule that asks the owner.

    python benchmarks/workspace_tools.py [--quick]

The last line is one JSON object: {"claim": {"value": x, "budget": y, "ok": true}, ...}. All budgets are estimates.
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
from rookery.stream.relay.workspace_agents import AgentEndpoint
from rookery.workspaces import agent_bundle
from rookery.workspaces.agent_client import AgentConn
from rookery.workspaces.agent_http import AgentHttp
from rookery.workspaces.agent_messages import Edit, FileEdits, StartProcess
from rookery.workspaces.drivers import sandboxes
from rookery.workspaces.drivers.driver_interface import Connector, WorkspaceSpec
from rookery.workspaces.drivers.launcher import sandbox_processes
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.drivers.workspace_paths import Layout
from rookery.workspaces.relayed_connector import Peer, RelayedConnector

TOKEN = "t" * 43
HOME, RUN = "/home/agent", "/run/rookery"
FILE = f"{HOME}/source.py"
LOG_BYTES = 200_000_000
LOG_LINE = "[ 42%] Building CXX object src/CMakeFiles/core.dir/very/long/path/to/a/source/file/number/one.cpp.o"
# A tool call is between two model calls, which take seconds. The time of the agent must be negligible.
ADDED_MS = {"read_file": 5.0, "edit_files": 8.0, "execute": 10.0}
# A replica on the other machine relays each request. A command needs two requests.
RELAY_MS, OVER_AGENT = 5.0, 3.0
# The bare edit makes no diff, has no idempotency key, and searches one text only.
OVER_BARE = {"read_file": 8.0, "edit_files": 3.0, "execute": 4.0}
LOG_MEMORY_MIB = 8.0
IDLE_MIB = 20.0
START_SECONDS, START_OVER_BARE = 2.0, 4.0
# The rules are judged between the model's answer and the call. The event loop also serves other chats.
RULES_MS, RULES_LAG_MS = 20.0, 5.0
PLAIN_RULES = ("200 rules, 1 MB", "200 rules, 16 KiB")
# Judging has a time limit. Above it, the remaining patterns count as too long. A busy machine needs a margin.
HOSTILE_MS = 60.0
# One hostile workspace, with this many open requests.
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


class WorkspaceFactory:
    """Starts the workspaces of the benchmark."""

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


def agent_calls(agent: AgentConn, path: str) -> dict[str, Call]:
    """Return the operations through an agent, on a separate file."""
    texts = alternating_texts()

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
    texts = alternating_texts()

    async def read() -> None:
        assert (await bare.ask("read", path))["total"] == 6000

    async def edit() -> None:
        assert (await bare.ask("edit", path, *next(texts)))["ok"]

    async def execute() -> None:
        assert (await bare.ask("execute", "true"))["exit_code"] == 0

    return {"read_file": read, "edit_files": edit, "execute": execute}


def alternating_texts() -> Iterator[tuple[str, str]]:
    """Yield the old and the new text of each edit. Every second edit reverts the first."""
    pair = ("argument + 1000\n", "argument - 1000\n")
    return itertools.cycle([pair, pair[::-1]])


async def write_source(agent: AgentConn, *paths: str) -> None:
    source = "".join(f"def function_{n}(argument: int) -> int:\n    return argument + {n}\n\n" for n in range(2000))
    for path in paths:
        await agent.write_file(path, source.encode())


async def compare(ours: dict[str, Call], theirs: dict[str, Call], count: int) -> dict[str, tuple[float, float]]:
    """Return the median milliseconds of each operation for both variants. Their calls alternate."""
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


class RemotePeers:
    """The `Peers` of this machine: one replica on the other machine."""

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
    """Return a client that reaches the agent through a replica on its machine, with its listener and authentication.

    Only the query for the row of the workspace is left out.
    """
    key = os.urandom(32)

    async def find(workspace_id: UUID) -> Connector:
        return workspace.driver.connector(workspace.spec)

    async def is_live(replica_id: UUID) -> bool:
        return True

    with socket.create_server(("127.0.0.1", 0)) as listening:
        there = RemotePeers(f"http://127.0.0.1:{listening.getsockname()[1]}", key)
        gate = AgentEndpoint(find, TokenCheck(key, me=there.id, clock=SystemClock(), is_live=is_live))
        async with serving(gate, listening):
            connector = RelayedConnector(there, "there", uuid4(), SystemClock())
            generation = workspace.spec.generation
            http = AgentHttp(connector, token=TOKEN, generation=generation, clock=SystemClock())
            try:
                yield AgentConn(http)
            finally:
                await http.close()


async def log_memory(workspace: Workspace) -> tuple[float, float]:
    """Return by how many MiB the agent grows while a command prints a build log, and the seconds of the command."""
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


async def idle_memory(factory: WorkspaceFactory, count: int) -> tuple[float, float]:
    """Return the MiB of one idle workspace, with shared pages divided, and the resident MiB of one agent."""
    workspaces = [await factory.start(f"idle-{n}") for n in range(count)]
    try:
        for workspace in workspaces:
            await workspace.agent.health()
        shares = [sum(share_mib(pid) for pid in workspace.pids()) for workspace in workspaces]
        return statistics.fmean(shares), memory_mib(workspaces[0].pids()[0], "VmRSS")
    finally:
        for workspace in workspaces:
            await workspace.stop()


async def warm_start(factory: WorkspaceFactory, rounds: int) -> tuple[float, float]:
    """Return the median seconds from a stopped workspace to the end of its first command, and for a bare sandbox."""
    warm: list[float] = []
    bare: list[float] = []
    await (await factory.start("warm")).stop()
    for generation in range(2, rounds + 2):
        began = time.perf_counter()
        workspace = await factory.start("warm", generation=generation)
        await workspace.execute("true")
        warm.append(time.perf_counter() - began)
        await workspace.stop()
        began = time.perf_counter()
        await asyncio.to_thread(bare_sandbox)
        bare.append(time.perf_counter() - began)
    return statistics.median(warm), statistics.median(bare)


async def flood_latency(read: Call, data_dir: Path, count: int) -> tuple[float, float]:
    """Return the median milliseconds of a request while another agent floods the server, and without it."""
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
    """The connector to an agent that no driver has started."""

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
    """Return sets of rules, and the arguments that they are judged with.

    None of the 200 rules matches, so all are tried. The rule that asks matches in all arguments."""
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
    found = yield from approvals.judge_sliced(policy, ("execute",), args)
    if found.verdict is Verdict.ASK:
        yield from approvals.offers_sliced(found.rule, ("execute",), args)


async def time_judgement(rules: tuple[Rule, ...], args: dict[str, str], rounds: int) -> tuple[float, float]:
    """Return the median milliseconds of judging one call, and the longest time that the event loop is blocked.

    The latter is processor time, so that other processes do not count.
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
    # Below /tmp: the user of the sandboxes must be able to enter it, and socket paths must be short.
    data_dir = Path(tempfile.mkdtemp(prefix="rkb-"))
    os.chmod(data_dir, 0o755)
    try:
        factory = WorkspaceFactory(data_dir)
        workspace = await factory.start("tools")
        await write_source(workspace.agent, FILE, f"{FILE}.bare", f"{FILE}.relayed")
        through_agent = agent_calls(workspace.agent, FILE)
        async with bare_program(workspace) as bare:
            times = await compare(through_agent, bare_calls(bare, f"{FILE}.bare"), count)
        print(f"{'ms, median of ' + str(count):24}{'agent':>9}{'bare':>9}{'added':>9}{'ratio':>9}")
        for name, (ours, floor) in times.items():
            print(f"  {name:22}{ours:9.2f}{floor:9.2f}{ours - floor:9.2f}{ours / floor:9.2f}")
            claims[f"{name}: added, ms"] = claim(ours - floor, ADDED_MS[name])
            claims[f"{name}: over bare"] = claim(ours / floor, OVER_BARE[name])
        async with relayed(workspace) as far:
            times = await compare(agent_calls(far, f"{FILE}.relayed"), through_agent, count // 2)
        print(f"\n{'ms, median of ' + str(count // 2):24}{'relayed':>9}{'agent':>9}{'added':>9}{'ratio':>9}")
        for name, (ours, near) in times.items():
            print(f"  {name:22}{ours:9.2f}{near:9.2f}{ours - near:9.2f}{ours / near:9.2f}")
            claims[f"{name} on another machine: added, ms"] = claim(ours - near, RELAY_MS)
            claims[f"{name} on another machine: over the agent"] = claim(ours / near, OVER_AGENT)
        beside, alone = await flood_latency(through_agent["read_file"], data_dir, 2 * count)
        print(f"\nread_file beside a hostile workspace: {beside:.2f} ms, without it {alone:.2f} ms")
        claims["beside a hostile workspace: added, ms"] = claim(beside - alone, FLOOD_MS)
        grown, seconds = await log_memory(workspace)
        print(f"\n{LOG_BYTES / 1e6:.0f} MB of output: the agent grows by {grown:.1f} MiB, {seconds:.1f} s")
        claims["200 MB of output: agent grows by, MiB"] = claim(grown, LOG_MEMORY_MIB)
        await workspace.stop()
        warm, sandbox = await warm_start(factory, rounds)
        print(f"\nwarm start to the end of the first command: {warm:.2f} s; a bare sandbox: {sandbox:.2f} s")
        claims["warm start, s"] = claim(warm, START_SECONDS)
        claims["warm start: over bare"] = claim(warm / sandbox, START_OVER_BARE)
        share, resident = await idle_memory(factory, idle)
        print(f"\n{idle} idle workspaces: {share:.1f} MiB each (resident pages of one agent: {resident:.1f} MiB)")
        claims["idle workspace, MiB"] = claim(share, IDLE_MIB)
        print(f"\n{'approval rules, ms':24}{'judged':>9}{'lag':>9}")
        for name, (rules, args) in rule_sets().items():
            taken, lag = await time_judgement(rules, args, rounds)
            print(f"  {name:22}{taken:9.2f}{lag:9.2f}")
            claims[f"{name}: judged, ms"] = claim(taken, RULES_MS if name in PLAIN_RULES else HOSTILE_MS)
            claims[f"{name}: loop held, ms"] = claim(lag, RULES_LAG_MS)
    finally:
        await kill_all(data_dir)
        await asyncio.to_thread(shutil.rmtree, data_dir, ignore_errors=True)
    print(f"\n{json.dumps(claims)}")
    return 0 if all(each["ok"] for each in claims.values()) else 1


async def kill_all(data_dir: Path) -> None:
    """Kill all processes of the benchmark. It is called after a failure too."""
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
