"""The server and token of the terminal client: lookup and storage."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from rookery.cli.chat import credentials
from rookery.cli.chat.credentials import Credentials, CredentialsFile, Login
from rookery.cli.exit_codes import Exit, Refused

HERE, THERE = "http://127.0.0.1:7117", "https://rookery.example.org"


@pytest.fixture
def file(tmp_path: Path) -> CredentialsFile:
    return CredentialsFile({"HOME": str(tmp_path)})


def test_file_is_in_the_config_directory_of_the_user(tmp_path: Path) -> None:
    elsewhere = CredentialsFile({"HOME": "/nowhere", "XDG_CONFIG_HOME": str(tmp_path)})
    relative = CredentialsFile({"HOME": str(tmp_path), "XDG_CONFIG_HOME": "config"})

    assert elsewhere.path == tmp_path / "rookery" / "credentials.json"
    assert relative.path == tmp_path / ".config" / "rookery" / "credentials.json"


def test_file_is_for_its_owner_only(file: CredentialsFile) -> None:
    file.add(HERE, Login(token="rk_one"))
    file.add(THERE, Login(token="rk_two"))

    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.path.parent.iterdir()] == ["credentials.json"]


def test_token_is_used_for_its_own_server_only(file: CredentialsFile) -> None:
    file.add(THERE, Login(token="rk_two"))
    file.add(HERE, Login(token="rk_one"))

    assert credentials.find(None, {}, file) == Credentials(HERE, "rk_one")
    assert credentials.find(f"{THERE}/", {}, file) == Credentials(THERE, "rk_two")
    assert credentials.find("http://other", {}, file) == Credentials("http://other", None)


def test_environment_wins_over_the_file_and_a_flag_over_both(file: CredentialsFile) -> None:
    file.add(HERE, Login(token="rk_one"))
    environ = {"ROOKERY_URL": THERE, "ROOKERY_TOKEN": "rk_env"}

    assert credentials.find(None, environ, file) == Credentials(THERE, "rk_env", is_from_environment=True)
    assert credentials.find(HERE, environ, file) == Credentials(HERE, "rk_env", is_from_environment=True)
    assert credentials.find(None, {"ROOKERY_URL": "", "ROOKERY_TOKEN": ""}, file) == Credentials(HERE, "rk_one")


def test_variable_that_cannot_be_a_token_is_refused_by_its_name(file: CredentialsFile) -> None:
    with pytest.raises(Refused, match=r"ROOKERY_TOKEN: .* Copy it again") as caught:
        credentials.find(HERE, {"ROOKERY_TOKEN": "rk_one\nrk_two"}, file)
    assert caught.value.code == Exit.USAGE


def test_without_anything_the_usual_address_is_meant(file: CredentialsFile) -> None:
    assert credentials.find(None, {}, file) == Credentials("http://127.0.0.1:7117", None)


def test_server_that_is_removed_is_forgotten_alone(file: CredentialsFile) -> None:
    file.add(THERE, Login(token="rk_two"))
    file.add(HERE, Login(token="rk_one"))

    assert file.remove(HERE) == Login(token="rk_one")
    assert file.remove(HERE) is None
    assert (file.load().last, set(file.load().servers)) == (None, {THERE})


def test_file_that_others_can_read_is_refused(file: CredentialsFile) -> None:
    file.add(HERE, Login(token="rk_one"))
    file.path.chmod(0o640)

    with pytest.raises(Refused, match=f"chmod 600 {file.path}") as caught:
        credentials.find(None, {}, file)
    assert caught.value.code == Exit.NOT_ALLOWED


def test_file_that_is_damaged_says_what_to_do(file: CredentialsFile) -> None:
    file.add(HERE, Login(token="rk_one"))
    file.path.write_text("{")

    with pytest.raises(Refused, match="Remove it and log in again"):
        file.load()


def test_address_that_is_none_is_refused(file: CredentialsFile) -> None:
    with pytest.raises(Refused, match="not the address of a server") as caught:
        credentials.address("ftp://x", {}, file)
    assert caught.value.code == Exit.USAGE
