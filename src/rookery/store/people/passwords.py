"""Passwords: their rules and their argon2id hashes.

A hash takes about 45 ms of processor time, which makes guessing expensive. Two threads compute hashes, so that logins
do not block the event loop. At most 32 requests wait for them; further ones get `PasswordsBusy`.
"""

from __future__ import annotations

import asyncio
import functools
import threading
import unicodedata
from collections.abc import Callable, Collection
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import resources
from typing import TypeVar

import argon2
from argon2.exceptions import InvalidHashError, VerificationError
from argon2.low_level import Type

from rookery.domain.access.account_names import normal_name
from rookery.domain.chat.errors import InvalidInput
from rookery.store.people.errors import PasswordsBusy

T = TypeVar("T")

MIN_CHARS, MAX_CHARS = 10, 256
THREADS = 2
MAX_WAITING = 32

# The parameters of argon2id. After a change, a password is hashed again at its next login.
MEMORY_KIB, PASSES, LANES = 19_456, 2, 1

_COMMON_FILE = "common_passwords.txt"


class Passwords:
    """Hashes and verifies passwords. Call `close` when the process ends."""

    def __init__(self, *, memory_kib: int = MEMORY_KIB, threads: int = THREADS, max_waiting: int = MAX_WAITING) -> None:
        self._hasher = argon2.PasswordHasher(time_cost=PASSES, memory_cost=memory_kib, parallelism=LANES, type=Type.ID)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="passwords")
        self._max_pending = threads + max_waiting
        self._pending = 0
        self._counting = threading.Lock()
        # A hash to verify if there is no account, so that the answer takes the same time.
        self._dummy_hash = self._hasher.hash("no account has this password")

    @property
    def pending(self) -> int:
        """Return the number of computations that run or wait."""
        return self._pending

    async def hash(self, password: str) -> str:
        """Return the hash in PHC form. The caller has checked the password with `check`."""
        return await self._run(functools.partial(self._hasher.hash, _normal(password)))

    async def verify(self, password: str, stored: str | None) -> bool:
        """Return whether the password matches the hash. Without a hash, return False after the same time."""
        matches = await self._run(functools.partial(self._verify, _normal(password), stored or self._dummy_hash))
        return matches and stored is not None

    def needs_rehash(self, stored: str) -> bool:
        """Return whether the hash was computed with other parameters than the current ones."""
        return self._hasher.check_needs_rehash(stored)

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _verify(self, password: str, stored: str) -> bool:
        try:
            return self._hasher.verify(stored, password)
        except (VerificationError, InvalidHashError):
            return False

    async def _run(self, work: Callable[[], T]) -> T:
        if self._pending >= self._max_pending:
            raise PasswordsBusy
        future = self._executor.submit(work)
        with self._counting:
            self._pending += 1
        # The work counts until the thread is done, because the thread continues if the client disconnects.
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def _done(self, _: Future[T]) -> None:
        with self._counting:
            self._pending -= 1


def check(password: str, *, names: Collection[str] = (), field: str = "password") -> None:
    """Raise `InvalidInput` for a password that is too short, too long, common, or a name of the account."""
    text = _normal(password)
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        raise InvalidInput(
            field, f"A password must have {MIN_CHARS} to {MAX_CHARS} characters; this one has {len(text)}."
        )
    if text.casefold() in common():
        raise InvalidInput(field, "This password is too common. Choose another.")
    own = {normal_name(name) for name in names}
    if normal_name(text) in own | {name.partition("@")[0] for name in own}:
        raise InvalidInput(field, "The password must not be the email address or the username. Choose another.")


@functools.cache
def common() -> frozenset[str]:
    """Return common passwords of the allowed length."""
    text = (resources.files("rookery.store.people") / _COMMON_FILE).read_text("utf-8")
    return frozenset(text.split())


def _normal(password: str) -> str:
    """Return the password with composed characters. Raises `InvalidInput` for lone surrogates."""
    if any("\ud800" <= character <= "\udfff" for character in password):
        raise InvalidInput("password", "The password contains an incomplete character. Type it again.")
    return unicodedata.normalize("NFKC", password)
