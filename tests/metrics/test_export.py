"""The metrics of a replica after some work."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import pytest
from prometheus_client.metrics_core import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from rookery.domain.chat.messages import ChatId
from rookery.domain.chat.retry_policy import RetryPolicy
from rookery.llm.scripted import CallTool, Count, Fail, Say, Script, Step, Wait
from rookery.llm.types import Call, ErrorKind, Purpose, Usage
from rookery.metrics.export import TABLES, Metrics, Sources
from rookery.metrics.families import PREFIX
from rookery.metrics.infrastructure import Build
from rookery.metrics.prometheus_text import Kind
from tests import scripted_tools
from tests.eventually import until
from tests.metrics.all_sources import all_sources
from tests.worker.worker_rig import Records, WorkerRig, in_turn, open_house

USAGE = Usage(input=1000, cache_read=200, cache_write=30, output=50, reasoning=20, total=1280, context_tokens=1000)
OPENMETRICS_KIND = "application/openmetrics-text"
OPENMETRICS = f"{OPENMETRICS_KIND};version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.2"
Samples = dict[str, list[tuple[dict[str, str], float]]]


def samples(families: Iterable[Metric]) -> Samples:
    found: Samples = {}
    for family in families:
        for sample in family.samples:
            found.setdefault(sample.name, []).append((dict(sample.labels), sample.value))
    return found


def now(metrics: Metrics) -> Samples:
    return samples(parse_plain(metrics.render()[1].decode()))


def value(found: Samples, name: str, **labels: str) -> float:
    """Return the value of the one sample with these labels."""
    (only,) = [number for each, number in found[PREFIX + name] if labels.items() <= each.items()]
    return only


def names_of(name: str, kind: Kind) -> list[str]:
    return [name] if kind is not Kind.HISTOGRAM else [f"{name}{end}" for end in ("_sum", "_count")]


def script(*turns: Sequence[Step]) -> Script:
    play = in_turn(*turns)

    def chosen(call: Call) -> Sequence[Step]:
        assert callable(play)
        return (Say("They said hello."),) if call.purpose is Purpose.COMPACTION else play(call)

    return chosen


async def work(rig: WorkerRig, hang: scripted_tools.ScriptedTool) -> ChatId:
    """Run a turn with a retry and tools, an unknown tool, an interrupted turn, a summary, and jobs."""
    await rig.sql("UPDATE model_configs SET price_input = 3, price_output = 15 WHERE id = $1", rig.model)
    rig.forget()
    rig.script = script(
        (Fail(ErrorKind.OVERLOADED),),
        (Count(USAGE), CallTool("echo"), CallTool("huge"), CallTool("invented_by_the_model")),
        (Count(USAGE), Say("done")),
        (CallTool("hang"),),
    )
    chat_id = await rig.ask("hello")
    await rig.rested(chat_id)
    await rig.send(chat_id, "and on")
    await hang.started.wait()
    await rig.interrupt(chat_id)
    await rig.rested(chat_id)
    await rig.compact(chat_id)
    await rig.rested(chat_id)
    await rig.worker.leases.beat()
    for job in rig.worker.housekeeping.jobs:
        await rig.worker.housekeeping.run_once(job)
    await rig.worker.wait_idle()
    return chat_id


def touch(sources: Sources) -> None:
    """Make the counts that no worker makes: requests, and an unknown event of a provider."""
    http, models = sources.http, sources.models
    assert http is not None
    assert models is not None
    with http.serving("GET", "/api/v1/chats/{chat}"):
        http.observe("GET", "/api/v1/chats/{chat}", 200, 0.02)
    http.websocket_closed("/api/v1/chats/{chat}/stream", 90.0)
    http.too_large("/api/v1/files", "body")
    http.rate_limited("login")
    http.auth_failure("expired")
    http.authz_denied("chat", "update")
    models.unknown_events("anthropic", {"new_event": 2})
    assert sources.workspaces is not None
    sources.workspaces.workspaces["local", "running"] = 2
    sources.workspaces.start_seconds.observe(("local", "succeeded"), 0.5)


async def test_every_family_has_a_sample_after_work(database_url: str) -> None:
    hang = scripted_tools.hanging("hang")
    tools = [scripted_tools.echo("echo"), scripted_tools.huge(3_000_000, "huge"), hang]
    async with open_house(database_url, tools=tools, records=Records()) as rig, all_sources(rig) as sources:
        assert sources.pubsub is not None
        assert sources.lag is not None
        assert sources.debug is not None
        probe, lag = sources.pubsub.probe, sources.lag
        await work(rig, hang)
        touch(sources)
        await until(lambda: probe.latency_seconds is not None and lag.measured.count)

        kind, text = Metrics(sources).render()

    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    families = list(parse_plain(text.decode()))
    assert not [family.name for family in families if family.type == "unknown"]
    found = samples(families)
    expected = [name for table in TABLES for family in table.families for name in names_of(family.name, family.kind)]
    assert [name for name in expected if name not in found] == []
    assert "process_resident_memory_bytes" in found
    assert "python_gc_collections_total" in found
    _check_turns(found)
    _check_tools(found)
    _check_models(found)
    assert value(found, "debug_ops_total", op="run", result="ok") >= 2


def _check_turns(found: Samples) -> None:
    # The first turn ended, the second was interrupted, and the summary is no turn. A replica that still holds the chat
    # does not acquire it again.
    assert value(found, "turns_total", outcome="complete") == 1
    assert value(found, "turns_total", outcome="interrupted") == 1
    assert value(found, "turns_total", outcome="error") == 0
    assert value(found, "turn_seconds_count", outcome="interrupted") == 1
    assert value(found, "acquire_total", outcome="won") == value(found, "acquire_lag_seconds_count") >= 1
    assert value(found, "cancel_unwind_seconds_count", kind="generation") >= 1
    assert value(found, "job_seconds_count", job="capacity_gauges", success="true") >= 1
    assert value(found, "db_pool", pool="api", state="in_use") == 0
    assert value(found, "build_info", version="1.2.3", schema="7") == 1


def _check_tools(found: Samples) -> None:
    assert value(found, "tool_calls_total", tool="echo", outcome="ok") == 1
    assert value(found, "tool_calls_total", tool="unknown", outcome="error") == 1
    assert value(found, "tool_errors_total", tool="unknown") == 1
    assert value(found, "tool_result_truncated_total", tool="huge") == 1
    labels = {labels["tool"] for labels, _ in found[f"{PREFIX}tool_calls_total"]}
    assert "invented_by_the_model" not in labels


def _check_models(found: Samples) -> None:
    turn = {"provider": "scripted", "model": "test", "purpose": "turn"}
    # Two answers of the first turn and one call of the second. The failed call is no step.
    assert value(found, "steps_total", **turn) == 3
    assert value(found, "model_call_seconds_count", **turn, outcome="failed") == 1
    assert value(found, "stream_retries_total", provider="scripted", model="test", kind="overloaded") == 1
    assert value(found, "tokens_total", **turn, type="cache_read") == 400
    assert value(found, "tokens_total", **turn, type="reasoning") == 40
    assert value(found, "cost_micros_total", **turn) >= 2 * (1230 * 3 + 50 * 15)
    assert value(found, "compaction_total", provider="scripted", model="test", source="manual", result="success") == 1
    assert value(found, "steps_total", provider="scripted", model="test", purpose="compaction") == 1
    assert value(found, "steps_total", provider="scripted", model="quick", purpose="label") >= 1
    # Requests are counted and not answers, because the failed call had a prompt as well.
    assert value(found, "message_count_count", provider="scripted", model="test") == 5


async def test_runners_are_counted_by_what_they_are_at(database_url: str) -> None:
    hang = scripted_tools.hanging("hang")
    async with open_house(database_url, tools=[hang], script=(CallTool("hang"),)) as rig:
        metrics = Metrics(Sources(build=Build("1", 1), worker=rig.worker))
        with_tool = await rig.ask("hello")
        await hang.started.wait()
        assert value(now(metrics), "runners", state="tools") == 1

        rig.script = (Say("well"), Wait(3600))
        streaming = await rig.ask("hello")
        await until(lambda: value(now(metrics), "runners", state="streaming") == 1)

        for chat_id in (with_tool, streaming):
            await rig.interrupt(chat_id)
            await rig.rested(chat_id)
        await rig.worker.wait_idle()
        found = now(metrics)
        assert [number for _, number in found[f"{PREFIX}runners"]] == [0] * 5


async def test_runners_that_wait_are_told_apart(database_url: str) -> None:
    dynamic = '[{"name": "pick", "description": "", "input_schema": {"type": "object"}}]'
    script = (Fail(ErrorKind.OVERLOADED),)
    async with open_house(database_url, script=script, retry=RetryPolicy()) as rig:
        metrics = Metrics(Sources(build=Build("1", 1), worker=rig.worker))
        failing = await rig.ask("hello")
        await until(lambda: value(now(metrics), "runners", state="retry_wait") == 1)

        rig.script = (CallTool("pick"),)
        asking = await rig.ask("hello", dynamic_tools=dynamic)
        await until(lambda: value(now(metrics), "runners", state="requires_action") == 1)

        for chat_id in (failing, asking):
            await rig.interrupt(chat_id)
            await rig.rested(chat_id)


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain", "application/openmetrics-text;q=0", "garbage;;,"])
def test_text_format_is_the_default(accept: str) -> None:
    kind, text = Metrics(Sources(build=Build("1", 1))).render(accept)

    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    assert b'rookery_build_info{version="1",schema="1"} 1\n' in text


@pytest.mark.parametrize("accept", [OPENMETRICS, OPENMETRICS_KIND, f"{OPENMETRICS_KIND};version=x"])
def test_openmetrics_is_sent_only_on_request(accept: str) -> None:
    kind, text = Metrics(Sources(build=Build("1", 1))).render(accept)

    assert kind == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    assert text.endswith(b"# EOF\n")


async def test_openmetrics_of_a_whole_replica_can_be_read(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),)) as rig, all_sources(rig) as sources:
        await rig.rested(await rig.ask("hello"))
        touch(sources)

        _, text = Metrics(sources).render(OPENMETRICS)

    parse: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families
    families = list(parse(text.decode()))
    assert {family.name for family in families} >= {"rookery_turns", "rookery_ttft_seconds", "rookery_build_info"}


def test_family_without_a_source_is_not_exported() -> None:
    found = now(Metrics(Sources(build=Build("1", 1))))

    assert [name for name in found if name.startswith(PREFIX)] == ["rookery_build_info"]


async def test_two_replicas_of_one_process_do_not_share_numbers(database_url: str) -> None:
    async with open_house(database_url, script=(Say("hi"),), workers=2) as rig:
        await rig.rested(await rig.ask("hello"))
        await rig.worker.wait_idle()

        both = [Metrics(Sources(build=Build("1", 1), worker=each.worker)) for each in rig.replicas]
        turns = [value(now(each), "turns_total", outcome="complete") for each in both]

    assert sorted(turns) == [0, 1]
