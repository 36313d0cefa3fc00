"""The templates that come with Rookery. They are stored in the database at the start of a server if they changed."""

from __future__ import annotations

import asyncio
import functools
from pathlib import Path

import rookery
from rookery.store.db.hints import ConfigHint
from rookery.store.db.pool import Connection
from rookery.store.machine import Publisher
from rookery.store.workspaces import templates as stored
from rookery.telemetry.log import get_logger
from rookery.workspaces import operation_requests, templates
from rookery.workspaces.templates import Packed

log = get_logger("workspaces.shipped_templates")

_PACKAGE = Path(rookery.__file__).parent
# The folder in the wheel, and in a source tree.
_PLACES = (_PACKAGE / "shipped_templates", _PACKAGE.parent.parent / "templates")


def folders() -> list[Path]:
    """Return the folders of the templates, sorted by name."""
    place = next((place for place in _PLACES if place.is_dir()), None)
    return [] if place is None else sorted(path.parent for path in place.glob("*/template.toml"))


@functools.cache
def packed() -> tuple[Packed, ...]:
    return tuple(templates.pack(templates.read_folder(folder)) for folder in folders())


async def push(conn: Connection, publisher: Publisher) -> list[str]:
    """Store the templates of this version. Return the names of those that are new or changed.

    A template of an administrator with the same name is not replaced. Settings of a template are kept.
    """
    current = {each.name: each for each in await stored.list_templates(conn)}
    pushed = []
    for each in await asyncio.to_thread(packed):
        name = each.manifest.name
        known = current.get(name)
        if known is not None and (known.revision == each.revision or not known.shipped):
            continue
        if await stored.push_template(conn, operation_requests.as_push(each), shipped=True):
            pushed.append(name)
    if pushed:
        log.info("templates_pushed", names=pushed)
        publisher.publish([ConfigHint(kind="template")])
    return pushed
