"""The egress proxy: parses one connection of a workspace, checks it against the policy and the guard, and forwards it.

A connection carries one request, or one tunnel. Each further request needs a new connection, so that no second request
can hide behind the first. Refusals state what to do, because a model reads them. Many programs show only the status
line of a proxy, so the reason is there too.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from rookery.runtime.address_guard import CONNECT_SECONDS, Blocked, Guard, Lookups, Unreachable
from rookery.telemetry.log import get_logger
from rookery.workspaces.egress import byte_relay, hosts, requests, socks
from rookery.workspaces.egress.byte_relay import Broken, TooLong, Wire
from rookery.workspaces.egress.policy import Policy
from rookery.workspaces.egress.requests import Decision, Refusal, Request
from rookery.workspaces.egress.stats import EgressStats

log = get_logger("workspaces.egress")

MAX_ANSWER_HEAD_BYTES = 64 * 1024
MAX_INTERIM = 10
ASK = "An administrator can add hosts to the template; it then holds from the workspace's next start."


@dataclass(frozen=True, kw_only=True)
class Times:
    """Timeouts in seconds. `idle`: no byte in either direction. `half`: the same after one side has closed its
    direction.
    """

    head: float = 30.0
    connect: float = CONNECT_SECONDS
    idle: float = 300.0
    half: float = 60.0
    linger: float = 2.0


class Proxy:
    def __init__(self, guard: Guard, stats: EgressStats, times: Times) -> None:
        self._guard = guard
        self._stats = stats
        self._times = times

    async def serve(self, client: Wire, workspace_id: str, policy: Policy | None, *, lookups: Lookups) -> None:
        """Serve a connection to its end. The caller closes the connection when this is canceled."""
        visit = _Visit(self._stats)
        try:
            await self._serve(client, policy, visit, lookups)
        except Refusal as refusal:
            visit.decide(refusal.decision)
            visit.status = refusal.status
            await self._refuse(client, visit.form(refusal))
        except TimeoutError:
            visit.has_idled = True
            if visit.is_unanswered:
                late = _no_answer(visit, f"did not answer within {self._times.idle:g} seconds")
                await self._refuse(client, visit.form(late))
        except (OSError, Broken):
            pass  # one side has left
        finally:
            visit.tell(workspace_id)

    async def turn_away(self, client: Wire, refusal: Refusal) -> None:
        """Refuse any request, in the protocol of the client."""
        first = b""
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(self._times.linger):
                first = await client.peek()
        await self._refuse(client, socks.unwilling(refusal) if first == socks.FIRST_BYTE else requests.answer(refusal))

    async def _refuse(self, client: Wire, answer: bytes) -> None:
        """Send a refusal, and close when it has been read."""
        try:
            async with asyncio.timeout(self._times.linger):
                await client.write(answer)
            client.end()
            await client.linger(self._times.linger)
        except (OSError, TimeoutError):
            pass

    async def _serve(self, client: Wire, policy: Policy | None, visit: _Visit, lookups: Lookups) -> None:
        request = await self._read(client, policy, visit)
        if request is None:
            return
        visit.request = request
        if policy is None:
            raise _no_policy()
        check(request, policy)
        upstream = await self._connect(request, lookups)
        visit.decide("allowed")
        try:
            if request.is_tunnel:
                await self._tunnel(client, upstream, visit)
            else:
                await self._exchange(client, upstream, visit)
        except BaseException:
            upstream.drop()
            raise
        await upstream.close(self._times.linger)

    async def _read(self, client: Wire, policy: Policy | None, visit: _Visit) -> Request | None:
        """Read the request; return None when the client left without sending anything."""
        head = b""
        try:
            async with asyncio.timeout(self._times.head):
                if await client.peek() == socks.FIRST_BYTE:
                    return await self._read_socks(client, visit)
                head = await client.read_head(requests.MAX_HEAD_BYTES)
        except TimeoutError:
            late = f"The request was not complete within {self._times.head:g} seconds."
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
                raise _with_list(refusal, policy) from None
            raise

    async def _read_socks(self, client: Wire, visit: _Visit) -> Request:
        visit.form, visit.established = socks.unwilling, socks.ESTABLISHED
        try:
            await socks.negotiate(client)
            visit.form = socks.answer
            return await socks.read_request(client)
        except Broken:
            raise requests.malformed("it ends in the middle") from None

    async def _connect(self, request: Request, lookups: Lookups) -> Wire:
        host, port, seconds = request.host, request.port, self._times.connect
        try:
            return await Wire.over(await self._guard.connect(host, port, seconds=seconds, lookups=lookups))
        except Blocked:
            # The address is not shown: a workspace must not learn how names of the server's network resolve.
            raise Refusal(
                403,
                f"{request.host} leads to a private address",
                f"{request.host} leads to an address of the server's machine, of a private network or of a cloud's "
                "metadata, which workspaces never reach. Use a public host, or ask the operator of the server about "
                "net_allow_private.",
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

    async def _tunnel(self, client: Wire, upstream: Wire, visit: _Visit) -> None:
        await client.write(visit.established)
        async with asyncio.timeout(self._times.idle) as limit:
            awake = _Awake(limit, self._times)

            async def up() -> None:
                await byte_relay.copy(client, upstream, lambda count: visit.sent(count, awake))
                awake.half_over()

            async def down() -> None:
                await byte_relay.copy(upstream, client, lambda count: visit.received(count, awake))
                awake.half_over()

            await _both(up(), down())
        await client.close(self._times.half)

    async def _exchange(self, client: Wire, upstream: Wire, visit: _Visit) -> None:
        assert visit.request is not None
        request = visit.request
        async with asyncio.timeout(self._times.idle) as limit:
            awake = _Awake(limit, self._times)
            await upstream.write(request.head())
            sending = asyncio.create_task(self._send_body(client, upstream, visit, awake), name="egress-body")
            try:
                await self._pass_answer_on(client, upstream, visit, awake)
            finally:
                # A response may arrive before the body has been sent: such a host does not want the rest.
                sending.cancel()
                await asyncio.wait({sending})
        client.end()
        await client.linger(self._times.linger)
        await client.close(self._times.half)

    async def _send_body(self, client: Wire, upstream: Wire, visit: _Visit, awake: _Awake) -> None:
        assert visit.request is not None
        length = visit.request.length
        try:
            if length is None:
                await byte_relay.copy_chunks(client, upstream, lambda count: visit.sent(count, awake))
            else:
                await byte_relay.copy_exactly(client, upstream, length, lambda count: visit.sent(count, awake))
            # Further bytes are discarded. The end of the stream means the client is done, though the host may not be.
            while await client.read():
                pass
            awake.half_over()
        except Broken:
            # A partial body must not look complete, so its sender gets no successful response.
            visit.is_broken = True
            upstream.drop()
        except OSError:
            pass  # the host has closed: perhaps with a response

    async def _pass_answer_on(self, client: Wire, upstream: Wire, visit: _Visit, awake: _Awake) -> None:
        for _ in range(MAX_INTERIM):
            try:
                head = await upstream.read_head(MAX_ANSWER_HEAD_BYTES)
                status, passed_on = requests.answer_head(head)
                if status == 101:
                    raise ValueError("nobody asked for another protocol")
            except (Broken, TooLong, ValueError, OSError):
                raise _no_answer(visit, "closed the connection without an answer in HTTP") from None
            visit.status = status
            await client.write(passed_on)
            awake.again()
            if status >= 200:
                await byte_relay.copy(upstream, client, lambda count: visit.received(count, awake))
                return
        raise _no_answer(visit, "came to no end with interim answers")


def check(request: Request, policy: Policy) -> None:
    """Check whether the workspace may reach this host and port. Raises `Refusal`."""
    if policy.is_public:
        return  # the guard checks the resolved address
    if request.is_address:
        raise _with_list(requests.address_refused(request.host), policy)
    rules = policy.rules()
    if any(rule.matches(request.host, request.port) for rule in rules):
        return
    if ports := [rule for rule in rules if rule.covers(request.host)]:
        reason = f"Port {request.port} of {request.host} is not allowed in this workspace"
        text = f"{request.host} is listed for other ports than {request.port}: {hosts.shown(ports)}."
    else:
        reason = f"{request.host} is not one of the hosts that this workspace may reach"
        text = f"{reason}. Other tools and other ways end here too."
    raise Refusal(403, reason, f"{text} {allowed(policy)}", decision="not_listed")


def _with_list(refusal: Refusal, policy: Policy) -> Refusal:
    refusal.text = f"{refusal.text} {allowed(policy)}"
    return refusal


def allowed(policy: Policy) -> str:
    """Describe what a workspace may reach."""
    if policy.is_public:
        return "Allowed: every public host on every port; nothing private, and nothing of the server's machine."
    if policy.is_capped:
        return (
            "The server allows workspaces no more than hosts that their template lists "
            '(drivers.local.network_max = "hosts"), and this template lists none.'
        )
    return f"Allowed: {hosts.shown(policy.rules())}; ports 80 and 443 unless another is named. {ASK}"


def _no_policy() -> Refusal:
    text = "The server does not know what this workspace may reach. Stop it and start it again."
    return Refusal(503, "The workspace has to be started again", text, decision="not_listed")


def _no_answer(visit: _Visit, why: str) -> Refusal:
    assert visit.request is not None
    if visit.is_broken:
        return requests.malformed("its body does not end as its headers say")
    host = visit.request.host
    return Refusal(502, f"{host} gave no answer", f"{host} {why}.", decision="unreachable")


class _Awake:
    """Extends the deadline of a connection while bytes flow."""

    def __init__(self, limit: asyncio.Timeout, times: Times) -> None:
        self._limit = limit
        self._seconds = times.idle
        self._half = times.half
        self._loop = asyncio.get_running_loop()

    def again(self) -> None:
        until = self._limit.when()
        # Not for every piece: a timer costs more than reading the clock.
        if until is not None and until - self._loop.time() < self._seconds * 0.9:
            self._move()

    def half_over(self) -> None:
        self._seconds = min(self._seconds, self._half)
        self._move()

    def _move(self) -> None:
        if not self._limit.expired():
            self._limit.reschedule(self._loop.time() + self._seconds)


class _Visit:
    """The outcome of a connection, for the log and the counters."""

    def __init__(self, stats: EgressStats) -> None:
        self._stats = stats
        self._began = time.monotonic()
        self._bytes = {"sent": 0, "received": 0}
        self._decision: Decision | None = None
        self.request: Request | None = None
        self.status: int | None = None
        # The format of refusals, which is known after the client's first byte.
        self.form: Callable[[Refusal], bytes] = requests.answer
        self.established = requests.ESTABLISHED
        self.has_idled = False
        self.is_broken = False

    @property
    def is_unanswered(self) -> bool:
        """Return whether a host was asked and sent nothing, which a tunnel does not show."""
        return self.request is not None and not self.request.is_tunnel and self.status is None

    def decide(self, decision: Decision) -> None:
        if self._decision is None:
            self._decision = decision
            self._stats.requests[decision] += 1

    def sent(self, count: int, awake: _Awake) -> None:
        self._count("sent", count, awake)

    def received(self, count: int, awake: _Awake) -> None:
        self._count("received", count, awake)

    def _count(self, direction: str, count: int, awake: _Awake) -> None:
        self._bytes[direction] += count
        self._stats.bytes[direction] += count
        awake.again()

    def tell(self, workspace_id: str) -> None:
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
            **({"idle": True} if self.has_idled else {}),
            **self._bytes,
        )


async def _both(one: Coroutine[Any, Any, None], other: Coroutine[Any, Any, None]) -> None:
    """Run both to their end; if one fails, cancel the other."""
    tasks = {asyncio.create_task(one, name="egress-up"), asyncio.create_task(other, name="egress-down")}
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
