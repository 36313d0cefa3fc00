"""The choice of a model for a request, and the check of the spending limit, both before anything is written.

The rules are those of `models.model_resolution`. This module applies them to the model that the request names. If the
request names none, they are applied under the chat's lock, to the model that the chat used last.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias
from uuid import UUID

from rookery.api.caller import Caller
from rookery.api.errors import ApiError
from rookery.api.services import ApiServices
from rookery.domain.chat.errors import InvalidInput
from rookery.domain.chat.messages import ChatId, Effort
from rookery.models import model_resolution
from rookery.models.model_resolution import Choice, Models, Override
from rookery.store.models import spending
from rookery.store.models.errors import ModelError, ModelUnusable, SpendLimitReached
from rookery.store.models.usage_ledger import KeySource

MODELS_SETTING = "models"
OVERRIDES_SETTING = "model_overrides"

May: TypeAlias = Callable[[], Awaitable[object]]

# Errors about the model or the files that a message names.
REFUSALS = (InvalidInput, ApiError, ModelError)


@asynccontextmanager
async def rights_first(may: May) -> AsyncIterator[None]:
    """Check the rights before an error in the body is reported.

    A caller without the right gets only the error about it.
    """
    try:
        yield
    except REFUSALS:
        await may()
        raise


class Chooser:
    """The models that one caller can use at one moment, and the rest of the caller's spending limit."""

    __slots__ = ("_limit", "_models")

    def __init__(self, models: Models, limit: SpendLimitReached | None) -> None:
        self._models = models
        self._limit = limit

    def for_new_chat(self, requested: UUID | None, personal: Override | None) -> Choice:
        return self._within_limit(model_resolution.for_new_chat(self._models, requested=requested, personal=personal))

    def for_message(self) -> ForMessage:
        return ForMessage(self)

    def named(self, requested: UUID) -> UUID:
        """Return the model that a message names."""
        self._check(requested)
        return self._within_limit(Choice(requested)).model_config_id

    def from_last(self, last: UUID) -> UUID:
        """Return the model of a message that names none."""
        return self._within_limit(model_resolution.for_message(self._models, requested=None, last=last)).model_config_id

    @property
    def kept(self) -> list[UUID]:
        """Return the models that a chat may keep if it used them last."""
        return [
            model_id
            for model_id, state in self._models.by_id.items()
            if model_resolution.is_kept(state) and (self._limit is None or state.key is KeySource.USER)
        ]

    def for_edit(self, requested: UUID | None) -> Callable[[UUID | None, UUID], UUID]:
        """Choose the model of an edited message: its earlier model if that is still usable, else as for any message."""
        if requested is not None:
            self._check(requested)

        def choose(original: UUID | None, last: UUID) -> UUID:
            if requested is not None:
                return self.named(requested)
            if original is not None and self._models.is_usable(original):
                return self._within_limit(Choice(original)).model_config_id
            return self.from_last(last)

        return choose

    def is_usable(self, model_config_id: UUID) -> bool:
        return self._models.is_usable(model_config_id)

    def check(self, requested: UUID, *, current: UUID | None = None) -> None:
        """Check a model named for later turns. The current one may stay even if it has been disabled."""
        if requested != current:
            self._check(requested)

    def check_spend(self, model_config_id: UUID) -> None:
        self._within_limit(Choice(model_config_id))

    @property
    def is_limit_reached(self) -> bool:
        return self._limit is not None

    def _check(self, model_config_id: UUID) -> None:
        if reason := self._models.unusable(model_config_id):
            raise ModelUnusable(reason, model_config_id)

    def _within_limit(self, choice: Choice) -> Choice:
        """Return the choice; raise if the spending limit is reached. Calls with a user's own key do not count."""
        state = self._models.by_id.get(choice.model_config_id)
        if self._limit is not None and (state is None or state.key is not KeySource.USER):
            raise self._limit
        return choice


class ForMessage:
    """The choice for a message that names no model: the model that the chat used last."""

    __slots__ = ("_chooser",)

    def __init__(self, chooser: Chooser) -> None:
        self._chooser = chooser

    @property
    def kept(self) -> list[UUID]:
        return self._chooser.kept

    def __call__(self, last: UUID) -> UUID:
        return self._chooser.from_last(last)


async def chooser(services: ApiServices, caller: Caller) -> Chooser:
    return Chooser(await services.directory.models(caller.user.id), await _limit(services, caller))


async def for_new_chat(
    services: ApiServices, caller: Caller, requested: UUID | None, effort: Effort | None
) -> tuple[UUID, Effort | None]:
    """Return the model and effort of a new chat. The caller's own default applies where administrators allow it."""
    personal = None if requested is not None else await _personal(services, caller)
    choice = (await chooser(services, caller)).for_new_chat(requested, personal)
    return choice.model_config_id, effort or choice.reasoning_effort


async def check_spend(services: ApiServices, caller: Caller, chat_id: ChatId) -> None:
    """Check the spending limit for a request that continues with the chat's model."""
    found = await chooser(services, caller)
    if found.is_limit_reached:
        found.check_spend((await caller.store.chats.get(chat_id)).last_model_config_id)


async def _limit(services: ApiServices, caller: Caller) -> SpendLimitReached | None:
    # Most installations have no limit. The setting is cached, so the check needs no query for them.
    if await services.directory.setting(spending.SETTING) is None:
        return None
    return await caller.store.turns.find_spend_limit()


async def _personal(services: ApiServices, caller: Caller) -> Override | None:
    stored = await services.directory.setting(MODELS_SETTING)
    if not isinstance(stored, dict) or stored.get("allow_personal_overrides") is not True:
        return None
    own = await services.directory.user_setting(caller.user.id, OVERRIDES_SETTING)
    override, _ = model_resolution.read_override(own.get("root") if isinstance(own, dict) else None)
    return override
