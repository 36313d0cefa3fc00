"""The actions of `rookery chat`, the terminal client: new, send, attach, list. They use only the public API."""

from __future__ import annotations

import asyncio
import os
import re
import select
import stat
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from uuid import UUID

import msgspec
from msgspec import UNSET

from rookery.cli.chat import approvals, stream_follower
from rookery.cli.chat.stream_follower import Follower, Interrupts, UserLeft
from rookery.cli.chat.terminal_screen import Screen
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import AsyncRookery, Chat
from rookery.client.content import BusyBehavior, Content, PermissionMode, file_part
from rookery.client.live_streams import AT_REST
from rookery.client.models import Agent, SendAnswer
from rookery.client.reducer import View
from rookery.runtime.clock import Clock, SystemClock

MAX_PROMPT_BYTES = 256 * 1024
MAX_FILE_BYTES = 10 << 20
PIPED_NAME = "stdin.txt"
PIPED_BINARY_NAME = "stdin.bin"
# Chosen: programs such as git print their first line within this time.
FIRST_BYTE_SECONDS = 3.0
MIN_PREFIX = 4
SHORT_ID = 8
MAX_ACTIVITY = 60
# Chosen: the number of chats that are searched for a shortened id.
MAX_LOOKED_AT = 1000

_PREFIX = re.compile(r"[0-9a-f-]+")


class NewChat(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a chat that is not created yet. `files` are attached to its first message."""

    model: str | None = None
    workspace: str | None = None
    plan_mode: bool = False
    permission_mode: PermissionMode = "auto"
    files: tuple[Path | tuple[str, bytes], ...] = ()


class Terminal(msgspec.Struct, frozen=True, kw_only=True):
    """A client and its screen. With `lines` events are printed as JSON."""

    client: AsyncRookery
    out: Output
    screen: Screen
    lines: bool = False
    clock: Clock = msgspec.field(default_factory=SystemClock)


def terminal(
    client: AsyncRookery, out: Output, environ: Mapping[str, str], *, quiet: bool = False, lines: bool = False
) -> Terminal:
    return Terminal(client=client, out=out, screen=Screen(out, quiet=quiet or lines, environ=environ), lines=lines)


def read_prompt(given: str) -> str:
    """Return the prompt. `-` reads it from stdin, before the event loop starts, so that Ctrl-C works."""
    return _checked(_decoded(_read_stdin()) if given == "-" else given)


def read_message(given: str, out: Output) -> tuple[str, tuple[tuple[str, bytes], ...]]:
    """Return the message and the files that it comes with.

    `-` reads the message from stdin. Text that is piped in beside a message is added to it; if it is long, or is not
    text, it becomes an attached file. stdin is read before the event loop starts, so that Ctrl-C works.
    """
    prompt = read_prompt(given)
    piped = _read_pipe(out) if given != "-" else b""
    if not piped.strip():
        return prompt, ()
    try:
        text = piped.decode().strip()
    except UnicodeDecodeError:
        return prompt, ((PIPED_BINARY_NAME, piped),)
    if len(piped) + len(prompt.encode("utf-8", "replace")) > MAX_PROMPT_BYTES:
        return prompt, ((PIPED_NAME, piped),)
    return f"{prompt}\n\n{text}", ()


def _read_pipe(out: Output) -> bytes:
    """Read what is piped into the command.

    A program may start the command with a pipe that it never writes to and never closes, so that only the first byte
    is waited for, and not for long.
    """
    if not _is_piped():
        return b""
    if not select.select([sys.stdin], [], [], FIRST_BYTE_SECONDS)[0]:
        seconds = f"{FIRST_BYTE_SECONDS:.0f}"
        out.aside(
            f"Nothing arrived on stdin within {seconds} s, so the message is sent without it. "
            "For a slow command, write its output to a file and use --file.\n"
        )
        return b""
    return _read_stdin()


def _is_piped() -> bool:
    """Return whether stdin is a pipe or a file. A terminal, a socket and /dev/null have nothing to add."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (AttributeError, OSError, ValueError):
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)


def _read_stdin() -> bytes:
    data = b"" if sys.stdin is None else sys.stdin.buffer.read(MAX_FILE_BYTES + 1)
    if len(data) > MAX_FILE_BYTES:
        raise Refused(f"The text on stdin is larger than {MAX_FILE_BYTES >> 20} MiB.", code=Exit.USAGE)
    return data


def _decoded(data: bytes) -> str:
    try:
        return data.decode().strip()
    except UnicodeDecodeError as error:
        raise Refused(f"The prompt on stdin is not UTF-8 text (byte {error.start}).", code=Exit.USAGE) from None


def _checked(prompt: str) -> str:
    if len(prompt.encode("utf-8", "replace")) > MAX_PROMPT_BYTES:
        raise Refused(f"The prompt is longer than {MAX_PROMPT_BYTES // 1024} KiB.", code=Exit.USAGE)
    if not prompt.strip():
        raise Refused("The prompt is empty. Write a prompt, or pipe it in with `-`.", code=Exit.USAGE)
    return prompt.strip()


# The commands


async def new(at: Terminal, prompt: str, new_chat: NewChat = NewChat(), *, wait: bool) -> int:  # noqa: B008 - frozen
    """Start a chat and show its first turn."""
    chat = await create(at.client, await content(at.client, prompt, new_chat.files), new_chat)
    if at.lines:
        at.out.text(msgspec.json.encode({"type": "chat", "chat": chat}).decode() + "\n")
    if not wait:
        at.out.line(str(chat.id))
        return Exit.OK
    at.screen.busy("asking the model")
    return await turn(at, chat.id, since=chat.snapshot_version)


async def send(
    at: Terminal,
    reference: str,
    prompt: str,
    *,
    busy: BusyBehavior,
    wait: bool,
    files: Sequence[Path | tuple[str, bytes]] = (),
) -> int:
    """Send a message to a chat and show the turn."""
    chat_id = await find_chat(at.client, reference)
    sent, after_id = await say(at, chat_id, await content(at.client, prompt, files), busy=busy)
    if at.lines:
        at.out.text(msgspec.json.encode({"type": "sent", "sent": sent}).decode() + "\n")
    if not wait:
        at.out.line("queued" if sent.queued else "sent")
        return Exit.OK
    at.screen.busy("asking the model")
    return await turn(at, chat_id, since=sent.chat.snapshot_version, after_id=after_id)


async def attach(at: Terminal, reference: str, *, tail: int) -> int:
    """Show the last messages of a chat and follow it until it is at rest.

    Ctrl-C ends the command; the chat continues.
    """
    chat_id = await find_chat(at.client, reference)
    async with at.client.chats.stream(chat_id, tail=tail, mark_read=True) as live:
        follower = Follower(live, screen=at.screen, out=at.out, clock=at.clock, lines=at.lines, prompts=True)
        try:
            state = await _rest(at, chat_id, follower, until_asked=False)
            assert state is not None
            follower.tell_stop()
        except asyncio.CancelledError:
            at.screen.lines(f"The chat continues: rookery chat attach {short(chat_id)}")
            raise
        return verdict(at, state, is_stopped=False)


async def interrupt(at: Terminal, reference: str) -> int:
    """Stop the running turn of a chat."""
    chat_id = await find_chat(at.client, reference)
    chat = await at.client.chats.interrupt(chat_id)
    at.out.line(f"Chat {short(chat.id)} {'is stopping' if chat.status not in AT_REST else 'has stopped'}.")
    at.out.result({"chat_id": chat.id, "status": chat.status})
    return Exit.OK


async def list_chats(at: Terminal, q: str | None, *, limit: int) -> int:
    """List chats: pinned chats first, then the others by last activity."""
    found: list[Chat] = []
    async for chat in at.client.chats.iterate(q, page_size=min(limit, 200)):
        found.append(chat)
        if len(found) == limit:
            break
    now = datetime.now(UTC)
    rows = [[short(chat.id), state_word(chat), ago(chat.last_activity_at, now), chat.title] for chat in found]
    if rows:
        at.out.table(["id", "state", "active", "title"], rows)
    else:
        at.out.line('There are no chats. Start one: rookery chat new "..."' if q is None else "No chat matches.")
    at.out.result({"chats": found})
    return Exit.OK


def state_word(chat: Chat) -> str:
    """Return whether a chat is idle, working, failed, or needs its user."""
    if chat.needs_user is not None or chat.status == "requires_action":
        return "needs you"
    return {"waiting": "idle", "error": "failed"}.get(chat.status, "working")


async def list_agents(at: Terminal, reference: str) -> int:
    """List the subagents of a chat."""
    chat_id = await find_chat(at.client, reference)
    agents = await at.client.chats.children(chat_id)
    now = datetime.now(UTC)
    rows = [
        [
            short(agent.chat_id),
            agent.kind,
            _agent_state(agent),
            ago(agent.updated_at, now),
            str(agent.steps),
            _agent_cost(agent),
            agent.title,
            agent.activity if len(agent.activity) <= MAX_ACTIVITY else f"{agent.activity[: MAX_ACTIVITY - 3]}...",
        ]
        for agent in agents
    ]
    if rows:
        at.out.table(["id", "kind", "state", "active", "steps", "cost", "title", "last activity"], rows)
        at.screen.note("Follow one with: rookery chat attach ID")
    else:
        at.out.line("This chat has no subagents.")
    at.out.result({"agents": agents})
    return Exit.OK


_PHASES = {"model": "thinking", "tool": "in a tool", "approval": "asks you", "queued": "waits for a slot"}


def _agent_state(agent: Agent) -> str:
    if agent.outcome is not None:
        return agent.outcome
    doing = _PHASES.get(agent.phase or "", agent.status)
    return f"stalled, {doing}" if agent.stalled else doing


def _agent_cost(agent: Agent) -> str:
    """Return the cost in dollars; a dash if no call has a price."""
    if not agent.cost_micros and agent.unpriced_request_count:
        return "-"
    return f"${agent.cost_micros / 1_000_000:.2f}"


# Helpers


async def create(client: AsyncRookery, said: Content, new_chat: NewChat) -> Chat:
    """Start a chat with its first message."""
    model = UNSET if new_chat.model is None else await find_model(client, new_chat.model)
    workspace = UNSET if new_chat.workspace is None else await find_workspace(client, new_chat.workspace)
    return await client.chats.create(
        said,
        client_type="cli",
        model_config_id=model,
        workspace_id=workspace,
        plan_mode=new_chat.plan_mode,
        permission_mode=new_chat.permission_mode,
    )


async def find_model(client: AsyncRookery, name: str) -> UUID:
    found = await client.models.find(name)
    if found is None:
        raise Refused(f"There is no model {name}. `rookery chat models` lists those that can be used.", code=Exit.USAGE)
    return found.id


async def find_workspace(client: AsyncRookery, reference: str) -> UUID:
    """Return the workspace with this name or id, or the only one whose id begins with this text."""
    found = [each async for each in client.workspaces.iterate()]
    named = [each for each in found if reference == each.name] or [
        each for each in found if len(reference) >= MIN_PREFIX and str(each.id).startswith(reference.lower())
    ]
    if len(named) != 1:
        names = ", ".join(each.name for each in found[:10]) or "none yet"
        count = "no workspace" if not named else "more than one workspace"
        raise Refused(f"There is {count} {reference}. Your workspaces: {names}.", code=Exit.USAGE)
    return named[0].id


async def content(client: AsyncRookery, prompt: str, files: Sequence[Path | tuple[str, bytes]]) -> Content:
    """Upload the files. Return the content of a message with them."""
    if not files:
        return prompt
    parts: list[dict[str, object]] = [{"type": "text", "text": prompt}]
    for file in files:
        name, data = (file.name, file) if isinstance(file, Path) else file
        if isinstance(data, Path):
            check_file(data)
        parts.append(file_part((await client.files.upload(data, name=name)).id))
    return parts


def check_file(path: Path) -> None:
    """Refuse a file that cannot be attached, with the reason."""
    if not path.is_file():
        raise Refused(f"{path} is not a file.", code=Exit.USAGE)
    if path.stat().st_size > MAX_FILE_BYTES:
        raise Refused(f"{path} is larger than {MAX_FILE_BYTES >> 20} MiB.", code=Exit.USAGE)


async def list_models(at: Terminal) -> int:
    providers = await at.client.models.list()
    rows = [
        [model.model, provider.display_name, model.is_default, "" if provider.available else "no key"]
        for provider in providers
        for model in provider.models
    ]
    at.out.table(["model", "provider", "default", ""], rows)
    at.out.result({"providers": providers})
    return Exit.OK


async def say(at: Terminal, chat_id: UUID, prompt: Content, *, busy: BusyBehavior) -> tuple[SendAnswer, int]:
    """Send a message. Return the response and the id of the newest message of the chat.

    That is the sent message. If it was queued, it is the newest message before it, or 0 if there is none.
    """
    known = await at.client.messages.list(chat_id, limit=1)
    before = known.items[0].id if known.items else 0
    sent = await at.client.messages.send(chat_id, prompt, busy_behavior=busy)
    for warning in sent.warnings:
        at.screen.note(warning)
    if sent.queued:
        at.screen.note("The chat is busy; the message waits for its turn.")
    return sent, max([before, *(message.id for message in sent.messages)])


async def turn(at: Terminal, chat_id: UUID, *, since: int, after_id: int = 0, until_asked: bool = False) -> int:
    """Show a chat until it is at rest, then print its usage. Ctrl-C stops the running turn.

    With `until_asked`, also return when one of its subagents asks a question. The caller then prompts for the answer.
    """
    started_at = at.clock.monotonic()
    interrupts = Interrupts(at.client, chat_id, at.screen)
    try:
        with interrupts.watching():
            async with at.client.chats.stream(chat_id, after_id=after_id, mark_read=True) as live:
                follower = Follower(
                    live, screen=at.screen, out=at.out, clock=at.clock, after_id=after_id, lines=at.lines
                )
                state = await _rest(at, chat_id, follower, since=since, until_asked=until_asked)
            await interrupts.settle()
            if not interrupts.is_stopped:
                follower.tell_stop()
    except UserLeft:
        return left(at, chat_id)
    finally:
        await interrupts.abandon()
    if state is None:
        return Exit.OK
    code = verdict(at, state, is_stopped=interrupts.is_stopped, is_asked_here=until_asked)
    seconds = at.clock.monotonic() - started_at
    at.screen.note(f"{stream_follower.figures(state, after_id)}{seconds:.1f} s, chat {short(chat_id)}")
    return code


async def _rest(at: Terminal, chat_id: UUID, follower: Follower, *, since: int = 0, until_asked: bool) -> View | None:
    """Show the chat until it is at rest, and return its state.

    A chat whose subagent asks a question is not at rest until the question is answered. With `until_asked`, return None
    in this case. Otherwise tell the user how to answer, and continue. With JSON lines, questions are not watched.
    """
    if at.lines:
        return await follower.to_rest(since)

    async def tell_end(child_id: UUID) -> None:
        follower.tell_agents([each for each in await at.client.chats.children(chat_id) if each.chat_id == child_id])

    showing = asyncio.create_task(follower.to_rest(since), name="showing")
    listening = asyncio.create_task(
        approvals.wait_for_subagent_questions(at.client, chat_id, on_rest=tell_end), name="subagents"
    )
    try:
        await asyncio.wait({showing, listening}, return_when=asyncio.FIRST_COMPLETED)
        asked = [] if showing.done() else listening.result()
        if asked and until_asked:
            return None
        for each in asked:
            at.screen.lines(*approvals.subagent_question_lines(each.title or "", each.calls))
            at.screen.lines(f"Answer it with: rookery chat attach {short(chat_id)}")
        return await showing
    finally:
        for task in (showing, listening):
            task.cancel()
        await asyncio.wait({showing, listening})


async def catch_up(at: Terminal, chat_id: UUID, *, tail: int) -> None:
    """Show the last messages of a chat and follow it until it is at rest, or until a subagent asks a question.

    Ctrl-C stops the running turn.
    """
    interrupts = Interrupts(at.client, chat_id, at.screen)
    try:
        with interrupts.watching():
            async with at.client.chats.stream(chat_id, tail=tail, mark_read=True) as live:
                follower = Follower(live, screen=at.screen, out=at.out, clock=at.clock, prompts=True)
                state = await _rest(at, chat_id, follower, until_asked=True)
            await interrupts.settle()
            if not interrupts.is_stopped:
                follower.tell_stop()
    except UserLeft:
        left(at, chat_id)
        return
    finally:
        await interrupts.abandon()
    if state is not None:
        verdict(at, state, is_stopped=interrupts.is_stopped, is_asked_here=True)


def left(at: Terminal, chat_id: UUID) -> int:
    at.screen.close()
    at.screen.error(f"Left. The chat continues: rookery chat attach {short(chat_id)}")
    return Exit.INTERRUPTED


def verdict(at: Terminal, state: View, *, is_stopped: bool, is_asked_here: bool = False) -> int:
    """Return the exit code of a turn. Print a message if it failed, was stopped, or waits for an approval.

    `is_asked_here`: the caller prompts for the approval, so no message about it is printed.
    """
    if state.status == "error":
        error = state.error or {}
        detail = f" {error['detail']}" if error.get("detail") else ""
        at.screen.error(f"{error.get('message') or 'The turn failed.'}{detail}")
        return Exit.FAILED
    is_asking = state.status == "requires_action" and (state.action or {}).get("kind") == "approval"
    if is_asking and not is_asked_here:
        at.screen.lines("The chat waits for an answer; `rookery chat attach` asks for it.")
    if is_stopped:
        at.screen.error("Interrupted. The answer so far is saved.")
        return Exit.INTERRUPTED
    return Exit.OK


async def find_chat(client: AsyncRookery, reference: str) -> UUID:
    """Return the chat with this id, or the only chat whose id begins with this text."""
    text = reference.strip().lower()
    try:
        return UUID(text)
    except ValueError:
        pass
    if not _PREFIX.fullmatch(text) or len(text) < MIN_PREFIX:
        rule = f"A chat is named by its id, or by its first {MIN_PREFIX} characters or more."
        raise Refused(f"{reference!r} is not the id of a chat. {rule}", code=Exit.USAGE)
    found: list[Chat] = []
    looked_at = 0
    async for chat in client.chats.iterate("archived:any", page_size=200):
        found += [each for each in (chat, *chat.children) if str(each.id).startswith(text)]
        looked_at += 1
        if looked_at == MAX_LOOKED_AT:
            break
    if len(found) == 1:
        return found[0].id
    if not found:
        raise Refused(f"None of your chats has an id that begins with {text}. `rookery chat list` shows them.")
    names = ", ".join(f"{chat.id} ({chat.title})" for chat in found[:5])
    raise Refused(f"{len(found)} chats have ids that begin with {text}: {names}. Write more of it.", code=Exit.USAGE)


def short(chat_id: UUID) -> str:
    return str(chat_id)[:SHORT_ID]


def ago(then: datetime, now: datetime) -> str:
    seconds = max((now - then).total_seconds(), 0.0)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit} ago"
    return "just now"
