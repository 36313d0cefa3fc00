"""`rookery admin run`: one prompt in one chat, driven in this process and shown while it runs.

The chat is as durable as any other. It is created and acquired in one transaction, so that no server can take it in
between. Everything after that goes through the API of this process, as in the terminal client. The worker in this
process takes no other chat.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from uuid import UUID, uuid4

import msgspec

from rookery.app import installation
from rookery.app.replica import Choices, Replica, running_replica
from rookery.cli.admin import provider_input
from rookery.cli.admin.run import model_choice, workspace_of_chat
from rookery.cli.admin.run.in_process_server import connected
from rookery.cli.admin.run.model_choice import Named
from rookery.cli.admin.run.run_arguments import Request
from rookery.cli.admin.run.turn_follower import AT_REST, Stop, TurnFollower
from rookery.cli.admin.run.workspace_of_chat import WorkspaceBoot
from rookery.cli.chat import stream_follower
from rookery.cli.chat.terminal_screen import Screen
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output, OutputClosed
from rookery.client import AsyncRookery, RookeryError
from rookery.client.models import Cost
from rookery.client.reducer import Event, View
from rookery.domain.chat import system_blocks, titles
from rookery.domain.chat.chat import Chat
from rookery.domain.chat.errors import ChatError, InvalidInput
from rookery.domain.chat.messages import NewMessage, NewQueuedMessage, Role
from rookery.domain.chat.parts import Text
from rookery.domain.chat.transitions import BusyBehavior
from rookery.models.key_ring import KeyRing
from rookery.runtime.clock import Clock, SystemClock
from rookery.settings.settings import Settings
from rookery.store import machine
from rookery.store.chats import chat_rows
from rookery.store.chats.chat_rows import ChatSummary
from rookery.store.db.embedded.data_dir import prepare_data_dir
from rookery.store.db.pool import Database
from rookery.store.machine import Bundle, ChatSpec
from rookery.store.models import preset_providers, providers
from rookery.store.people import users
from rookery.store.settings import settings as runtime_settings
from rookery.tools.step_tools import PlainToolbox
from rookery.worker.config import WorkerConfig

# Wrapper programs forward a signal that the terminal has also sent to this process. A second signal within this time is
# the same key press.
ECHO_SECONDS = 0.2
# Chosen: the work after a turn (labels, summaries) is not worth a longer wait.
CLEANUP_SECONDS = 2.0
# After the second Ctrl-C, the process ends within this time, even if a part of it hangs.
HARD_END_SECONDS = 5.0
# The command runs one chat and needs no more connections. The pools of a server would be larger.
POOLS = {"database_pool_api": 4, "database_pool_worker": 4}


class Interrupts:
    """The handling of Ctrl-C and SIGTERM. The first signal stops the chat, the second one leaves it running, and the
    third one skips the cleanup.

    Before there is a chat to stop, the first signal already ends the command.
    """

    def __init__(self) -> None:
        self.follower: TurnFollower | None = None
        self._work: asyncio.Task[int] | None = None
        self._is_leaving = False
        self._last_at: dict[signal.Signals, float] = {}

    @contextmanager
    def watching(self, work: asyncio.Task[int]) -> Iterator[None]:
        self._work = work
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._received, number)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    def _received(self, number: signal.Signals) -> None:
        loop = asyncio.get_running_loop()
        last_at, self._last_at[number] = self._last_at.get(number), loop.time()
        if last_at is not None and loop.time() - last_at < ECHO_SECONDS:
            return
        if self.follower is not None and self.follower.stopped is None:
            self.follower.stop(Stop.SIGNAL)
            return
        if self._is_leaving:
            os._exit(Exit.INTERRUPTED)
        self._is_leaving = True
        if self._work is not None:
            self._work.cancel()
        loop.call_later(HARD_END_SECONDS, os._exit, int(Exit.INTERRUPTED))


async def run(settings: Settings, out: Output, *, request: Request, environ: Mapping[str, str]) -> int:
    """Run the prompt to its end. Exit 0 if the turn is finished, 1 if it failed or timed out."""
    interrupts = Interrupts()
    work = asyncio.create_task(_run(settings, out, request, environ=environ, interrupts=interrupts), name="run")
    with interrupts.watching(work):
        await asyncio.wait([work])
    if work.cancelled():
        out.error("Interrupted.")
        out.result({"error": {"exit_code": int(Exit.INTERRUPTED), "message": "Interrupted."}})
        return Exit.INTERRUPTED
    return work.result()


async def _run(
    settings: Settings, out: Output, request: Request, *, environ: Mapping[str, str], interrupts: Interrupts
) -> int:
    settings = msgspec.structs.replace(settings, **POOLS)
    screen = Screen(out, quiet=request.quiet, environ=environ)
    with provider_input.refusals(out) as outcome:
        try:
            progress = _say_nothing if request.quiet else out.progress
            async with installation.command_database(settings, progress, may_create=True) as database:
                await installation.prepare_schema(settings, database)
                ring = await installation.prepare_models(settings, database, environ)
                choices = choices_for(out, ring=ring, environ=environ, has_workspace=request.has_workspace)
                outcome.code = await converse(
                    settings, database, request, out=out, screen=screen, choices=choices, interrupts=interrupts
                )
        except InvalidInput:
            raise
        except (ChatError, RookeryError) as error:
            raise Refused(str(error)) from error
    return outcome.code


def _say_nothing(_: str) -> None:
    return


def choices_for(
    out: Output, *, ring: KeyRing | None, environ: Mapping[str, str], has_workspace: bool = False
) -> Choices:
    """Return the options of a replica that drives only the chats it is given.

    Tools are off by default, because they use workspaces, which take seconds to create and outlive the command.
    """
    return Choices(
        toolbox=None if has_workspace else PlainToolbox(),
        ring=ring,
        environ=environ,
        secrets=out.secrets,
        worker=WorkerConfig(cleanup_seconds=CLEANUP_SECONDS),
        takes_chats=False,
    )


async def converse(
    settings: Settings,
    database: Database,
    request: Request,
    *,
    out: Output,
    screen: Screen,
    choices: Choices,
    interrupts: Interrupts | None = None,
) -> int:
    """Run the turn on a migrated database: start a replica, drive the chat in it, report the result."""
    failure: Exception | None = None
    code = int(Exit.FAILED)
    if request.has_workspace:
        # The id identifies this machine. Without it, a workspace of this turn could never be started again.
        prepare_data_dir(settings.data_dir)
    async with running_replica(settings, database, choices) as replica:
        try:
            run = Run(replica, request, out=out, screen=screen, clock=choices.clock, interrupts=interrupts)
            code = await run.to_the_end()
            await replica.announce_stop()
        except Exception as error:
            # Raised outside of the block, because the replica's tasks would wrap the error into an exception group.
            failure = error
    if failure is not None:
        raise failure
    return code


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The started turn: its first message, and the cost and the workspace of its chat before it."""

    chat: Chat
    model: Named
    first_id: int
    cost: Cost | None = None
    boot: WorkspaceBoot | None = None


class Run:
    """One turn of one chat, from the choice of its model to the last line."""

    def __init__(
        self,
        replica: Replica,
        request: Request,
        *,
        out: Output,
        screen: Screen,
        clock: Clock | None = None,
        interrupts: Interrupts | None = None,
    ) -> None:
        self._replica = replica
        self._database = replica.database
        self._request = request
        self._out = out
        self._screen = screen
        self._clock = clock or SystemClock()
        self._interrupts = interrupts

    async def to_the_end(self) -> int:
        started_at = self._clock.monotonic()
        async with self._database.api.acquire() as conn:
            operator_id = await users.ensure_operator(conn)
            made = await preset_providers.ensure_offline_model(conn)
            found = await model_choice.list_models(conn)
            wanted = self._request.chat_id
            existing = None if wanted is None else await chat_rows.find_chat(conn, wanted)
        if wanted is not None and existing is None:
            raise Refused(f"There is no chat {wanted}.")
        if made is not None:
            await provider_input.announce(self._database, "model", made)
        if self._request.has_workspace:
            await self._replica.workspaces.push_templates()
        owner_id = operator_id if existing is None else existing.owner_id
        async with connected(self._replica, owner_id) as client:
            if existing is None:
                started = await self._create(found, operator_id)
            else:
                started = await self._go_on(client, existing, found, operator_id)
            state, stopped = await self._follow(client, started)
            seconds = self._clock.monotonic() - started_at
            return await self._report(client, started, state, stopped, seconds=seconds)

    async def _follow(self, client: AsyncRookery, started: Started) -> tuple[View, Stop | None]:
        """Show the turn to its end. Then stop the workspace that it has started."""
        follower = TurnFollower(
            self._replica, client, started.chat, screen=self._screen, out=self._out, clock=self._clock
        )
        if self._interrupts is not None:
            self._interrupts.follower = follower
        timeout = self._request.timeout
        seconds = None if timeout is None else timeout.total_seconds()
        try:
            state = await follower.follow(started.first_id, timeout_seconds=seconds)
            if self._request.has_workspace:
                self._screen.lines(*await workspace_of_chat.waiting_servers(client, started.chat.id))
        except OutputClosed:
            # The reader of stdout has closed it. The chat is stopped as with Ctrl-C, and its partial answer is kept.
            self._screen.mute()
            follower.stop(Stop.NOBODY_READS)
            await follower.interrupt()
            await self._stop_workspace(client, started)
            raise
        await self._stop_workspace(client, started)
        return state, follower.stopped

    # Starting

    async def _introduce(self, model: Named) -> None:
        """Print the model that answers, and the commands that add a better one."""
        if not model.is_offline:
            self._screen.note(f"{model.name} answers")
            return
        async with self._database.api.acquire() as conn:
            there = await providers.list_providers(conn)
        self._screen.lines(
            f"{model.name} answers: the built-in model, which follows fixed rules. To add a real one:",
            *model_choice.advice(there),
        )

    async def _create(self, found: list[Named], owner_id: UUID) -> Started:
        model = await model_choice.choose(
            found, self._request.model, directory=self._replica.directory, owner_id=owner_id
        )
        await self._introduce(model)
        async with self._database.api.acquire() as conn:
            prompts = await runtime_settings.find_setting(conn, system_blocks.PROMPTS_SETTING)
        system = system_blocks.system_rows(prompts, system_prompt=self._request.system)
        prompt = self._request.prompt
        user = NewMessage(role=Role.USER, content=(Text(prompt),), created_by=owner_id, model_config_id=model.config.id)
        spec = ChatSpec(
            owner_id=owner_id,
            title=titles.fallback_title(prompt),
            model_config_id=model.config.id,
            messages=(*system, user),
            client_type="cli",
        )
        runner_id = uuid4()

        async def create(bundle: Bundle) -> tuple[Chat, int]:
            created = await machine.create_chat(bundle, spec)
            tx = await bundle.open(created.chat.id)
            chat = await machine.acquire(tx, worker_id=self._replica.id, runner_id=runner_id)
            return chat, created.messages[-1].id

        chat, first_id = await self._replica.machine.bundle(create)
        self._drive(chat, runner_id)
        return Started(chat=chat, model=model, first_id=first_id)

    async def _go_on(
        self, client: AsyncRookery, existing: ChatSummary, found: list[Named], operator_id: UUID
    ) -> Started:
        chat_id = existing.id
        model = await model_choice.choose(
            found,
            self._request.model,
            directory=self._replica.directory,
            owner_id=existing.owner_id,
            last=existing.last_model_config_id,
        )
        await self._introduce(model)
        cost, boot = await client.chats.cost(chat_id), await workspace_of_chat.find_boot(client, chat_id)
        if self._request.agreed:
            if existing.owner_id != operator_id:
                raise Refused("--agree: Only the owner of this chat can agree to its MCP servers.")
            await workspace_of_chat.agree(client, None if boot is None else boot.workspace_id, self._request.agreed)
        message = NewQueuedMessage(
            content=(Text(self._request.prompt),), created_by=operator_id, model_config_id=model.config.id
        )
        runner_id = uuid4()

        async def send(bundle: Bundle) -> tuple[Chat, int]:
            tx = await bundle.open(chat_id)
            if tx.chat.status not in AT_REST:
                raise Refused(f"Chat {chat_id} is {tx.chat.status}. Wait until it is at rest, or stop it.")
            if tx.chat.queue_len:
                raise Refused(f"Chat {chat_id} has {tx.chat.queue_len} queued message(s), which would run first.")
            sent = await machine.send_message(tx, message, BusyBehavior.QUEUE)
            return await machine.acquire(tx, worker_id=self._replica.id, runner_id=runner_id), sent.inserted[-1].id

        chat, first_id = await self._replica.machine.bundle(send)
        if boot is not None and not self._request.has_workspace:
            self._screen.note("the chat's workspace is not available without --workspace")
        self._drive(chat, runner_id)
        return Started(chat=chat, model=model, first_id=first_id, cost=cost, boot=boot)

    async def _stop_workspace(self, client: AsyncRookery, started: Started) -> None:
        if self._request.has_workspace:
            await workspace_of_chat.stop_started(client, started.chat.id, before=started.boot, say=self._screen.note)

    def _drive(self, chat: Chat, runner_id: UUID) -> None:
        is_driven = self._replica.worker.manager.spawn(chat.id, runner_id)
        assert is_driven, "a replica that has just started takes what it is handed"
        self._screen.busy("asking the model")

    # Ending

    async def _report(
        self, client: AsyncRookery, started: Started, state: View, stopped: Stop | None, *, seconds: float
    ) -> int:
        spent = Spent.between(started.cost, await client.chats.cost(started.chat.id))
        code, said = _verdict(state.status, stopped, self._request)
        if said:
            self._screen.error(said)
        if (error := state.error) is not None:
            detail = f" {error['detail']}" if error.get("detail") else ""
            self._screen.error(f"{error['message']}{detail}")
        self._screen.note(f"{spent.line()}{seconds:.1f} s, chat {started.chat.id}")
        self._out.result(
            {
                "chat_id": started.chat.id,
                "model": started.model.document(),
                "status": state.status,
                "stopped": stopped,
                "error": error,
                "usage": spent.tokens | {"requests": spent.requests},
                "cost_micros": spent.cost_micros,
                "seconds": round(seconds, 3),
                "messages": [_message_document(message) for message in state.messages.values()],
            }
        )
        return code


class Spent(msgspec.Struct, frozen=True, kw_only=True):
    """The usage of a turn. `cost_micros` is None if no call had a price. This differs from zero."""

    tokens: dict[str, int]
    requests: int
    cost_micros: int | None

    @classmethod
    def between(cls, before: Cost | None, after: Cost) -> Spent:
        """Return the usage since `before`, which is None for a new chat."""
        old = {} if before is None else msgspec.structs.asdict(before.tokens)
        tokens = {f"{name}_tokens": n - old.get(name, 0) for name, n in msgspec.structs.asdict(after.tokens).items()}
        requests = after.request_count - (before.request_count if before else 0)
        unpriced = after.unpriced_request_count - (before.unpriced_request_count if before else 0)
        cost = after.total_cost_micros - (before.total_cost_micros if before else 0)
        return cls(tokens=tokens, requests=requests, cost_micros=None if unpriced >= requests else cost)

    def line(self) -> str:
        # Empty if there was no output. Also empty if the turn was stopped, because such a call is added to the ledger a
        # moment later.
        read = sum(self.tokens[name] for name in ("input_tokens", "cache_read_tokens", "cache_write_tokens"))
        return stream_follower.figures_line(read, self.tokens["output_tokens"], self.cost_micros)


def _verdict(status: str | None, stopped: Stop | None, request: Request) -> tuple[Exit, str]:
    """Return the exit code, and the message about a turn that did not finish."""
    if status not in AT_REST:
        code = Exit.INTERRUPTED if stopped is Stop.SIGNAL else Exit.FAILED
        return code, f"The chat is still {status}; a running server will finish it."
    match stopped:
        case Stop.SIGNAL:
            return Exit.INTERRUPTED, "Interrupted. The answer so far is saved."
        case Stop.TIMEOUT:
            assert request.timeout is not None
            seconds = request.timeout.total_seconds()
            return Exit.FAILED, f"Stopped after {seconds:g} s (--timeout). The answer so far is saved."
    return (Exit.FAILED if status == "error" else Exit.OK), ""


def _message_document(message: Event) -> dict[str, object]:
    names = ("id", "role", "content", "created_at", "created_by", "model_config_id")
    return {name: message.get(name) for name in names}
