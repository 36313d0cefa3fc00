"""Generated files are current, and the blocking client has everything that the asynchronous one has."""

from __future__ import annotations

import inspect

import pytest

from rookery.client import AsyncRookery, Rookery
from tools import generate_client_models, generate_client_sync

MODELS = generate_client_sync.CLIENT / "models.py"
SYNC = generate_client_sync.CLIENT / "sync_namespaces.py"
NAMESPACES = (
    "account",
    "agent_kinds",
    "chats",
    "debug",
    "files",
    "folders",
    "mcp_servers",
    "messages",
    "models",
    "queue",
    "saved_prompts",
    "templates",
    "tokens",
    "usage",
    "workspaces",
)


def public(of: object) -> dict[str, inspect.Signature]:
    members = inspect.getmembers(of, callable)
    return {name: inspect.signature(member) for name, member in members if not name.startswith("_")}


def test_blocking_namespaces_are_those_that_the_generator_gives() -> None:
    assert SYNC.read_text() == generate_client_sync.generate(), (
        "run: python -m tools.generate_client_sync > src/rookery/client/sync_namespaces.py"
    )


def test_structs_are_those_of_the_committed_document() -> None:
    assert MODELS.read_text() == generate_client_models.generate(generate_client_models.load()), (
        "run: python -m tools.generate_client_models > src/rookery/client/models.py"
    )


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_blocking_namespace_takes_the_same(namespace: str) -> None:
    with Rookery("http://127.0.0.1:1") as blocking:
        own, other = public(getattr(blocking, namespace)), public(getattr(AsyncRookery(), namespace))

    assert {name: list(signature.parameters.values()) for name, signature in own.items()} == {
        name: list(signature.parameters.values()) for name, signature in other.items()
    }


def test_both_clients_have_the_same_namespaces_and_are_made_alike() -> None:
    with Rookery("http://127.0.0.1:1") as blocking:
        names = {name for name in vars(blocking) if not name.startswith("_")}

    assert names == {name for name in vars(AsyncRookery()) if not name.startswith("_")} == set(NAMESPACES)
    assert inspect.signature(Rookery) == inspect.signature(AsyncRookery)
