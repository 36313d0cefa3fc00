"""`rookery admin rotate-secrets`: seals every stored secret with the active key of the ring, or counts them by key.

It may be interrupted and run again, even while servers run, because each value is replaced separately, and only if it
has not changed since it was read.
"""

from __future__ import annotations

from collections.abc import Mapping

from rookery.app import installation
from rookery.cli.exit_codes import Exit
from rookery.cli.output import Output
from rookery.models import key_ring
from rookery.models.key_ring import KeyRing, SecretsError
from rookery.settings.settings import Problem, Settings, SettingsError
from rookery.store.db import migrate
from rookery.store.db.pool import Connection
from rookery.store.models import key_rotation

NO_RING = "There is no key ring. Set ROOKERY_SECRET_KEYS to the one the servers use."
WRONG_RING = "This ring did not seal the keys in the database. Set the one that did, or restore the key file."


async def rotate(settings: Settings, out: Output, *, full: bool) -> int:
    """Seal the values again, then count the values under each key."""

    def tell(seen: int) -> None:
        if seen >= key_rotation.BATCH:
            out.progress(f"{seen} values checked")

    async with installation.command_database(settings, out.progress) as database, database.api.acquire() as conn:
        await migrate.check(conn, advice="`rookery admin migrate` applies them.")
        ring = require_ring(settings)
        await check_ring(conn, ring)
        done = await key_rotation.rotate(conn, ring, full=full, on_batch=tell)
    out.line(f"{done.rewrapped} value(s) sealed again with key {ring.active_id}.")
    _show(out, ring, done.by_key_id, rewrapped=done.rewrapped, unreadable=done.unreadable)
    left = {key_id: count for key_id, count in done.by_key_id.items() if key_id != ring.active_id}
    late = sum(left.values()) - done.unreadable
    if done.unreadable:
        out.error(
            f"{done.unreadable} value(s) cannot be opened with this ring and stay as they are. Add the key that sealed "
            "them to the ring, or save those keys again."
        )
    if late > 0:
        out.error(
            f"{late} value(s) were sealed with another key meanwhile. Restart every server with this ring, then run "
            "this again."
        )
    if left or done.unreadable:
        return Exit.FAILED
    if idle := _idle(ring, done.by_key_id):
        out.line(f"No value is under {', '.join(idle)} any more. Remove it once every server runs with this ring.")
    return Exit.OK


async def status(settings: Settings, out: Output) -> int:
    """Show how many values each key seals. Changes nothing, and works with a wrong ring."""
    async with installation.command_database(settings, out.progress) as database, database.api.acquire() as conn:
        await migrate.check(conn, advice="`rookery admin migrate` applies them.")
        ring = require_ring(settings)
        counts = await key_rotation.count_by_key_id(conn, ring)
    _show(out, ring, counts)
    if any(key_id != ring.active_id and key_id in ring.key_ids for key_id in counts):
        out.line("`rookery admin rotate-secrets` seals them all with the active key.")
    if missing := sorted(counts.keys() - set(ring.key_ids)):
        out.warning(f"Not in the ring: {', '.join(missing)}. Values under these keys count as missing.")
    return Exit.OK


def load_ring(settings: Settings) -> KeyRing | None:
    """Return the ring of this installation.

    If the database is embedded, create a missing ring. An invalid ring is a settings error.
    """
    try:
        return key_ring.load_ring(settings.secret_keys, settings.data_dir if settings.database_url is None else None)
    except SecretsError as error:
        raise _refused(str(error)) from error


def require_ring(settings: Settings) -> KeyRing:
    """Return the existing ring.

    A missing ring is not created, because a new ring opens no stored value and would hide the loss of the file.
    """
    path = settings.data_dir / key_ring.KEY_FILE
    if settings.secret_keys is None and settings.database_url is None and not path.exists():
        raise _refused(
            f"There is no key file {path}. The first start of `rookery serve` creates it; if keys were saved before, "
            "restore it from a backup."
        )
    ring = load_ring(settings)
    if ring is None:
        raise _refused(NO_RING)
    return ring


async def load_checked_ring(settings: Settings, conn: Connection) -> KeyRing | None:
    """Return the ring of this installation. A ring that did not seal the stored values is refused."""
    ring = load_ring(settings)
    if ring is not None:
        await check_ring(conn, ring)
    return ring


async def check_ring(conn: Connection, ring: KeyRing) -> None:
    """Refuse to write with a ring that did not seal the stored values."""
    if not await key_ring.check_ring(conn, ring):
        raise _refused(WRONG_RING)


def _show(out: Output, ring: KeyRing, counts: Mapping[str, int], **more: object) -> None:
    keys = [(key_id, counts.get(key_id, 0), _role(ring, key_id)) for key_id in dict.fromkeys((*ring.key_ids, *counts))]
    out.table(("key", "values", "role"), keys)
    out.result(
        {
            "active": ring.active_id,
            "keys": [{"id": key_id, "values": count, "role": role} for key_id, count, role in keys],
            "removable": _idle(ring, counts),
            **more,
        }
    )


def _role(ring: KeyRing, key_id: str) -> str:
    if key_id == ring.active_id:
        return "active"
    return "opens only" if key_id in ring.key_ids else "not in the ring"


def _idle(ring: KeyRing, counts: Mapping[str, int]) -> list[str]:
    return [key_id for key_id in ring.key_ids if key_id != ring.active_id and not counts.get(key_id)]


def _refused(message: str) -> SettingsError:
    return SettingsError([Problem("secret_keys", "the key ring", message)], [])
