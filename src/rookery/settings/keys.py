"""The table of start settings: name, kind of value, default, check, and what it means.

`settings` reads values for it; `--help` and the reference are made from it.
"""

from __future__ import annotations

import re
from datetime import timedelta

import msgspec

from rookery.settings.values import (
    ADDRESS,
    BOOLEAN,
    DATABASE_URL,
    DURATION,
    EXTERNAL_URL,
    FOLDERS,
    HOSTS,
    INTEGER,
    LISTEN,
    NETWORKS,
    ORIGINS,
    PATH,
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
    """One row of the table. `default` is written as in TOML; `otherwise` says what holds if there is none."""

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
        """Other users of the machine can read command lines. A database URL may do without a password."""
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
    return "is a header with a meaning of its own" if taken else None


# One key, one line: the column of meanings is what `--help` and the reference say.
# fmt: off
KEYS: tuple[Key, ...] = (
    Key("config", PATH, None, "TOML file with settings.", "`<data_dir>/rookery.toml` if present", in_file=False),
    Key("data_dir", PATH, None, "State directory: embedded database, keys, sockets.", _DATA_HOME),
    Key("listen", LISTEN, "127.0.0.1:7117",
        "Address to serve on. `:7117` is every interface, port 0 any free one, `unix:/path` a socket for a proxy."),
    Key("external_url", EXTERNAL_URL, None, "Address that people use: decides links, cookies, allowed origin and host.",
        "derived from `listen`"),
    Key("tls_cert", PATH, None, "Certificate chain to serve https with, if no proxy in front does.", "none"),
    Key("tls_key", PATH, None, "Private key of `tls_cert`.", "none"),
    Key("allowed_hosts", HOSTS, None, "Other names by which this server may be addressed, without ports.", "none"),
    Key("allowed_origins", ORIGINS, None, "Other sites whose pages may use the API from a browser.", "none"),
    Key("trusted_proxies", NETWORKS, None, "Reverse proxies whose `X-Forwarded-*` headers are believed.", "none"),
    Key("proxy_secret", TEXT, None,
        "What a reverse proxy sends with each request; without it `X-Forwarded-*` headers are not believed.", "none",
        secret=True, check=_proxy_secret_problem),
    Key("proxy_secret_header", TEXT, "X-Rookery-Proxy-Secret", "The header in which it sends `proxy_secret`.",
        check=_header_problem),
    Key("http.max_body", SIZE, "1MiB", "Longest body of a request; uploads have a limit of their own.", check=_BODY),
    Key("net_allow_private", NETWORKS, None,
        "Private networks that workspaces may reach. Addresses of this machine count only if named one by one.",
        "none"),
    Key("setup_token", TEXT, None, "What the first administrator is made with, at least 20 characters.",
        "random, printed at the first start", secret=True, check=_setup_token_problem),
    Key("auth.token_max_ttl", DURATION, "365d", "Longest life of an API token that people make.", check=_TOKEN_LIFE),
    Key("replicas", REPLICAS, 1, "Processes that serve together; `auto` is one for each usable core.",
        check=between(1, 64)),
    Key("max_streams_per_replica", INTEGER, 20_000, "Most clients that follow something live, for each replica.",
        check=between(1, 1_000_000)),
    Key("relay_bind", ADDRESS, None,
        "Address for replicas on other machines. The second of several replicas takes the next port, and so on.",
        "a socket in `data_dir` only"),
    Key("relay_url", RELAY_URL, None,
        "How other machines reach `relay_bind`: `wss://host:port`. The port grows as that of `relay_bind` does.",
        "derived from `relay_bind`"),
    Key("relay_tls_cert", PATH, None, "Certificate of `relay_bind`; needed beyond this machine.", "none"),
    Key("relay_tls_key", PATH, None, "Private key of `relay_tls_cert`.", "none"),
    Key("relay_tls_ca", PATH, None, "Certificates that other replicas are checked against.", "those of the system"),
    Key("shutdown_delay", DURATION, "0s", "After a stop signal, serve on for this long while `/readyz` says no.",
        check=_DELAY),
    Key("drain_timeout", DURATION, "25s", "How long running work may take to reach a safe point at shutdown.",
        check=_TIMEOUT),
    Key("database_url", DATABASE_URL, None, "PostgreSQL to use, connected directly: transaction poolers do not work.",
        "embedded PostgreSQL in `data_dir`", secret=True),
    Key("database_pool_api", INTEGER, 8, "Most connections of a replica for requests and streams.", check=_POOL),
    Key("database_pool_worker", INTEGER, 8, "Most connections of a replica for running chats.", check=_POOL),
    Key("database_statement_timeout", DURATION, "30s", "A statement that runs longer is cancelled.", check=_TIMEOUT),
    Key("auto_migrate", BOOLEAN, True, "Bring the schema up to date at start; else run `rookery admin migrate` first."),
    Key("secret_keys", TEXT, None, "Key ring that seals stored keys: `id:base64` of 32 bytes, the active one first.",
        "a key file in `data_dir`; none with `database_url`", secret=True, check=_ring_problem),
    Key("worker.enabled", BOOLEAN, True, "Run chats here; without it this server only serves requests."),
    Key("worker.acquire_interval", DURATION, "5s",
        "How often a replica looks for chats that want to run, besides being told of them.",
        check=between(100 * _MS, 10 * _MINUTE)),
    Key("worker.acquire_batch", INTEGER, 10, "Most chats that a replica takes in one look.", check=between(1, 1000)),
    Key("worker.max_runners", INTEGER, 256, "Most chats that a replica runs at once.", check=between(1, 100_000)),
    Key("worker.lease_ttl", DURATION, "30s",
        "How long a chat stays with a replica that does not renew its lease. At least 3 times "
        "`worker.heartbeat_interval`.",
        check=between(10 * _SECOND, 10 * _MINUTE)),
    Key("worker.heartbeat_interval", DURATION, "9s",
        "How often a replica renews its leases. Two renewals may fail before a lease ends.",
        check=between(500 * _MS, 10 * _SECOND)),
    Key("worker.self_fence_after", DURATION, "24s",
        "A replica that could not renew its leases for this long stops all its work. At least 1 second less than "
        "`worker.lease_ttl`.",
        check=between(1 * _SECOND, 10 * _MINUTE)),
    Key("worker.heartbeat_gc_interval", DURATION, "30s", "How often leases that have ended are removed.",
        check=between(1 * _SECOND, 1 * _HOUR)),
    Key("worker.runner_sync_interval", DURATION, "15s",
        "How often a replica reads all its chats, for what it was not told of.",
        check=between(1 * _SECOND, 10 * _MINUTE)),
    Key("worker.task_backoff", DURATION, "100ms", "First pause before a task that failed is run again; it doubles.",
        check=between(1 * _MS, 1 * _MINUTE)),
    Key("worker.task_backoff_max", DURATION, "5s", "Longest such pause.", check=between(1 * _MS, 10 * _MINUTE)),
    Key("worker.task_idle_timeout", DURATION, "15m", "A task without progress for this long is run again.",
        check=between(10 * _SECOND, _DAY)),
    Key("worker.cleanup_timeout", DURATION, "5s", "What work beside a turn may take when it is to end.",
        check=between(100 * _MS, 5 * _MINUTE)),
    Key("worker.watch_publish_timeout", DURATION, "10s",
        "What a label, a summary or a title may take to be written and announced; beyond it, it is dropped.",
        check=between(100 * _MS, 5 * _MINUTE)),
    Key("worker.archive_interval", DURATION, "1h", "How often chats that nobody used are archived.",
        check=between(1 * _MINUTE, _DAY)),
    Key("worker.archive_batch", INTEGER, 1000, "Most chats that are archived in one run.", check=between(1, 100_000)),
    Key("worker.capacity_gauge_interval", DURATION, "30s",
        "How often what works and what waits is counted for metrics.",
        check=between(1 * _SECOND, 1 * _HOUR)),
    Key("worker.prepare_tries", INTEGER, 3, "Tries to prepare a step before it fails.", check=between(1, 20)),
    Key("worker.prepare_backoff", DURATION, "200ms", "First pause between these tries; it doubles.",
        check=between(1 * _MS, 1 * _MINUTE)),
    Key("worker.max_attempts", INTEGER, 25, "Attempts of a step before its turn ends with an error.",
        check=between(1, 1000)),
    Key("worker.retry_delay", DURATION, "1s", "First pause before a model is asked again; it doubles.",
        check=between(1 * _MS, 10 * _MINUTE)),
    Key("worker.retry_delay_max", DURATION, "60s", "Longest such pause.", check=between(1 * _MS, 1 * _HOUR)),
    Key("worker.retry_after_cap", DURATION, "10m",
        "Longest pause that a provider may ask for; beyond it the turn ends with an error.",
        check=between(1 * _SECOND, _DAY)),
    Key("worker.max_steps", INTEGER, 1200, "Most steps of a turn.", check=between(1, 100_000)),
    Key("worker.max_output_tokens", INTEGER, 32_000,
        "Most tokens of an answer, where the options of the model do not say.",
        check=between(256, 1_000_000)),
    Key("worker.connect_timeout", DURATION, "10s", "How long a connection to a model's provider may take.",
        check=between(100 * _MS, 5 * _MINUTE)),
    Key("worker.stream_silence_timeout", DURATION, "10m",
        "An answer that says nothing for this long is given up and asked for again.",
        check=between(1 * _SECOND, _DAY)),
    Key("worker.tool_default_deadline", DURATION, "10m", "How long a tool may run that does not say.",
        check=between(1 * _SECOND, _DAY)),
    Key("worker.tool_max_deadline", DURATION, "4h", "How long a tool may run at most, whatever it asks for.",
        check=between(1 * _SECOND, 7 * _DAY)),
    Key("worker.tool_batch_concurrency", INTEGER, 16, "Tools of one answer that run at the same time.",
        check=between(1, 256)),
    Key("worker.episode_max_bytes", SIZE, "4MiB", "Most of an unfinished answer that is kept to be shown.",
        check=between(64 * 1024, 1024**3)),
    Key("worker.episode_retention", DURATION, "15s", "How long that is kept once the answer is stored.",
        check=between(100 * _MS, 10 * _MINUTE)),
    Key("worker.subscriber_stall_timeout", DURATION, "10s",
        "A client that does not take live parts for this long is left behind.",
        check=between(100 * _MS, 10 * _MINUTE)),
    Key("worker.part_flush", DURATION, "30ms", "How long words of an answer are gathered before clients see them.",
        check=between(1 * _MS, 1 * _SECOND)),
    Key("worker.part_flush_chars", INTEGER, 512, "After so many gathered characters clients see them at once.",
        check=between(1, 65_536)),
    Key("log_level", _LEVEL, "info", "Least level that is logged."),
    Key("log_format", _FORMAT, "auto", "`auto` is text on a terminal and JSON lines elsewhere."),
    Key("log_access", BOOLEAN, True, "Log one line for each request."),
    Key("metrics_listen", ADDRESS, None, "Address that serves `/metrics` for all replicas of this server.", "off"),
    Key("metrics_token", TEXT, None, "What scrapers send as bearer token; needed beyond this machine.", "none",
        secret=True, check=_metrics_token_problem),
    Key("drivers.local.bwrap", PATH, None, "The program that confines local workspaces.",
        "`bwrap` in `PATH` if it is new enough, else the one that is installed with Rookery"),
    Key("drivers.local.uid_range", UID_RANGE, "2000000000-2000999999",
        "When the server runs as root, each local workspace has a user and group of its own from this range. Nothing "
        "else of the machine may use it, nor another Rookery server."),
    Key("drivers.local.uid", INTEGER, None,
        "When the server runs as root, user and group of local workspaces that may write to a shared folder, so that "
        "several of them, and people, can work on the same files.", "each has its own, like the others", check=_UID),
    Key("drivers.local.cgroup", PATH, None,
        "Directory of a cgroup (v2), or of the hierarchies (v1), that the server may write to; limits of templates are "
        "enforced below it.",
        "none: only limits for each process"),
    Key("drivers.local.network_max", _NETWORK, "public",
        "Most that a template may let a local workspace reach: nothing, hosts that it lists, every public host, or all "
        "that this machine reaches, its localhost too."),
    Key("drivers.local.tmp_mb", INTEGER, 1024, "Most that a local workspace may hold in `/tmp`, in MiB of memory.",
        check=between(1, 1_000_000)),
    Key("drivers.local.unsafe", BOOLEAN, False,
        "Without bubblewrap, run local workspaces as plain processes that can do all that the server can."),
    Key("workspaces.shared_folders", FOLDERS, None,
        "Folders that templates may bind into workspaces, and what is below them. Binds elsewhere are refused.",
        "none"),
)
# fmt: on
