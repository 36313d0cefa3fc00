"""Redaction by names: the fast check of a whole text never misses a key that the slow one would find."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.debug.redaction import Redactor
from rookery.telemetry.redaction import SecretRegistry, is_secret_key, may_have_secret_keys

SECRET_KEYS = [
    "token",
    "access_token",
    "ACCESS-TOKEN",
    "idToken",
    "session_cookie",
    "api_key",
    "apiKey",
    "x-api-key",
    "client_secret",
    "Password",
    "passwd",
    "Authorization",
    "aws_credentials",
    "private_key",
    "signing-key",
]
# Keys of ordinary answers, which must not make every text slow.
PLAIN_KEYS = [
    "usage",
    "prompt_tokens",
    "completion_tokens",
    "content",
    "delta",
    "index",
    "id",
    "model",
    "finish_reason",
]


@pytest.mark.parametrize("key", SECRET_KEYS)
@pytest.mark.parametrize("form", ['{{"{}": "v"}}', '{{\\"{}\\": \\"v\\"}}', 'x {{"{}"   :\n"v"}} y'])
def test_secret_key_is_noticed_in(key: str, form: str) -> None:
    assert is_secret_key(key)
    assert may_have_secret_keys(form.format(key))


def test_ordinary_answer_is_not_looked_at_key_by_key() -> None:
    assert not may_have_secret_keys(json.dumps(dict.fromkeys(PLAIN_KEYS, "a token")))


@given(st.text(max_size=40), st.sampled_from(SECRET_KEYS), st.text(max_size=40))
def test_key_that_is_secret_is_noticed_whatever_surrounds_it(before: str, key: str, after: str) -> None:
    name = before + key
    text = json.dumps({name: after}, ensure_ascii=False)

    if is_secret_key(name) and "\\" not in name:
        assert may_have_secret_keys(text)


def test_result_is_kept_until_the_secrets_change() -> None:
    secrets = SecretRegistry()
    redactor, item, made = Redactor(secrets), object(), list[str]()

    def make() -> str:
        made.append(redactor.text("the value very-private"))
        return made[-1]

    first, again = redactor.kept("text", item, make), redactor.kept("text", item, make)
    secrets.add("key", "very-private")
    changed = redactor.kept("text", item, make)

    assert (first, again, changed) == ("the value very-private", "the value very-private", "the value [REDACTED:key]")
    assert len(made) == 2
