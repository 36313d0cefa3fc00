"""Passwords: which ones are taken, and their argon2id hashes.

A hash takes about 45 ms of a core on purpose. Two threads compute them, so that logins never hold up the event loop,
and no more than 32 wait: beyond that `PasswordsBusy`, or strangers could queue up the server's whole day.
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

# The settings of debug-and-operations.md, "Authentication".
MEMORY_KIB, PASSES, LANES = 19_456, 2, 1

_COMMON_FILE = "common_passwords.txt"


class Passwords:
    """One per process. `close` when the process ends."""

    def __init__(self, *, memory_kib: int = MEMORY_KIB, threads: int = THREADS, max_waiting: int = MAX_WAITING) -> None:
        self._hasher = argon2.PasswordHasher(time_cost=PASSES, memory_cost=memory_kib, parallelism=LANES, type=Type.ID)
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="passwords")
        self._max_pending = threads + max_waiting
        self._pending = 0
        self._counting = threading.Lock()
        # Verified when there is no account, so that the answer takes as long as for one that exists.
        self._nobodys = self._hasher.hash("nobody has this password")

    @property
    def pending(self) -> int:
        """How many are being computed or wait for it."""
        return self._pending

    async def hash(self, password: str) -> str:
        """The hash to store, in PHC form. The password was checked before (`check`)."""
        return await self._run(functools.partial(self._hasher.hash, _normal(password)))

    async def verify(self, password: str, stored: str | None) -> bool:
        """Whether this is the password. Without a stored hash the answer is no, and takes as long."""
        matches = await self._run(functools.partial(self._verify, _normal(password), stored or self._nobodys))
        return matches and stored is not None

    def needs_rehash(self, stored: str) -> bool:
        """Whether the hash was made with other settings than those of today."""
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
        # Counted until the thread is done, not until the caller is: one who hangs up frees no thread.
        future.add_done_callback(self._done)
        return await asyncio.wrap_future(future)

    def _done(self, _: Future[T]) -> None:
        with self._counting:
            self._pending -= 1


def check(password: str, *, names: Collection[str] = (), field: str = "password") -> None:
    """Refuse a password that is too short, too long, common, or one of the account's own names."""
    text = _normal(password)
    if not MIN_CHARS <= len(text) <= MAX_CHARS:
        raise InvalidInput(field, f"A password has {MIN_CHARS} to {MAX_CHARS} characters; this one has {len(text)}.")
    if text.casefold() in common():
        raise InvalidInput(field, "This password is one of the first that anybody would try. Choose another.")
    own = {normal_name(name) for name in names}
    if normal_name(text) in own | {name.partition("@")[0] for name in own}:
        raise InvalidInput(field, "The password must not be the email address or the username. Choose another.")


@functools.cache
def common() -> frozenset[str]:
    """Passwords everybody tries, as far as they are long enough to be allowed at all."""
    text = (resources.files("rookery.store.people") / _COMMON_FILE).read_text("utf-8")
    return frozenset(text.split())


def _normal(password: str) -> str:
    """The same characters however a keyboard composes them. Halves of surrogate pairs cannot be hashed."""
    if any("\ud800" <= character <= "\udfff" for character in password):
        raise InvalidInput("password", "The password holds half a character. Type it again.")
    return unicodedata.normalize("NFKC", password)
