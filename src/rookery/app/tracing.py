"""The export of traces and metrics, configured from the settings.

Without `otel.endpoint`, OpenTelemetry is not imported, and the extra `rookery[otel]` is not needed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING
from urllib.parse import unquote
from uuid import UUID

from rookery import __version__
from rookery.debug.trace_content import TraceContent
from rookery.settings.settings import Settings
from rookery.telemetry.log import get_logger
from rookery.telemetry.redaction import SecretRegistry
from rookery.telemetry.tracing import spans

if TYPE_CHECKING:
    from rookery.telemetry.tracing.otel import OtelExport

log = get_logger("app.tracing")


@asynccontextmanager
async def exported_traces(settings: Settings, *, replica_id: UUID, secrets: SecretRegistry) -> AsyncIterator[None]:
    """Export the traces of this process while the block runs.

    At its end, the remaining spans are sent for a limited time.
    """
    if settings.otel_endpoint is None:
        yield
        return
    # In a thread, because the imports take a few hundred milliseconds.
    export = await asyncio.to_thread(_open, settings, replica_id, secrets)
    spans.install(export.tracer)
    log.info(
        "traces_exported",
        endpoint=settings.otel_endpoint,
        sample=settings.otel_sample,
        has_content=settings.otel_capture_content,
    )
    try:
        yield
    finally:
        spans.install(None)
        await export.close()


def _open(settings: Settings, replica_id: UUID, secrets: SecretRegistry) -> OtelExport:
    from rookery.telemetry.tracing.otel import OtelConfig, OtelExport

    assert settings.otel_endpoint is not None
    config = OtelConfig(
        endpoint=settings.otel_endpoint,
        headers=headers(settings.otel_headers),
        sample=settings.otel_sample,
        has_metrics=settings.otel_metrics,
    )
    content = TraceContent(secrets) if settings.otel_capture_content else None
    return OtelExport(config, version=__version__, replica_id=str(replica_id), secrets=secrets, content=content)


def headers(text: str | None) -> dict[str, str]:
    """Return the headers of the setting `otel.headers`. Values are percent-encoded, as in the standard variable."""
    pairs = [pair.partition("=") for pair in (text or "").split(",") if pair.strip()]
    return {name.strip().lower(): unquote(value.strip()) for name, _, value in pairs}
