"""The settings `worker.*`: each has a valid range, and each is used."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from rookery.app import worker_config
from rookery.domain.chat.next_action import MAX_STEPS
from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.domain.models.options import DEFAULT_MAX_OUTPUT_TOKENS
from rookery.live.part_buffer import PartLimits
from rookery.llm.http import CONNECT_SECONDS
from rookery.loop.config import LoopConfig
from rookery.runtime.shared_tick import TICK_SECONDS
from rookery.settings import settings
from rookery.settings.keys import KEYS, Key
from rookery.settings.settings import Settings, SettingsError
from rookery.settings.value_types import DURATION
from rookery.worker.config import WorkerConfig
from tests.live.part_buffer_rig import KEY, Rig, read, texts

FIGURES = [key for key in KEYS if key.name.startswith("worker.") and key.name != "worker.enabled"]


def load(home: Path, **flags: str) -> Settings:
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return settings.load({"data_dir": str(home), **named}, {"HOME": str(home)}).settings


def problems(home: Path, **flags: str) -> list[str]:
    with pytest.raises(SettingsError) as refusal:
        load(home, **flags)
    return [str(problem) for problem in refusal.value.problems]


def all_figures(found: Settings) -> tuple[object, ...]:
    return (
        worker_config.worker_config(found),
        worker_config.loop_config(found),
        worker_config.retry_policy(found),
        worker_config.part_limits(found),
        worker_config.tick(found).seconds,
        found.worker_max_steps,
        found.worker_max_output_tokens,
        found.worker_connect_timeout,
    )


def test_without_settings_every_figure_is_what_the_code_says(tmp_path: Path) -> None:
    assert all_figures(load(tmp_path)) == (
        WorkerConfig(),
        LoopConfig(),
        RetryPolicy(),
        PartLimits(),
        TICK_SECONDS,
        MAX_STEPS,
        DEFAULT_MAX_OUTPUT_TOKENS,
        timedelta(seconds=CONNECT_SECONDS),
    )


@pytest.mark.parametrize("key", FIGURES, ids=lambda key: key.name)
def test_each_setting_changes_exactly_one_figure(tmp_path: Path, key: Key) -> None:
    before = load(tmp_path)
    value = getattr(before, key.field)
    given = value + timedelta(milliseconds=1) if key.kind is DURATION else value + 1
    text = f"{given // timedelta(milliseconds=1)}ms" if key.kind is DURATION else str(given)

    after = load(tmp_path, **{key.name: text})

    assert differences(all_figures(before), all_figures(after)) == 1


def differences(before: tuple[object, ...], after: tuple[object, ...]) -> int:
    flat_before, flat_after = (list(fields_of(each) for each in found) for found in (before, after))
    return sum(
        one != other
        for earlier, afters in zip(flat_before, flat_after, strict=True)
        for one, other in zip(earlier, afters, strict=True)
    )


def fields_of(figures: object) -> list[object]:
    if isinstance(figures, PartLimits):
        return [getattr(figures, name) for name in PartLimits.__slots__]
    return list(msgspec.structs.astuple(figures)) if isinstance(figures, msgspec.Struct) else [figures]


@pytest.mark.parametrize("value", ["0", "-1", "999999999999999999", "1e3", "nan", "many", "5 apples", "\x00"])
@pytest.mark.parametrize("key", FIGURES, ids=lambda key: key.name)
def test_figure_out_of_bounds_is_refused_with_its_name(tmp_path: Path, key: Key, value: str) -> None:
    found = problems(tmp_path, **{key.name: value})

    assert len(found) == 1
    assert found[0].startswith(f"{key.name} (from {key.flag}): ")


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (
            {"worker.heartbeat_interval": "10s", "worker.self_fence_after": "19s"},
            "worker.self_fence_after (from --worker-self-fence-after): 19s is less than 2 times"
            " worker.heartbeat_interval, which is 10s.",
        ),
        (
            {"worker.task_backoff": "6s"},
            "worker.task_backoff_max (from default): 5s is less than worker.task_backoff, which is 6s.",
        ),
        (
            {"worker.retry_delay": "2m"},
            "worker.retry_delay_max (from default): 60s is less than worker.retry_delay, which is 120s.",
        ),
        (
            {"worker.tool_max_deadline": "9m"},
            "worker.tool_max_deadline (from --worker-tool-max-deadline): 540s is less than"
            " worker.tool_default_deadline, which is 600s.",
        ),
        (
            {"worker.lease_ttl": "26s"},
            "worker.lease_ttl (from --worker-lease-ttl): 26s is less than 3 times worker.heartbeat_interval, which is"
            " 9s.",
        ),
        (
            {"worker.lease_ttl": "20s", "worker.heartbeat_interval": "5s"},
            "worker.self_fence_after (from default): 24s is not 1s or more below worker.lease_ttl, which is 20s.",
        ),
        (
            {"worker.self_fence_after": "29001ms"},
            "worker.self_fence_after (from --worker-self-fence-after): 29001ms is not 1s or more below"
            " worker.lease_ttl, which is 30s.",
        ),
    ],
)
def test_figures_that_contradict_each_other_are_refused(tmp_path: Path, flags: dict[str, str], said: str) -> None:
    assert problems(tmp_path, **flags) == [said]


def test_beats_are_at_most_ten_seconds_apart_however_long_a_lease_lasts(tmp_path: Path) -> None:
    """With peers, a replica stops its work 15 seconds after its last heartbeat."""
    flags = {"worker.heartbeat_interval": "10001ms", "worker.lease_ttl": "10m"}

    assert problems(tmp_path, **flags)[0].endswith("is not between 500ms and 10s.")


def test_figures_at_the_edge_of_what_fits_together_are_taken(tmp_path: Path) -> None:
    found = load(
        tmp_path,
        **{"worker.lease_ttl": "10s", "worker.heartbeat_interval": "3333ms", "worker.self_fence_after": "9s"},
    )

    config = worker_config.worker_config(found)
    assert (config.lease_seconds, config.self_fence_seconds, config.self_fence_with_peers_seconds) == (10.0, 9.0, 9.0)


def test_words_are_gathered_as_long_and_as_many_as_the_settings_say(tmp_path: Path) -> None:
    found = load(tmp_path, **{"worker.part_flush": "70ms", "worker.part_flush_chars": "8"})
    rig = Rig(worker_config.part_limits(found), tick_seconds=worker_config.tick(found).seconds)
    episode = rig.episode()
    reader = rig.buffer.subscribe(KEY)
    rig.say("first", "a", "b", episode=episode)
    assert texts(read(reader)) == ["first"]
    assert [timer.delay for timer in rig.timers.armed] == [0.07]

    rig.say("cdefghi", episode=episode)

    assert texts(read(reader)) == ["abcdefghi"]
