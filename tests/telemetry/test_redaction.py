"""Known secrets are found in all their forms, however many there are; URLs and patterns of keys."""

from __future__ import annotations

import base64
import json
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.telemetry.redaction import SecretRegistry, hide_in_url, hide_secrets, is_secret_key, is_secret_name

SECRETS = (
    "aviary.9f8e7d6c/+x=very~private",
    'with "quotes" and spaces',
    "back\\slash\\value",
    "ünïcödé-secret",
    "a" * 8,
)


def registry(*values: str, others: int = 0) -> SecretRegistry:
    """Return a registry with these values, and with others that change only how it searches."""
    made = SecretRegistry()
    for number in range(others):
        made.add("other", f"another-secret-number-{number:04d}")
    for value in values:
        made.add("the key", value)
    return made


# With many secrets, the registry uses an index.
SIZES = pytest.mark.parametrize("others", [0, 200])


@SIZES
@pytest.mark.parametrize("secret", SECRETS)
def test_secret_is_found_as_it_is_and_in_every_encoding(secret: str, others: int) -> None:
    secrets = registry(secret, others=others)
    once = json.dumps(secret)[1:-1]
    forms = {
        "plain": secret,
        "URL": quote(secret, safe=""),
        "JSON": once,
        "JSON in JSON": json.dumps(json.dumps(secret))[3:-3],
        **{
            f"base64 at {offset}": base64.b64encode(b"x" * offset + secret.encode() + b"yy").decode()
            for offset in range(3)
        },
        "URL-safe base64": base64.urlsafe_b64encode(b"Basic:" + secret.encode()).decode(),
    }

    hidden = {name: secrets.hide(f"before {form} after") for name, form in forms.items()}

    for name, text in hidden.items():
        assert "[REDACTED:the-key]" in text, name
        assert text.startswith("before ")
        assert text.endswith(" after")
        assert secret not in text


@SIZES
def test_longer_secret_that_begins_with_another_is_hidden_as_a_whole(others: int) -> None:
    secrets = registry("first-part", "first-part-and-more", others=others)

    assert secrets.hide("first-part-and-more, first-part") == "[REDACTED:the-key], [REDACTED:the-key]"


@SIZES
def test_short_values_are_not_registered(others: int) -> None:
    secrets = registry("1234567", others=others)

    assert secrets.hide("1234567") == "1234567"


@given(st.text(max_size=60), st.sampled_from(SECRETS), st.text(max_size=60))
def test_number_of_secrets_does_not_change_what_is_hidden(before: str, secret: str, after: str) -> None:
    text = before + secret + after

    few, many = registry(*SECRETS).hide(text), registry(*SECRETS, others=200).hide(text)

    assert secret not in few
    assert few == many


@SIZES
@pytest.mark.parametrize("count", range(4, 30, 5))
def test_part_of_a_secret_at_a_cut_is_hidden(count: int, others: int) -> None:
    secret = SECRETS[0]
    secrets = registry(secret, others=others)

    assert secrets.hide_cut(f"begin {secret[:count]}", at_end=True) == "begin [REDACTED]"
    assert secrets.hide_cut(f"{secret[-count:]} end", at_start=True) == "[REDACTED] end"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("Authorization: Bearer abcdefgh12345", "Authorization: [REDACTED]"),
        ("bearer ABCDEFGH12345 BEARER abcdefgh12345", "[REDACTED] [REDACTED]"),
        ("İİİ Bearer abcdefgh12345", "İİİ [REDACTED]"),  # a letter whose lower case is longer
        ("task-list and risk-averse", "task-list and risk-averse"),
        ("key sk-abcdefgh12345.", "key [REDACTED]."),
        ("(AKIAABCDEFGHIJKLMNOP)", "([REDACTED])"),
        ("ghp_abcdefghij0123456789", "[REDACTED]"),
        ("rk_abcdefgh1234", "[REDACTED]"),
        ("jwt eyJhbGciOi.eyJzdWIiOi.c2ln end", "jwt [REDACTED] end"),
        ("-----BEGIN PRIVATE KEY-----\nMII\n-----END PRIVATE KEY----- end", "[REDACTED] end"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMII", "[REDACTED]"),
        (
            "see https://u:p@nest.example/a?token=x&b=1 and http://[bad",
            "see https://nest.example/a?token=%5BREDACTED%5D&b=1 and [REDACTED_URL]",
        ),
        ("sk-abcdefgh1 https://x.example/?q=sk-abcdefgh2", "[REDACTED] https://x.example/?q=[REDACTED]"),
        ("://nothing ://", "://nothing ://"),
    ],
)
def test_keys_are_found_by_their_patterns_and_in_urls(text: str, shown: str) -> None:
    assert hide_secrets(text) == shown


def test_parameters_that_carry_keys_only_in_urls_are_hidden_there() -> None:
    assert hide_in_url("https://x.example/?key=abc&sig=d&X-Amz-Signature=e&keyword=f") == (
        "https://x.example/?key=%5BREDACTED%5D&sig=%5BREDACTED%5D&X-Amz-Signature=%5BREDACTED%5D&keyword=f"
    )
    assert not is_secret_name("key", "a word")
    assert not is_secret_key("key")


@pytest.mark.parametrize("key", ["max_tokens", "input_tokens_details", "tokenizer", "keyboard", "monkey", "id"])
def test_ordinary_keys_are_no_secrets(key: str) -> None:
    assert not is_secret_key(key)
