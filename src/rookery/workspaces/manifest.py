"""The manifest of a template (`template.toml`), and its strict parser.

Unknown keys are errors, because a mistyped limit would have no effect. All problems are reported together. The database
stores the manifest as JSON.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias

import msgspec

from rookery.workspaces import manifest_checks, network_levels, parameter_values
from rookery.workspaces.drivers.driver_interface import Limits, Sandbox
from rookery.workspaces.parameter_values import ParameterType, Value
from rookery.workspaces.template_errors import Problem, TemplateInvalid

MAX_NAME = 64
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MAX_PARAMETERS = 50
STARTUP_SECONDS, SHUTDOWN_SECONDS = 600.0, 60.0
MAX_SCRIPT_SECONDS = 3600.0

SSH_HOST = "the network of the other machine"

DriverName: TypeAlias = Literal["local", "ssh"]


class Parameter(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A parameter of a template. `ephemeral` values are given at every start and not stored.

    Values of the type `secret` are stored encrypted and never shown. The startup script reads them from a descriptor.
    """

    name: str
    type: ParameterType = "string"
    required: bool = False
    default: Value | None = None
    mutable: bool = False
    ephemeral: bool = False
    display_name: str = ""
    description: str = ""
    options: tuple[Value, ...] = ()
    regex: str | None = None
    min: float | None = None
    max: float | None = None


class Preset(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    id: str
    name: str
    default: bool = False
    description: str = ""
    parameters: dict[str, Value] = {}


class ScriptRef(msgspec.Struct, frozen=True):
    """A reference to a script file of the template."""

    script: str
    timeout_s: float


class SshAddress(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The ssh host of a template. `identity` is the name of a key on the server, not the key itself."""

    host: str
    known_hosts: str
    user: str | None = None
    port: int = 22
    jump: str | None = None
    identity: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The manifest of a template. Durations are in seconds. An idle time of 0 means never."""

    name: str
    display_name: str = ""
    description: str = ""
    icon: str = ""
    driver: DriverName = "local"
    directory: str = "~"
    update_on_start: bool = True
    idle_stop_after_s: float = 0
    env: dict[str, str] = {}
    startup: ScriptRef | None = None
    shutdown: ScriptRef | None = None
    sandbox: Sandbox = Sandbox()
    limits: Limits = Limits()
    ssh: SshAddress | None = None
    context_sources: tuple[str, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    presets: tuple[Preset, ...] = ()

    @property
    def idle_stop_after(self) -> timedelta:
        return timedelta(seconds=self.idle_stop_after_s)

    def find_parameter(self, name: str) -> Parameter | None:
        return next((each for each in self.parameters if each.name == name), None)

    def find_preset(self, preset_id: str) -> Preset | None:
        return next((each for each in self.presets if each.id == preset_id), None)


def decode(stored: Mapping[str, Any]) -> Manifest:
    """Decode a manifest from its stored JSON."""
    return msgspec.convert(network_levels.with_new_names(stored), Manifest)


def encode(manifest: Manifest) -> str:
    return msgspec.json.encode(manifest).decode()


def parse(text: str, *, files: Collection[str] = ()) -> Manifest:
    """Parse `template.toml`. `files` are the names of all files of the template.

    Raise `TemplateInvalid` with all problems.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TemplateInvalid([Problem("template.toml", f"This is not valid TOML: {error}.")]) from None
    reader = _ManifestReader(files)
    made = reader.manifest(_Table(document, "", reader.problems))
    if reader.problems or made is None:
        raise TemplateInvalid(reader.problems)
    return made


class _Table:
    """A table of the document. `done` reports all keys that were not read as unknown."""

    def __init__(self, raw: Mapping[str, Any], path: str, problems: list[Problem]) -> None:
        self.raw = raw
        self.path = path
        self.problems = problems
        self._known: set[str] = set()

    def key_path(self, key: str) -> str:
        return f"{self.path}.{key}" if self.path else key

    def wrong(self, key: str, detail: str) -> None:
        self.problems.append(Problem(self.key_path(key), detail))

    def take(self, key: str, check: Callable[[object], Any], default: Any) -> Any:
        """Return the checked value of a key, or the default. `check` raises ValueError with a sentence."""
        self._known.add(key)
        if key not in self.raw:
            return default
        try:
            return check(self.raw[key])
        except ValueError as error:
            self.wrong(key, str(error))
            return default

    def require(self, key: str, check: Callable[[object], Any]) -> Any:
        if key not in self.raw:
            self._known.add(key)
            self.wrong(key, "This is required.")
            return None
        return self.take(key, check, None)

    def table(self, key: str) -> _Table | None:
        found = self.take(key, manifest_checks.is_table, None)
        return None if found is None else _Table(found, self.key_path(key), self.problems)

    def tables(self, key: str) -> list[_Table]:
        found = self.take(key, manifest_checks.are_tables, [])
        return [_Table(each, f"{self.key_path(key)}[{index}]", self.problems) for index, each in enumerate(found)]

    def done(self) -> None:
        for key in self.raw:
            if key not in self._known:
                self.wrong(key, f"There is no such key. Known here: {', '.join(sorted(self._known))}.")


class _ManifestReader:
    def __init__(self, files: Collection[str]) -> None:
        self.files = files
        self.problems: list[Problem] = []

    def manifest(self, top: _Table) -> Manifest | None:
        name = top.require("name", manifest_checks.slug(MAX_NAME))
        driver: DriverName = top.take("driver", manifest_checks.one_of("local", "ssh"), "local")
        parameters = self._parameters(top)
        made: dict[str, Any] = {
            "display_name": top.take("display_name", manifest_checks.text(100), ""),
            "description": top.take("description", manifest_checks.text(1000), ""),
            "icon": top.take("icon", manifest_checks.text(200), ""),
            "driver": driver,
            "directory": top.take("directory", manifest_checks.path, "~"),
            "update_on_start": top.take("update_on_start", manifest_checks.boolean, True),
            "idle_stop_after_s": top.take("idle_stop_after", manifest_checks.duration_seconds, 0.0),
            "env": self._env(top),
            "startup": self._script(top, "startup", STARTUP_SECONDS),
            "shutdown": self._script(top, "shutdown", SHUTDOWN_SECONDS),
            "sandbox": self._sandbox(top, driver),
            "limits": self._limits(top),
            "ssh": self._ssh(top, driver),
            "context_sources": self._context(top),
            "parameters": parameters,
            "presets": self._presets(top, {each.name: each for each in parameters}),
        }
        self._check_bound(made["directory"], "directory", parameters)
        for kind in ("ro_binds", "rw_binds"):
            for index, bind in enumerate(getattr(made["sandbox"], kind)):
                self._check_bound(bind, f"sandbox.{kind}[{index}]", parameters)
        top.done()
        return None if self.problems else Manifest(name=name, **made)

    def _check_bound(self, path: str, field: str, parameters: tuple[Parameter, ...]) -> None:
        name = manifest_checks.path_parameter(path)
        if name is None:
            return
        found = next((each for each in parameters if each.name == name), None)
        if found is None or found.type != "string":
            self.problems.append(Problem(field, f"There is no parameter {name} of type string."))

    def _env(self, top: _Table) -> dict[str, str]:
        table = top.table("env")
        if table is None:
            return {}
        made = {}
        for key in table.raw:
            if not VARIABLE_NAME.fullmatch(key):
                table.wrong(key, "This is not a name for an environment variable.")
            made[key] = table.take(key, manifest_checks.text(32_768), "")
        return made

    def _script(self, top: _Table, key: str, seconds: float) -> ScriptRef | None:
        usual = f"{key}.sh"
        table = top.table(key)
        if table is None:
            return ScriptRef(usual, seconds) if usual in self.files else None
        script = table.take("script", manifest_checks.text(200), usual)
        timeout = table.take("timeout", manifest_checks.duration_seconds, seconds)
        table.done()
        if not 0 < timeout <= MAX_SCRIPT_SECONDS:
            table.wrong("timeout", f"A script may take from 1 to {MAX_SCRIPT_SECONDS:.0f} seconds.")
        if script not in self.files:
            table.wrong("script", f"There is no file {script} in the template.")
        return ScriptRef(script, timeout)

    def _sandbox(self, top: _Table, driver: DriverName) -> Sandbox:
        table = top.table("sandbox")
        before = len(self.problems)
        if driver == "ssh" and (table is None or "network" not in table.raw):
            message = f'The driver ssh requires a network: "host" ({SSH_HOST}) or "none".'
            self.problems.append(Problem("sandbox.network", message))
        if table is None:
            return Sandbox()
        made = Sandbox(
            enabled=table.take("enabled", manifest_checks.boolean, True),
            network=table.take("network", network_levels.read, network_levels.DEFAULT),
            hosts=tuple(dict.fromkeys(table.take("hosts", manifest_checks.list_of(manifest_checks.host), ()))),
            nested=table.take("nested", manifest_checks.boolean, True),
            ro_binds=table.take("ro_binds", manifest_checks.list_of(manifest_checks.bind), ()),
            rw_binds=table.take("rw_binds", manifest_checks.list_of(manifest_checks.bind), ()),
        )
        table.done()
        if len(self.problems) == before:
            self._check_network(table, made, driver)
        return made

    def _check_network(self, table: _Table, sandbox: Sandbox, driver: DriverName) -> None:
        if driver != "local" and sandbox.network in network_levels.BY_PROXY:
            message = f'The driver {driver} has no proxy. Choose "host" ({SSH_HOST}) or "none", or the driver local.'
            table.wrong("network", message)
        elif sandbox.network != "hosts":
            if "hosts" in table.raw:
                table.wrong("hosts", 'This has no effect without network = "hosts".')
        elif not sandbox.hosts:
            table.wrong("hosts", 'network = "hosts" requires at least one host. For no network, use "none".')

    def _limits(self, top: _Table) -> Limits:
        table = top.table("limits")
        if table is None:
            return Limits()
        made = Limits(
            memory_mb=table.take("memory_mb", manifest_checks.whole, 0),
            cpus=table.take("cpus", manifest_checks.amount, 0.0),
            pids=table.take("pids", manifest_checks.whole, 0),
            disk_mb=table.take("disk_mb", manifest_checks.whole, 0),
        )
        table.done()
        return made

    def _ssh(self, top: _Table, driver: DriverName) -> SshAddress | None:
        table = top.table("ssh")
        if table is None:
            if driver == "ssh":
                top.wrong("ssh", "The driver ssh requires this table, with host and known_hosts.")
            return None
        if driver != "ssh":
            top.wrong("ssh", 'This has no effect without driver = "ssh".')
        made = {
            "host": table.require("host", manifest_checks.word),
            "known_hosts": table.require("known_hosts", manifest_checks.text(65_536)),
            "user": table.take("user", manifest_checks.word, None),
            "port": table.take("port", manifest_checks.port, 22),
            "jump": table.take("jump", manifest_checks.word, None),
            "identity": table.take("identity", manifest_checks.secret_name, None),
        }
        table.done()
        return None if self.problems else SshAddress(**made)

    def _context(self, top: _Table) -> tuple[str, ...]:
        table = top.table("context")
        if table is None:
            return ()
        sources: tuple[str, ...] = table.take("sources", manifest_checks.list_of(manifest_checks.source), ())
        table.done()
        return sources

    def _parameters(self, top: _Table) -> tuple[Parameter, ...]:
        tables = top.tables("parameters")
        made = [found for each in tables if (found := self._parameter(each)) is not None]
        if len(tables) > MAX_PARAMETERS:
            top.wrong("parameters", f"At most {MAX_PARAMETERS} parameters.")
        # Names are compared without case, because users would confuse them.
        seen: set[str] = set()
        for table, each in zip(tables, made, strict=False):
            if each.name.lower() in seen:
                table.wrong("name", f"There are two parameters called {each.name}.")
            seen.add(each.name.lower())
        return tuple(made)

    def _parameter(self, table: _Table) -> Parameter | None:
        before = len(self.problems)
        name = table.require("name", manifest_checks.parameter_name)
        kind: ParameterType = table.take("type", manifest_checks.one_of(*parameter_values.TYPES), "string")
        made = Parameter(
            name=name or "",
            type=kind,
            required=table.take("required", manifest_checks.boolean, False),
            default=table.take("default", lambda raw: parameter_values.convert(raw, kind), None),
            mutable=table.take("mutable", manifest_checks.boolean, False),
            ephemeral=table.take("ephemeral", manifest_checks.boolean, False),
            display_name=table.take("display_name", manifest_checks.text(100), ""),
            description=table.take("description", manifest_checks.text(2000), ""),
            options=table.take(
                "options",
                manifest_checks.list_of(lambda raw: parameter_values.convert(raw, parameter_values.item_type(kind))),
                (),
            ),
            regex=table.take("regex", manifest_checks.regex, None),
            min=table.take("min", manifest_checks.number, None),
            max=table.take("max", manifest_checks.number, None),
        )
        table.done()
        for key in ("default", "options"):
            if kind == "secret" and key in table.raw:
                table.wrong(key, "A secret cannot have this, because every user can read a template.")
        if made.default is not None and parameter_values.without_credentials(made.default) != made.default:
            table.wrong("default", "This URL contains credentials, and every user can read a template.")
        if made.regex is not None and kind not in ("string", "list(string)", "secret"):
            table.wrong("regex", f"This has no meaning for the type {kind}.")
        for key in ("min", "max"):
            if getattr(made, key) is not None and kind == "bool":
                table.wrong(key, f"This has no meaning for the type {kind}.")
        if made.min is not None and made.max is not None and made.min > made.max:
            table.wrong("max", "This is less than min.")
        if len(self.problems) == before and made.default is not None:
            self.problems += [
                Problem(table.key_path("default"), each) for each in parameter_values.check(made.default, made)
            ]
        return made if name else None

    def _presets(self, top: _Table, parameters: Mapping[str, Parameter]) -> tuple[Preset, ...]:
        made, seen = [], set[str]()
        defaults = 0
        for table in top.tables("presets"):
            preset_id = table.require("id", manifest_checks.slug(MAX_NAME))
            if preset_id in seen:
                table.wrong("id", f"There are two presets {preset_id}.")
            seen.add(preset_id or "")
            is_default = table.take("default", manifest_checks.boolean, False)
            defaults += is_default
            if is_default and defaults > 1:
                table.wrong("default", "Another preset is the default already.")
            given = table.table("parameters")
            made.append(
                Preset(
                    id=preset_id or "",
                    name=table.take("name", manifest_checks.text(100), preset_id or ""),
                    default=is_default,
                    description=table.take("description", manifest_checks.text(2000), ""),
                    parameters=_preset_values(given, parameters) if given is not None else {},
                )
            )
            table.done()
        return tuple(made)


def _preset_values(table: _Table, parameters: Mapping[str, Parameter]) -> dict[str, Value]:
    made = {}
    for key in table.raw:
        known = parameters.get(key)
        if known is None:
            table.wrong(key, f"There is no parameter {key}.")
            continue
        if known.type == "secret":
            table.wrong(key, "A preset holds no secrets: every user can read a template.")
            continue
        value = table.take(key, lambda raw, known=known: parameter_values.convert(raw, known.type), None)  # type: ignore[misc]
        if value is not None:
            made[key] = value
            table.problems += [Problem(table.key_path(key), each) for each in parameter_values.check(value, known)]
    return made
