"""The metrics of several processes, merged."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from prometheus_client.parser import text_string_to_metric_families

from rookery.metrics.export import Metrics, Sources
from rookery.metrics.infrastructure import Build
from rookery.metrics.merge import Fetch, MergedMetrics, merge
from rookery.telemetry.http_stats import HttpStats

Labelled = dict[tuple[tuple[str, str], ...], float]


def text_of(*, requests: int, seconds: float = 0.02, path: str = "/api/{x}") -> bytes:
    http = HttpStats()
    for _ in range(requests):
        http.observe("GET", path, 200, seconds)
    return Metrics(Sources(build=Build("1", 1), http=http)).render()[1]


def read(text: bytes, name: str) -> Labelled:
    return {
        tuple(sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name == name
    }


def labelled(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def gives(text: bytes) -> Fetch:
    async def fetch() -> bytes:
        return text

    return fetch


def test_samples_of_each_process_carry_its_name() -> None:
    kind, text = merge({"replica-0": text_of(requests=2), "replica-1": text_of(requests=3)})

    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert read(text, "rookery_http_requests_total") == {
        labelled(process="replica-0", method="GET", route="/api/{x}", code="200"): 2,
        labelled(process="replica-1", method="GET", route="/api/{x}", code="200"): 3,
    }


def test_family_stands_once_with_the_samples_of_all() -> None:
    _, text = merge({"a": text_of(requests=1), "b": text_of(requests=1)})

    lines = text.decode().splitlines()
    assert len(lines) == len(set(lines))
    assert sum(line.startswith("# TYPE rookery_http_request_seconds ") for line in lines) == 1
    assert read(text, "rookery_http_request_seconds_bucket")[
        labelled(process="b", method="GET", route="/api/{x}", le="0.025")
    ] == pytest.approx(1)


def test_merged_texts_can_be_openmetrics() -> None:
    kind, text = merge({"a": text_of(requests=1)}, "application/openmetrics-text")

    assert kind.startswith("application/openmetrics-text")
    assert text.endswith(b"# EOF\n")


def test_label_values_survive_with_all_their_characters() -> None:
    odd = 'a "quoted" \\ and\nbroken \u2028 é}'

    _, text = merge({"a": text_of(requests=1, path=odd)})

    assert labelled(process="a", method="GET", route=odd, code="200") in read(text, "rookery_http_requests_total")


def test_names_that_mean_something_else_in_another_version_are_left_out() -> None:
    _, text = merge({"a": b"# TYPE x gauge\nx 1\n", "b": b"# TYPE x histogram\nx_sum 1\nx_count 1\n"})

    assert read(text, "x") == {labelled(process="a"): 1}
    assert read(text, "x_sum") == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"<html></html>\n", "not a line of metrics"),
        (b"x 1\n", "not a line of metrics"),
        (b"# HELP x X.\n# TYPE x gauge\ny 1\n", "not a line of metrics"),
        (b"# HELP x X.\n# TYPE x gauge\nx one\n", "not a line of metrics"),
        (b"# HELP x X.\n# TYPE x summary\nx 1\n", "summary"),
        (b"# HELP x X.\n# TYPE x gauge\nx 10", "cut off"),
        (b"\xff\n", "decode"),
    ],
)
def test_invalid_metrics_text_is_refused(text: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        merge({"a": text})


async def test_silent_process_is_left_out_and_counted() -> None:
    is_cancelled = asyncio.Event()

    async def silent() -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            is_cancelled.set()
        raise AssertionError("unreachable")

    processes: dict[str, Fetch] = {"replica-0": gives(text_of(requests=2)), "replica-1": silent}
    gathering = MergedMetrics(lambda: processes, scrape_seconds=0.02)

    _, text = await gathering.scrape("")

    assert {dict(key)["process"] for key in read(text, "rookery_build_info")} == {"replica-0"}
    assert read(text, "rookery_scrape_errors_total") == {
        labelled(process="replica-0"): 0,
        labelled(process="replica-1"): 1,
    }
    assert is_cancelled.is_set()


async def test_processes_are_asked_at_the_same_time() -> None:
    arrived = asyncio.Barrier(3)

    async def fetch() -> bytes:
        await arrived.wait()
        return text_of(requests=1)

    gathering = MergedMetrics(lambda: {"a": fetch, "b": fetch, "c": fetch}, scrape_seconds=5)

    _, text = await gathering.scrape("")

    assert len(read(text, "rookery_build_info")) == 3


async def test_process_that_cannot_be_asked_or_understood_does_not_hide_the_others() -> None:
    async def refused() -> bytes:
        raise ConnectionRefusedError

    processes: Mapping[str, Fetch] = {"a": refused, "b": gives(b"{ {"), "c": gives(text_of(requests=1))}
    gathering = MergedMetrics(lambda: processes)

    await gathering.scrape("")
    _, text = await gathering.scrape("")

    assert {dict(key)["process"] for key in read(text, "rookery_build_info")} == {"c"}
    assert gathering.errors == {"a": 2, "b": 2}


async def test_process_that_is_gone_for_good_keeps_its_count() -> None:
    async def refused() -> bytes:
        raise ConnectionRefusedError

    processes: dict[str, Fetch] = {"a": refused}
    gathering = MergedMetrics(lambda: processes)
    await gathering.scrape("")

    processes.clear()
    _, text = await gathering.scrape("")

    assert read(text, "rookery_scrape_errors_total") == {labelled(process="a"): 1}
