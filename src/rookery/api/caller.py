"""The caller: the authenticated user of a request, with the store on behalf of this user, and the request body."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar
from uuid import UUID

from starlette.requests import HTTPConnection, Request

from rookery.api import request_bodies
from rookery.api.errors import ApiError
from rookery.api.rate_limits import Limit, RateLimits
from rookery.api.request_bodies import MAX_BODY_BYTES, READ_SECONDS, Body
from rookery.domain.access.rights import Action, Resource, Scope, UserActor, has_scope
from rookery.domain.chat.messages import ChatId
from rookery.runtime.clock import Clock
from rookery.store.authorized.actor_store import ActorStore, Store
from rookery.store.db import idempotency
from rookery.store.people.audit import RequestInfo
from rookery.store.people.errors import ScopeMissing
from rookery.store.people.signed_links import LinkKey
from rookery.store.people.users import User

BREAK_GLASS = "rookery-break-glass"
IDEMPOTENCY_KEY = "idempotency-key"
# If the body is complete only after this time since the request was admitted, it counts as late.
LATE_SECONDS = 1.0

B = TypeVar("B", bound=Body)


class Caller:
    """An authenticated user and their credential, for one request."""

    __slots__ = (
        "_admitted_at",
        "_clock",
        "_limits",
        "_store",
        "access_changes",
        "actor",
        "connection",
        "credential_id",
        "info",
        "is_by_link",
        "links",
        "max_body",
        "read_seconds",
        "session_id",
        "user",
    )

    def __init__(
        self,
        *,
        user: User,
        actor: UserActor,
        credential_id: UUID,
        session_id: UUID | None,
        links: LinkKey | None = None,
        is_by_link: bool = False,
        info: RequestInfo,
        connection: HTTPConnection,
        store: Store,
        limits: RateLimits,
        clock: Clock,
        access_changes: int = 0,
        max_body: int = MAX_BODY_BYTES,
        read_seconds: float = READ_SECONDS,
    ) -> None:
        self.user = user
        self.actor = actor
        self.credential_id = credential_id
        self.session_id = session_id
        # Signs links for the session. None for an API token.
        self.links = links
        self.is_by_link = is_by_link
        self.info = info
        self.connection = connection
        # The number of access changes before the credential was checked. If there were more changes since, a stream
        # that is opened with this credential checks it again.
        self.access_changes = access_changes
        self.max_body = max_body
        self.read_seconds = read_seconds
        self._store = store
        self._limits = limits
        self._clock = clock
        self._admitted_at = clock.monotonic()

    @property
    def reason(self) -> str | None:
        """Return the reason why an administrator reads another user's chat."""
        given = self.connection.headers.get(BREAK_GLASS)
        if given is None:
            return None
        try:
            # Frameworks decode headers as Latin-1. Browsers send this header in UTF-8, because a reason may contain any
            # name.
            return given.encode("latin-1").decode()
        except UnicodeDecodeError:
            return given

    @property
    def store(self) -> ActorStore:
        """The store for this caller. It authorizes every read and write."""
        return self._store.as_actor(
            self.actor, request=self.info, break_glass=self.reason, credential_id=self.credential_id
        )

    @property
    def own_store(self) -> ActorStore:
        """The store without the break-glass reason, for work that outlives this request.

        A reason is valid for one request only.
        """
        return self._store.as_actor(self.actor, request=self.info, credential_id=self.credential_id)

    def take(self, limit: Limit) -> None:
        """Count a request against one of the stricter rate limits."""
        self._limits.take(limit, str(self.user.id))

    async def read(
        self,
        model: type[B],
        *,
        may: Callable[[], Awaitable[object]] | None = None,
        limit: int | None = None,
    ) -> B:
        """Return the validated body of the request.

        `may` is awaited before an error in the body is reported, so that a caller without the right gets only the error
        about it.
        """
        request = self.connection
        assert isinstance(request, Request), "a stream has no body"
        try:
            request_bodies.require_json(request)
            return request_bodies.parse(
                model, await self.read_bytes(limit=limit or self.max_body, seconds=self.read_seconds)
            )
        except ApiError:
            if may is not None:
                await may()
            raise

    async def read_bytes(self, *, limit: int, seconds: float) -> bytes:
        """Return the raw body of the request.

        A request is admitted by its headers. If its body is late, the credential is checked again, because it may have
        been revoked meanwhile.
        """
        request = self.connection
        assert isinstance(request, Request), "a stream has no body"
        data = await request_bodies.read(request, limit=limit, seconds=seconds)
        if self._clock.monotonic() - self._admitted_at > LATE_SECONDS:
            await self._store.require_credential(self.actor, self.credential_id)
        return data

    def may(self, chat: UUID, action: Action) -> Callable[[], Awaitable[object]]:
        """Return a check that the caller has this right on the chat, for the argument `may` of `read`."""
        return lambda: self.store.chats.require(ChatId(chat), action)

    def may_create(self, resource: Resource) -> Callable[[], Awaitable[object]]:
        """Return a check that the credential may create this kind of object, for the argument `may` of `read`."""

        async def check() -> None:
            if not has_scope(self.actor, resource, Action.CREATE):
                raise ScopeMissing(Scope.CHAT_WRITE)

        return check

    def idempotency_request(self, operation: str) -> idempotency.Request | None:
        """Return the idempotency key of the request; None if it has none. The body must have been read."""
        key = self.connection.headers.get(IDEMPOTENCY_KEY)
        if key is None:
            return None
        return idempotency.Request(self.user.id, key, operation, request_bodies.raw_body(self.connection))


def caller_of(connection: HTTPConnection) -> Caller:
    caller = connection.scope.get("rookery.caller")
    assert isinstance(caller, Caller), "the middleware admits no request without a caller"
    return caller
