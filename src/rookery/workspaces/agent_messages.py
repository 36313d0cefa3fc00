"""The types of requests to workspace agents and of their responses.

An agent is untrusted, because a command in the workspace could replace it. Therefore every text has a maximum length
and every number a range. Other responses raise `BadAnswer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta

# The protocol version of this server. The previous version, without `until`, is accepted too.
API_VERSION = 2
ACCEPTED_APIS = frozenset({API_VERSION, API_VERSION - 1})

T = TypeVar("T")

# Names and paths have no zero bytes, which PostgreSQL does not accept.
_NO_ZERO = r"\A[^\x00]*\Z"
Word = Annotated[str, Meta(max_length=256, pattern=_NO_ZERO)]
Line = Annotated[str, Meta(max_length=4096, pattern=_NO_ZERO)]
# More than the 32 KiB of a view.
View = Annotated[str, Meta(max_length=512 * 1024)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
# Exit codes and signals, in the range of the database columns.
Small = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class BadAnswer(ValueError):
    """Raised for a response that does not follow the protocol."""


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health report of an agent. Disk sizes are from its last measurement. A limit of 0 means no limit."""

    generation: int
    api: int
    version: Word = ""
    ready: bool = False
    agent_state: Word = ""
    os: Word = ""
    arch: Word = ""
    user: Word = ""
    home: Line = ""
    directory: Line = ""
    uptime_s: float = 0.0
    processes: Count = 0
    context_version: Count = 0
    startup_exit_code: Small | None = None
    disk_used: Count = 0
    disk_limit: Count = 0


class ScriptLog(msgspec.Struct, frozen=True, kw_only=True):
    """Output of a script after the requested cursor."""

    output: View = ""
    cursor: Count = 0


class Lines(msgspec.Struct, frozen=True, kw_only=True):
    """Lines of a file. If `ok` is false, only `error` is set, which is for the model."""

    ok: bool
    error: View | None = None
    content: View = ""
    file_size: Count = 0
    total_lines: Count = 0
    lines_read: Count = 0
    truncated: bool = False
    next_offset: Count | None = None


class Written(msgspec.Struct, frozen=True, kw_only=True):
    bytes: Count = 0
    created: bool = False


class EditCount(msgspec.Struct, frozen=True, kw_only=True):
    matches: Count = 0
    pass_: Annotated[int, Meta(ge=0, le=3)] = msgspec.field(name="pass", default=0)


class Edited(msgspec.Struct, frozen=True, kw_only=True):
    path: Line
    diff: Annotated[str, Meta(max_length=4 * 1024 * 1024)] = ""
    edits: tuple[EditCount, ...] = ()


class Edit(msgspec.Struct, frozen=True, kw_only=True):
    old_text: str
    new_text: str
    replace_all: bool = False
    exact: bool = False


class FileEdits(msgspec.Struct, frozen=True, kw_only=True):
    path: str
    edits: tuple[Edit, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    name: Line
    path: Line = ""
    is_dir: bool = False
    size: Count = 0
    mtime: float = 0.0


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    path: Line
    entries: Annotated[tuple[Entry, ...], Meta(max_length=2000)] = ()
    truncated: bool = False


class StartProcess(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    command: str
    workdir: str | None = None
    env: Mapping[str, str] = {}
    background: bool = False
    read_only: bool = False


class Truncated(msgspec.Struct, frozen=True, kw_only=True):
    original_bytes: Count = 0
    retained_bytes: Count = 0
    omitted_bytes: Count = 0
    strategy: Word = "head_tail"


class Output(msgspec.Struct, frozen=True, kw_only=True):
    """The state and the output of a process. `gap` is the number of lost bytes between the cursor and the output.

    `file` is the path of the complete output, if it does not fit a view. `match` is the line that matched. With
    `match_slow` the match of the expression took too long.
    """

    running: bool
    output: View = ""
    cursor: Count = 0
    truncated: Truncated | None = None
    gap: bool | Count = False
    exit_code: Small | None = None
    signal: Small | None = None
    command: Annotated[str, Meta(max_length=1024 * 1024)] = ""
    started_at: float | None = None
    exited_at: float | None = None
    file: Line | None = None
    matched: bool = False
    match: Line | None = None
    match_slow: bool = False


class ProcessInfo(msgspec.Struct, frozen=True, kw_only=True):
    id: Word
    command: Annotated[str, Meta(max_length=1024 * 1024)] = ""
    workdir: Line = ""
    background: bool = False
    running: bool = False
    exit_code: Small | None = None
    started_at: float | None = None
    exited_at: float | None = None


class Resource(msgspec.Struct, frozen=True, kw_only=True):
    """One context resource. Newer agents may send other values of `kind` and `status`."""

    kind: Word
    source: Line
    ordinal: Count = 0
    root: Line = ""
    body: Annotated[str, Meta(max_length=256 * 1024)] | None = None
    hash: Word = ""
    size: Count = 0
    status: Word = "ok"
    error: Line | None = None
    tools: Any = None
    entry: Any = None


class ContextSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    version: Count
    hash: Word = ""
    error: Line | None = None
    resources: Annotated[tuple[Resource, ...], Meta(max_length=600)] = ()


class McpResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an MCP tool. The content comes from the MCP server and is not validated."""

    content: Annotated[tuple[dict[str, Any], ...], Meta(max_length=1000)] = ()
    is_error: bool = False
    structured: dict[str, Any] | None = None


class McpHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of an MCP server with an address."""

    headers: Annotated[
        dict[Annotated[str, Meta(max_length=200)], Annotated[str, Meta(max_length=8192)]], Meta(max_length=20)
    ]


class Repository(msgspec.Struct, frozen=True, kw_only=True):
    root: Line
    branch: Line | None = None
    remote_origin: Line | None = None
    diff: Annotated[str, Meta(max_length=4 * 1024 * 1024)] = ""
    additions: Count = 0
    deletions: Count = 0
    changed_files: Count = 0
    untracked_omitted: bool | Count = False
    removed: bool = False


class GitMessage(msgspec.Struct, frozen=True, kw_only=True):
    repositories: Annotated[tuple[Repository, ...], Meta(max_length=500)] = ()
    type: Word = "changes"
    scanned_at: float | str | None = None


class FieldProblem(msgspec.Struct, frozen=True):
    field: Line = ""
    detail: Line = ""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    code: Word = ""
    message: View = ""
    fields: Annotated[tuple[FieldProblem, ...], Meta(max_length=200)] = ()


def decode(data: bytes, kind: type[T]) -> T:
    """Decode a response as `kind`. Raise `BadAnswer` if that fails."""
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError, ValueError) as error:
        raise BadAnswer(f"The workspace agent's answer cannot be read: {error}") from error
