"""Results of client-executed tools, truncated to their share of the context window like all tool results.

The full result is stored in the chat's workspace, where the model can read it, if the chat has a reachable workspace.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from uuid import UUID, uuid5

import msgspec

from rookery.api.caller import Caller
from rookery.api.services import ApiServices
from rookery.domain.chat import truncation
from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.open_tool_calls import SubmittedResult
from rookery.domain.chat.parts import ContentError, ToolResult, json_text, json_value
from rookery.loop import tool_results
from rookery.loop.config import LoopConfig
from rookery.loop.tool import ToolOutput
from rookery.loop.tool_results import CallResult
from rookery.models.directory import windows_of
from rookery.telemetry.log import get_logger
from rookery.tools.spilled_results import ResultKeeper
from rookery.workspaces.connection import ChatWorkspace, Unreadable

log = get_logger("api.client_tool_results")


async def truncate_results(
    services: ApiServices, caller: Caller, chat_id: ChatId, given: Sequence[SubmittedResult]
) -> list[SubmittedResult]:
    """Return the results with overlong ones truncated.

    Results that are not JSON are returned unchanged, because the store refuses them with a reason.
    """
    limit = await _context_limit(services, caller, chat_id)
    each_bytes = truncation.budget_bytes(limit)
    all_bytes = tool_results.batch_budget_bytes(limit, percent=LoopConfig().batch_percent)
    if all(len(result.output) <= each_bytes // 4 for result in given) and _size(given) <= all_bytes // 4:
        return list(given)  # fits even if every character takes four bytes
    try:
        whole = await asyncio.to_thread(_parsed, given)
    except ContentError:
        return list(given)
    overlong = {place for place, each in enumerate(whole) if tool_results.size_of(each) > each_bytes}
    overlong |= set(tool_results.find_overlong(whole, all_bytes))
    if not overlong:
        return list(given)
    kept_in = await _store_full(services, chat_id, {place: whole[place] for place in sorted(overlong)})

    def cut() -> list[CallResult]:
        one_by_one = [
            tool_results.fit(each, each_bytes, kept_in.get(place, "")) if place in overlong else each
            for place, each in enumerate(whole)
        ]
        return list(tool_results.cap_batch(one_by_one, all_bytes, kept_in))

    stored = await asyncio.to_thread(cut)
    for place in sorted(overlong):
        log.info("client_result_truncated", chat_id=chat_id, call_id=given[place].tool_call_id)
    return [
        SubmittedResult(said.tool_call_id, _text(each), said.is_error) for said, each in zip(given, stored, strict=True)
    ]


def _size(given: Sequence[SubmittedResult]) -> int:
    return sum(len(result.output) for result in given)


def _parsed(given: Sequence[SubmittedResult]) -> list[CallResult]:
    return [CallResult(result=ToolResult(each.tool_call_id, "", result=json_text(each.output))) for each in given]


def _text(each: CallResult) -> str:
    value = each.result.result
    assert not isinstance(value, msgspec.UnsetType)
    return bytes(value).decode()


async def _context_limit(services: ApiServices, caller: Caller, chat_id: ChatId) -> int | None:
    chat = (await caller.store.turns.find_titled(chat_id)).chat
    snapshot = await services.directory.snapshot()
    config = snapshot.configs.get(chat.last_model_config_id)
    provider = None if config is None else snapshot.providers.get(config.provider_id)
    if config is None or provider is None:
        return None
    # In a thread, because the first lookup loads the table of context windows.
    known = await asyncio.to_thread(windows_of, config, provider.type, snapshot.windows.get(config.id))
    return known.effective


async def _store_full(services: ApiServices, chat_id: ChatId, whole: dict[int, CallResult]) -> dict[int, str]:
    """Store full results in the workspace. Return the path of each by its index; failed ones are left out."""
    directory = services.workspaces.directory
    try:
        binding = await directory.find_binding(chat_id)
    except Unreadable:
        return {}
    if binding is None:
        return {}
    workspace = ChatWorkspace(chat_id, directory, clock=services.clock)
    workspace.bind(binding)
    keeper = ResultKeeper(workspace, services.clock)

    async def keep(each: CallResult) -> str | None:
        call_id = each.result.tool_call_id
        return await keeper(call_id, _token(chat_id, call_id), _output(each))

    found = await asyncio.gather(*(keep(each) for each in whole.values()))
    return {place: path for place, path in zip(whole, found, strict=True) if path}


def _token(chat_id: ChatId, call_id: str) -> UUID:
    """Return a token that is the same for a repeated request, so that a result is not stored twice."""
    return uuid5(chat_id, f"client result {call_id}")


def _output(each: CallResult) -> ToolOutput:
    value = each.result.result
    assert not isinstance(value, msgspec.UnsetType)
    found = json_value(value)
    return ToolOutput(found if isinstance(found, str | dict) else bytes(value))
