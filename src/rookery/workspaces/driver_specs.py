"""The specs for drivers, built from the row of a workspace: its token, its template and its parameters."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from rookery.models.key_ring import KeyRing
from rookery.store.db.pool import Connection
from rookery.store.models.errors import KeysMissing
from rookery.store.workspaces import operation_rows, workspaces
from rookery.store.workspaces import templates as stored
from rookery.store.workspaces.operation_rows import Operation
from rookery.store.workspaces.workspaces import Workspace
from rookery.workspaces import manifest as manifests
from rookery.workspaces import parameter_values, start_parameters, templates
from rookery.workspaces.drivers.driver_interface import DriverError, Ssh, WorkspaceSpec
from rookery.workspaces.manifest import Manifest
from rookery.workspaces.parameter_values import Value
from rookery.workspaces.shared_folders import problem_of

TOKEN_BYTES = 32


class Specs:
    """Builds specs. `keys_dir` holds the private keys of ssh templates. Templates may bind `shared_folders`."""

    def __init__(
        self, ring: KeyRing | None, *, keys_dir: Path | None = None, shared_folders: Sequence[str] = ()
    ) -> None:
        self._ring = ring
        self._keys_dir = keys_dir
        self._shared_folders = shared_folders

    def check_ring(self) -> None:
        """Raise `KeysMissing` without a key ring, because the tokens of workspaces could not be stored."""
        if self._ring is None:
            raise KeysMissing

    def fresh_token(self, workspace_id: UUID) -> str:
        """Return a new token, encrypted for the row."""
        if self._ring is None:
            raise KeysMissing
        token = secrets.token_urlsafe(TOKEN_BYTES)
        return self._ring.seal(token, table=workspaces.TABLE, row_id=str(workspace_id), column=workspaces.TOKEN_COLUMN)

    def open_token(self, workspace: Workspace) -> str:
        """Return the token of the row; an empty text, which no agent accepts, if it cannot be decrypted."""
        if self._ring is None or workspace.token_enc is None:
            return ""
        opened = self._ring.open(
            workspace.token_enc,
            table=workspaces.TABLE,
            row_id=str(workspace.id),
            column=workspaces.TOKEN_COLUMN,
        )
        return "" if opened is None else opened.reveal()

    def seal_secrets(
        self, workspace_id: UUID, secrets: Mapping[str, Value], *, table: str = workspaces.TABLE
    ) -> str | None:
        """Encrypt secret parameters for the row of the workspace or of its operation. Return None if there are none."""
        if not secrets:
            return None
        if self._ring is None:
            raise KeysMissing
        value = msgspec.json.encode(dict(secrets)).decode()
        return self._ring.seal(value, table=table, row_id=str(workspace_id), column=workspaces.SECRETS_COLUMN)

    def open_parameters(
        self,
        workspace_id: UUID,
        parameters: Mapping[str, Any],
        secrets_enc: str | None,
        *,
        table: str = workspaces.TABLE,
    ) -> dict[str, Value]:
        """Return the stored parameters, with secrets in place of their masks.

        Raise `DriverError` if the secrets cannot be decrypted.
        """
        opened: dict[str, Value] = dict(parameters)
        if secrets_enc is None:
            return opened
        found = None
        if self._ring is not None:
            found = self._ring.open(
                secrets_enc, table=table, row_id=str(workspace_id), column=workspaces.SECRETS_COLUMN
            )
        if found is None:
            raise DriverError(
                "invalid_workspace",
                "The server's keys cannot decrypt the secret parameters of this workspace. Enter them again, or tell "
                "an administrator.",
            )
        return opened | msgspec.json.decode(found.reveal(), type=dict[str, Value])

    async def seal_clear_parameters(self, conn: Connection) -> int:
        """Encrypt credentials that an older version stored in clear text. Return the number of affected workspaces."""
        sealed = 0
        for workspace in await workspaces.list_unsealed_parameters(conn):
            shown = {name: parameter_values.masked(value) for name, value in workspace.parameters.items()}
            secrets = {name: value for name, value in workspace.parameters.items() if shown[name] != value}
            if (secrets_enc := self.seal_secrets(workspace.id, secrets)) is not None:
                await workspaces.seal_parameters(conn, workspace, parameters=shown, secrets_enc=secrets_enc)
                sealed += 1
        return sealed

    def find_parameters(self, workspace: Workspace) -> dict[str, Value]:
        """Return the stored parameters for another start, without secrets that cannot be decrypted."""
        try:
            return self.open_parameters(workspace.id, workspace.parameters, workspace.secrets_enc)
        except DriverError:
            return {
                name: value for name, value in workspace.parameters.items() if parameter_values.MASK not in str(value)
            }

    async def for_access(self, conn: Connection, workspace: Workspace) -> WorkspaceSpec:
        """Return the spec for every action except a start."""
        manifest = await self._manifest(conn, workspace) if workspace.driver == "ssh" else None
        return WorkspaceSpec(
            id=str(workspace.id),
            generation=workspace.generation,
            token=self.open_token(workspace),
            name=workspace.name,
            ssh=self._ssh(manifest),
        )

    async def for_start(self, conn: Connection, workspace: Workspace, operation: Operation) -> WorkspaceSpec:
        """Return the spec for a start.

        Raise `DriverError` if the template was deleted, or binds a folder that is not shared.
        """
        manifest = await self._manifest(conn, workspace)
        archive = await stored.load_archive(conn, workspace.template or "", workspace.template_revision or "")
        if manifest is None or archive is None:
            raise DriverError(
                "invalid_workspace", "The template of this workspace was deleted. Create a new workspace."
            )
        files = templates.read_archive(archive)
        chosen = {
            **self.open_parameters(workspace.id, workspace.parameters, workspace.secrets_enc),
            **self.open_parameters(
                workspace.id, operation.parameters, operation.secrets_enc, table=operation_rows.TABLE
            ),
        }
        environment, handed = start_parameters.script_values(manifest, chosen)
        sandbox = start_parameters.fill_sandbox(manifest.sandbox, chosen)
        for path in (*sandbox.ro_binds, *sandbox.rw_binds):
            if (problem := problem_of(path, self._shared_folders)) is not None:
                raise DriverError("invalid_workspace", f"The template {workspace.template} cannot be used. {problem}")
        return WorkspaceSpec(
            id=str(workspace.id),
            generation=workspace.generation,
            token=self.open_token(workspace),
            name=workspace.name,
            directory=start_parameters.fill_path(manifest.directory, chosen) or "~",
            env=manifest.env,
            parameters=environment,
            secrets=handed,
            startup=templates.script(files, manifest.startup),
            shutdown=templates.script(files, manifest.shutdown),
            files=templates.home_files(files),
            context_sources=manifest.context_sources,
            sandbox=sandbox,
            limits=manifest.limits,
            ssh=self._ssh(manifest),
        )

    async def shutdown_seconds(self, conn: Connection, workspace: Workspace) -> float:
        """Return the time limit of the shutdown script."""
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
        address = manifest.ssh
        return Ssh(
            host=address.host,
            known_hosts=address.known_hosts,
            user=address.user,
            port=address.port,
            jump=address.jump,
            identity=self._identity(address.identity) if address.identity is not None else None,
        )

    def _identity(self, name: str) -> str:
        path = None if self._keys_dir is None else self._keys_dir / name
        try:
            if path is not None:
                return path.read_text()
        except (OSError, ValueError):
            pass
        raise DriverError("ssh_auth", f"This server has no ssh key {name}. An administrator has to add it.")
