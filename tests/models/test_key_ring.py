"""The key ring: values can be decrypted only in their own row, and no output shows a secret."""

from __future__ import annotations

import base64
import copy
import json
import logging
import os
import pickle
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import asyncpg
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.models import key_ring
from rookery.models.key_ring import KeyRing, Place, SecretsError, new_key
from rookery.runtime.secret_str import SecretStr

PLACE = Place(table="model_providers", row_id="row-1", column="api_key_enc")
SECRET = "very-secret-key-0123"
RING = KeyRing.parse(new_key("a"))


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_sealed_value_opens_to_the_same_and_looks_different_every_time(value: str) -> None:
    first, second = RING.seal(value, **PLACE), RING.seal(value, **PLACE)

    assert RING.open(first, **PLACE) == SecretStr(value)
    assert first != second


def test_sealed_value_has_the_documented_form() -> None:
    version, key_id, wrapped, nonce, ciphertext = RING.seal(SECRET, **PLACE).split(":")

    assert (version, key_id) == ("v1", "a")
    assert [len(part) for part in (wrapped, nonce, ciphertext)] == [80, 16, 48]


@pytest.mark.parametrize("elsewhere", [{"table": "user_provider_keys"}, {"row_id": "row-2"}, {"column": "other"}])
def test_ciphertext_moved_to_another_place_does_not_open(elsewhere: dict[str, str]) -> None:
    sealed = RING.seal(SECRET, **PLACE)
    place: dict[str, str] = {"table": PLACE["table"], "row_id": PLACE["row_id"], "column": PLACE["column"], **elsewhere}

    assert RING.open(sealed, table=place["table"], row_id=place["row_id"], column=place["column"]) is None


@pytest.mark.parametrize("part", range(5))
def test_changed_or_mixed_value_does_not_open(part: int) -> None:
    sealed, other = RING.seal(SECRET, **PLACE).split(":"), RING.seal("another", **PLACE).split(":")
    flipped = "B" if sealed[part][0] == "A" else "A"

    for changed in (other[part] if part > 1 else "x", flipped + sealed[part][1:], ""):
        mixed = ":".join([*sealed[:part], changed, *sealed[part + 1 :]])
        assert RING.open(mixed, **PLACE) is None


@pytest.mark.parametrize("rubbish", ["", "v1", "plain text", "v1:a:!!:!!:!!", "v1:a:::", "::::", "v2:a:b:c:d"])
def test_rubbish_counts_as_missing(rubbish: str) -> None:
    assert RING.open(rubbish, **PLACE) is None
    assert RING.rewrap(rubbish, **PLACE, full=True) is None


def test_undecryptable_value_counts_as_missing_with_a_log(caplog: pytest.LogCaptureFixture) -> None:
    sealed = KeyRing.parse(new_key("gone")).seal(SECRET, **PLACE)

    with caplog.at_level(logging.ERROR, "rookery"):
        assert RING.open(sealed, **PLACE) is None

    [record] = [record for record in caplog.records if record.getMessage() == "secret_cannot_be_opened"]
    fields = record.__dict__["fields"]
    assert fields["ring_key_id"] == "gone"
    assert sealed not in str(fields)


def test_rotation_with_two_keys_frees_the_old_one() -> None:
    old_key, fresh = new_key("old"), new_key("new")
    old, both, new = KeyRing.parse(old_key), KeyRing.parse(f"{fresh}, {old_key}"), KeyRing.parse(fresh)
    sealed = old.seal(SECRET, **PLACE)

    assert both.open(sealed, **PLACE) == SecretStr(SECRET)
    rewrapped, reencrypted = both.rewrap(sealed, **PLACE), both.rewrap(sealed, **PLACE, full=True)

    for value in (rewrapped, reencrypted):
        assert value is not None
        assert new.open(value, **PLACE) == SecretStr(SECRET)
        assert old.open(value, **PLACE) is None
    assert rewrapped is not None
    assert reencrypted is not None
    assert rewrapped.split(":")[3:] == sealed.split(":")[3:]
    assert reencrypted.split(":")[3:] != sealed.split(":")[3:]
    assert both.rewrap(rewrapped, **PLACE) == rewrapped
    assert (both.key_id(sealed), both.key_id(rewrapped)) == ("old", "new")


def test_subkeys_differ_by_label_and_by_ring() -> None:
    other = KeyRing.parse(new_key("a"))

    assert RING.subkey("download") == RING.subkey("download")
    assert len({RING.subkey("download"), RING.subkey("setup"), RING.subkey("check"), other.subkey("check")}) == 4


# No output shows a secret


def test_secret_shows_nothing_however_it_is_printed() -> None:
    secret = SecretStr(SECRET)

    shown = [
        repr(secret),
        str(secret),
        f"{secret}",
        f"{secret!r:>40}",
        repr([secret]),
        repr({"k": secret}),
    ]

    assert not any(SECRET in text for text in shown)
    assert secret.reveal() == SECRET
    assert not hasattr(secret, "__dict__")


def test_secret_is_not_serialized_by_accident() -> None:
    for serialize in (pickle.dumps, copy.deepcopy, json.dumps, msgspec.json.encode, msgspec.to_builtins):
        with pytest.raises(TypeError) as caught:
            serialize(SecretStr(SECRET))
        assert SECRET not in str(caught.value)


def test_ring_shows_only_ids() -> None:
    entry = new_key("visible")
    ring = KeyRing.parse(entry)

    assert repr(ring) == "KeyRing(visible)"
    with pytest.raises(TypeError):
        pickle.dumps(ring)


@pytest.mark.parametrize(
    "text", ["", " , ", "{key}", "a:{key}x", "a:{key}!", "a b:{key}", "bad!:{key}", "a:{key},a:{key}"]
)
def test_bad_ring_is_refused_without_quoting_a_key(text: str) -> None:
    key = new_key("a").partition(":")[2]

    with pytest.raises(SecretsError) as caught:
        KeyRing.parse(text.format(key=key))

    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert key[:8] not in str(caught.value)


def test_ring_takes_both_alphabets_and_lost_padding() -> None:
    raw = bytes([251, 255] * 16)
    standard = base64.b64encode(raw).decode()
    safe = base64.urlsafe_b64encode(raw).decode()

    rings = [KeyRing.parse(f"a:{text}") for text in (standard, safe, standard.rstrip("="), safe.rstrip("="))]

    assert len({ring.subkey("check") for ring in rings}) == 1


def test_ring_refuses_a_repeated_id() -> None:
    with pytest.raises(SecretsError, match="same id"):
        KeyRing.parse(f"{new_key('a')}\n{new_key('a')}")


# The key file


def test_key_file_is_made_once_and_only_for_its_owner(tmp_path: Path) -> None:
    first = key_ring.load_ring(None, tmp_path)
    second = key_ring.load_ring(None, tmp_path)

    assert first is not None
    assert second is not None
    assert second.open(first.seal(SECRET, **PLACE), **PLACE) == SecretStr(SECRET)
    [path] = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_processes_that_start_together_share_one_key_file(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        rings = list(pool.map(lambda _: key_ring.ring_from_file(tmp_path / "keys"), range(16)))

    assert len({ring.subkey("check") for ring in rings}) == 1
    assert os.listdir(tmp_path) == ["keys"]


def test_key_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    key_ring.load_ring(None, tmp_path)
    path = tmp_path / key_ring.KEY_FILE
    path.chmod(0o640)

    with pytest.raises(SecretsError, match="chmod 600"):
        key_ring.load_ring(None, tmp_path)


def test_setting_wins_over_the_file_and_an_external_database_has_none(tmp_path: Path) -> None:
    ring = key_ring.load_ring(new_key("set"), tmp_path)

    assert ring is not None
    assert ring.key_ids == ("set",)
    assert list(tmp_path.iterdir()) == []
    assert key_ring.load_ring(None, None) is None


async def test_wrong_ring_is_noticed_at_start_and_the_mark_follows_a_rotation(database_url: str) -> None:
    old, new = new_key("old"), new_key("new")
    conn = await asyncpg.connect(database_url)
    try:
        assert await key_ring.check_ring(conn, KeyRing.parse(old))
        assert await key_ring.check_ring(conn, KeyRing.parse(old))
        assert not await key_ring.check_ring(conn, KeyRing.parse(new))
        assert await key_ring.check_ring(conn, KeyRing.parse(f"{new},{old}"))
        assert await key_ring.check_ring(conn, KeyRing.parse(new))
        assert not await key_ring.check_ring(conn, KeyRing.parse(old))
    finally:
        await conn.close()
