"""From a workspace's row to what a driver is told: tokens opened, templates unpacked, parameters filled in."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

from rookery.llm.secrets import KeyRing
from rookery.store import templates as stored
from rookery.store import workspaces
from rookery.store.model_errors import KeysMissing
from rookery.store.pool import Connection
from rookery.store.workspaces import Workspace
from rookery.workspaces import manifest as manifests
from rookery.workspaces import parameters, templates, values
from rookery.workspaces.drivers.protocol import DriverError, Ssh, WorkspaceSpec
from rookery.workspaces.manifest import Manifest
from rookery.workspaces.shared_folders import problem_of
from rookery.workspaces.values import Value

TOKEN_BYTES = 32


class Specs:
    """Builds specs. `keys_dir` holds the private keys that templates of the ssh driver name; `shared_folders` are what
    templates may bind."""

    def __init__(
        self, ring: KeyRing | None, *, keys_dir: Path | None = None, shared_folders: Sequence[str] = ()
    ) -> None:
        self._ring = ring
        self._keys_dir = keys_dir
        self._shared_folders = shared_folders

    def check_ring(self) -> None:
        """Without a ring no token can be kept, so no workspace can be started."""
        if self._ring is None:
            raise KeysMissing

    def fresh_token(self, workspace_id: UUID) -> str:
        """A new token, sealed for the row."""
        if self._ring is None:
            raise KeysMissing
        token = secrets.token_urlsafe(TOKEN_BYTES)
        return self._ring.seal(token, table=workspaces.TABLE, row_id=str(workspace_id), column=workspaces.TOKEN_COLUMN)

    def open_token(self, workspace: Workspace) -> str:
        """The token of the row; an empty one, which no agent accepts, when there is none that can be opened."""
        if self._ring is None or workspace.token_enc is None:
            return ""
        opened = self._ring.open(
            workspace.token_enc,
            table=workspaces.TABLE,
            row_id=str(workspace.id),
            column=workspaces.TOKEN_COLUMN,
        )
        return "" if opened is None else opened.reveal()

    async def plain(self, conn: Connection, workspace: Workspace) -> WorkspaceSpec:
        """What stopping, deleting, looking and connecting need."""
        manifest = await self._manifest(conn, workspace) if workspace.driver == "ssh" else None
        return WorkspaceSpec(
            id=str(workspace.id),
            generation=workspace.generation,
            token=self.open_token(workspace),
            name=workspace.name,
            ssh=self._ssh(manifest),
        )

    def local(self, workspace: Workspace) -> WorkspaceSpec:
        """As `plain`, for drivers that need no more than the row."""
        return WorkspaceSpec(
            id=str(workspace.id),
            generation=workspace.generation,
            token=self.open_token(workspace),
            name=workspace.name,
        )

    async def whole(self, conn: Connection, workspace: Workspace, *, once: Mapping[str, Any]) -> WorkspaceSpec:
        """What a start needs. Raises `DriverError` when the template is gone, or binds what is not shared any more."""
        manifest = await self._manifest(conn, workspace)
        archive = await stored.load_archive(conn, workspace.template or "", workspace.template_revision or "")
        if manifest is None or archive is None:
            raise DriverError("invalid_workspace", "The template of this workspace is gone. Make a new workspace.")
        files = templates.read_archive(archive)
        chosen: dict[str, Value] = {**workspace.parameters, **once}
        sandbox = parameters.bound_sandbox(manifest.sandbox, chosen)
        for path in (*sandbox.ro_binds, *sandbox.rw_binds):
            if (problem := problem_of(path, self._shared_folders)) is not None:
                raise DriverError("invalid_workspace", f"The template {workspace.template} cannot be used. {problem}")
        return WorkspaceSpec(
            id=str(workspace.id),
            generation=workspace.generation,
            token=self.open_token(workspace),
            name=workspace.name,
            directory=parameters.bound(manifest.directory, chosen) or "~",
            env=manifest.env,
            parameters={name: values.text(value) for name, value in chosen.items()},
            startup=templates.script(files, manifest.startup),
            shutdown=templates.script(files, manifest.shutdown),
            files=templates.home_files(files),
            context_sources=manifest.context_sources,
            sandbox=sandbox,
            limits=manifest.limits,
            ssh=self._ssh(manifest),
        )

    async def shutdown_seconds(self, conn: Connection, workspace: Workspace) -> float:
        """How long the shutdown script may take; without one the agent ends at once."""
        manifest = await self._manifest(conn, workspace)
        if manifest is None or manifest.shutdown is None:
            return manifests.SHUTDOWN_SECONDS
        return manifest.shutdown.timeout_s

    async def _manifest(self, conn: Connection, workspace: Workspace) -> Manifest | None:
        found = await stored.find_revision(conn, workspace.template or "", workspace.template_revision or "")
        return None if found is None else manifests.decode(found.manifest)

    def _ssh(self, manifest: Manifest | None) -> Ssh | None:
        if manifest is None or manifest.ssh is None:
            return None
        place = manifest.ssh
        return Ssh(
            host=place.host,
            known_hosts=place.known_hosts,
            user=place.user,
            port=place.port,
            jump=place.jump,
            identity=self._identity(place.identity) if place.identity is not None else None,
        )

    def _identity(self, name: str) -> str:
        path = None if self._keys_dir is None else self._keys_dir / name
        try:
            if path is not None:
                return path.read_text()
        except (OSError, ValueError):
            pass
        raise DriverError("ssh_auth", f"There is no key {name} for ssh on this server. An administrator has to add it.")
