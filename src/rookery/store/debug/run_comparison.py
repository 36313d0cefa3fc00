"""Reads for the comparison of two runs. Messages are compared by hashes, which the database computes, so that no prompt
is read except for the first message that differs.

Ids of tool calls are left out of the hashes: they are new in every run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from uuid import UUID

import msgspec
from msgspec import Raw

from rookery.store.db.pool import Connection
from rookery.store.debug import record_reads
from rookery.store.debug.record_rows import RunRow, StepSummaryRow, raw


def _parts_without_ids(parts: str) -> str:
    return (
        "coalesce((SELECT jsonb_agg(p - 'tool_call_id' ORDER BY i)::text"
        f" FROM jsonb_array_elements({parts}) WITH ORDINALITY AS e (p, i)), '')"
    )


LIST_PROMPTS = f"""
    SELECT s.step_number,
           s.normalized_request ? 'messages' AS is_recorded,
           (s.normalized_request ->> 'prefix_from')::integer AS prefix_from,
           coalesce((s.normalized_request ->> 'prefix_len')::integer, 0) AS prefix_len,
           ARRAY(SELECT md5((m ->> 'role') || {_parts_without_ids("m -> 'parts'")})
                   FROM jsonb_array_elements(s.normalized_request -> 'messages') WITH ORDINALITY AS found (m, n)
                  ORDER BY n) AS messages,
           coalesce((s.normalized_request ->> 'has_same_tools')::boolean, false) AS has_same_tools,
           (SELECT jsonb_object_agg(t ->> 'name', md5(t::text))
              FROM jsonb_array_elements(s.normalized_request -> 'tools') AS t) AS tools,
           s.normalized_request - ARRAY['messages', 'message_count', 'prefix_from', 'prefix_len', 'has_same_tools',
                                        'tools'] AS settings,
           md5({_parts_without_ids("s.normalized_response -> 'content'")}) AS answer
      FROM chat_debug_steps s
     WHERE s.run_id = $1
     ORDER BY s.step_number
"""
FIND_MESSAGE = """
    SELECT normalized_request -> 'messages' -> $3::integer
      FROM chat_debug_steps
     WHERE run_id = $1 AND step_number = $2
"""


class Prompt(msgspec.Struct, frozen=True, kw_only=True):
    """The prompt of a step: the hashes of its messages and tools, and its settings. `answer` is a hash as well.

    `owners` are the numbers of the steps that store the messages, with their positions there.
    """

    messages: Sequence[str]
    owners: Sequence[tuple[int, int]]
    tools: Mapping[str, str]
    settings: Mapping[str, object]
    answer: str


class ComparedRun(msgspec.Struct, frozen=True):
    """A run with its steps, and the prompts of the steps by number. A prompt that is not recorded is missing."""

    run: RunRow
    steps: Sequence[StepSummaryRow]
    prompts: Mapping[int, Prompt]


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first message that differs: in which step, and its index there. A prompt that has ended has no message."""

    number: int
    index: int
    one: Raw | None
    other: Raw | None


async def read_compared(conn: Connection, run: RunRow) -> ComparedRun:
    return ComparedRun(run, await record_reads.list_steps(conn, run.id), await _list_prompts(conn, run.id))


async def find_difference(conn: Connection, one: ComparedRun, other: ComparedRun) -> FirstDifference | None:
    """Return the first message that differs between two runs, in the first step in which there is one."""
    for number in sorted(one.prompts.keys() & other.prompts.keys()):
        left, right = one.prompts[number], other.prompts[number]
        index = count_same(left.messages, right.messages)
        if index < max(len(left.messages), len(right.messages)):
            return FirstDifference(
                number=number,
                index=index,
                one=await _find_message(conn, one.run.id, left, index),
                other=await _find_message(conn, other.run.id, right, index),
            )
    return None


def count_same(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of equal hashes at the beginning."""
    shorter = min(len(one), len(other))
    return next((index for index in range(shorter) if one[index] != other[index]), shorter)


async def _list_prompts(conn: Connection, run_id: UUID) -> dict[int, Prompt]:
    prompts: dict[int, Prompt] = {}
    for record in await conn.fetch(LIST_PROMPTS, run_id):
        number, length = record["step_number"], record["prefix_len"]
        source = prompts.get(record["prefix_from"])
        is_shared = length > 0 or record["has_same_tools"]
        if not record["is_recorded"] or (is_shared and source is None):
            continue
        stored = record["messages"]
        tools = msgspec.json.decode(record["tools"] or "{}", type=dict[str, str])
        prompts[number] = Prompt(
            messages=[*(source.messages[:length] if source else ()), *stored],
            owners=[*(source.owners[:length] if source else ()), *((number, at) for at in range(len(stored)))],
            tools=source.tools if source is not None and record["has_same_tools"] else tools,
            settings=msgspec.json.decode(record["settings"]),
            answer=record["answer"],
        )
    return prompts


async def _find_message(conn: Connection, run_id: UUID, prompt: Prompt, index: int) -> Raw | None:
    if index >= len(prompt.messages):
        return None
    found = await conn.fetchval(FIND_MESSAGE, run_id, *prompt.owners[index])
    return None if found is None else raw(found)
