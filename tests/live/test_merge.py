"""The merge window and merged replays: which parts are merged, and when they are published."""

from __future__ import annotations

from datetime import timedelta

import pytest
from msgspec import Raw

from rookery.domain.chat.messages import Role
from rookery.domain.chat.parts import File, Part, Reasoning, Source, Text, ToolCall, ToolResult
from rookery.live import deltas
from rookery.live.feeds import MAX_BATCH_BYTES, MERGE_ABOVE_PARTS
from rookery.live.part_buffer import EpisodeFull, EpisodeKey, PartLimits
from rookery.runtime.shared_tick import CALLBACKS_PER_TURN, TICK_SECONDS
from tests.live.part_buffer_rig import KEY, START, Rig, read, texts

LATER = START + timedelta(seconds=1)


def args(delta: str, call_id: str = "c1") -> ToolCall:
    return ToolCall(call_id, "look", args_delta=delta)


def output(delta: str, call_id: str = "c1") -> ToolResult:
    return ToolResult(call_id, "look", result_delta=delta)


async def test_first_delta_of_a_block_is_shown_at_once_and_the_rest_at_the_next_tick() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)

    seqs = rig.say("a", "b", "c", episode=episode)

    assert texts(subscription.pull()) == ["a"]
    rig.timers.fire()
    assert texts(subscription.pull()) == ["bc"]
    assert seqs == [1, 2, 2]


async def test_text_that_comes_once_per_tick_is_never_collected() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)

    for letter in "abc":
        rig.say(letter, episode=episode)
        assert texts(subscription.pull()) == [letter]
        rig.timers.fire()

    assert rig.timers.armed == [], "an episode without new text needs no timer"
    assert rig.close() == [Text("a"), Text("b"), Text("c")]


async def test_delta_after_a_tick_without_text_is_shown_at_once_and_text_is_collected_behind_it() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)
    rig.say("a", "b", episode=episode)
    rig.timers.fire()
    assert texts(read(subscription)) == ["a", "b"]

    assert rig.say("c", episode=episode) == [3]
    assert texts(subscription.pull()) == [], "the tick has just shown text"
    rig.timers.fire()
    rig.timers.fire()

    assert texts(subscription.pull()) == ["c"]
    assert rig.say("d", "e", "f", episode=episode) == [4, 5, 5]
    assert texts(subscription.pull()) == ["d"]
    rig.timers.fire()
    assert texts(subscription.pull()) == ["ef"]


async def test_full_episode_goes_on_merging_what_an_interruption_keeps() -> None:
    rig = Rig(PartLimits(episode_max_bytes=200))
    episode = rig.episode()
    rig.say("a", episode=episode)
    with pytest.raises(EpisodeFull):
        episode.add_part(Role.ASSISTANT, Source("https://example.org/" + "x" * 200))
    with pytest.raises(EpisodeFull):
        rig.say("b", episode=episode)
    rig.timers.fire()
    for letter in "cdefg":
        with pytest.raises(EpisodeFull):
            rig.say(letter, episode=episode)

    assert rig.close()[2:] == [Text("b"), Text("c"), Text("defg")]


async def test_one_timer_serves_all_deltas_of_a_tick() -> None:
    rig = Rig()
    episode = rig.episode()

    rig.say("a", "b", "c", "d", episode=episode)

    assert [timer.delay for timer in rig.timers.started] == [TICK_SECONDS]
    rig.timers.fire()
    rig.timers.fire()
    assert rig.timers.started == []


async def test_much_text_is_shown_without_waiting_and_needs_no_other_timer() -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)

    rig.say("a", "b" * 300, "c" * 211, episode=episode)
    assert texts(subscription.pull()) == ["a"]
    rig.say("d", "e", episode=episode)

    assert texts(subscription.pull()) == ["b" * 300 + "c" * 211 + "d"]
    assert len(rig.timers.started) == 1
    rig.timers.fire()
    assert texts(subscription.pull()) == ["e"]


async def test_timer_that_finds_nothing_shows_nothing() -> None:
    rig = Rig()
    episode = rig.episode()
    rig.say("a", "b", episode=episode)
    episode.add_part(Role.ASSISTANT, Source("https://example.org"))

    rig.timers.fire()

    assert [seq for seq, _, _ in read(rig.buffer.subscribe(KEY))] == [1, 2, 3]


async def test_collected_text_is_shown_when_the_episode_closes_and_its_timer_is_gone() -> None:
    rig = Rig()
    subscription = rig.buffer.subscribe(KEY)
    rig.say("a", "b", "c", episode=rig.episode())

    rig.close()

    assert texts(read(subscription)) == ["a", "bc"]
    assert rig.timers.armed == []


async def test_many_episodes_are_shown_in_turns_and_each_once() -> None:
    rig = Rig()
    keys = [EpisodeKey(KEY.chat_id, 3, number + 1) for number in range(2 * CALLBACKS_PER_TURN + 1)]
    episodes = [rig.episode(key) for key in keys]
    readers = [rig.buffer.subscribe(key) for key in keys]
    for episode in episodes:
        rig.say("a", "b", episode=episode)
    assert [texts(reader.pull()) for reader in readers] == [["a"]] * len(keys)

    rig.timers.fire()

    first = [texts(reader.pull()) for reader in readers]
    assert first == [["b"]] * CALLBACKS_PER_TURN + [[]] * (CALLBACKS_PER_TURN + 1), "those that came first"
    tick, turn = rig.timers.armed
    assert (tick.delay, turn.delay) == (TICK_SECONDS, 0), "the others follow when the loop has run other callbacks"
    # An episode that was shown waits for the next tick. In the others, new text is merged with the pending text.
    rig.say("c", episode=episodes[0])
    rig.say("c", episode=episodes[-1])
    rig.close(keys[-2])
    while turns := [timer for timer in rig.timers.armed if timer is not tick]:
        rig.timers.started = [tick]
        for turn in turns:
            turn.callback()
    assert texts(readers[0].pull()) == []
    assert texts(read(readers[-2])) == ["b"]
    assert texts(read(readers[-1])) == ["bc"]
    rig.timers.fire()
    assert texts(readers[0].pull()) == ["c"]


@pytest.mark.parametrize(
    ("role", "other"),
    [
        (Role.ASSISTANT, Reasoning("x")),
        (Role.ASSISTANT, Text("x", refusal=True)),
        (Role.ASSISTANT, Text("x", provider_meta={"id": 1})),
        (Role.TOOL, Text("x")),
        (Role.ASSISTANT, args("x")),
        (Role.TOOL, output("x")),
        (Role.ASSISTANT, Source("https://example.org")),
        (Role.TOOL, File("image/png")),
    ],
    ids=repr,
)
async def test_other_part_is_shown_at_once_behind_what_was_collected(role: Role, other: Part) -> None:
    rig = Rig()
    episode = rig.episode()
    rig.say("a", "b", "c", episode=episode)

    assert episode.add_part(role, other) == 3

    assert rig.close() == [Text("a"), Text("bc"), other]


@pytest.mark.parametrize(
    ("pieces", "merged"),
    [
        ([Text("a"), Text("b"), Text("c")], [Text("a"), Text("bc")]),
        (
            [Text("a", refusal=True), Text("b", refusal=True), Text("c", refusal=True)],
            [Text("a", refusal=True), Text("bc", refusal=True)],
        ),
        (
            [Reasoning("a", START), Reasoning("b", START), Reasoning("c", START)],
            [Reasoning("a", START), Reasoning("bc", START)],
        ),
        ([args("a"), args("b"), args("c")], [args("a"), args("bc")]),
        ([output("a"), output("b"), output("c")], [output("a"), output("bc")]),
        # Another start time or another call is another block.
        ([Reasoning("a", START), Reasoning("b", LATER), Reasoning("c", LATER)], None),
        ([args("a"), args("b", "c2"), args("c")], None),
        ([output("a"), output("b", "c2"), output("c")], None),
        # Parts that are never merged.
        ([Reasoning("a"), Reasoning("b", completed_at=START), Reasoning("c")], None),
        ([Reasoning("a"), Reasoning("", provider_meta={"signature": "s"}), Reasoning("c")], None),
        ([args("a"), ToolCall("c1", "look", args=Raw(b"{}"))], None),
        ([output("a"), ToolResult("c1", "look", result_delta="b", result_reset=True), output("c")], None),
        ([output("a"), ToolResult("c1", "look", result=Raw(b"1"))], None),
        # A start without text: the first text is still published immediately.
        ([Text(""), Text("a"), Text("b"), Text("c")], [Text(""), Text("a"), Text("bc")]),
    ],
    ids=lambda value: None if value is None else " ".join(type(part).__name__ for part in value),
)
async def test_only_pieces_of_one_block_are_joined(pieces: list[Part], merged: list[Part] | None) -> None:
    rig = Rig()
    episode = rig.episode()

    for part in pieces:
        episode.add_part(Role.ASSISTANT, part)

    assert rig.close() == (pieces if merged is None else merged)


# Replays


async def fill(rig: Rig, *pieces: Part) -> None:
    """Return an episode in which every piece has its own number."""
    episode = rig.episode()
    for part in pieces:
        episode.add_part(Role.ASSISTANT, part)
        rig.timers.fire()


async def test_short_replay_is_not_merged() -> None:
    rig = Rig()
    await fill(rig, *(Text("x") for _ in range(MERGE_ABOVE_PARTS)))

    batch = rig.buffer.subscribe(KEY).pull()

    assert [(seq, n) for seq, n, _ in batch] == [(number, 1) for number in range(1, MERGE_ABOVE_PARTS + 1)]


async def test_long_replay_merges_neighbours_and_says_how_many() -> None:
    rig = Rig()
    await fill(
        rig,
        *(Reasoning("r", START) for _ in range(30)),
        *(Text("t") for _ in range(30)),
        Source("https://example.org"),
        *(args("j") for _ in range(30)),
        *(output("o") for _ in range(30)),
        Text("z"),
    )

    batch = rig.buffer.subscribe(KEY).pull()

    assert [(seq, n) for seq, n, _ in batch] == [(30, 30), (60, 30), (61, 1), (91, 30), (121, 30), (122, 1)]
    assert [deltas.decode(data).part for _, _, data in batch] == [
        Reasoning("r" * 30, START),
        Text("t" * 30),
        Source("https://example.org"),
        args("j" * 30),
        output("o" * 30),
        Text("z"),
    ]
    assert batch[1][2] == (
        b'{"type":"message_part","seq":60,"role":"assistant","part":{"type":"text","text":"%b"},"n":30}' % (b"t" * 30)
    )


async def test_reader_far_behind_catches_up_with_merged_parts_from_where_it_was() -> None:
    rig = Rig()
    await fill(rig, Text("a"), Text("b"))
    subscription = rig.buffer.subscribe(KEY)
    subscription.pull()
    for _ in range(100):
        rig.buffer.add_part(KEY, Role.ASSISTANT, part=Text("c"))
        rig.timers.fire()

    assert [(seq, n) for seq, n, _ in subscription.pull()] == [(102, 100)]
    assert subscription.next_seq == 103


async def test_batch_is_bounded_and_the_next_one_goes_on_behind_it() -> None:
    rig = Rig()
    word = "x" * 2000
    await fill(rig, *(Text(word) for _ in range(300)))
    subscription = rig.buffer.subscribe(KEY)

    batches = []
    while batch := subscription.pull():
        batches.append(batch)

    assert len(batches) == 3
    assert all(sum(len(data) for _, _, data in batch) <= MAX_BATCH_BYTES for batch in batches)
    assert "".join(text for batch in batches for text in texts(batch)) == word * 300


async def test_part_larger_than_a_batch_goes_alone() -> None:
    rig = Rig()
    big = Source("https://" + "x" * MAX_BATCH_BYTES)
    await fill(rig, big, big, Text("x"))
    subscription = rig.buffer.subscribe(KEY)

    assert [[seq for seq, _, _ in subscription.pull()] for _ in range(4)] == [[1], [2], [3], []]


async def test_merged_events_merge_again() -> None:
    rig = Rig()
    await fill(rig, *(Text("a") for _ in range(6)))
    events = read(rig.buffer.subscribe(KEY))

    first, last = deltas.merged(events[:2]), deltas.merged(events[3:])
    twice = deltas.merged([*first, events[2], *last])

    assert [(seq, n) for seq, n, _ in twice] == [(6, 6)]
    assert texts(twice) == ["aaaaaa"]
