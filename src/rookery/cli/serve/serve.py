"""`rookery serve`: the database, the schema, one replica or several, and their port, until a signal ends them."""

from __future__ import annotations

import asyncio
import os
import resource
import socket

from rookery import __version__
from rookery.app import installation
from rookery.app.replica import Choices, running_replica
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from rookery.cli.serve import first_account, metrics_port, parent, port
from rookery.cli.serve.parent import CannotServe
from rookery.cli.serve.port import CannotListen
from rookery.cli.serve.stop_signals import Stop
from rookery.runtime.clock import SystemClock
from rookery.settings.settings import Settings, is_in_the_clear
from rookery.store.db.embedded.data_dir import Use
from rookery.telemetry import log

HARD_END_SECONDS = 15.0  # in addition to drain_timeout
# A parent process outlasts its replicas, because the services that it supervises are stopped after them.
PARENT_SECONDS = 20.0

_log = log.get_logger("serve")


async def run(settings: Settings, out: Output) -> int:
    """Serve until stopped. Exit 0 after an orderly end, 130 if the wait for running work was skipped."""
    # Keys are in the memory of this process, its replicas and the database. A crash must not write them to a disk.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    is_alone = settings.replicas == 1
    patience = (settings.shutdown_delay + settings.drain_timeout).total_seconds() + HARD_END_SECONDS
    stop = Stop(patience if is_alone else patience + PARENT_SECONDS, on_asked=lambda: out.progress("stopping"))
    serve = _serve_alone if is_alone else parent.serve
    work = asyncio.create_task(serve(settings, out, stop), name="serve")
    with stop.watching(work):
        await asyncio.wait([work])
    if work.cancelled():
        out.error("Stopped before all work was finished. No committed data is lost.")
        return Exit.INTERRUPTED
    try:
        work.result()
    except CannotListen as error:
        out.error(str(error))
        return Exit.FAILED
    except CannotServe as error:
        out.error(str(error))
        return error.exit_code
    return Exit.OK


async def _serve_alone(settings: Settings, out: Output, stop: Stop) -> None:
    async with installation.locked_data_dir(settings, out.progress) as lock:
        with port.bound(settings.listen) as listening, metrics_port.bound(settings) as scraped:
            async with installation.server_database(settings, lock, out.progress, ending=stop.requested) as database:
                await installation.prepare_schema(settings, database)
                await installation.prepare_accounts(database)
                ring = await installation.prepare_models(settings, database, os.environ, with_offline=True)
                await installation.apply_pins(database, os.environ, clock=SystemClock())
                # Done before the port is served, because a client may set up the server as soon as it is ready.
                token = await first_account.find_token(settings, database)
                choices = Choices(
                    ring=ring,
                    environ=os.environ,
                    secrets=out.secrets,
                )
                async with running_replica(settings, database, choices) as replica:

                    async def on_ready() -> None:
                        lock.change_use(Use.SERVING)
                        _say_ready(settings, listening, token, out=out)
                        metrics_port.show(scraped, out)

                    async with metrics_port.served(settings, replica.metrics, scraped):
                        await port.serve_until_stopped(settings, replica, listening, stop=stop, on_ready=on_ready)


def _say_ready(settings: Settings, listening: socket.socket, token: str | None, *, out: Output) -> None:
    url = port.displayed_address(settings, listening)
    out.line(f"Rookery {__version__} is ready at {url} (Ctrl-C stops it)")
    if is_in_the_clear(settings):
        _log.warning("served_in_the_clear", listen=str(settings.listen), external_url=settings.external_url)
    first_account.show(url, token, out)
    _log.info("ready", version=__version__)
