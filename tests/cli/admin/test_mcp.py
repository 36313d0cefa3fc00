"""`rookery admin mcp`: add, list, test and remove servers of the deployment."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rookery.cli.admin import arguments, mcp
from rookery.cli.admin.mcp import NewServer
from rookery.cli.exit_codes import Exit, Refused
from rookery.cli.output import Output
from rookery.domain.mcp.server import AuthType, Availability, Transport
from rookery.models.key_ring import KeyRing, new_key
from rookery.runtime.secret_str import SecretStr
from rookery.settings.settings import Settings, load
from rookery.store.mcp import servers
from tests.cli.admin.run.run_rig import Stream
from tests.store.models.provider_rows import ModelRows, open_nest

RING = new_key("ring")


@pytest.fixture
async def rows(database_url: str) -> AsyncIterator[ModelRows]:
    async with open_nest(database_url) as opened:
        yield opened


def settings_of(rows: ModelRows, home: Path) -> Settings:
    return load({"database_url": rows.url, "secret_keys": RING}, {"HOME": str(home)}).settings


def new(slug: str, url: str | None = None, *, auth: str | None = None) -> NewServer:
    return NewServer(
        slug=slug,
        url=url,
        display_name="",
        auth=auth,
        header=None,
        key_stdin=False,
        availability="default_on",
        transport="auto",
        call_timeout=60,
    )


async def test_server_of_the_catalog_needs_only_its_slug(rows: ModelRows, tmp_path: Path) -> None:
    stdout, stderr = Stream(), Stream()
    out = Output(stdout, stderr)
    code = await mcp.add(settings_of(rows, tmp_path), out, new=new("linear"), key=None)

    (made,) = await servers.list_of_deployment(rows.conn)
    assert code == Exit.OK
    assert (made.url, made.auth_type) == ("https://mcp.linear.app/mcp", AuthType.OAUTH2)
    assert "under Connections" in stdout.getvalue()
    await mcp.list_all(settings_of(rows, tmp_path), out)
    assert "https://mcp.linear.app/mcp" in stdout.getvalue()


async def test_key_is_sealed_and_not_shown(rows: ModelRows, tmp_path: Path) -> None:
    stdout, stderr = Stream(), Stream()
    key = SecretStr("Bearer key-secret")
    await mcp.add(settings_of(rows, tmp_path), Output(stdout, stderr), new=new("github"), key=key)

    (made,) = await servers.list_of_deployment(rows.conn)
    assert servers.open_headers(made, KeyRing.parse(RING)) == {"Authorization": "Bearer key-secret"}
    assert "key-secret" not in stdout.getvalue() + stderr.getvalue()


async def test_refusals_are_one_line(rows: ModelRows, tmp_path: Path) -> None:
    settings = settings_of(rows, tmp_path)
    out = Output(Stream(), stderr := Stream())
    await mcp.add(settings, out, new=new("docs", "https://mcp.example.org/mcp"), key=None)

    assert await mcp.add(settings, out, new=new("docs", "https://mcp.example.org/mcp"), key=None) == Exit.FAILED
    assert await mcp.add(settings, out, new=new("a", "https://u:p@mcp.example.org/"), key=None) == Exit.USAGE
    assert await mcp.add(settings, out, new=new("unknown"), key=None) == Exit.USAGE
    assert await mcp.remove(settings, out, slug="none", yes=True) == Exit.FAILED
    assert await mcp.remove(settings, out, slug="docs", yes=False) == Exit.FAILED
    assert "already" in stderr.getvalue()
    with pytest.raises(Refused):
        mcp.ask_key(new("github"))  # there is no terminal


async def test_unreachable_server_fails_its_test_with_the_reason(rows: ModelRows, tmp_path: Path) -> None:
    settings = settings_of(rows, tmp_path)
    out = Output(stdout := Stream(), Stream())
    await mcp.add(settings, out, new=new("docs", "http://127.0.0.1:9/mcp"), key=None)

    assert await mcp.test(settings, out, slug="docs") == Exit.FAILED
    assert "private network" in stdout.getvalue()


async def test_removed_server_is_gone(rows: ModelRows, tmp_path: Path) -> None:
    settings = settings_of(rows, tmp_path)
    out = Output(Stream(), Stream())
    await mcp.add(settings, out, new=new("docs", "https://mcp.example.org/mcp"), key=None)

    assert await mcp.remove(settings, out, slug="docs", yes=True) == Exit.OK
    assert await servers.list_of_deployment(rows.conn) == ()


def test_choices_are_those_of_the_rules() -> None:
    assert set(arguments.MCP_AUTH) == {str(each) for each in AuthType} - {"custom_headers"}
    assert list(arguments.MCP_AVAILABILITY) == [str(each) for each in Availability]
    assert list(arguments.MCP_TRANSPORTS) == [str(each) for each in Transport]
