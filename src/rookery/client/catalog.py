"""The models that a caller can use."""

from __future__ import annotations

from rookery.client.http import Http
from rookery.client.models import Model, ModelList, ModelProvider


class AsyncModels:
    """`client.models`."""

    def __init__(self, http: Http) -> None:
        self._http = http

    async def list(self) -> tuple[ModelProvider, ...]:
        """Return the enabled providers, each with its models."""
        return (await self._http.read(ModelList, "/models")).providers

    async def find(self, name: str) -> Model | None:
        """Return the model with this id, or with this name as the provider or users write it."""
        for provider in await self.list():
            for model in provider.models:
                if name in (str(model.id), model.model, model.display_name):
                    return model
        return None
