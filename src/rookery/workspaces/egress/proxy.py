"""The egress proxy: reads a request of a workspace, checks it by the policy and the address guard, and forwards it.

A connection carries one request or one tunnel, so that no second request can be hidden after the first. A refusal tells
the model what to do. Its reason is also in the status line, because many programs show only that line.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from rookery.runtime.address_guard import CONNECT_SECONDS, Blocked, Guard, Lookups, Unreachable
from rookery.telemetry.log import get_logger
from rookery.workspaces.egress import byte_relay, hosts, requests, socks
from rookery.workspaces.egress.byte_relay import Broken, ByteStream, TooLong
from rookery.workspaces.egress.policy import Policy
from rookery.workspaces.egress.requests import Decision, Refusal, Request

log = get_logger("workspaces.egress")

MAX_ANSWER_HEAD_BYTES = 64 * 1024
MAX_INTERIM = 10
ASK = "An administrator can add hosts to the template; this takes effect at the next start of the workspace."


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Timeouts in seconds. `idle` is the time without a byte in either direction.

    `half` replaces it when one side has closed its sending direction.
    """

    head: float = 30.0
    connect: float = CONNECT_SECONDS
    idle: float = 300.0
    half: float = 60.0
    linger: float = 2.0


@dataclass(slots=True)
class EgressStats:
    requests: Counter[Decision] = field(default_factory=Counter)
    # The direction of bytes, seen from the workspace: sent, received.
    bytes: Counter[str] = field(default_factory=Counter)
    connections: int = 0


class Proxy:
    def __init__(self, guard: Guard, stats: EgressStats, timeouts: Timeouts) -> None:
        self._guard = guard
        self._stats = stats
        self._timeouts = timeouts

    async def serve(self, client: ByteStream, workspace_id: str, policy: Policy | None, *, lookups: Lookups) -> None:
        """Serve a connection to its end. The caller closes it."""
        outcome = _Outcome(self._stats)
        try:
            await self._serve(client, policy, outcome, lookups)
        except Refusal as refusal:
            outcome.decide(refusal.decision)
            outcome.status = refusal.status
            await self._refuse(client, outcome.encode_refusal(refusal))
        except TimeoutError:
            outcome.is_idle = True
            if outcome.is_unanswered:
                late = _no_answer(outcome, f"did not answer within {self._timeouts.idle:g} seconds")
                await self._refuse(client, outcome.encode_refusal(late))
        except (OSError, Broken):
            pass  # one side has disconnected
        finally:
            outcome.write_log(workspace_id)

    async def refuse(self, client: ByteStream, refusal: Refusal) -> None:
        """Refuse a connection in the client's protocol, HTTP or SOCKS, before its request is read."""
        first = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._timeouts.linger):
                first = await client.peek()
        await self._refuse(
            client, socks.encode_no_method(refusal) if first == socks.FIRST_BYTE else requests.encode_refusal(refusal)
        )

    async def _refuse(self, client: ByteStream, answer: bytes) -> None:
        """Send a refusal, and wait until the client has read it."""
        try:
            async with asyncio.timeout(self._timeouts.linger):
                await client.write(answer)
            client.close_sending()
            await client.linger(self._timeouts.linger)
        except (OSError, TimeoutError):
            pass

    async def _serve(self, client: ByteStream, policy: Policy | None, outcome: _Outcome, lookups: Lookups) -> None:
        request = await self._read(client, policy, outcome)
        if request is None:
            return
        outcome.request = request
        if policy is None:
            raise _no_policy()
        check(request, policy)
        upstream = await self._connect(request, lookups)
        outcome.decide("allowed")
        try:
            if request.is_tunnel:
                await self._tunnel(client, upstream, outcome)
            else:
                await self._exchange(client, upstream, outcome)
        except BaseException:
            upstream.abort()
            raise
        await upstream.close(self._timeouts.linger)

    async def _read(self, client: ByteStream, policy: Policy | None, outcome: _Outcome) -> Request | None:
        """Read the request. Return None if the client has disconnected without sending one."""
        head = b""
        try:
            async with asyncio.timeout(self._timeouts.head):
                if await client.peek() == socks.FIRST_BYTE:
                    return await self._read_socks(client, outcome)
                head = await client.read_head(requests.MAX_HEAD_BYTES)
        except TimeoutError:
            late = f"The request was not complete within {self._timeouts.head:g} seconds."
            raise Refusal(408, "Request too slow", late) from None
        except TooLong:
            most = f"The first line and the headers may have at most {requests.MAX_HEAD_BYTES} bytes here."
            raise Refusal(431, "Headers too long", most) from None
        except Broken:
            raise requests.malformed("its head does not end as HTTP says, with lines that end in CR LF") from None
        try:
            return requests.parse(head) if head else None
        except Refusal as refusal:
            if policy is not None:
                raise _with_allowed_hosts(refusal, policy) from None
            raise

    async def _read_socks(self, client: ByteStream, outcome: _Outcome) -> Request:
        outcome.encode_refusal, outcome.established = socks.encode_no_method, socks.ESTABLISHED
        try:
            await socks.negotiate(client)
            outcome.encode_refusal = socks.encode_refusal
            return await socks.read_request(client)
        except Broken:
            raise requests.malformed("it ends in the middle") from None

    async def _connect(self, request: Request, lookups: Lookups) -> ByteStream:
        host, port, seconds = request.host, request.port, self._timeouts.connect
        try:
            return await ByteStream.from_socket(await self._guard.connect(host, port, seconds=seconds, lookups=lookups))
        except Blocked:
            # The address is not shown, because it would reveal names of the server's network.
            raise Refusal(
                403,
                f"{request.host} leads to a private address",
                f"{request.host} leads to an address of the server's machine, of a private network or of a cloud's "
                "metadata service, which workspaces cannot reach. Use a public host, or ask the operator of the server "
                "about net_allow_private.",
                decision="blocked_address",
            ) from None
        except Unreachable as error:
            raise Refusal(
                502,
                f"{request.host} cannot be reached",
                f"{request.host} port {request.port} cannot be reached from the server: {error}. Check the name, or "
                "try again later.",
                decision="unreachable",
            ) from error

    async def _tunnel(self, client: ByteStream, upstream: ByteStream, outcome: _Outcome) -> None:
        await client.write(outcome.established)
        async with asyncio.timeout(self._timeouts.idle) as limit:
            idle = _IdleTimeout(limit, self._timeouts)

            async def up() -> None:
                await byte_relay.copy(client, upstream, lambda count: outcome.sent(count, idle))
                idle.half_closed()

            async def down() -> None:
                await byte_relay.copy(upstream, client, lambda count: outcome.received(count, idle))
                idle.half_closed()

            await _both(up(), down())
        await client.close(self._timeouts.half)

    async def _exchange(self, client: ByteStream, upstream: ByteStream, outcome: _Outcome) -> None:
        assert outcome.request is not None
        request = outcome.request
        async with asyncio.timeout(self._timeouts.idle) as limit:
            idle = _IdleTimeout(limit, self._timeouts)
            await upstream.write(request.head())
            sending = asyncio.create_task(self._send_body(client, upstream, outcome, idle), name="egress-body")
            try:
                await self._forward_answer(client, upstream, outcome, idle)
            finally:
                # If the response ends before the body was sent, the host does not want the rest.
                sending.cancel()
                await asyncio.wait({sending})
        client.close_sending()
        await client.linger(self._timeouts.linger)
        await client.close(self._timeouts.half)

    async def _send_body(self, client: ByteStream, upstream: ByteStream, outcome: _Outcome, idle: _IdleTimeout) -> None:
        assert outcome.request is not None
        length = outcome.request.length
        try:
            if length is None:
                await byte_relay.copy_chunks(client, upstream, lambda count: outcome.sent(count, idle))
            else:
                await byte_relay.copy_exactly(client, upstream, length, lambda count: outcome.sent(count, idle))
            # Discard further bytes. The client is done at the end of its stream, but the host may not be.
            while await client.read():
                pass
            idle.half_closed()
        except Broken:
            # The host must not take an incomplete body for a complete one.
            outcome.is_broken = True
            upstream.abort()
        except OSError:
            pass  # the host has closed the connection, perhaps after a response

    async def _forward_answer(
        self, client: ByteStream, upstream: ByteStream, outcome: _Outcome, idle: _IdleTimeout
    ) -> None:
        for _ in range(MAX_INTERIM):
            try:
                head = await upstream.read_head(MAX_ANSWER_HEAD_BYTES)
                status, passed_on = requests.parse_answer_head(head)
                if status == 101:
                    raise ValueError("no upgrade was requested")
            except (Broken, TooLong, ValueError, OSError):
                raise _no_answer(outcome, "closed the connection without a valid HTTP response") from None
            outcome.status = status
            await client.write(passed_on)
            idle.extend()
            if status >= 200:
                await byte_relay.copy(upstream, client, lambda count: outcome.received(count, idle))
                return
        raise _no_answer(outcome, "sent too many interim responses")


def check(request: Request, policy: Policy) -> None:
    """Raise `Refusal` if the workspace may not reach this host and port."""
    if policy.is_public:
        return  # the address guard checks the address
    if request.is_address:
        raise _with_allowed_hosts(requests.address_refused(request.host), policy)
    rules = policy.rules()
    if any(rule.matches(request.host, request.port) for rule in rules):
        return
    if ports := [rule for rule in rules if rule.matches_host(request.host)]:
        reason = f"Port {request.port} of {request.host} is not allowed in this workspace"
        text = f"{request.host} is allowed on other ports than {request.port}: {hosts.format_rules(ports)}."
    else:
        reason = f"{request.host} is not one of the hosts that this workspace may reach"
        text = f"{reason}. Other programs are refused too."
    raise Refusal(403, reason, f"{text} {describe_allowed(policy)}", decision="not_listed")


def _with_allowed_hosts(refusal: Refusal, policy: Policy) -> Refusal:
    refusal.text = f"{refusal.text} {describe_allowed(policy)}"
    return refusal


def describe_allowed(policy: Policy) -> str:
    """Return a sentence about the hosts that a workspace may reach."""
    if policy.is_public:
        return "Allowed: every public host on every port, but no private networks, and not the server's machine."
    if policy.is_capped:
        return (
            "The server allows only hosts that the template lists "
            '(drivers.local.network_max = "hosts"), and this template lists none.'
        )
    return f"Allowed: {hosts.format_rules(policy.rules())}; ports 80 and 443 unless another is named. {ASK}"


def _no_policy() -> Refusal:
    text = "The server has no policy for this workspace. Stop it and start it again."
    return Refusal(503, "The workspace has to be started again", text, decision="not_listed")


def _no_answer(outcome: _Outcome, why: str) -> Refusal:
    assert outcome.request is not None
    if outcome.is_broken:
        return requests.malformed("its body does not have the announced length")
    host = outcome.request.host
    return Refusal(502, f"{host} did not respond", f"{host} {why}.", decision="unreachable")


class _IdleTimeout:
    """Extends the timeout of a connection while bytes are copied."""

    def __init__(self, limit: asyncio.Timeout, timeouts: Timeouts) -> None:
        self._limit = limit
        self._seconds = timeouts.idle
        self._half = timeouts.half
        self._loop = asyncio.get_running_loop()

    def extend(self) -> None:
        until = self._limit.when()
        # The deadline is not extended for every piece, because a new timer is slower than reading the clock.
        if until is not None and until - self._loop.time() < self._seconds * 0.9:
            self._reschedule()

    def half_closed(self) -> None:
        self._seconds = min(self._seconds, self._half)
        self._reschedule()

    def _reschedule(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(self._loop.time() + self._seconds)


class _Outcome:
    """The state and result of one connection, for refusals, the log and the counters."""

    def __init__(self, stats: EgressStats) -> None:
        self._stats = stats
        self._began = time.monotonic()
        self._bytes = {"sent": 0, "received": 0}
        self._decision: Decision | None = None
        self.request: Request | None = None
        self.status: int | None = None
        # The encoder of refusals: HTTP, until the first byte shows that the client uses SOCKS.
        self.encode_refusal: Callable[[Refusal], bytes] = requests.encode_refusal
        self.established = requests.ESTABLISHED
        self.is_idle = False
        self.is_broken = False

    @property
    def is_unanswered(self) -> bool:
        """Return whether a forwarded HTTP request has no response yet."""
        return self.request is not None and not self.request.is_tunnel and self.status is None

    def decide(self, decision: Decision) -> None:
        if self._decision is None:
            self._decision = decision
            self._stats.requests[decision] += 1

    def sent(self, count: int, idle: _IdleTimeout) -> None:
        self._count("sent", count, idle)

    def received(self, count: int, idle: _IdleTimeout) -> None:
        self._count("received", count, idle)

    def _count(self, direction: str, count: int, idle: _IdleTimeout) -> None:
        self._bytes[direction] += count
        self._stats.bytes[direction] += count
        idle.extend()

    def write_log(self, workspace_id: str) -> None:
        if self._decision is None:
            return
        request = self.request
        log.info(
            "egress",
            workspace_id=workspace_id,
            decision=self._decision,
            method=request.method if request is not None else None,
            host=request.host if request is not None else None,
            port=request.port if request is not None else None,
            protocol="http" if self.established is requests.ESTABLISHED else "socks5",
            status=self.status,
            seconds=round(time.monotonic() - self._began, 3),
            **({"idle": True} if self.is_idle else {}),
            **self._bytes,
        )


async def _both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Run both coroutines to their end. If one fails, cancel the other."""
    tasks = {asyncio.create_task(one, name="egress-up"), asyncio.create_task(other, name="egress-down")}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
