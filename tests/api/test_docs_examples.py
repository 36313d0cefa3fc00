"""Every example of the guide to the API runs: `sh` blocks with curl and `python` blocks, page by page, in order.

The blocks of a page share their variables. Values that a reader has to fill in (an address, a token, the id of a chat)
are filled in here. Blocks that cannot be run are marked as `text`.
"""

from __future__ import annotations

import asyncio
import base64
import os
import re
import shlex
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from rookery.domain.access.rights import Role
from rookery.store.people import first_admin, one_time_links, users
from rookery.store.people.one_time_links import LinkKind
from rookery.store.people.users import User
from tests.api.api_rig import ApiRig, Person, open_house
from tests.api.chat_rig import ChatRig
from tests.api.debug_rig import DebugRecords, said
from tests.required_programs import requires

FOLDER = Path(__file__).parents[2] / "docs" / "api"
PAGES = sorted(FOLDER.glob("*.md"))
FENCE = re.compile(r"^```(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN, SHOWN = frozenset({"sh", "python"}), frozenset({"text", "json"})
ADDRESS = "http://127.0.0.1:7117"
DEADLINE_SECONDS = 60
# The smallest valid image.
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
# An error response fails the test. Streams do not end, so they are read for a moment.
CURL = """\
#!/bin/sh
for word in "$@"; do
  if [ "$word" = -N ]; then
    {curl} --fail-with-body -sS --max-time 1.5 "$@"
    status=$?
    [ $status -eq 28 ] && exit 0
    exit $status
  fi
done
exec {curl} --fail-with-body -sS --max-time 30 "$@"
"""


class Block(NamedTuple):
    language: str
    text: str


def blocks(page: Path) -> list[Block]:
    return [Block(*found) for found in FENCE.findall(page.read_text())]


@dataclass
class Reader:
    """Runs the blocks of a page in a separate folder, with an account, and fills in the values."""

    rig: ApiRig
    folder: Path
    person: Person | None
    variables: dict[str, str] = field(default_factory=dict)
    names: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})

    async def run(self, block: Block) -> str:
        text = await self._filled_in(block.text)
        if block.language == "python":
            code = compile(text, "example", "exec")
            await asyncio.wait_for(asyncio.to_thread(exec, code, self.names), DEADLINE_SECONDS)
            return ""
        return await self._shell(text)

    async def _shell(self, text: str) -> str:
        """Run a shell block. Its variables are kept for the next block."""
        kept = self.folder / "variables"
        given = "\n".join(f"{name}={shlex.quote(value)}" for name, value in self.variables.items())
        script = (
            f"set -aeu -o pipefail\n. {shlex.quote(str(kept))}\n{given}\n{text}\nexport -p > {shlex.quote(str(kept))}"
        )
        kept.touch()
        process = await asyncio.create_subprocess_exec(
            *("bash", "-c", script),
            cwd=self.folder,
            env={**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}", "no_proxy": "127.0.0.1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            output = (await asyncio.wait_for(process.communicate(), DEADLINE_SECONDS))[0].decode()
        finally:
            if process.returncode is None:
                process.kill()
        assert process.returncode == 0, f"{text}\n{output}"
        return output

    async def _filled_in(self, text: str) -> str:
        for name, fill_in in FILLED_IN.items():
            if re.search(rf"\${name}\b", text):
                await fill_in(self)
        text = text.replace(ADDRESS, self.rig.url)
        if "rk_setup_..." in text:
            text = text.replace("rk_setup_...", await self._setup_token())
        if "rk_l_..." in text:
            text = text.replace("rk_l_...", await self._link())
        if "rk_..." in text:
            text = text.replace("rk_...", await self._token())
        return text

    async def _account(self) -> User:
        if self.person is not None:
            return self.person.user
        async with self.rig.database.api.acquire() as conn:
            found = await users.find_by_login(conn, "ada")
        assert found is not None
        return found[0]

    async def _token(self) -> str:
        return self.person.token if self.person is not None else await self.rig.token_of(await self._account())

    async def _setup_token(self) -> str:
        async with self.rig.database.api.acquire() as conn:
            token = await first_admin.ensure_token(conn, self.folder / "data", now=self.rig.clock.now())
        assert token is not None
        return token

    async def _link(self) -> str:
        user = await self._account()
        async with self.rig.database.api.acquire() as conn:
            made = await one_time_links.create_link(
                conn, user.id, kind=LinkKind.RESET, now=self.rig.clock.now(), by=None
            )
        return made.secret

    @property
    def chat_rig(self) -> ChatRig:
        assert self.person is not None, "this page has no account to begin with"
        return ChatRig(self.rig, self.person)

    async def fill_in_chat(self) -> None:
        """Create a chat for each block, because some blocks delete it."""
        self.variables["CHAT"] = chat = await self.chat_rig.waiting()
        page = (await self.chat_rig.http.get(f"/api/v1/chats/{chat}/messages")).json()
        self.variables["MESSAGE"] = str(page["items"][-1]["id"])

    async def fill_in_queue(self) -> None:
        self.variables["CHAT"] = chat = await self.chat_rig.asking("one", "two")
        queued = (await self.chat_rig.http.get(f"/api/v1/chats/{chat}/queue")).json()
        self.variables["QUEUED"] = str(queued["items"][0]["id"])

    async def fill_in_records(self) -> None:
        """Record two runs for each block, because some blocks delete them."""
        async with self.rig.database.api.acquire() as conn:
            model = await conn.fetchval("SELECT id FROM model_configs LIMIT 1")
        records = DebugRecords(self.rig.database.api)
        run, (step,) = await records.run(self.variables["CHAT"], [said("Say hello.")], model_config_id=model)
        other, _ = await records.run(self.variables["CHAT"], [said("Say hi.")], model_config_id=model)
        self.variables |= {"RUN": str(run), "OTHER": str(other), "STEP": str(step)}

    async def fill_in_folder(self) -> None:
        made = await self.chat_rig.http.post("/api/v1/folders", json={"name": "Side projects"})
        self.variables["FOLDER"] = made.json()["id"]

    async def fill_in_file(self) -> None:
        named = {"Content-Type": "image/png", "Content-Disposition": 'attachment; filename="photo.png"'}
        made = await self.chat_rig.http.post("/api/v1/files", content=PIXEL, headers=named)
        self.variables["FILE"] = made.json()["id"]

    async def fill_in_user(self) -> None:
        self.variables["USER_ID"] = str((await self.rig.add("bob")).id)

    async def fill_in_token(self) -> None:
        self.variables["TOKEN"] = await self._token()


# The chat first, because a queued message needs one.
FILLED_IN: dict[str, Callable[[Reader], Awaitable[None]]] = {
    "CHAT": Reader.fill_in_chat,
    "QUEUED": Reader.fill_in_queue,
    "RUN": Reader.fill_in_records,
    "FOLDER": Reader.fill_in_folder,
    "FILE": Reader.fill_in_file,
    "USER_ID": Reader.fill_in_user,
    "TOKEN": Reader.fill_in_token,
}


@pytest.fixture
async def reader(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> AsyncIterator[Reader]:
    """A reader of the page in the parameter. One page starts with a server that is not set up."""
    page: Path = request.param
    is_about_programs = any(block.language == "python" and "Rookery(" in block.text for block in blocks(page))
    async with open_house(database_url, tmp_path, takes_chats=is_about_programs) as rig:
        await rig.add_model()
        person = None
        if page.stem != "identity":
            person = await rig.add("ada", role=Role.ADMIN)
            await set_password(rig, person, "a long sentence of mine")
        (tmp_path / "bin").mkdir()
        curl = tmp_path / "bin" / "curl"
        curl.write_text(CURL.format(curl=shlex.quote(shutil.which("curl") or "curl")))
        curl.chmod(0o755)
        (tmp_path / "photo.png").write_bytes(PIXEL)
        yield Reader(rig, tmp_path, person)


async def set_password(rig: ApiRig, person: Person, password: str) -> None:
    hashed = await rig.replica.passwords.hash(password)
    async with rig.database.api.acquire() as conn:
        await users.set_password_hash(conn, person.id, password_hash=hashed)


def test_every_block_says_whether_it_runs() -> None:
    unknown = [
        f"{page.name}: {block.language or 'nothing'}"
        for page in PAGES
        for block in blocks(page)
        if block.language not in RUN | SHOWN
    ]

    assert unknown == []
    assert {page.stem for page in PAGES} >= {"chats", "identity", "sdk", "streams"}


@requires("curl")
@pytest.mark.parametrize(
    "reader",
    [page for page in PAGES if any(block.language in RUN for block in blocks(page))],
    indirect=True,
    ids=lambda page: page.name,
)
async def test_examples_of_the_page_run(reader: Reader, request: pytest.FixtureRequest) -> None:
    page: Path = request.node.callspec.params["reader"]

    for block in blocks(page):
        if block.language not in RUN:
            continue
        output = await reader.run(block)
        if "curl -N" in block.text:
            first = "ready" if "watch" in block.text else "hello"
            assert f'"type":"{first}"' in output, output


@requires("curl")
@pytest.mark.parametrize("reader", [FOLDER / "chats.md"], indirect=True)
@pytest.mark.parametrize(
    "block",
    [
        Block("sh", f'curl "{ADDRESS}/api/v1/chats"\ntrue'),
        Block("sh", f'curl -N -H "Authorization: Bearer rk_x" "{ADDRESS}/api/v1/chats/watch"'),
        Block("sh", "echo $NOBODY_SET_THIS"),
        Block("python", "assert False"),
    ],
    ids=["refused", "stream refused", "variable missing", "python"],
)
async def test_example_that_does_not_work_is_noticed(reader: Reader, block: Block) -> None:
    with pytest.raises(AssertionError):
        await reader.run(block)
