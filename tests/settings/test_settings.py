"""Start settings: sources of values, invalid values, and the report of all problems together."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rookery.settings import keys, settings, value_types
from rookery.settings.keys import KEYS
from rookery.settings.settings import Loaded, Settings, SettingsError
from rookery.settings.value_types import Address

REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def load(
    home: Path,
    *,
    strict: bool = False,
    flags: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
    **variables: str,
) -> Loaded:
    return settings.load(flags or {}, {"HOME": str(home), **(environ or {}), **variables}, strict=strict)


def problems(
    home: Path,
    *,
    strict: bool = False,
    flags: dict[str, str] | None = None,
    environ: dict[str, str] | None = None,
    **variables: str,
) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(home, strict=strict, flags=flags, environ=environ, **variables)
    return [str(problem) for problem in caught.value.problems]


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_without_anything_given_the_defaults_hold(home: Path) -> None:
    loaded = load(home)

    assert loaded.settings == Settings(
        config=None,
        data_dir=home / ".local" / "share" / "rookery",
        listen=Address("127.0.0.1", 7117),
        external_url="http://127.0.0.1:7117",
        allowed_hosts=(),
        allowed_origins=(),
        trusted_proxies=(),
        proxy_secret=None,
        proxy_secret_header="X-Rookery-Proxy-Secret",
        http_max_body=1024**2,
        net_allow_private=(),
        setup_token=None,
        auth_token_max_ttl=timedelta(days=365),
        replicas=1,
        max_streams_per_replica=20_000,
        debug_force=False,
        debug_body_bytes=64 * 1024,
        debug_run_bytes=32 * 1024**2,
        debug_queue_bytes=64 * 1024**2,
        relay_bind=None,
        relay_url=None,
        tls_cert=None,
        tls_key=None,
        relay_tls_cert=None,
        relay_tls_key=None,
        relay_tls_ca=None,
        shutdown_delay=timedelta(0),
        drain_timeout=timedelta(seconds=25),
        database_url=None,
        database_pool_api=8,
        database_pool_worker=8,
        database_statement_timeout=timedelta(seconds=30),
        auto_migrate=True,
        secret_keys=None,
        worker_enabled=True,
        worker_acquire_interval=timedelta(seconds=5),
        worker_acquire_batch=10,
        worker_max_runners=256,
        worker_lease_ttl=timedelta(seconds=30),
        worker_heartbeat_interval=timedelta(seconds=9),
        worker_self_fence_after=timedelta(seconds=24),
        worker_heartbeat_gc_interval=timedelta(seconds=30),
        worker_runner_sync_interval=timedelta(seconds=15),
        worker_task_backoff=timedelta(milliseconds=100),
        worker_task_backoff_max=timedelta(seconds=5),
        worker_task_idle_timeout=timedelta(minutes=15),
        worker_cleanup_timeout=timedelta(seconds=5),
        worker_watch_publish_timeout=timedelta(seconds=10),
        worker_archive_interval=timedelta(hours=1),
        worker_archive_batch=1000,
        worker_capacity_gauge_interval=timedelta(seconds=30),
        worker_prepare_tries=3,
        worker_prepare_backoff=timedelta(milliseconds=200),
        worker_max_attempts=25,
        worker_retry_delay=timedelta(seconds=1),
        worker_retry_delay_max=timedelta(seconds=60),
        worker_retry_after_cap=timedelta(minutes=10),
        worker_max_steps=1200,
        worker_max_output_tokens=32_000,
        worker_connect_timeout=timedelta(seconds=10),
        worker_first_byte_timeout=timedelta(minutes=5),
        worker_stream_silence_timeout=timedelta(minutes=2),
        worker_tool_default_deadline=timedelta(minutes=10),
        worker_tool_max_deadline=timedelta(hours=4),
        worker_tool_batch_concurrency=16,
        worker_episode_max_bytes=4 * 1024**2,
        worker_episode_retention=timedelta(seconds=15),
        worker_subscriber_stall_timeout=timedelta(seconds=10),
        worker_part_flush=timedelta(milliseconds=30),
        worker_part_flush_chars=512,
        log_level="info",
        log_format="auto",
        log_access=True,
        metrics_listen=None,
        metrics_token=None,
        otel_endpoint=None,
        otel_headers=None,
        otel_sample=1.0,
        otel_metrics=True,
        otel_capture_content=False,
        drivers_local_bwrap=None,
        drivers_local_uid_range=(2_000_000_000, 2_000_999_999),
        drivers_local_uid=None,
        drivers_local_cgroup=None,
        drivers_local_network_max="public",
        drivers_local_tmp_mb=1024,
        drivers_local_unsafe=False,
        workspaces_shared_folders=(),
    )
    assert loaded.warnings == ()
    assert loaded.sources["external_url"] == "derived from listen"
    assert {loaded.sources[key.name] for key in KEYS if key.name != "external_url"} == {settings.DEFAULT}


def test_flag_wins_over_variable_over_file_over_default(home: Path) -> None:
    file = write(home / "r.toml", 'log_level = "error"\ndrain_timeout = 3\nlisten = ":1"\n')

    loaded = load(
        home,
        flags={"config": str(file), "listen": "127.0.0.1:3"},
        ROOKERY_LISTEN=":2",
        ROOKERY_DRAIN_TIMEOUT="4s",
    )

    assert loaded.settings.listen == Address("127.0.0.1", 3)
    assert loaded.settings.drain_timeout == timedelta(seconds=4)
    assert loaded.settings.log_level == "error"
    assert loaded.settings.log_format == "auto"
    assert {name: loaded.sources[name] for name in ("listen", "drain_timeout", "log_level", "log_format")} == {
        "listen": "--listen",
        "drain_timeout": "ROOKERY_DRAIN_TIMEOUT",
        "log_level": str(file),
        "log_format": "default",
    }


def test_all_wrong_settings_are_reported_at_once_with_key_and_source(home: Path) -> None:
    file = write(home / "r.toml", "database_pool_worker = 501\n")

    found = problems(home, flags={"config": str(file), "listen": "nowhere"}, ROOKERY_LOG_LEVEL="loud")

    assert found == [
        "listen (from --listen): 'nowhere' is not an address; write host:port, for example 127.0.0.1:7117.",
        f"database_pool_worker (from {file}): 501 is not between 1 and 500.",
        "log_level (from ROOKERY_LOG_LEVEL): 'loud' is not one of debug, info, warning, error.",
    ]


def test_empty_variable_counts_as_not_set(home: Path) -> None:
    loaded = load(home, ROOKERY_LISTEN="", ROOKERY_DATABASE_URL="", ROOKERY_DATABASE_URL_FILE="")

    assert loaded.settings.listen.port == 7117
    assert loaded.settings.database_url is None


def test_empty_flag_is_a_problem(home: Path) -> None:
    assert problems(home, flags={"listen": ""}) == ["listen (from --listen): '' is empty."]


def test_value_of_the_wrong_type_in_the_file_says_how_to_write_it(home: Path) -> None:
    file = write(home / "r.toml", "listen = 5\ndata_dir = 7\n")

    assert problems(home, flags={"config": str(file)}) == [
        f"data_dir (from {file}): 7 is not text; write it in quotes.",
        f'listen (from {file}): 5 is not an address; write "host:port" in quotes, for example "127.0.0.1:7117".',
    ]


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7117", Address("127.0.0.1", 7117)),
        (":80", Address("", 80)),
        ("[::1]:7117", Address("::1", 7117)),
        ("rookery.example.org:0", Address("rookery.example.org", 0)),
        ("localhost:65535", Address("localhost", 65535)),
    ],
)
def test_listen_takes_an_address(home: Path, text: str, address: Address) -> None:
    listen = load(home, ROOKERY_LISTEN=text).settings.listen

    assert listen == address
    assert str(listen) == text


@pytest.mark.parametrize(
    "text", ["7117", "localhost", "::1:7117", "[::1]", "[::g]:1", "1.2.3:1", "a b:1", "h:65536", "h:-1", "h:+1", "h:٣"]
)
def test_listen_refuses_what_is_no_address(home: Path, text: str) -> None:
    assert len(problems(home, ROOKERY_LISTEN=text)) == 1


@pytest.mark.parametrize(
    ("listen", "url"),
    [(":80", "http://localhost:80"), ("0.0.0.0:1", "http://localhost:1"), ("[::1]:7", "http://[::1]:7")],
)
def test_external_url_follows_from_listen(home: Path, listen: str, url: str) -> None:
    assert load(home, ROOKERY_LISTEN=listen).settings.external_url == url


def test_export_of_traces_is_read_from_the_environment(home: Path) -> None:
    loaded = load(
        home,
        ROOKERY_OTEL_ENDPOINT="https://otel.example:4318/base/",
        ROOKERY_OTEL_HEADERS="authorization=Bearer%20abc-very-secret-abc, x-team=a",
        ROOKERY_OTEL_SAMPLE="0.25",
        ROOKERY_OTEL_METRICS="false",
    )

    found = loaded.settings
    assert (found.otel_endpoint, found.otel_sample, found.otel_metrics) == (
        "https://otel.example:4318/base",
        0.25,
        False,
    )
    assert loaded.warnings == ()
    assert settings.masked(found)["otel.headers"] == "***"
    literals = {literal for name, literal in settings.secret_literals(found) if name == "otel.headers"}
    assert {"abc-very-secret-abc", "Bearer abc-very-secret-abc"} <= literals


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("ENDPOINT", "localhost:4318", "is not an http or https URL"),
        ("ENDPOINT", "grpc://localhost:4317", "is not an http or https URL"),
        ("ENDPOINT", "https://user:pw@otel.example", "is not an http or https URL"),
        ("ENDPOINT", "https://otel.example?key=1", "is not an http or https URL"),
        ("ENDPOINT", "https://otel.example:99999", "is not an http or https URL"),
        ("SAMPLE", "1.5", "is not a number between 0 and 1"),
        ("SAMPLE", "-1", "is not a number between 0 and 1"),
        ("SAMPLE", "half", "is not a number between 0 and 1"),
        ("SAMPLE", "nan", "is not a number between 0 and 1"),
        ("HEADERS", "authorization", "is not a list of headers"),
        ("HEADERS", "a b=c", "is not a list of headers"),
        ("HEADERS", "a=b,", "is not a list of headers"),
        ("METRICS", "maybe", "is not true or false"),
    ],
)
def test_wrong_setting_of_the_export_of_traces_is_named(home: Path, name: str, value: str, message: str) -> None:
    good = {"ROOKERY_OTEL_ENDPOINT": "http://localhost:4318"}

    (problem,) = problems(home, environ={**good, f"ROOKERY_OTEL_{name}": value})

    assert problem.startswith(f"otel.{name.lower()} (from ROOKERY_OTEL_{name}): ")
    assert message in problem
    assert name != "HEADERS" or value not in problem


def test_headers_without_an_endpoint_have_no_effect_and_say_so(home: Path) -> None:
    (problem,) = problems(home, ROOKERY_OTEL_HEADERS="a=b")

    assert problem == "otel.headers (from ROOKERY_OTEL_HEADERS): it has no effect without otel.endpoint."


@pytest.mark.parametrize(
    ("endpoint", "warns"),
    [("http://otel.example", True), ("http://[::1]:4318", False), ("https://otel.example", False)],
)
def test_unencrypted_export_beyond_this_machine_is_warned_about(home: Path, endpoint: str, warns: bool) -> None:
    loaded = load(home, ROOKERY_OTEL_ENDPOINT=endpoint)

    assert [each.key for each in loaded.warnings] == (["otel.endpoint"] if warns else [])


def test_external_url_loses_its_trailing_slash(home: Path) -> None:
    loaded = load(home, ROOKERY_EXTERNAL_URL="https://Rookery.example.org:8443/")

    assert loaded.settings.external_url == "https://rookery.example.org:8443"
    assert loaded.warnings == ()


@pytest.mark.parametrize(
    "url", ["rookery.org", "ftp://a", "https://a/b", "https://u:p@a", "https://a?b", "https://a:99999", "https://"]
)
def test_external_url_is_scheme_host_and_port_only(home: Path, url: str) -> None:
    assert len(problems(home, ROOKERY_EXTERNAL_URL=url)) == 1


@pytest.mark.parametrize(
    ("given", "warns"),
    [
        ({"ROOKERY_LISTEN": ":7117"}, True),
        ({"ROOKERY_LISTEN": "0.0.0.0:7117"}, True),
        ({"ROOKERY_LISTEN": "192.168.1.5:7117", "ROOKERY_EXTERNAL_URL": "http://localhost:7117"}, True),
        ({"ROOKERY_LISTEN": ":7117", "ROOKERY_EXTERNAL_URL": "https://rook.example"}, False),
        ({"ROOKERY_LISTEN": "[::1]:7117"}, False),
        ({"ROOKERY_LISTEN": "unix:/run/rook.sock", "ROOKERY_EXTERNAL_URL": "https://rook.example"}, False),
    ],
)
def test_port_that_others_reach_without_https_is_a_warning(home: Path, given: dict[str, str], warns: bool) -> None:
    loaded = settings.load({}, {"HOME": str(home), **given})

    assert len(loaded.warnings) == warns
    assert all("cross the network unprotected" in warning.message for warning in loaded.warnings)
    assert settings.is_in_the_clear(loaded.settings) is warns


@pytest.mark.parametrize(
    ("listen", "complaint"),
    [
        ("unix:", "unix:/absolute/path"),
        ("unix:run/x", "unix:/absolute/path"),
        ("unix:/a/../b", "unix:/absolute/path"),
        ("unix:/", "unix:/absolute/path"),
        (f"unix:/{'x' * 120}", "more than 107 bytes"),
        ("unix:/run/rook.sock", "set external_url"),
    ],
)
def test_socket_to_listen_on_is_an_absolute_path_and_needs_a_url(home: Path, listen: str, complaint: str) -> None:
    (problem,) = problems(home, ROOKERY_LISTEN=listen)

    assert complaint in str(problem)


def test_socket_of_the_proxy_is_hidden_from_workspaces(home: Path) -> None:
    loaded = load(home, ROOKERY_LISTEN="unix:/run/rook.sock", ROOKERY_EXTERNAL_URL="https://rook.example")

    assert loaded.settings.listen == Address("", 0, "/run/rook.sock")
    assert Path("/run/rook.sock") in settings.private_paths(loaded.settings)


@pytest.mark.parametrize("secret", ["tiny", "with a space in it ", "ünïcode-is-not-for-headers", "a" * 15])
def test_secret_of_a_proxy_fits_into_a_header(home: Path, secret: str) -> None:
    (problem,) = problems(home, ROOKERY_PROXY_SECRET=secret)

    assert secret.strip() not in str(problem)


@pytest.mark.parametrize("name", ["Cookie", "authorization", "X-Forwarded-For", "with space", "a:b", "x" * 65])
def test_header_of_the_secret_is_one_of_its_own(home: Path, name: str) -> None:
    (problem,) = problems(home, ROOKERY_PROXY_SECRET_HEADER=name)

    assert problem.startswith("proxy_secret_header ")


def test_secrets_are_not_taken_from_the_command_line() -> None:
    given = {key.name: "x" * 40 for key in KEYS if key.secret} | {"database_url": "postgresql://u:pass@h/d"}

    found = {problem.key: str(problem) for problem in settings.secret_flags(given)}

    assert set(found) == {key.name for key in KEYS if key.secret}
    for key in KEYS:
        if key.secret:
            assert f"{key.variable}_FILE" in found[key.name]
            assert given[key.name] not in found[key.name]
    assert settings.secret_flags({"database_url": "postgresql://u@h/d", "listen": ":1"}) == []


@pytest.mark.parametrize(("url", "warns"), [("http://10.0.0.1:7117", True), ("http://127.0.0.9", False)])
def test_plain_http_beyond_this_machine_is_a_warning(home: Path, url: str, warns: bool) -> None:
    loaded = load(home, ROOKERY_EXTERNAL_URL=url)

    assert [warning.key for warning in loaded.warnings] == (["external_url"] if warns else [])


@pytest.mark.parametrize(
    ("text", "seconds"), [("25s", 25), ("500ms", 0.5), ("2m", 120), ("1h", 3600), ("3", 3), ("1.5", 1.5), (" 7 s ", 7)]
)
def test_durations_have_units_or_are_seconds(home: Path, text: str, seconds: float) -> None:
    assert load(home, ROOKERY_DRAIN_TIMEOUT=text).settings.drain_timeout == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["0", "-1s", "inf", "nan", "1e3", "1w", "s", "25h", "9" * 5000])
def test_drain_timeout_refuses_what_is_no_time_above_zero(home: Path, text: str) -> None:
    assert len(problems(home, ROOKERY_DRAIN_TIMEOUT=text)) == 1


def test_shutdown_delay_may_be_zero(home: Path) -> None:
    assert load(home, ROOKERY_SHUTDOWN_DELAY="0").settings.shutdown_delay == timedelta(0)


@pytest.mark.parametrize("toml", ["true", "nan", "inf", "-1", '"x"', "[1]", "{ a = 1 }", "2030-01-01"])
def test_file_value_of_the_wrong_type_is_a_problem(home: Path, toml: str) -> None:
    file = write(home / "r.toml", f"drain_timeout = {toml}\ndatabase_pool_api = {toml}\nlisten = {toml}\n")

    found = problems(home, ROOKERY_CONFIG=str(file))

    assert [line.split(" ")[0] for line in found] == ["listen", "drain_timeout", "database_pool_api"]


@pytest.mark.parametrize(("text", "value"), [("yes", True), ("OFF", False), ("1", True), ("false", False)])
def test_switches_take_the_usual_words(home: Path, text: str, value: bool) -> None:
    assert load(home, ROOKERY_LOG_ACCESS=text).settings.log_access is value


@pytest.mark.parametrize(("number", "fits"), [("1", True), ("500", True), ("0", False), ("501", False), ("8.0", False)])
def test_pool_size_is_one_to_five_hundred(home: Path, number: str, fits: bool) -> None:
    if fits:
        assert load(home, ROOKERY_DATABASE_POOL_API=number).settings.database_pool_api == int(number)
    else:
        assert len(problems(home, ROOKERY_DATABASE_POOL_API=number)) == 1


def test_file_in_the_data_directory_is_read_when_there_is_one(home: Path) -> None:
    file = write(home / "data" / "rookery.toml", "database_pool_api = 3\n")

    loaded = load(home, ROOKERY_DATA_DIR=str(home / "data"))

    assert loaded.settings.config == file
    assert loaded.settings.database_pool_api == 3


def test_file_that_was_asked_for_must_exist(home: Path) -> None:
    found = problems(home, flags={"config": str(home / "no.toml")})

    assert found == [f"config (from --config): {home}/no.toml cannot be read: No such file or directory."]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"listen = [", "is not valid TOML"),
        (b"listen = \xff", "is not UTF-8 text"),
        (b"a = 1\na = 2", "is not valid TOML"),
    ],
)
def test_broken_file_is_a_problem_beside_the_others(home: Path, content: bytes, reason: str) -> None:
    file = home / ".local" / "share" / "rookery" / "rookery.toml"
    write(file, "").write_bytes(content)

    found = problems(home, ROOKERY_LOG_LEVEL="loud")

    assert [line.split(" ")[0] for line in found] == ["config", "log_level"]
    assert f"{file} {reason}" in found[0]


def test_directory_in_place_of_the_file_is_a_problem(home: Path) -> None:
    (home / "rookery.toml").mkdir(parents=True)

    assert "Is a directory" in problems(home, ROOKERY_DATA_DIR=str(home))[0]


def test_file_found_through_the_data_directory_cannot_move_it(home: Path) -> None:
    write(home / "rookery.toml", 'data_dir = "/elsewhere"\n')

    assert "cannot move it" in problems(home, ROOKERY_DATA_DIR=str(home))[0]


def test_path_in_the_file_is_relative_to_the_file(home: Path) -> None:
    file = write(home / "etc" / "r.toml", 'data_dir = "state"\n')

    loaded = load(home, ROOKERY_CONFIG=str(file))

    assert loaded.settings.data_dir == home / "etc" / "state"
    assert loaded.sources["data_dir"] == str(file)


def test_path_given_elsewhere_is_relative_to_where_the_command_runs(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home.mkdir()
    monkeypatch.chdir(home)

    assert load(home, flags={"data_dir": "state"}).settings.data_dir == home / "state"
    assert load(home, flags={"data_dir": "~/state"}).settings.data_dir == home / "state"


@pytest.mark.parametrize(("xdg", "is_used"), [("/xdg", True), ("xdg", False), ("", False)])
def test_data_home_counts_only_when_absolute(home: Path, xdg: str, is_used: bool) -> None:
    data_dir = load(home, XDG_DATA_HOME=xdg).settings.data_dir

    assert data_dir == (Path("/xdg/rookery") if is_used else home / ".local" / "share" / "rookery")


def test_unknown_names_are_warnings_with_the_nearest_one(home: Path) -> None:
    file = write(home / "r.toml", 'lisen = ":1"\n[wurker]\nx = 1\n[empty]\n')

    loaded = load(home, ROOKERY_CONFIG=str(file), ROOKERY_LOG_LEVLE="debug", ROOKERY_LISTEN_FILE="x")

    assert [str(warning) for warning in loaded.warnings] == [
        f"lisen (from {file}): there is no such setting. Did you mean listen?",
        f"wurker.x (from {file}): there is no such setting.",
        f"empty (from {file}): there is no such setting.",
        "ROOKERY_LISTEN_FILE (from environment): there is no such setting. Did you mean ROOKERY_LISTEN?",
        "ROOKERY_LOG_LEVLE (from environment): there is no such setting. Did you mean ROOKERY_LOG_LEVEL?",
    ]


def test_unknown_names_are_problems_when_strict(home: Path) -> None:
    assert len(problems(home, strict=True, ROOKERY_LISEN=":1", ROOKERY_LOG_FORMT="json")) == 2


def test_config_cannot_be_set_in_the_file(home: Path) -> None:
    file = write(home / "r.toml", 'config = "other.toml"\n')

    assert [warning.key for warning in load(home, ROOKERY_CONFIG=str(file)).warnings] == ["config"]


def test_pins_of_runtime_settings_and_the_client_token_are_not_unknown(home: Path) -> None:
    assert load(home, strict=True, ROOKERY_PIN_RETENTION_DAYS="3", ROOKERY_TOKEN="rk_x").warnings == ()


def test_secret_comes_from_a_file_without_its_last_newline(home: Path) -> None:
    file = write(home / "url", "postgresql://u:p@h/db\n")

    loaded = load(home, ROOKERY_DATABASE_URL_FILE=str(file))

    assert loaded.settings.database_url == "postgresql://u:p@h/db"
    assert loaded.sources["database_url"] == "ROOKERY_DATABASE_URL_FILE"


def test_secret_given_twice_is_a_problem(home: Path) -> None:
    file = write(home / "url", "postgresql://h/db\n")

    found = problems(home, ROOKERY_DATABASE_URL="postgresql://h/db", ROOKERY_DATABASE_URL_FILE=str(file))

    assert found == [
        "database_url (from ROOKERY_DATABASE_URL): ROOKERY_DATABASE_URL_FILE is set as well; set one of the two."
    ]


def test_secret_file_that_cannot_be_read_is_a_problem(home: Path) -> None:
    assert "cannot be read" in problems(home, ROOKERY_DATABASE_URL_FILE=str(home / "none"))[0]


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hunter22@h/db",
        "hunter22",
        "postgresql://u:hunter22/x@h/db",
        "postgresql://u:hunter22#x@h/db",
        "postgresql://u:hunter22?x@h/db",
        "postgresql://u:hunter22 x@h/db",
        "postgresql://u:hunter22@[::1/db",
        "postgresql://u:hunter22@h/db\x00",
    ],
)
def test_refused_database_url_is_not_quoted(home: Path, url: str) -> None:
    (found,) = problems(home, ROOKERY_DATABASE_URL=url)

    assert "hunter22" not in found


@pytest.mark.parametrize(
    ("url", "seen"),
    [
        ("postgresql://u:hunter22@h:5432/db", "postgresql://u:***@h:5432/db"),
        ("postgresql://u:p@hunter22@h/db", "postgresql://u:***@h/db"),
        ("postgresql://u:a:hunter22@h/db", "postgresql://u:***@h/db"),
        ("postgresql://:hunter22@h/db", "postgresql://:***@h/db"),
        ("postgresql://u@h1:1,h2:2/db", "postgresql://u@h1:1,h2:2/db"),
        ("postgresql:///db?host=/run/pg&PassWord=hunter22&user=u", "postgresql:///db?host=/run/pg&PassWord=***&user=u"),
        ("postgres://u@h/db?sslpassword=hunter22", "postgres://u@h/db?sslpassword=***"),
    ],
)
def test_masked_database_url_keeps_host_and_database(home: Path, url: str, seen: str) -> None:
    effective = load(home, ROOKERY_DATABASE_URL=url).settings

    assert effective.database_url == url
    assert settings.masked(effective)["database_url"] == seen


# Passwords that are accepted in the user part of a URL.
_PASSWORDS = st.text("abcXYZ019:@!$&'()*+,;=._~-", min_size=8, max_size=20)


@given(_PASSWORDS)
def test_no_password_survives_the_masking(password: str) -> None:
    effective = settings.load({"database_url": f"postgresql://user:{password}@host/db"}, {"HOME": "/home/x"}).settings

    assert settings.masked(effective)["database_url"] == "postgresql://user:***@host/db"
    assert ("database_url", password) in set(settings.secret_literals(effective))


def test_secret_literals_hold_the_password_as_written_and_as_meant(home: Path) -> None:
    effective = load(home, ROOKERY_DATABASE_URL="postgresql://u:a%40b@h/db?sslpassword=c").settings

    assert set(settings.secret_literals(effective)) == {
        ("database_url", "a%40b"),
        ("database_url", "a@b"),
        ("database_url", "c"),
    }


def test_ring_is_taken_masked_and_hidden_key_by_key(home: Path) -> None:
    one, two = "A" * 43 + "=", "b-_" * 14 + "c"

    effective = load(home, ROOKERY_SECRET_KEYS=f"new:{one}, old:{two}").settings

    assert effective.secret_keys == f"new:{one}, old:{two}"
    assert settings.masked(effective)["secret_keys"] == "***"
    assert {("secret_keys", one), ("secret_keys", two)} <= set(settings.secret_literals(effective))


@pytest.mark.parametrize("ring", ["secret", "a:c2hvcnQ=", f"a:{'A' * 43}=,b", f"a b:{'A' * 43}="])
def test_bad_ring_is_a_problem_that_does_not_quote_it(home: Path, ring: str) -> None:
    assert problems(home, ROOKERY_SECRET_KEYS=ring) == [
        "secret_keys (from ROOKERY_SECRET_KEYS): the value is not id:base64 of 32 bytes, separated by commas."
    ]


def test_masked_values_can_be_written_back(home: Path) -> None:
    effective = load(
        home, ROOKERY_SHUTDOWN_DELAY="1500ms", ROOKERY_DRAIN_TIMEOUT="2m", ROOKERY_ALLOWED_HOSTS="a.b,c.d"
    ).settings

    seen = settings.masked(effective)
    written = {
        name: ",".join(value) if isinstance(value, list) else str(value) for name, value in seen.items() if value
    }
    again = load(home, flags=written)

    assert seen["shutdown_delay"] == "1500ms"
    assert seen["drain_timeout"] == "120s"
    assert again.settings == effective


def test_table_and_struct_name_the_same_settings_in_the_same_order() -> None:
    assert (*(key.field for key in KEYS), "named_files") == Settings.__struct_fields__


def test_names_of_flags_and_variables_are_unique_and_follow_the_rule() -> None:
    key = keys.Key("worker.lease_ttl", value_types.DURATION, "30s", "How long a lease holds.")

    assert (key.field, key.flag, key.variable) == ("worker_lease_ttl", "--worker-lease-ttl", "ROOKERY_WORKER_LEASE_TTL")
    assert len({key.variable for key in KEYS}) == len(KEYS)


def test_every_default_passes_its_own_check() -> None:
    for key in KEYS:
        if key.default is not None:
            assert key.check is None or key.check(key.kind.parse(key.default)) is None


def test_every_key_without_a_default_says_what_holds_instead() -> None:
    assert [key.name for key in KEYS if key.default is None and not key.otherwise] == []


def test_settings_cannot_be_changed(home: Path) -> None:
    effective = load(home).settings

    with pytest.raises(AttributeError):
        effective.log_level = "debug"  # type: ignore[misc]


def test_reference_page_is_current() -> None:
    page = REFERENCE.read_text()

    assert page == keys.reference_markdown(), "run: make docs"


def test_lists_are_arrays_in_the_file_and_separated_by_commas_elsewhere(home: Path) -> None:
    file = write(home / "r.toml", 'allowed_hosts = ["Chat.Example.org", "[::1]"]\n')

    loaded = load(
        home,
        flags={"config": str(file)},
        ROOKERY_ALLOWED_ORIGINS="https://a.example.org/, https://b.example.org:8443",
        ROOKERY_TRUSTED_PROXIES="10.0.0.7,10.1.2.3/8,10.0.0.7",
    ).settings

    assert loaded.allowed_hosts == ("chat.example.org", "::1")
    assert loaded.allowed_origins == ("https://a.example.org", "https://b.example.org:8443")
    assert loaded.trusted_proxies == ("10.0.0.7/32", "10.0.0.0/8")


@pytest.mark.parametrize(
    ("variable", "text", "said"),
    [
        ("ROOKERY_ALLOWED_HOSTS", "a,b:80", "'b:80', which is not a host name without a port"),
        ("ROOKERY_ALLOWED_ORIGINS", "a.example.org", "which is not an origin like https://"),
        ("ROOKERY_TRUSTED_PROXIES", "10.0.0.7,proxy", "'proxy', which is neither an IP address nor a network"),
        ("ROOKERY_ALLOWED_HOSTS", "a,,b", "is empty"),
    ],
)
def test_wrong_item_of_a_list_is_named(home: Path, variable: str, text: str, said: str) -> None:
    (found,) = problems(home, environ={variable: text})

    assert said in found


@pytest.mark.parametrize(
    ("text", "size"), [("1MiB", 1024**2), ("2048", 2048), ("512 kib", 512 * 1024), ("1GiB", 1024**3)]
)
def test_sizes_are_bytes(home: Path, text: str, size: int) -> None:
    assert load(home, ROOKERY_HTTP_MAX_BODY=text).settings.http_max_body == size


@pytest.mark.parametrize("text", ["1MB", "-1", "1.5MiB", "12", "2GiB"])
def test_sizes_that_make_no_sense_are_refused(home: Path, text: str) -> None:
    assert len(problems(home, ROOKERY_HTTP_MAX_BODY=text)) == 1


def test_auto_is_one_replica_for_each_usable_core(home: Path) -> None:
    assert load(home, ROOKERY_REPLICAS="auto").settings.replicas == value_types.usable_cores() >= 1
    assert load(home, ROOKERY_REPLICAS="3").settings.replicas == 3
    assert len(problems(home, ROOKERY_REPLICAS="0")) == 1
    assert len(problems(home, ROOKERY_REPLICAS="many")) == 1


def test_life_of_tokens_is_given_in_days(home: Path) -> None:
    assert load(home, ROOKERY_AUTH_TOKEN_MAX_TTL="30d").settings.auth_token_max_ttl == timedelta(days=30)
    assert len(problems(home, ROOKERY_AUTH_TOKEN_MAX_TTL="1h")) == 1


def test_setup_token_that_can_be_guessed_is_refused_without_being_shown(home: Path) -> None:
    (found,) = problems(home, ROOKERY_SETUP_TOKEN="hunter2")

    assert "hunter2" not in found
    assert "shorter than 20 characters" in found


CERT = {"ROOKERY_RELAY_TLS_CERT": "c.pem", "ROOKERY_RELAY_TLS_KEY": "k.pem"}


@pytest.mark.parametrize(
    "given",
    [
        {"ROOKERY_RELAY_BIND": "127.0.0.1:7118"},
        {"ROOKERY_RELAY_BIND": "localhost:7118", "ROOKERY_RELAY_URL": "ws://localhost:7118"},
        {"ROOKERY_RELAY_BIND": "10.0.0.5:7118", **CERT},
        {"ROOKERY_RELAY_BIND": ":7118", "ROOKERY_RELAY_URL": "wss://nest.example.org:7118", **CERT},
        {"ROOKERY_RELAY_TLS_CA": "ca.pem"},
    ],
)
def test_relay_settings_that_fit_together(home: Path, given: dict[str, str]) -> None:
    assert load(home, environ=given).warnings == ()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ROOKERY_RELAY_BIND": "10.0.0.5:7118"}, "needs relay_tls_cert and relay_tls_key"),
        ({"ROOKERY_RELAY_BIND": ":7118", **CERT}, "so set the address by which other machines reach"),
        (
            {"ROOKERY_RELAY_BIND": "10.0.0.5:1", "ROOKERY_RELAY_TLS_CERT": "c.pem"},
            "the other setting of this pair is missing",
        ),
        ({"ROOKERY_RELAY_URL": "wss://nest:7118"}, "no effect without relay_bind"),
        ({"ROOKERY_RELAY_BIND": "127.0.0.1:1", "ROOKERY_RELAY_URL": "ws://nest:1"}, "begins with wss://"),
        ({"ROOKERY_RELAY_BIND": "127.0.0.1:1", "ROOKERY_RELAY_URL": "https://nest:1"}, "is not scheme, host"),
        (
            {"ROOKERY_RELAY_BIND": "10.0.0.5:1", "ROOKERY_RELAY_URL": "wss://nest", "ROOKERY_REPLICAS": "2", **CERT},
            "needs a port",
        ),
    ],
)
def test_relay_settings_that_do_not_fit_together_are_refused(home: Path, given: dict[str, str], said: str) -> None:
    assert any(said in problem for problem in problems(home, environ=given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"ROOKERY_TLS_CERT": "c.pem"}, "no effect without tls_key"),
        ({"ROOKERY_TLS_KEY": "k.pem"}, "no effect without tls_cert"),
        ({"ROOKERY_TLS_CERT": "c.pem", "ROOKERY_TLS_KEY": "k.pem"}, "No such file"),
    ],
)
def test_certificate_that_cannot_be_served_with_is_refused(home: Path, given: dict[str, str], said: str) -> None:
    assert any(said in problem for problem in problems(home, environ=given))


def test_metrics_beyond_this_machine_need_a_token(home: Path) -> None:
    token = {"ROOKERY_METRICS_TOKEN": "sixteen-letters-or-more"}

    assert load(home, ROOKERY_METRICS_LISTEN="127.0.0.1:9100").settings.metrics_listen == Address("127.0.0.1", 9100)
    assert load(home, environ=token, ROOKERY_METRICS_LISTEN=":9100").settings.metrics_token
    (found,) = problems(home, ROOKERY_METRICS_LISTEN=":9100")
    assert "needs metrics_token" in found
    (short,) = problems(home, ROOKERY_METRICS_LISTEN=":9100", ROOKERY_METRICS_TOKEN="hunter2")
    assert "hunter2" not in short


def test_every_file_that_a_setting_or_variable_names_is_private(home: Path) -> None:
    password = write(home / "password", "a-token-of-20-characters")
    loaded = load(
        home,
        flags={"relay_bind": "127.0.0.1:0"},
        ROOKERY_SETUP_TOKEN_FILE=str(password),
        ROOKERY_CONFIG=str(write(home / "settings.toml", 'relay_tls_cert = "relay.pem"\nrelay_tls_key = "relay.key"')),
        ROOKERY_DATABASE_URL="postgresql://host/db?sslkey=/keys/client.key&passfile=/keys/pass&sslmode=require",
        PGPASSFILE="/keys/pgpass",
    ).settings

    private = settings.private_paths(loaded)

    assert private[0] == loaded.data_dir
    assert set(private) >= {
        *(password, home / "settings.toml", home / "relay.pem", home / "relay.key"),
        *(Path(path) for path in ("/keys/client.key", "/keys/pass", "/keys/pgpass")),
    }


def test_new_setting_that_is_a_path_is_private_unless_it_is_listed_as_public(home: Path) -> None:
    public = {"drivers.local.bwrap", "drivers.local.cgroup", "relay_tls_ca"}
    paths = [key for key in KEYS if key.kind is value_types.PATH]
    given = msgspec.structs.replace(load(home).settings, **{key.field: Path("/set", key.name) for key in paths})

    private = {path.name for path in settings.private_paths(given) if path.parent == Path("/set")}

    assert private == {key.name for key in paths} - public


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("1000", "not a range"),
        ("a-b", "not a range"),
        ("-5-10", "not a range"),
        ("1000-", "not a range"),
        ("99999999999-99999999999", "not a range"),
        ("2000-1999", "ends before"),
        ("0-5000", "below 1000"),
        ("60000-70000", "have a special meaning"),
        ("65534-65534", "have a special meaning"),
        ("2000000000-4294967295", "highest user id"),
    ],
)
def test_range_of_users_refuses_what_is_none(home: Path, text: str, wrong: str) -> None:
    (problem,) = problems(home, ROOKERY_DRIVERS_LOCAL_UID_RANGE=text)

    assert problem.startswith("drivers.local.uid_range")
    assert wrong in problem


def test_range_of_users_is_shown_as_it_is_written(home: Path) -> None:
    effective = load(home, ROOKERY_DRIVERS_LOCAL_UID_RANGE=" 3000 - 3999 ").settings

    assert effective.drivers_local_uid_range == (3000, 3999)
    assert settings.masked(effective)["drivers.local.uid_range"] == "3000-3999"


def test_user_for_shared_folders_is_not_one_of_the_range(home: Path) -> None:
    (problem,) = problems(home, ROOKERY_DRIVERS_LOCAL_UID="3500", ROOKERY_DRIVERS_LOCAL_UID_RANGE="3000-3999")

    assert "is in drivers.local.uid_range" in problem
