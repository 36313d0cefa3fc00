"""Passwords: the accepted ones, and the limit on concurrent hash computations."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from rookery.domain.chat.errors import InvalidInput
from rookery.store.people import passwords
from rookery.store.people.errors import PasswordsBusy
from rookery.store.people.passwords import Passwords
from tests.eventually import until
from tests.store.people.account_rows import PASSWORD, cheap_passwords


@pytest.fixture
def checker() -> Iterator[Passwords]:
    made = cheap_passwords()
    yield made
    made.close()


async def test_hash_is_argon2id_in_phc_form_with_the_settings_of_the_design() -> None:
    real = Passwords()
    try:
        stored = await real.hash(PASSWORD)
    finally:
        real.close()

    assert stored.startswith("$argon2id$v=19$m=19456,t=2,p=1$")


async def test_password_verifies_against_its_own_hash_only(checker: Passwords) -> None:
    stored = await checker.hash(PASSWORD)

    assert await checker.verify(PASSWORD, stored)
    assert not await checker.verify(PASSWORD + "x", stored)
    assert not await checker.verify(PASSWORD, None)
    assert not await checker.verify(PASSWORD, "$argon2id$damaged")


async def test_two_spellings_of_one_character_are_one_password(checker: Passwords) -> None:
    stored = await checker.hash("u\u0308ber-den-morgen")

    assert await checker.verify("\u00fcber-den-morgen", stored)


async def test_hash_of_other_settings_is_due_for_renewal(checker: Passwords) -> None:
    stored = await checker.hash(PASSWORD)
    other = Passwords(memory_kib=128)
    try:
        assert other.needs_rehash(stored)
        assert not checker.needs_rehash(stored)
    finally:
        other.close()


async def test_request_beyond_the_queue_is_refused_immediately() -> None:
    checker = Passwords(memory_kib=64, threads=1, max_waiting=2)
    gate = threading.Event()
    held = [asyncio.ensure_future(checker._run(gate.wait)) for _ in range(3)]
    try:
        await until(lambda: checker.pending == 3)

        with pytest.raises(PasswordsBusy):
            await checker.hash(PASSWORD)
    finally:
        gate.set()
        await asyncio.gather(*held)

    assert checker.pending == 0
    assert await checker.hash(PASSWORD)
    checker.close()


async def test_disconnected_client_does_not_free_a_thread() -> None:
    checker = Passwords(memory_kib=64, threads=1, max_waiting=0)
    gate = threading.Event()
    held = asyncio.ensure_future(checker._run(gate.wait))
    await until(lambda: checker.pending == 1)
    held.cancel()
    try:
        await asyncio.gather(held, return_exceptions=True)

        with pytest.raises(PasswordsBusy):
            await checker.hash(PASSWORD)
    finally:
        gate.set()
    await until(lambda: checker.pending == 0)
    checker.close()


@pytest.mark.parametrize("length", [10, 256])
def test_password_of_allowed_length_passes(length: int) -> None:
    passwords.check(("xq7" * 100)[:length])


@pytest.mark.parametrize(
    "password",
    [
        "",
        "short-one",
        "x" * 257,
        "Password123",
        "QWERTYUIOP",
        "".join(chr(0xFF10 + digit) for digit in (1, 2, 3, 4, 5, 6, 7, 8, 9, 0)),
        "half\ud800character",
    ],
    ids=["empty", "nine", "257", "common", "common upper case", "common in full width", "incomplete character"],
)
def test_weak_password_is_refused_by_field(password: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        passwords.check(password)

    assert refused.value.field == "password"


@pytest.mark.parametrize("password", ["ada.lovelace@example.org", "ADA.LOVELACE", "ada-lovelace"])
def test_own_names_are_no_passwords(password: str) -> None:
    with pytest.raises(InvalidInput):
        passwords.check(password, names=["ada.lovelace@example.org", "ada-lovelace"])


def test_list_of_common_passwords_is_long_and_every_entry_could_be_typed() -> None:
    listed = passwords.common()

    assert len(listed) >= 1000
    assert [word for word in listed if len(word) < passwords.MIN_CHARS or word != word.casefold()] == []
