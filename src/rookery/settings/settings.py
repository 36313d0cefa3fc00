"""The start settings of this process, and the source of each value.

A flag takes precedence over the environment, the environment over the TOML file, the file over the default. Settings
are read once and do not change while the process runs. No package below `app/` imports this module. To add a key, add a
row to `keys.KEYS` and a field of the same name (dots become underscores) to `Settings`.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from rookery.settings.keys import KEYS, PREFIX, Key
from rookery.settings.value_types import DATABASE_URL, HEADERS, PATH, UID_RANGE, Address, Shown, shown

# The second setting is at least this many times the first. One heartbeat may fail before all work stops, and two may
# fail before a lease ends.
_WORKER_ORDER = (
    ("worker.heartbeat_interval", "worker.lease_ttl", 3),
    ("worker.heartbeat_interval", "worker.self_fence_after", 2),
    ("worker.task_backoff", "worker.task_backoff_max", 1),
    ("worker.retry_delay", "worker.retry_delay_max", 1),
    ("worker.tool_default_deadline", "worker.tool_max_deadline", 1),
)
# The remaining time of a lease when a replica stops its work because it could not renew the lease.
_FENCE_MARGIN = timedelta(seconds=1)
FILE_NAME = "rookery.toml"
_OTEL_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
DEFAULT = "default"
ANY_HOST = ("", "0.0.0.0", "::")  # noqa: S104 - compared, not bound
# Variables that are not start settings: locked runtime settings, and the server address of the terminal client.
_OTHER_VARIABLES = re.compile(r"ROOKERY_(PIN_\w+|TOKEN|URL)")


# Files with keys and passwords that libraries of the server read on their own.
_OTHER_FILES = frozenset(
    {"PGPASSFILE", "PGSSLKEY", "PGSERVICEFILE", "GOOGLE_APPLICATION_CREDENTIALS", "AWS_SHARED_CREDENTIALS_FILE"}
    | {"AWS_WEB_IDENTITY_TOKEN_FILE", "CREDENTIALS_DIRECTORY"}
)
_OF_THE_HOME = (".ssh", ".pgpass", ".postgresql", ".aws", ".netrc", ".config/gcloud")
# Paths that are not secret: programs, directories of the kernel, and certificates of authorities. The latter may be the
# machine's own list, without which no program in a workspace could use https.
_SEEN = frozenset({"drivers.local.bwrap", "drivers.local.cgroup", "relay_tls_ca"})


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The effective settings of this process."""

    config: Path | None
    data_dir: Path
    listen: Address
    external_url: str
    tls_cert: Path | None
    tls_key: Path | None
    allowed_hosts: tuple[str, ...]
    allowed_origins: tuple[str, ...]
    trusted_proxies: tuple[str, ...]
    proxy_secret: str | None
    proxy_secret_header: str
    http_max_body: int
    net_allow_private: tuple[str, ...]
    setup_token: str | None
    auth_token_max_ttl: timedelta
    replicas: int
    max_streams_per_replica: int
    relay_bind: Address | None
    relay_url: str | None
    relay_tls_cert: Path | None
    relay_tls_key: Path | None
    relay_tls_ca: Path | None
    shutdown_delay: timedelta
    drain_timeout: timedelta
    database_url: str | None
    database_pool_api: int
    database_pool_worker: int
    database_statement_timeout: timedelta
    auto_migrate: bool
    secret_keys: str | None
    worker_enabled: bool
    worker_acquire_interval: timedelta
    worker_acquire_batch: int
    worker_max_runners: int
    worker_lease_ttl: timedelta
    worker_heartbeat_interval: timedelta
    worker_self_fence_after: timedelta
    worker_heartbeat_gc_interval: timedelta
    worker_runner_sync_interval: timedelta
    worker_task_backoff: timedelta
    worker_task_backoff_max: timedelta
    worker_task_idle_timeout: timedelta
    worker_cleanup_timeout: timedelta
    worker_watch_publish_timeout: timedelta
    worker_archive_interval: timedelta
    worker_archive_batch: int
    worker_capacity_gauge_interval: timedelta
    worker_prepare_tries: int
    worker_prepare_backoff: timedelta
    worker_max_attempts: int
    worker_retry_delay: timedelta
    worker_retry_delay_max: timedelta
    worker_retry_after_cap: timedelta
    worker_max_steps: int
    worker_max_output_tokens: int
    worker_connect_timeout: timedelta
    worker_first_byte_timeout: timedelta
    worker_stream_silence_timeout: timedelta
    worker_tool_default_deadline: timedelta
    worker_tool_max_deadline: timedelta
    worker_tool_batch_concurrency: int
    worker_episode_max_bytes: int
    worker_episode_retention: timedelta
    worker_subscriber_stall_timeout: timedelta
    worker_part_flush: timedelta
    worker_part_flush_chars: int
    debug_force: bool
    debug_body_bytes: int
    debug_run_bytes: int
    debug_queue_bytes: int
    log_level: str
    log_format: str
    log_access: bool
    metrics_listen: Address | None
    metrics_token: str | None
    otel_endpoint: str | None
    otel_headers: str | None
    otel_sample: float
    otel_metrics: bool
    otel_capture_content: bool
    drivers_local_bwrap: Path | None
    drivers_local_uid_range: tuple[int, int]
    drivers_local_uid: int | None
    drivers_local_cgroup: Path | None
    drivers_local_network_max: str
    drivers_local_tmp_mb: int
    drivers_local_unsafe: bool
    workspaces_shared_folders: tuple[str, ...]
    # the files named by `*_FILE` variables, and the files in which libpq finds keys and passwords
    named_files: tuple[Path, ...] = ()


class Problem(msgspec.Struct, frozen=True):
    """One error, as a sentence about one key from one source. It never quotes a secret."""

    key: str
    source: str
    message: str

    def __str__(self) -> str:
        return f"{self.key} (from {self.source}): {self.message}"


class SettingsError(Exception):
    """Raised if the settings cannot be used. `problems` lists all errors, not only the first."""

    def __init__(self, problems: list[Problem], warnings: list[Problem]) -> None:
        self.problems = tuple(problems)
        self.warnings = tuple(warnings)
        super().__init__("\n".join(str(problem) for problem in problems))


class Loaded(msgspec.Struct, frozen=True):
    """`sources` names the source of each key: a flag, a variable, a file, or `default`."""

    settings: Settings
    sources: dict[str, str]
    warnings: tuple[Problem, ...]


_BY_NAME = {key.name: key for key in KEYS}


def load(flags: Mapping[str, str], environ: Mapping[str, str], *, strict: bool = False) -> Loaded:
    """Read all settings once. `flags` maps key names to the given text.

    Raises SettingsError with all problems together. `strict` turns unknown names from warnings into problems.
    """
    loading = _Loading(flags, environ)
    loading.settle_all()
    (loading.problems if strict else loading.warnings).extend(loading.unknown)
    if loading.problems:
        raise SettingsError(loading.problems, loading.warnings)
    settings = Settings(
        **{key.field: loading.values[key.name] for key in KEYS}, named_files=tuple(loading.named_files())
    )
    return Loaded(settings, {key.name: loading.sources[key.name] for key in KEYS}, tuple(loading.warnings))


class _Loading:
    """The state while the sources are read."""

    def __init__(self, flags: Mapping[str, str], environ: Mapping[str, str]) -> None:
        self.flags = flags
        self.environ = environ
        self.file: Path | None = None
        self.table: dict[str, object] = {}
        self.values: dict[str, Any] = {}
        self.sources: dict[str, str] = {}
        self.problems, self.warnings, self.unknown = list[Problem](), list[Problem](), list[Problem]()

    def settle_all(self) -> None:
        # These two settings locate the file, so they are read before it.
        self._settle(_BY_NAME["config"])
        self._settle(_BY_NAME["data_dir"])
        if self.sources["data_dir"] == DEFAULT:
            self.values["data_dir"] = (self._data_home() / "rookery").absolute()
        self._read_file()
        for key in KEYS:
            if key.name not in self.sources:
                self._settle(key)
        self._settle_external_url()
        self._check_tls()
        self._check_relay()
        self._check_metrics()
        self._check_otel()
        self._check_users()
        self._check_worker()
        self._look_for_unknown_variables()

    def _settle(self, key: Key) -> None:
        raw, source = self._given(key)
        self.sources[key.name], self.values[key.name] = source, key.kind.nothing
        if raw is None:
            return
        try:
            value = key.kind.parse(raw)
            wrong = key.check(value) if key.check else None
        except ValueError as error:
            value, wrong = None, str(error)
        if wrong:
            self._problem(key.name, source, f"{'the value' if key.secret else f'{raw!r:.80}'} {wrong}.")
        self.values[key.name] = self._absolute(value, source) if isinstance(value, Path) else value

    def _given(self, key: Key) -> tuple[object, str]:
        if key.name in self.flags:
            return self.flags[key.name], key.flag
        # An empty variable counts as not set, because compose files and CI pass empty variables for missing values.
        text = self.environ.get(key.variable)
        file = self.environ.get(key.variable + "_FILE") if key.secret else None
        if text and file:
            self._problem(key.name, key.variable, f"{key.variable}_FILE is set as well; set one of the two.")
        if text:
            return text, key.variable
        if file:
            return self._secret_file(key, Path(file))
        if key.name in self.table:
            return self.table[key.name], str(self.file)
        return key.default, DEFAULT

    def _secret_file(self, key: Key, path: Path) -> tuple[object, str]:
        source = key.variable + "_FILE"
        try:
            return path.read_text("utf-8").removesuffix("\n"), source
        except (OSError, ValueError) as error:
            self._problem(key.name, source, f"{path} {_why(error)}.")
            return None, source

    def _read_file(self) -> None:
        """Read the TOML file. The default file in data_dir may be missing; a file that the user named must exist."""
        asked_for = self.sources["config"] != DEFAULT
        directory: Path | None = self.values["data_dir"]
        path = self.values["config"] if asked_for else directory and directory / FILE_NAME
        if path is None or (document := self._parse_file(path, asked_for=asked_for)) is None:
            return
        self.file = self.values["config"] = path
        known = [key.name for key in KEYS if key.in_file]
        for name, value in _flat(document):
            if name in known:
                self.table[name] = value
            else:
                self.unknown.append(_unknown(name, known, str(path)))
        if "data_dir" in self.table and not asked_for:
            message = "this file was found through data_dir, so it cannot move it. Use --data-dir or ROOKERY_DATA_DIR."
            self._problem("data_dir", str(path), message)
        elif "data_dir" in self.table and self.sources["data_dir"] == DEFAULT:
            self._settle(_BY_NAME["data_dir"])

    def _parse_file(self, path: Path, *, asked_for: bool) -> dict[str, Any] | None:
        import tomllib  # imported here, because `rookery --help` does not need it and starts faster without it

        try:
            return tomllib.loads(path.read_text("utf-8"))
        except (OSError, ValueError) as error:
            if asked_for or not isinstance(error, FileNotFoundError | NotADirectoryError):
                self._problem("config", self.sources["config"], f"{path} {_why(error)}.")
            return None

    def _data_home(self) -> Path:
        # According to the XDG specification, a relative path in this variable is invalid and ignored.
        given = Path(self.environ.get("XDG_DATA_HOME", ""))
        return given if given.is_absolute() else self._home() / ".local" / "share"

    def _home(self) -> Path:
        given = self.environ.get("HOME")
        return Path(given) if given else Path("~").expanduser()

    def _absolute(self, path: Path, source: str) -> Path:
        """Resolve a path: `~` is the home directory; a path in the file is relative to the file."""
        if path.parts[:1] == ("~",):
            return self._home().joinpath(*path.parts[1:])
        return (self.file.parent / path if self.file and source == str(self.file) else path).absolute()

    def _settle_external_url(self) -> None:
        listen: Address | None = self.values["listen"]
        if self.sources["external_url"] == DEFAULT and listen is not None and listen.path is not None:
            message = "with a unix socket, set external_url to the address that users open."
            self._problem("listen", self.sources["listen"], message)
        elif self.sources["external_url"] == DEFAULT and listen is not None:
            has_tls = self.values["tls_cert"] is not None
            self.values["external_url"] = url_of(self.values["listen"], has_tls=has_tls)
            self.sources["external_url"] = "derived from listen"
        url = self.values["external_url"] or ""
        if url.startswith("http:") and not is_loopback(urlsplit(url).hostname or ""):
            message = f"{url} is neither https nor this machine: passwords and chats cross the network unprotected."
            self.warnings.append(Problem("external_url", self.sources["external_url"], message))
        elif listen is not None and _is_in_the_clear(listen, url, has_tls=self.values["tls_cert"] is not None):
            message = (
                f"{listen} is served without TLS beyond this machine: passwords and chats cross the network "
                "unprotected. Set tls_cert and tls_key, or put a proxy with https in front and set external_url."
            )
            self.warnings.append(Problem("listen", self.sources["listen"], message))

    def _check_tls(self) -> None:
        listen = self.values["listen"]
        if listen is not None and listen.path is not None and self.values["tls_cert"] is not None:
            message = "it has no effect on a unix socket, where the proxy serves https."
            self._problem("tls_cert", self.sources["tls_cert"], message)
        cert, key = self.values["tls_cert"], self.values["tls_key"]
        if (cert is None) != (key is None):
            name, missing = ("tls_cert", "tls_key") if key is None else ("tls_key", "tls_cert")
            self._problem(name, self.sources[name], f"it has no effect without {missing}.")
        elif cert is not None and not self._has_problem("tls_cert") and not self._has_problem("tls_key"):
            import ssl  # imported here, because it is slow to import and only servers with a certificate need it

            try:
                # Loaded here, so that a mistyped path is reported together with the other problems, and not by every
                # replica.
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(cert, key)
            except OSError as error:  # ssl errors are OSErrors
                self._problem("tls_cert", self.sources["tls_cert"], f"{cert} with {key}: {error.strerror or error}.")

    def _check_relay(self) -> None:
        """Check the relay. Parts contain texts of users and models, so they are encrypted between machines."""
        bind, url = self.values["relay_bind"], self.values["relay_url"]
        cert, key = self.values["relay_tls_cert"], self.values["relay_tls_key"]
        if (cert is None) != (key is None):
            self._relay_problem(
                "relay_tls_key" if key is None else "relay_tls_cert", "the other setting of this pair is missing"
            )
        if bind is None:
            for name in ("relay_url", "relay_tls_cert"):
                if self.values[name] is not None:
                    self._relay_problem(name, "this has no effect without relay_bind")
            return
        everywhere = bind.host in ANY_HOST
        if cert is None and (everywhere or not is_loopback(bind.host)):
            self._relay_problem("relay_bind", "beyond this machine it needs relay_tls_cert and relay_tls_key")
        if url is None and everywhere:
            self._relay_problem(
                "relay_url", "relay_bind is every interface, so set the address by which other machines reach this one"
            )
        if url is not None and url.startswith("ws:") and not is_loopback(urlsplit(url).hostname or ""):
            self._relay_problem("relay_url", "beyond this machine it begins with wss://")
        if url is not None and urlsplit(url).port is None and (self.values["replicas"] or 1) > 1:
            self._relay_problem(
                "relay_url", "with several replicas it needs a port; each further replica uses the next higher one"
            )

    def _check_metrics(self) -> None:
        address = self.values["metrics_listen"]
        if address is None or self.values["metrics_token"] is not None or self._has_problem("metrics_token"):
            return
        if address.host in ANY_HOST or not is_loopback(address.host):
            message = "beyond this machine it needs metrics_token."
            self._problem("metrics_listen", self.sources["metrics_listen"], message)

    def _check_otel(self) -> None:
        """Check the export of traces: its packages are installed, and its credentials are sent encrypted."""
        endpoint = self.values["otel.endpoint"]
        if endpoint is None:
            if self.values["otel.headers"] is not None and not self._has_problem("otel.endpoint"):
                message = "it has no effect without otel.endpoint."
                self._problem("otel.headers", self.sources["otel.headers"], message)
            return
        if not _is_installed(*_OTEL_PACKAGES):
            message = "the packages for OpenTelemetry are not installed. Install rookery[otel]."
            self._problem("otel.endpoint", self.sources["otel.endpoint"], message)
        if endpoint.startswith("http:") and not is_loopback(urlsplit(endpoint).hostname or ""):
            message = f"{endpoint} is neither https nor this machine: traces and otel.headers are sent unencrypted."
            self.warnings.append(Problem("otel.endpoint", self.sources["otel.endpoint"], message))

    def _check_users(self) -> None:
        uid, uid_range = self.values["drivers.local.uid"], self.values["drivers.local.uid_range"]
        if uid is not None and uid_range is not None and uid_range[0] <= uid <= uid_range[1]:
            message = f"{uid} is in drivers.local.uid_range, which is for workspaces with a user of their own."
            self._problem("drivers.local.uid", self.sources["drivers.local.uid"], message)

    def named_files(self) -> Iterator[Path]:
        for name, value in self.environ.items():
            if value and ((name.startswith(PREFIX) and name.endswith("_FILE")) or name in _OTHER_FILES):
                yield Path(value).absolute()

    def _check_worker(self) -> None:
        """Check pairs of settings: one of them must not be smaller than the other."""
        for smaller, larger, factor in _WORKER_ORDER:
            low, high = self.values[smaller], self.values[larger]
            if self._has_problem(smaller) or self._has_problem(larger) or high >= factor * low:
                continue
            least = f"{factor} times {smaller}" if factor > 1 else smaller
            self._problem(larger, self.sources[larger], f"{shown(high)} is less than {least}, which is {shown(low)}.")
        self._check_fence()

    def _check_fence(self) -> None:
        """Check that a replica that cannot renew its leases stops before another replica may take over."""
        fence, lease = "worker.self_fence_after", "worker.lease_ttl"
        if self._has_problem(fence) or self._has_problem(lease):
            return
        after, ttl = self.values[fence], self.values[lease]
        if after + _FENCE_MARGIN > ttl:
            message = f"{shown(after)} is not {shown(_FENCE_MARGIN)} or more below {lease}, which is {shown(ttl)}."
            self._problem(fence, self.sources[fence], message)

    def _has_problem(self, key: str) -> bool:
        return any(problem.key == key for problem in self.problems)

    def _relay_problem(self, key: str, message: str) -> None:
        self._problem(key, self.sources[key], f"{message}.")

    def _look_for_unknown_variables(self) -> None:
        known = [key.variable for key in KEYS] + [f"{key.variable}_FILE" for key in KEYS if key.secret]
        for name in sorted(self.environ):
            if name.startswith(PREFIX) and name not in known and not _OTHER_VARIABLES.fullmatch(name):
                self.unknown.append(_unknown(name, known, "environment"))

    def _problem(self, key: str, source: str, message: str) -> None:
        self.problems.append(Problem(key, source, message))


def _is_installed(*modules: str) -> bool:
    try:
        return all(importlib.util.find_spec(module) is not None for module in modules)
    except ImportError:  # a parent package is missing
        return False


def _why(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror}"
    return "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else f"is not valid TOML: {error}"


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, object]]:
    for name, value in table.items():
        if isinstance(value, dict) and value and prefix + name not in _BY_NAME:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _unknown(name: str, known: list[str], source: str) -> Problem:
    import difflib  # needed only for this message; see the import of tomllib

    nearest = difflib.get_close_matches(name, known, n=1)
    return Problem(name, source, "there is no such setting." + (f" Did you mean {nearest[0]}?" if nearest else ""))


def is_in_the_clear(settings: Settings) -> bool:
    """Return whether other machines can reach the server without https and without an https proxy."""
    return _is_in_the_clear(settings.listen, settings.external_url, has_tls=settings.tls_cert is not None)


def _is_in_the_clear(listen: Address, external_url: str, *, has_tls: bool) -> bool:
    if has_tls or external_url.startswith("https:"):
        return False
    is_beyond = listen.path is None and (listen.host in ANY_HOST or not is_loopback(listen.host))
    return is_beyond or not is_loopback(urlsplit(external_url).hostname or "")


def secret_flags(flags: Mapping[str, str]) -> list[Problem]:
    """Return problems with secrets in flags. Other users of the machine can read command lines."""
    problems = []
    for key in KEYS:
        given = flags.get(key.name) if key.secret else None
        if given is None or (key.has_flag and not _PASSWORD.search(given)):
            continue
        what = "a URL with a password" if key.has_flag else "a secret"
        message = (
            f"{what} is not accepted on the command line, because other users of this machine can read it. Set "
            f"{key.variable}, or {key.variable}_FILE with the path of a file, or {key.name} in the TOML file."
        )
        problems.append(Problem(key.name, key.flag, message))
    return problems


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return f".{host}".endswith(".localhost")


def url_of(address: Address, *, has_tls: bool = False) -> str:
    """Return the URL of an address for clients on this machine.

    Call it again after port 0 was replaced by a real port.
    """
    scheme = "https" if has_tls else "http"
    return f"{scheme}://{Address('localhost', address.port) if address.host in ANY_HOST else address}"


# The passwords in a database URL. The pattern is exact, because `_database_url` refuses ambiguous URLs.
_PASSWORD = re.compile(r"(//[^:/?]*:)([^/?]*)(?=@)|([?&][^=&]*pass[^=&]*=)([^&]*)", re.IGNORECASE)


def masked(settings: Settings) -> dict[str, Shown]:
    """Return every setting by key, with secrets masked: the password of a database URL, the whole value of others."""
    values = [(key, getattr(settings, key.field)) for key in KEYS]
    return {key.name: _masked(key, value) if key.secret and value else _shown(key, value) for key, value in values}


def _shown(key: Key, value: Any) -> Shown:
    return f"{value[0]}-{value[1]}" if key.kind is UID_RANGE else shown(value)


def _masked(key: Key, secret: str) -> str:
    return _PASSWORD.sub(lambda m: f"{m[1] or m[3]}***", secret) if key.kind is DATABASE_URL else "***"


def private_paths(settings: Settings) -> list[Path]:
    """Return all files and directories of the server that no workspace may see, the data directory first.

    A new setting that is a path is included unless it is in `_SEEN`.
    """
    named = [getattr(settings, key.field) for key in KEYS if key.kind is PATH and key.name not in _SEEN]
    of_the_database = [
        Path(value)
        for name, value in parse_qsl(urlsplit(settings.database_url or "").query)
        if name in ("sslkey", "sslcert", "passfile", "servicefile") and value.startswith("/")
    ]
    home = os.path.expanduser("~")
    homes = [Path(home, name) for name in _OF_THE_HOME] if os.path.isabs(home) else []
    # A client that can open the socket is trusted like the proxy.
    sockets = [Path(settings.listen.path)] if settings.listen.path is not None else []
    found = [settings.data_dir, *(path for path in named if path is not None), *settings.named_files, *sockets]
    return list(dict.fromkeys([*found, *of_the_database, *homes]))


def secret_literals(settings: Settings) -> Iterator[tuple[str, str]]:
    """Return the values that must not appear in any log, each with its key."""
    for key in KEYS:
        if key.secret and (value := getattr(settings, key.field)):
            if key.kind is DATABASE_URL:
                found = [m[2] or m[4] or "" for m in _PASSWORD.finditer(value)]
            elif key.kind is HEADERS:
                # Each value, and the credentials after its scheme.
                values = [pair.partition("=")[2].strip() for pair in value.split(",")]
                found = [value, *values, *(re.split(r"\s|%20", each)[-1] for each in values)]
            else:
                # Each key of a list is returned separately, because a leak may contain only one of them.
                found = [value, *re.findall(r"[^,:\s]{16,}", value)]
            yield from ((key.name, form) for literal in found for form in sorted({literal, unquote(literal)}))
