"""For any order of adding, subscribing, reading and closing, no reader misses, repeats or mixes up text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import Raw

from rookery.domain.chat import interrupted_step
from rookery.domain.chat.interrupted_step import LivePart
from rookery.domain.chat.messages import NewMessage, Role, StepFigures
from rookery.domain.chat.open_tool_calls import OpenCall
from rookery.domain.chat.parts import File, Part, Reasoning, Source, Text, ToolCall, ToolResult
from rookery.live import deltas
from rookery.live.deltas import PartEvent
from rookery.live.feeds import EndReason, Subscription
from rookery.live.part_buffer import EpisodeFull, PartLimits
from tests.live.part_buffer_rig import KEY, START, Rig, read, spoken

LATER = START + timedelta(seconds=1)
WORDS = st.sampled_from(["", "a", "bc", "{", "}", '"k":1', "x" * 40, "\u00e9\U0001f600"])
IDS = st.sampled_from(["c1", "c2"])
ROLES = st.sampled_from([Role.ASSISTANT, Role.ASSISTANT, Role.ASSISTANT, Role.TOOL])
PARTS: st.SearchStrategy[Part] = st.one_of(
    st.builds(Text, WORDS),
    st.builds(Text, WORDS, refusal=st.booleans(), provider_meta=st.sampled_from([None, None, {"id": 1}])),
    st.builds(Reasoning, WORDS, st.sampled_from([None, START, LATER])),
    st.builds(Reasoning, WORDS, st.just(START), st.just(LATER), st.sampled_from([None, {"signature": "s"}])),
    st.builds(ToolCall, IDS, st.just("look"), args_delta=st.one_of(st.none(), WORDS), provider_executed=st.booleans()),
    st.builds(ToolCall, IDS, st.just("look"), args=st.just(Raw(b"{}")), provider_executed=st.booleans()),
    st.builds(ToolResult, IDS, st.just("look"), result_delta=WORDS, result_reset=st.booleans()),
    st.builds(ToolResult, IDS, st.just("look"), result=st.just(Raw(b"1")), provider_executed=st.booleans()),
    st.just(Source("https://example.org")),
    st.just(File("image/png")),
)
LIVE = st.builds(LivePart, ROLES, PARTS)
# None means a tick.
STREAM = st.lists(st.one_of(LIVE, LIVE, LIVE, st.none()), max_size=40)


def rows(live: Sequence[LivePart]) -> tuple[NewMessage, ...]:
    committed = [OpenCall(0, "c1", "look")]
    figures = StepFigures(runtime_ms=10)
    return interrupted_step.rows(live, at=LATER, model_config_id=UUID(int=1), figures=figures, committed=committed)


def stream(rig: Rig, steps: Sequence[LivePart | None]) -> tuple[LivePart, ...]:
    """Publish the steps in a new episode. Return its draft."""
    episode = rig.episode()
    for step in steps:
        if step is None:
            rig.timers.fire()
        else:
            episode.add_part(step.role, step.part)
    draft = rig.buffer.close_episode(KEY)
    assert draft is not None
    return draft


@given(STREAM, st.sampled_from([1, 4, 512]))
def test_merging_never_changes_what_an_interruption_keeps(steps: list[LivePart | None], merge_chars: int) -> None:
    draft = stream(Rig(PartLimits(merge_chars=merge_chars)), steps)

    unmerged = [step for step in steps if step is not None]
    assert rows(draft) == rows(unmerged)
    assert len(draft) <= len(unmerged)


@given(STREAM)
def test_merged_replay_says_what_was_said(steps: list[LivePart | None]) -> None:
    rig = Rig()
    stream(rig, steps)
    events = read(rig.buffer.subscribe(KEY))

    merged = deltas.merged(events)

    assert shown(merged) == shown(events)
    assert sum(n for _, n, _ in merged) == len(events)
    assert [seq - n for seq, n, _ in merged[1:]] == [seq for seq, _, _ in merged[:-1]]


@given(STREAM)
def test_first_words_of_a_block_never_wait(steps: list[LivePart | None]) -> None:
    rig = Rig()
    episode = rig.episode()
    subscription = rig.buffer.subscribe(KEY)
    unmerged: list[tuple[Role, Part]] = []

    for step in filter(None, steps):
        blocks = len(spoken(unmerged))
        unmerged.append((step.role, step.part))
        episode.add_part(step.role, step.part)
        if len(spoken(unmerged)) > blocks:
            assert subscription.pull()
        subscription.pull()


def shown(events: Sequence[PartEvent]) -> list[tuple[object, ...]]:
    messages = [deltas.decode(data) for _, _, data in events]
    return spoken((message.role, message.part) for message in messages)


@dataclass
class Reader:
    subscription: Subscription
    from_seq: int
    got: list[PartEvent]
    has_left: bool = False


class Interleavings(RuleBasedStateMachine):
    """One episode whose readers subscribe, read and leave at any time, compared with a list of its parts."""

    @initialize(
        merge_chars=st.sampled_from([1, 8, 512]),
        max_bytes=st.sampled_from([400, 3000, 4 * 1024 * 1024]),
    )
    def begin(self, merge_chars: int, max_bytes: int) -> None:
        self.rig = Rig(PartLimits(merge_chars=merge_chars, episode_max_bytes=max_bytes))
        self.readers: list[Reader] = []
        self.is_created = False
        self.is_closed = False
        self.seqs: list[int] = []

    @precondition(lambda self: not self.is_created and not self.is_closed)
    @rule()
    def create(self) -> None:
        self.episode = self.rig.episode()
        # This reader reads everything immediately. The others are compared with it.
        self.first = Reader(self.rig.buffer.subscribe(KEY, wake=self.follow), 1, [])
        self.is_created = True

    def follow(self) -> None:
        self.first.got += self.first.subscription.pull()

    @precondition(lambda self: self.is_created and not self.is_closed and self.first.subscription.end is None)
    @rule(live=LIVE)
    def add(self, live: LivePart) -> None:
        try:
            self.seqs.append(self.episode.add_part(live.role, live.part))
        except EpisodeFull:
            assert self.first.subscription.end is EndReason.TRUNCATED

    @precondition(lambda self: self.is_created and not self.is_closed)
    @rule(words=st.lists(st.sampled_from(["a", "bc"]), min_size=30, max_size=80))
    def add_a_long_stretch(self, words: list[str]) -> None:
        for word in words:
            if self.first.subscription.end is None:
                self.add(LivePart(Role.ASSISTANT, Text(word)))
                self.rig.timers.fire()

    @rule()
    def tick(self) -> None:
        self.rig.timers.fire()

    @rule(data=st.data())
    def subscribe(self, data: st.DataObject) -> None:
        last_seq = self.first.got[-1][0] if self.is_created and self.first.got else 0
        from_seq = data.draw(st.integers(1, last_seq + 2))
        self.readers.append(Reader(self.rig.buffer.subscribe(KEY, from_seq), from_seq, []))

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def read(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.got += reader.subscription.pull()

    @precondition(lambda self: self.readers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        reader = data.draw(st.sampled_from(self.readers))
        reader.subscription.close()
        reader.has_left = True

    @rule()
    def close(self) -> None:
        draft = self.rig.buffer.close_episode(KEY)
        assert (draft is None) is not self.is_created
        self.is_closed = True

    @invariant()
    def numbers_have_no_gaps(self) -> None:
        if not self.is_created:
            return
        assert [(seq, n) for seq, n, _ in self.first.got] == [(seq, 1) for seq in range(1, len(self.first.got) + 1)]
        assert self.seqs == sorted(self.seqs)
        for reader in self.readers:
            next_seq = reader.from_seq
            for seq, n, _ in reader.got:
                assert seq - n + 1 == next_seq
                next_seq = seq + 1

    @invariant()
    def readers_saw_the_same_words_in_the_same_order(self) -> None:
        for reader in self.readers:
            if reader.got:
                until = reader.got[-1][0]
                assert shown(reader.got) == shown(self.first.got[reader.from_seq - 1 : until])

    def teardown(self) -> None:
        if not hasattr(self, "rig"):
            return
        self.close()
        published = self.first.got if self.is_created else []
        for reader in self.readers:
            if not reader.has_left:
                reader.got += read(reader.subscription)
                assert reader.subscription.end in (EndReason.CLOSED, EndReason.TRUNCATED)
                assert shown(reader.got) == shown(published[reader.from_seq - 1 :])
        self.numbers_have_no_gaps()
        assert self.rig.timers.armed == []


TestInterleavings = Interleavings.TestCase
