"""The table of start settings: name, type of value, default, check and description.

`settings` reads their values; `--help` and the reference page are generated from it.
"""

from __future__ import annotations

import re
from datetime import timedelta

import msgspec

from rookery.settings.value_types import (
    ADDRESS,
    BASE_URL,
    BOOLEAN,
    DATABASE_URL,
    DURATION,
    EXTERNAL_URL,
    FOLDERS,
    HEADERS,
    HOSTS,
    INTEGER,
    LISTEN,
    NETWORKS,
    ORIGINS,
    PATH,
    RATIO,
    RELAY_URL,
    REPLICAS,
    SIZE,
    TEXT,
    UID_RANGE,
    Check,
    Kind,
    between,
    choice,
)

PREFIX = "ROOKERY_"


class Key(msgspec.Struct, frozen=True):
    """One row of the table. `default` is written as in TOML; without one, `otherwise` describes the behavior."""

    name: str
    kind: Kind
    default: str | int | bool | None
    meaning: str
    otherwise: str = ""
    secret: bool = False
    in_file: bool = True
    check: Check | None = None

    @property
    def field(self) -> str:
        return self.name.replace(".", "_")

    @property
    def flag(self) -> str:
        return "--" + self.field.replace("_", "-")

    @property
    def has_flag(self) -> bool:
        """Whether the key can be set by a flag.

        Secrets cannot be set by a flag, because other users of the machine can read command lines. The database URL
        can, but without a password.
        """
        return not self.secret or self.kind is DATABASE_URL

    @property
    def variable(self) -> str:
        return PREFIX + self.field.upper()


_MS, _SECOND, _DAY = timedelta(milliseconds=1), timedelta(seconds=1), timedelta(days=1)
_MINUTE, _HOUR = timedelta(minutes=1), timedelta(hours=1)
_POOL, _TIMEOUT, _DELAY = between(1, 500), between(_MS, _DAY), between(timedelta(0), _DAY)
_BODY = between(1024, 1024**3)
_TOKEN_LIFE = between(_DAY, 3650 * _DAY)
_LEVEL, _FORMAT = choice("debug", "info", "warning", "error"), choice("auto", "text", "json")
_NETWORK = choice("none", "hosts", "public", "host", old={"proxy": "hosts", "full": "host"})
_UID = between(1, 2**32 - 2)
_RING_ENTRY = re.compile(r"[A-Za-z0-9._-]{1,32}:[A-Za-z0-9+/_-]{43}=?")
_TAKEN_HEADERS = frozenset(
    {"accept", "authorization", "connection", "content-length", "content-type", "cookie", "host", "last-event-id"}
    | {"idempotency-key", "if-match", "origin", "range", "rookery-break-glass", "transfer-encoding", "upgrade"}
    | {"user-agent", "x-request-id"}
)
_DATA_HOME = "`$XDG_DATA_HOME/rookery`, usually `~/.local/share/rookery`"


def _ring_problem(ring: str) -> str | None:
    fits = all(_RING_ENTRY.fullmatch(entry.strip()) for entry in ring.split(","))
    return None if fits else "is not id:base64 of 32 bytes, separated by commas"


def _setup_token_problem(token: str) -> str | None:
    return None if len(token) >= 20 and not re.search(r"\s", token) else "is shorter than 20 characters, or has spaces"


def _metrics_token_problem(token: str) -> str | None:
    return None if len(token) >= 16 and not re.search(r"\s", token) else "is shorter than 16 characters, or has spaces"


def _proxy_secret_problem(secret: str) -> str | None:
    fits = len(secret) >= 16 and re.fullmatch(r"[!-~]+", secret)
    return None if fits else "is shorter than 16 characters, or has spaces or characters beyond ASCII"


def _header_problem(name: str) -> str | None:
    if re.fullmatch(r"[A-Za-z0-9-]{1,64}", name) is None:
        return "is not the name of a header: letters, digits and hyphens, at most 64"
    taken = name.lower() in _TAKEN_HEADERS or name.lower().startswith(("x-forwarded-", "sec-"))
    return "is a header that has another meaning" if taken else None


# One key per line. `--help` and the reference page show the descriptions.
# fmt: off
KEYS: tuple[Key, ...] = (
    Key("config", PATH, None, "TOML file with settings.", "`<data_dir>/rookery.toml` if present", in_file=False),
    Key("data_dir", PATH, None, "State directory: embedded database, keys, sockets.", _DATA_HOME),
    Key("listen", LISTEN, "127.0.0.1:7117",
        "Address to serve on. `:7117` means all interfaces, port 0 any free port, `unix:/path` a unix socket."),
    Key("external_url", EXTERNAL_URL, None,
        "Address that users open. It determines links, cookies, and the allowed origin and host.",
        "derived from `listen`"),
    Key("tls_cert", PATH, None, "Certificate chain for https, if no proxy in front serves it.", "none"),
    Key("tls_key", PATH, None, "Private key of `tls_cert`.", "none"),
    Key("allowed_hosts", HOSTS, None, "Further host names of this server, without ports; others are refused.", "none"),
    Key("allowed_origins", ORIGINS, None, "Other sites whose pages may use the API from a browser.", "none"),
    Key("trusted_proxies", NETWORKS, None, "Reverse proxies whose `X-Forwarded-*` headers are trusted.", "none"),
    Key("proxy_secret", TEXT, None,
        "Secret that a reverse proxy sends with each request; without it `X-Forwarded-*` headers are not trusted.",
        "none", secret=True, check=_proxy_secret_problem),
    Key("proxy_secret_header", TEXT, "X-Rookery-Proxy-Secret", "Header in which the proxy sends `proxy_secret`.",
        check=_header_problem),
    Key("http.max_body", SIZE, "1MiB", "Maximum size of a request body; uploads have their own limit.", check=_BODY),
    Key("net_allow_private", NETWORKS, None,
        "Private networks that workspaces may reach. Addresses of this machine must be listed individually.",
        "none"),
    Key("setup_token", TEXT, None, "Token to create the first administrator, at least 20 characters.",
        "random, printed at the first start", secret=True, check=_setup_token_problem),
    Key("auth.token_max_ttl", DURATION, "365d", "Maximum lifetime of API tokens.", check=_TOKEN_LIFE),
    Key("replicas", REPLICAS, 1, "Number of processes on the same port; `auto` is one per usable core.",
        check=between(1, 64)),
    Key("max_streams_per_replica", INTEGER, 20_000, "Maximum number of open streams per replica.",
        check=between(1, 1_000_000)),
    Key("relay_bind", ADDRESS, None,
        "Address where replicas on other machines connect. With several replicas, each uses the next higher port.",
        "a socket in `data_dir` only"),
    Key("relay_url", RELAY_URL, None,
        "URL by which other machines reach `relay_bind`: `wss://host:port`. Each further replica uses the next port.",
        "derived from `relay_bind`"),
    Key("relay_tls_cert", PATH, None, "Certificate of `relay_bind`; required unless that is a loopback address.",
        "none"),
    Key("relay_tls_key", PATH, None, "Private key of `relay_tls_cert`.", "none"),
    Key("relay_tls_ca", PATH, None, "Certificate authorities that other replicas' certificates are checked against.",
        "those of the system"),
    Key("shutdown_delay", DURATION, "0s",
        "After a stop signal, continue to serve for this long while `/readyz` returns 503.",
        check=_DELAY),
    Key("drain_timeout", DURATION, "25s", "Maximum time for running work to reach a safe point at shutdown.",
        check=_TIMEOUT),
    Key("database_url", DATABASE_URL, None, "PostgreSQL server, connected directly: transaction poolers do not work.",
        "embedded PostgreSQL in `data_dir`", secret=True),
    Key("database_pool_api", INTEGER, 8, "Maximum connections of a replica for requests and streams.", check=_POOL),
    Key("database_pool_worker", INTEGER, 8, "Maximum connections of a replica for running chats.", check=_POOL),
    Key("database_statement_timeout", DURATION, "30s", "Statements that run longer are canceled.", check=_TIMEOUT),
    Key("auto_migrate", BOOLEAN, True, "Update the schema at start; otherwise run `rookery admin migrate` first."),
    Key("secret_keys", TEXT, None,
        "Keys that encrypt stored secrets: one text with entries `id:base64`, separated by commas, each with 32 "
        "bytes. The first one is the active key.",
        "a key file in `data_dir`; none with `database_url`", secret=True, check=_ring_problem),
    Key("worker.enabled", BOOLEAN, True, "Run chats on this server. If false, it only serves requests."),
    Key("worker.acquire_interval", DURATION, "5s",
        "Interval at which a replica polls for runnable chats, in addition to notifications.",
        check=between(100 * _MS, 10 * _MINUTE)),
    Key("worker.acquire_batch", INTEGER, 10,
        "Maximum number of chats that a replica takes in one poll.", check=between(1, 1000)),
    Key("worker.max_runners", INTEGER, 256,
        "Maximum number of chats that a replica runs concurrently.", check=between(1, 100_000)),
    Key("worker.lease_ttl", DURATION, "30s",
        "Time for which a chat stays with a replica that does not renew its lease. Must be at least 3 times "
        "`worker.heartbeat_interval`.",
        check=between(10 * _SECOND, 10 * _MINUTE)),
    Key("worker.heartbeat_interval", DURATION, "9s",
        "Interval at which a replica renews its leases. Two renewals may fail before a lease ends.",
        check=between(500 * _MS, 10 * _SECOND)),
    Key("worker.self_fence_after", DURATION, "24s",
        "A replica that could not renew its leases for this long stops all its work. Must be at least twice "
        "`worker.heartbeat_interval`, and at least 1 second less than `worker.lease_ttl`.",
        check=between(1 * _SECOND, 10 * _MINUTE)),
    Key("worker.heartbeat_gc_interval", DURATION, "30s", "Interval at which expired leases are deleted.",
        check=between(1 * _SECOND, 1 * _HOUR)),
    Key("worker.runner_sync_interval", DURATION, "15s",
        "Interval at which a replica reads all of its chats, in case notifications are lost.",
        check=between(1 * _SECOND, 10 * _MINUTE)),
    Key("worker.task_backoff", DURATION, "100ms", "First delay before a failed task is run again; it doubles.",
        check=between(1 * _MS, 1 * _MINUTE)),
    Key("worker.task_backoff_max", DURATION, "5s", "Maximum delay before a failed task is run again.",
        check=between(1 * _MS, 10 * _MINUTE)),
    Key("worker.task_idle_timeout", DURATION, "15m", "A task without progress for this long is run again.",
        check=between(10 * _SECOND, _DAY)),
    Key("worker.cleanup_timeout", DURATION, "5s", "Maximum time for background work to end when it is canceled.",
        check=between(100 * _MS, 5 * _MINUTE)),
    Key("worker.watch_publish_timeout", DURATION, "10s",
        "Maximum time to store and announce a label, a summary or a title; after it, the text is dropped.",
        check=between(100 * _MS, 5 * _MINUTE)),
    Key("worker.archive_interval", DURATION, "1h", "Interval at which unused chats are archived.",
        check=between(1 * _MINUTE, _DAY)),
    Key("worker.archive_batch", INTEGER, 1000,
        "Maximum number of chats archived in one run.", check=between(1, 100_000)),
    Key("worker.capacity_gauge_interval", DURATION, "30s",
        "Interval at which running and waiting chats are counted for metrics.",
        check=between(1 * _SECOND, 1 * _HOUR)),
    Key("worker.prepare_tries", INTEGER, 3, "Attempts to prepare a step before it fails.", check=between(1, 20)),
    Key("worker.prepare_backoff", DURATION, "200ms", "First delay between attempts to prepare a step; it doubles.",
        check=between(1 * _MS, 1 * _MINUTE)),
    Key("worker.max_attempts", INTEGER, 25, "Attempts of a step before its turn ends with an error.",
        check=between(1, 1000)),
    Key("worker.retry_delay", DURATION, "1s", "First delay before a failed model call is retried; it doubles.",
        check=between(1 * _MS, 10 * _MINUTE)),
    Key("worker.retry_delay_max", DURATION, "60s", "Maximum delay before a failed model call is retried.",
        check=between(1 * _MS, 1 * _HOUR)),
    Key("worker.retry_after_cap", DURATION, "10m",
        "Longest delay that a provider may request; beyond it the turn ends with an error.",
        check=between(1 * _SECOND, _DAY)),
    Key("worker.max_steps", INTEGER, 1200, "Maximum number of steps of a turn.", check=between(1, 100_000)),
    Key("worker.max_output_tokens", INTEGER, 32_000,
        "Maximum output tokens of a model call, unless the model's options set another maximum.",
        check=between(256, 1_000_000)),
    Key("worker.connect_timeout", DURATION, "10s", "Time limit for connecting to a provider.",
        check=between(100 * _MS, 5 * _MINUTE)),
    Key("worker.first_byte_timeout", DURATION, "5m",
        "A model call whose answer does not begin in this time is aborted and retried. Models may have another limit.",
        check=between(1 * _SECOND, _DAY)),
    Key("worker.stream_silence_timeout", DURATION, "2m",
        "An answer that sends nothing for this long is aborted and retried. Models may have another limit.",
        check=between(1 * _SECOND, _DAY)),
    Key("worker.tool_default_deadline", DURATION, "10m", "Time limit of tool calls that do not request one.",
        check=between(1 * _SECOND, _DAY)),
    Key("worker.tool_max_deadline", DURATION, "4h", "Longest time limit that a tool call may request.",
        check=between(1 * _SECOND, 7 * _DAY)),
    Key("worker.tool_batch_concurrency", INTEGER, 16, "Maximum number of tool calls of one step that run concurrently.",
        check=between(1, 256)),
    Key("worker.episode_max_bytes", SIZE, "4MiB", "Maximum size of the live preview of a running step.",
        check=between(64 * 1024, 1024**3)),
    Key("worker.episode_retention", DURATION, "15s",
        "Time for which the live preview of a step is kept after the step is stored.",
        check=between(100 * _MS, 10 * _MINUTE)),
    Key("worker.subscriber_stall_timeout", DURATION, "10s",
        "A client that reads no live parts for this long is disconnected from the preview.",
        check=between(100 * _MS, 10 * _MINUTE)),
    Key("worker.part_flush", DURATION, "30ms", "Time for which model output is collected before it is sent to clients.",
        check=between(1 * _MS, 1 * _SECOND)),
    Key("worker.part_flush_chars", INTEGER, 512,
        "Model output is sent to clients immediately when this many characters are collected.",
        check=between(1, 65_536)),
    Key("debug_force", BOOLEAN, False,
        "Record all model calls of all chats for debugging. Users and administrators cannot switch it off."),
    Key("debug.body_bytes", SIZE, "64KiB",
        "Maximum size of a body of an HTTP exchange in a debug record; the middle of a longer one is left out.",
        check=between(4 * 1024, 1024**2)),
    Key("debug.run_bytes", SIZE, "32MiB",
        "Maximum size of the debug record of one turn; beyond it, only metadata is kept.",
        check=between(1024 * 1024, 1024**3)),
    Key("debug.queue_bytes", SIZE, "64MiB", "Maximum size of the debug records that wait in memory to be written.",
        check=between(1024 * 1024, 16 * 1024**3)),
    Key("log_level", _LEVEL, "info", "Minimum level that is logged."),
    Key("log_format", _FORMAT, "auto", "`auto` is text on a terminal and JSON lines elsewhere."),
    Key("log_access", BOOLEAN, True, "Log one line per request."),
    Key("metrics_listen", ADDRESS, None, "Address that serves `/metrics` for all replicas of this server.", "off"),
    Key("metrics_token", TEXT, None,
        "Bearer token that scrapers must send; required unless `metrics_listen` is a loopback address.", "none",
        secret=True, check=_metrics_token_problem),
    Key("otel.endpoint", BASE_URL, None,
        "Base URL of an OpenTelemetry collector (OTLP/HTTP) that receives traces and metrics. Needs `rookery[otel]`.",
        "off"),
    Key("otel.headers", HEADERS, None, "Headers of requests to `otel.endpoint`, such as its credentials.", "none",
        secret=True),
    Key("otel.sample", RATIO, "1.0", "Part of all traces that is exported, from 0 to 1."),
    Key("otel.metrics", BOOLEAN, True, "Export metrics to `otel.endpoint`, and not only traces."),
    Key("otel.capture_content", BOOLEAN, False,
        "Export prompts, answers, and arguments and results of tools with the spans of model calls. Secrets are "
        "redacted; personal data is not."),
    Key("drivers.local.bwrap", PATH, None, "The program that confines local workspaces.",
        "`bwrap` in `PATH` if it is new enough, else the one installed with Rookery"),
    Key("drivers.local.uid_range", UID_RANGE, "2000000000-2000999999",
        "When the server runs as root, each local workspace has its own user and group from this range. Nothing "
        "else on the machine may use the range, including other Rookery servers."),
    Key("drivers.local.uid", INTEGER, None,
        "Used only if the server runs as root. All local workspaces that may write to a shared folder run with this "
        "user and group id. They and the machine's users can then change each other's files in the folder. Must be "
        "outside of `drivers.local.uid_range`.",
        "none: each workspace has its own user", check=_UID),
    Key("drivers.local.cgroup", PATH, None,
        "Directory of a cgroup (v2), or of the hierarchies (v1), that the server may write to; the limits of templates "
        "are enforced in it.",
        "none: only limits per process"),
    Key("drivers.local.network_max", _NETWORK, "public",
        "Widest network that a template may give a local workspace: none, the hosts it lists, all public hosts, or "
        "every host that this machine can reach, including its localhost."),
    Key("drivers.local.tmp_mb", INTEGER, 1024, "Maximum size of a local workspace's `/tmp`, in MiB of memory.",
        check=between(1, 1_000_000)),
    Key("drivers.local.unsafe", BOOLEAN, False,
        "Without bubblewrap, run local workspaces as plain processes with all rights of the server."),
    Key("workspaces.shared_folders", FOLDERS, None,
        "Folders that templates may bind into workspaces, including subfolders. Other binds are refused.",
        "none"),
)
# fmt: on

_REFERENCE_HEAD = """\
# Settings

Generated from `src/rookery/settings/keys.py`. A flag takes precedence over the environment, the environment over
the TOML file, the file over the default. `rookery admin config --sources` shows the effective values and their sources.

- Key `a.b_c` is the flag `--a-b-c`, the variable `ROOKERY_A_B_C`, and `b_c` in the table `[a]` of the TOML file.
- A key marked *secret* can also come from a file: `ROOKERY_A_B_C_FILE` holds its path. Setting both is an error. A
  secret key has no flag, because other users of the machine can read command lines; `--database-url` is accepted
  without a password.
- Durations are written `500ms`, `25s`, `2m`, `1h`, or as a number of seconds.
- Lists are arrays in TOML, and separated by commas in flags and variables. An empty variable counts as not set.
- A relative path in the TOML file is relative to the directory of that file.
- An unknown key or variable causes a warning, or an error with `--strict-config`.

| Key | Flag | Variable | Value | Default | Meaning |
| --- | --- | --- | --- | --- | --- |
"""


def reference_markdown() -> str:
    """Return the page docs/reference/settings.md."""
    rows = []
    for key in KEYS:
        default = key.otherwise or f"`{str(key.default).lower() if key.kind.is_switch else key.default}`"
        value = f"{key.kind.name}, *secret*" if key.secret else key.kind.name
        flag = f"`{key.flag}`" if key.has_flag else "none"
        rows.append(f"| `{key.name}` | {flag} | `{key.variable}` | {value} | {default} | {key.meaning} |\n")
    return _REFERENCE_HEAD + "".join(rows)
