"""Logging in and out from a terminal, at a real server."""

from __future__ import annotations

import io
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.cli.chat import credentials, login
from rookery.cli.chat.credentials import CredentialsFile
from rookery.cli.chat.login import Answers
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.client import AsyncRookery, Unauthenticated
from rookery.domain.access.rights import Role
from tests.api.api_rig import PASSWORD, ApiRig, open_house
from tests.cli.admin.run.run_rig import Stream


class Desk:
    def __init__(self, rig: ApiRig, home: Path) -> None:
        self.rig = rig
        self.url = rig.url
        self.file = CredentialsFile({"HOME": str(home)})
        self.stdout = Stream()
        self.out = Output(self.stdout, Stream())

    async def log_in(self, **answers: str) -> int:
        return await login.login(self.url, Answers(**answers), file=self.file, out=self.out)

    def client(self) -> AsyncRookery:
        return AsyncRookery(self.url, token=credentials.find(self.url, {}, self.file).token)


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    async with open_house(database_url, tmp_path) as rig:
        await rig.add("ada", role=Role.ADMIN)
        yield Desk(rig, tmp_path)


async def test_password_becomes_a_token_and_is_not_kept(desk: Desk) -> None:
    assert not await login.is_setup_needed(desk.url)

    assert await desk.log_in(login="ada@example.test", password=PASSWORD) == Exit.OK

    assert desk.stdout.getvalue() == f"Logged in at {desk.url} as ada. The token is in {desk.file.path}.\n"
    assert PASSWORD not in desk.file.path.read_text()
    async with desk.client() as client:
        assert (await client.me()).username == "ada"
        names = [token.name for token in await client.tokens.list()]
    assert sum("terminal" in name for name in names) == 1
    assert all(len(name) <= 64 for name in names)


async def test_session_that_made_the_token_is_over(desk: Desk) -> None:
    await desk.log_in(login="ada", password=PASSWORD)

    async with desk.rig.database.api.acquire() as conn:
        assert await conn.fetchval("SELECT count(*) FROM sessions") == 0


async def test_wrong_password_keeps_what_was_there(desk: Desk) -> None:
    with pytest.raises(Unauthenticated):
        await desk.log_in(login="ada", password="not the password")

    assert not desk.file.path.exists()


async def test_token_of_ones_own_is_checked_before_it_is_kept(desk: Desk) -> None:
    person = await desk.rig.add("ben")
    with pytest.raises(Unauthenticated):
        await desk.log_in(token="rk_nonsense")

    assert await desk.log_in(token=person.token) == Exit.OK
    assert desk.file.load().servers[desk.url].user == "ben"


async def test_logging_out_revokes_the_token_that_was_made(desk: Desk) -> None:
    await desk.log_in(login="ada", password=PASSWORD)
    client = desk.client()

    assert await login.logout(desk.url, file=desk.file, out=desk.out) == Exit.OK

    async with client:
        with pytest.raises(Unauthenticated):
            await client.me()
    assert desk.file.load().servers == {}
    with pytest.raises(Refused, match="not logged in"):
        await login.logout(desk.url, file=desk.file, out=desk.out)


async def test_logging_out_leaves_a_token_alone_that_was_brought(desk: Desk) -> None:
    person = await desk.rig.add("ben")
    await desk.log_in(token=person.token)

    await login.logout(desk.url, file=desk.file, out=desk.out)

    assert desk.stdout.getvalue().endswith("The token was not created here, and stays valid.\n")
    async with AsyncRookery(desk.url, token=person.token) as client:
        assert (await client.me()).username == "ben"


async def test_server_that_is_gone_does_not_keep_anybody_logged_in(tmp_path: Path) -> None:
    url, file, stdout = "http://127.0.0.1:1", CredentialsFile({"HOME": str(tmp_path)}), Stream()
    file.add(url, credentials.Login(token="rk_x", token_id="6f7c1a4e-0000-4000-8000-000000000001"))

    assert await login.logout(url, file=file, out=Output(stdout, Stream())) == Exit.OK

    assert "valid until it expires" in stdout.getvalue()
    assert file.load().servers == {}


def piped(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


def test_secrets_are_read_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    piped(monkeypatch, b"rk_secret\n")
    token = login.ask(is_setup=False, name=None, token_stdin=True, password_stdin=False)
    piped(monkeypatch, b" two words \r\n")
    password = login.ask(is_setup=False, name="ada", token_stdin=False, password_stdin=True)

    assert token == Answers(token="rk_secret")
    assert password == Answers(login="ada", password=" two words ")


@pytest.mark.parametrize("pasted", ["rk_setup_1", " rk_setup_1 ", "http://127.0.0.1:7117/setup#token=rk_setup_1"])
def test_setup_token_may_be_pasted_with_what_stands_around_it(monkeypatch: pytest.MonkeyPatch, pasted: str) -> None:
    typed = iter([pasted, PASSWORD, PASSWORD])
    monkeypatch.setattr("getpass.getpass", lambda _: next(typed))
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)

    answers = login.ask(is_setup=True, name="ada@example.test", token_stdin=False, password_stdin=False)

    assert answers == Answers(login="ada@example.test", password=PASSWORD, setup_token="rk_setup_1")


@pytest.mark.parametrize(
    ("data", "options", "words"),
    [
        (b"", {"token_stdin": True}, "no token on stdin"),
        (b"\n", {"password_stdin": True, "name": "ada"}, "no password on stdin"),
        (b"x" * 5000, {"token_stdin": True}, "no token on stdin"),
        (b"rk_one\nrk_two\n", {"token_stdin": True}, "Copy it again"),
        (b"secret", {"password_stdin": True}, "needs --user"),
        (b"secret", {}, "There is no terminal"),
    ],
)
def test_missing_credentials_are_named(
    monkeypatch: pytest.MonkeyPatch, data: bytes, options: dict[str, object], words: str
) -> None:
    piped(monkeypatch, data)
    given: dict[str, object] = {"is_setup": False, "name": None, "token_stdin": False, "password_stdin": False}

    with pytest.raises(Refused, match=words) as caught:
        login.ask(**{**given, **options})  # type: ignore[arg-type]
    assert caught.value.code == Exit.USAGE
