"""The choice of model and key: all rows of the tables."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from itertools import product
from typing import Any
from uuid import UUID, uuid4

import pytest

from rookery.domain.chat.messages import Effort
from rookery.domain.models.options import ProviderOptions
from rookery.llm.types import ErrorKind, ProviderError
from rookery.models import model_resolution
from rookery.models.model_resolution import Choice, Models, ModelState, Override
from rookery.store.models.errors import ModelUnusable, NoDefaultModel, Unusable
from rookery.store.models.providers import Provider
from rookery.store.models.usage_ledger import KeySource

DEFAULT, FINE, OFF, GONE, NO_PROVIDER, NO_KEY, NOWHERE, PARENT = (uuid4() for _ in range(8))
REASONS = {
    OFF: Unusable.DISABLED,
    GONE: Unusable.UNKNOWN,
    NOWHERE: Unusable.UNKNOWN,
    NO_PROVIDER: Unusable.PROVIDER_DISABLED,
    NO_KEY: Unusable.USER_API_KEY_REQUIRED,
}
NOW = datetime(2030, 1, 1, tzinfo=UTC)


def state(model_config_id: UUID, **fields: Any) -> ModelState:
    values: dict[str, Any] = {
        "id": model_config_id,
        "provider_name": "P",
        "enabled": True,
        "deleted": False,
        "provider_is_live": True,
        "key": KeySource.CENTRAL,
    }
    return ModelState(**{**values, **fields})


def models(default: UUID | None = DEFAULT) -> Models:
    states = [
        state(DEFAULT),
        state(FINE),
        state(PARENT),
        state(OFF, enabled=False),
        state(GONE, deleted=True),
        state(NO_PROVIDER, provider_is_live=False),
        state(NO_KEY, key=Unusable.USER_API_KEY_REQUIRED),
    ]
    return Models({each.id: each for each in states}, default)


# Keys


def provider(**fields: Any) -> Provider:
    values: dict[str, Any] = {
        "id": uuid4(),
        "type": "anthropic",
        "name": "p",
        "display_name": "",
        "icon": "",
        "base_url": None,
        "enabled": True,
        "deleted": False,
        "source": "db",
        "options": ProviderOptions(),
        "send_correlation": False,
        "api_key_enc": None,
        "headers_enc": None,
        "central_key_enabled": True,
        "allow_user_key": False,
        "allow_central_fallback": False,
        "created_at": NOW,
        "updated_at": NOW,
    }
    return Provider(**{**values, **fields})


U, C, E, A = KeySource.USER, KeySource.CENTRAL, KeySource.ENV, KeySource.AMBIENT
MISSING, REQUIRED = Unusable.MISSING_API_KEY, Unusable.USER_API_KEY_REQUIRED

# central enabled, user allowed, fallback | has user, has central -> plain type, ambient type
TRUTH = [
    ((True, False, False), (False, False), MISSING, A),
    ((True, False, False), (False, True), C, C),
    ((True, False, False), (True, False), MISSING, A),
    ((True, False, False), (True, True), C, C),
    ((False, True, False), (False, False), REQUIRED, REQUIRED),
    ((False, True, False), (False, True), REQUIRED, REQUIRED),
    ((False, True, False), (True, False), U, U),
    ((False, True, False), (True, True), U, U),
    ((True, True, False), (False, False), REQUIRED, REQUIRED),
    ((True, True, False), (False, True), REQUIRED, REQUIRED),
    ((True, True, False), (True, False), U, U),
    ((True, True, False), (True, True), U, U),
    ((True, True, True), (False, False), REQUIRED, A),
    ((True, True, True), (False, True), C, C),
    ((True, True, True), (True, False), U, U),
    ((True, True, True), (True, True), U, U),
]


@pytest.mark.parametrize(("policy", "keys", "plain", "ambient"), TRUTH)
def test_key_truth_table(
    policy: tuple[bool, bool, bool], keys: tuple[bool, bool], plain: KeySource | Unusable, ambient: KeySource | Unusable
) -> None:
    central, user, fallback = policy
    fields = {"central_key_enabled": central, "allow_user_key": user, "allow_central_fallback": fallback}
    has = {"has_user_key": keys[0], "has_central_key": keys[1]}

    assert model_resolution.choose_key(provider(**fields), **has) == plain
    for type_ in ("bedrock", "google"):
        assert model_resolution.choose_key(provider(**fields, type=type_), **has) == ambient


def test_truth_table_covers_every_valid_policy() -> None:
    valid = [
        (central, user, fallback)
        for central, user, fallback in product((False, True), repeat=3)
        if (central or user) and (not fallback or (central and user))
    ]

    assert {policy for policy, _, _, _ in TRUTH} == set(valid)
    assert len(TRUTH) == len(valid) * 4


def test_key_of_the_environment_is_told_apart() -> None:
    assert model_resolution.choose_key(provider(source="env"), has_user_key=False, has_central_key=True) == E


# Root chats and messages


def test_new_chat_takes_the_named_model_or_says_why_not() -> None:
    assert model_resolution.for_new_chat(models(), requested=FINE, personal=Override("model", PARENT)) == Choice(FINE)

    for model_config_id, reason in REASONS.items():
        with pytest.raises(ModelUnusable) as caught:
            model_resolution.for_new_chat(models(), requested=model_config_id)
        assert (caught.value.reason, caught.value.field) == (reason, "model_config_id")


def test_new_chat_takes_the_personal_override_then_the_default() -> None:
    wish = Override("model", FINE, Effort.HIGH)

    assert model_resolution.for_new_chat(models(), requested=None, personal=wish) == Choice(FINE, Effort.HIGH)
    assert model_resolution.for_new_chat(models(), requested=None, personal=Override("model", OFF)) == Choice(DEFAULT)
    assert model_resolution.for_new_chat(models(), requested=None, personal=Override("chat_default")) == Choice(DEFAULT)
    assert model_resolution.for_new_chat(models(), requested=None) == Choice(DEFAULT)


@pytest.mark.parametrize("default", [None, OFF, NO_PROVIDER, NO_KEY])
def test_new_chat_without_a_usable_default_is_refused(default: UUID | None) -> None:
    with pytest.raises(NoDefaultModel) as caught:
        model_resolution.for_new_chat(models(default), requested=None)

    assert caught.value.reason == (None if default is None else REASONS[default])
    assert caught.value.code == "no_default_model"


def test_message_takes_the_named_model_then_the_last_then_the_default() -> None:
    assert model_resolution.for_message(models(), requested=FINE, last=PARENT) == Choice(FINE)
    assert model_resolution.for_message(models(), requested=None, last=PARENT) == Choice(PARENT)
    assert model_resolution.for_message(models(), requested=None, last=OFF) == Choice(DEFAULT)
    assert model_resolution.for_message(models(), requested=None, last=GONE) == Choice(DEFAULT)
    with pytest.raises(ModelUnusable):
        model_resolution.for_message(models(), requested=OFF, last=FINE)
    with pytest.raises(NoDefaultModel):
        model_resolution.for_message(models(None), requested=None, last=GONE)


# Generation


def refused(answer: Choice | ProviderError) -> ErrorKind:
    assert isinstance(answer, ProviderError)
    assert not answer.retryable
    return answer.kind


def test_generation_uses_the_chats_model_and_the_default_for_a_deleted_one() -> None:
    assert model_resolution.for_generation(models(), FINE) == Choice(FINE)
    assert model_resolution.for_generation(models(), GONE) == Choice(DEFAULT)


def test_generation_with_a_disabled_config_ends_without_a_silent_switch() -> None:
    assert refused(model_resolution.for_generation(models(), OFF)) is ErrorKind.CONFIG
    assert refused(model_resolution.for_generation(models(), NO_PROVIDER)) is ErrorKind.PROVIDER_DISABLED
    assert refused(model_resolution.for_generation(models(), NO_KEY)) is ErrorKind.MISSING_KEY
    assert refused(model_resolution.for_generation(models(None), GONE)) is ErrorKind.CONFIG
    assert refused(model_resolution.for_generation(models(NO_KEY), GONE)) is ErrorKind.MISSING_KEY


# Subagents, titles, compaction


@pytest.mark.parametrize(
    ("personal", "admin", "chosen"),
    [
        (None, None, Choice(PARENT)),
        (Override("model", FINE, Effort.LOW), Override("model", DEFAULT), Choice(FINE, Effort.LOW)),
        (Override("model", OFF), Override("model", DEFAULT), Choice(DEFAULT)),
        (Override("chat_default"), Override("model", DEFAULT), Choice(PARENT)),
        (Override("deployment_default"), Override("model", FINE), Choice(FINE)),
        (Override("deployment_default"), None, Choice(PARENT)),
        (None, Override("model", FINE), Choice(FINE)),
        (None, Override("model", OFF), Choice(PARENT)),
        (None, Override("deployment_default"), Choice(DEFAULT)),
        (None, Override("chat_default", None, Effort.LOW), Choice(PARENT, Effort.LOW)),
    ],
)
def test_model_of_a_subagent(personal: Override | None, admin: Override | None, chosen: Choice) -> None:
    assert model_resolution.for_subagent(models(), parent=PARENT, personal=personal, admin=admin) == chosen


def test_spawn_argument_wins_or_is_an_error_of_the_tool() -> None:
    wish = Override("model", DEFAULT)

    assert model_resolution.for_subagent(models(), parent=PARENT, requested=FINE, personal=wish) == Choice(FINE)
    with pytest.raises(ModelUnusable):
        model_resolution.for_subagent(models(), parent=PARENT, requested=NO_KEY, personal=wish)


@pytest.mark.parametrize(
    ("admin", "preferred", "chosen"),
    [
        (None, (), Choice(PARENT)),
        (None, (OFF, FINE, DEFAULT), Choice(FINE)),
        (Override("model", DEFAULT), (FINE,), Choice(DEFAULT)),
        (Override("model", OFF), (FINE,), None),
        (Override("chat_default"), (FINE,), Choice(PARENT)),
    ],
)
def test_model_of_a_title(admin: Override | None, preferred: tuple[UUID, ...], chosen: Choice | None) -> None:
    assert model_resolution.for_title(models(), chat=PARENT, admin=admin, preferred=preferred) == chosen


def test_no_title_when_the_chats_own_model_cannot_be_used() -> None:
    assert model_resolution.for_title(models(), chat=NO_KEY, admin=None, preferred=()) is None


def test_small_models_are_ranked_by_family_then_price() -> None:
    flash, nano, mini, dear, cheap, big = (uuid4() for _ in range(6))

    ranked = model_resolution.small_models(
        [
            (flash, "gemini-2.5-flash", Decimal("0.1")),
            (big, "claude-opus-5", Decimal(1)),
            (mini, "gpt-5-mini", None),
            (nano, "openai/gpt-5-nano", Decimal("0.4")),
            (dear, "claude-haiku-5-5", Decimal(5)),
            (cheap, "claude-haiku-4-5", Decimal(4)),
        ]
    )

    assert ranked == (cheap, dear, nano, mini, flash)


@pytest.mark.parametrize(
    ("admin", "chosen"),
    [
        (None, Choice(PARENT)),
        (Override("model", FINE, Effort.LOW), Choice(FINE, Effort.LOW)),
        (Override("model", OFF), Choice(PARENT)),
        (Override("chat_default"), Choice(PARENT)),
    ],
)
def test_model_of_a_compaction(admin: Override | None, chosen: Choice) -> None:
    assert model_resolution.for_compaction(models(), chat=PARENT, admin=admin) == chosen


@pytest.mark.parametrize(
    ("stored", "override", "malformed"),
    [
        (None, None, False),
        ({"mode": "chat_default"}, Override("chat_default"), False),
        ({"model_config_id": str(FINE), "reasoning_effort": "low"}, Override("model", FINE, Effort.LOW), False),
        ({"mode": "model"}, None, True),
        ({"mode": "chat_default", "model_config_id": str(FINE)}, None, True),
        ({"mode": "magic"}, None, True),
        ({"model_config_id": "x"}, None, True),
        ([1], None, True),
        ("model", None, True),
    ],
)
def test_malformed_override_counts_as_unset_and_is_flagged(
    stored: object, override: Override | None, malformed: bool
) -> None:
    assert model_resolution.read_override(stored) == (override, malformed)


# Fallbacks


@pytest.mark.parametrize("kind", list(ErrorKind))
def test_turn_falls_back_after_five_attempts_that_another_model_could_survive(kind: ErrorKind) -> None:
    survivable = kind in ("overloaded", "rate_limit", "timeout", "content_filter", "provider_disabled")
    chosen = {
        attempts: model_resolution.with_fallbacks(models(), (PARENT, FINE), last=None, failed=kind, attempts=attempts)
        for attempts in (1, 4, 5, 9)
    }

    assert chosen == {1: PARENT, 4: PARENT, 5: FINE if survivable else PARENT, 9: FINE if survivable else PARENT}


def test_fallbacks_that_cannot_be_used_are_passed_over_and_the_last_one_stays() -> None:
    chain = (PARENT, OFF, FINE, DEFAULT)

    def chosen(attempts: int) -> UUID:
        return model_resolution.with_fallbacks(
            models(), chain, last=None, failed=ErrorKind.OVERLOADED, attempts=attempts
        )

    assert [chosen(attempts) for attempts in (0, 5, 10, 20)] == [PARENT, FINE, DEFAULT, DEFAULT]


def test_turn_that_moved_on_to_a_fallback_stays_there() -> None:
    chain = (PARENT, FINE, DEFAULT)

    def chosen(last: UUID | None, attempts: int) -> UUID:
        failed = ErrorKind.TIMEOUT if attempts else None
        return model_resolution.with_fallbacks(models(), chain, last=last, failed=failed, attempts=attempts)

    assert chosen(FINE, 0) == FINE
    assert chosen(FINE, 5) == DEFAULT
    assert chosen(PARENT, 0) == PARENT
    assert chosen(OFF, 0) == PARENT
