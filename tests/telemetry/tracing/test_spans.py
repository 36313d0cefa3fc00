"""The interface for traces: the header `traceparent`, the current span, and the cost of tracing that is off."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rookery
from rookery.telemetry.tracing import spans
from rookery.telemetry.tracing.spans import NO_SPAN, TraceContext
from tests.otlp_collector import exporting, otlp_collector

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"

WRONG = {
    "empty": "",
    "of an unknown version": f"ff-{TRACE}-{SPAN}-01",
    "with more fields than version 00 has": f"00-{TRACE}-{SPAN}-01-extra",
    "without a trace": f"00-{'0' * 32}-{SPAN}-01",
    "without a span": f"00-{TRACE}-{'0' * 16}-01",
    "in upper case": f"00-{TRACE.upper()}-{SPAN}-01",
    "cut off": f"00-{TRACE}-{SPAN}",
    "with digits that are not ASCII": f"00-{TRACE[:-1]}\N{ARABIC-INDIC DIGIT ONE}-{SPAN}-01",
    "with a line break inside": f"00-{TRACE}\n-{SPAN}-01",
    "very long": f"01-{TRACE}-{SPAN}-01-" + "x" * 10_000,
}


@pytest.mark.parametrize("what", WRONG)
def test_header_is_ignored_that_is(what: str) -> None:
    assert spans.parse_traceparent(WRONG[what]) is None


def test_header_of_a_later_version_is_understood() -> None:
    assert spans.parse_traceparent(f"01-{TRACE}-{SPAN}-03-more") == TraceContext(TRACE, SPAN, True)


@given(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1), st.booleans())
def test_context_survives_its_header(trace_id: int, span_id: int, is_sampled: bool) -> None:
    context = TraceContext(f"{trace_id:032x}", f"{span_id:016x}", is_sampled)

    assert spans.parse_traceparent(context.traceparent) == context


@given(st.text(max_size=300))
def test_no_text_breaks_the_parser(text: str) -> None:
    found = spans.parse_traceparent(text)

    assert found is None or found.trace_id in text


def test_nothing_happens_while_tracing_is_off() -> None:
    with spans.span("work") as span:
        span.set({"a": 1})
        span.event("b")
        span.fail("c")
        span.end_with(lambda: {"d": 1})

        assert span is NO_SPAN
        assert spans.current() is NO_SPAN
        assert spans.traceparent() is None
    spans.record("metric", 1.0, {})


async def test_span_is_the_parent_of_spans_in_its_block_and_in_tasks_started_there() -> None:
    async def child() -> None:
        with spans.span("child"):
            pass

    with otlp_collector() as collector:
        async with exporting(collector):
            with spans.span("parent") as parent:
                assert parent.context is not None
                assert spans.traceparent() == parent.context.traceparent
                await asyncio.create_task(child())
            await child()

    parent_span = collector.one("parent")
    below, after = collector.named("child")
    assert (below.trace_id, below.parent_id) == parent_span.id
    assert (after.parent_id, after.links) == ("", [])
    assert after.trace_id != parent_span.trace_id


async def test_work_that_outlives_its_span_begins_a_linked_trace() -> None:
    go = asyncio.Event()

    async def later() -> None:
        await go.wait()
        assert spans.traceparent() is None
        with spans.span("background"):
            pass

    with otlp_collector() as collector:
        async with exporting(collector):
            with spans.span("request"):
                task = asyncio.create_task(later())
            go.set()
            await task

    request, background = collector.one("request"), collector.one("background")
    assert background.trace_id != request.trace_id
    assert background.links == [request.id]


async def test_error_that_leaves_a_span_fails_it_without_its_text() -> None:
    with otlp_collector() as collector:
        async with exporting(collector):
            with pytest.raises(ValueError), spans.span("broken"):
                raise ValueError("the password is hunter2hunter2")
            with pytest.raises(asyncio.CancelledError), spans.span("stopped"):
                raise asyncio.CancelledError
            with spans.span("fine"):
                pass

    broken, stopped, fine = (collector.one(name) for name in ("broken", "stopped", "fine"))
    assert (broken.has_failed, broken.attributes) == (True, {"error.type": "ValueError"})
    assert (stopped.has_failed, stopped.attributes) == (True, {"error.type": "cancelled"})
    assert not fine.has_failed
    assert b"hunter2" not in b"".join(collector.bodies)


def test_server_without_the_extra_imports_nothing_of_opentelemetry() -> None:
    """Except the bridge and MCP: their packages import the API of OpenTelemetry, which does nothing without the SDK."""
    program = textwrap.dedent("""
        import importlib, pkgutil, sys
        from importlib.abc import MetaPathFinder

        class Missing(MetaPathFinder):
            def find_spec(self, name, path=None, target=None):
                if name.partition(".")[0] == "opentelemetry":
                    raise ModuleNotFoundError(f"No module named {name!r}", name=name)

        sys.meta_path.insert(0, Missing())
        import rookery
        skipped = ("rookery.llm.bridge", "rookery.mcp.", "rookery.telemetry.tracing.otel", "rookery.__main__")
        imported = 0
        for module in pkgutil.walk_packages(rookery.__path__, "rookery."):
            if not module.name.startswith(skipped) and ".workspaces.agent" not in module.name:
                importlib.import_module(module.name)
                imported += 1
        assert imported > 300, imported
        assert not [name for name in sys.modules if name.startswith("opentelemetry")]

        from rookery.settings import settings
        try:
            settings.load({"otel.endpoint": "http://localhost:4318"}, {"HOME": "/nowhere"})
        except settings.SettingsError as error:
            print(error)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)

    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == (
        "otel.endpoint (from --otel-endpoint): the packages for OpenTelemetry are not installed. Install rookery[otel]."
    )


def test_only_the_exporter_uses_opentelemetry() -> None:
    source = Path(rookery.__file__).parent

    users = [path.relative_to(source).as_posix() for path in source.rglob("*.py") if _imports_otel(path)]

    assert users == ["telemetry/tracing/otel.py"]


def _imports_otel(path: Path) -> bool:
    return re.search(r"^\s*(from|import) opentelemetry\b", path.read_text(), re.MULTILINE) is not None
