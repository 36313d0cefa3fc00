"""The egress policies of running workspaces, in files of the server: `data_dir/egress/ID.json`.

A policy is written when the workspace starts, and removed when it stops. The replica that serves the socket reads the
file for each request, so it always applies the policy of the current boot.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from rookery.workspaces.egress import hosts
from rookery.workspaces.egress.hosts import Rule

_SUFFIX = ".json"


class Policy(msgspec.Struct, frozen=True):
    """The hosts that a workspace may reach. With `is_public` all public hosts are allowed.

    With `is_capped` the template requests more than a list of hosts, but the settings allow no more.
    """

    generation: int
    hosts: tuple[str, ...]
    is_capped: bool = False
    is_public: bool = False

    def rules(self) -> list[Rule]:
        return [hosts.parse(each) for each in self.hosts]


class Policies:
    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def write(self, workspace_id: str, policy: Policy) -> None:
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=".", dir=self._directory)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(policy))
            os.replace(temporary, self._path(workspace_id))
        except BaseException:
            os.unlink(temporary)
            raise

    def find(self, workspace_id: str) -> Policy | None:
        try:
            return msgspec.json.decode(self._path(workspace_id).read_bytes(), type=Policy)
        except (OSError, msgspec.DecodeError):
            return None

    def remove(self, workspace_id: str) -> None:
        self._path(workspace_id).unlink(missing_ok=True)

    def list_ids(self) -> Sequence[str]:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(self._directory)
            return [name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX) and not name.startswith(".")]
        return []

    def _path(self, workspace_id: str) -> Path:
        return self._directory / f"{workspace_id}{_SUFFIX}"
