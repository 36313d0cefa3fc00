"""pip, npm, git and ssh in a workspace with the default network, against exempted servers on the loopback."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import json
import os
import shlex
import shutil
import ssl
import subprocess
import tarfile
import tempfile
import threading
import zipfile
from collections.abc import AsyncIterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from rookery.workspaces import agent_bundle
from rookery.workspaces.drivers.driver_interface import WorkspaceSpec
from rookery.workspaces.drivers.local import LocalDriver
from rookery.workspaces.drivers.sandbox_check import LocalConfig
from rookery.workspaces.egress.sockets import EgressSockets
from tests.certificates import make_certificate
from tests.workspaces.drivers import driver_rig
from tests.workspaces.drivers.sshd import Sshd
from tests.workspaces.egress.outside_servers import Names

# Not 127.0.0.1, which is the workspace itself for every program in it.
REGISTRY = "127.0.0.2"
NAME = "registry.test"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


class Registry:
    """An index of Python packages, one of npm, and a repository: files, served over TLS."""

    def __init__(self, directory: Path) -> None:
        self.root = directory / "registry"
        self.root.mkdir()
        certificate = make_certificate(directory, NAME)
        self.authority = Path(certificate).read_text().partition("-----BEGIN PRIVATE KEY")[0]
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        self._server = ThreadingHTTPServer((REGISTRY, 0), partial(Quiet, directory=str(self.root)))
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port: int = self._server.server_port
        self.url = f"https://{NAME}:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self._add_wheel()
        self._add_package()
        self._add_repository(directory)

    def _add_wheel(self) -> None:
        name = "tinywheel-1.0-py3-none-any.whl"
        folder = self.root / "simple" / "tinywheel"
        folder.mkdir(parents=True)
        with zipfile.ZipFile(folder / name, "w") as wheel:
            wheel.writestr("tinywheel.py", "WORD = 'from the index'\n")
            wheel.writestr("tinywheel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tinywheel\nVersion: 1.0\n")
            kind = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            wheel.writestr("tinywheel-1.0.dist-info/WHEEL", kind)
            wheel.writestr("tinywheel-1.0.dist-info/RECORD", "")
        (folder / "index.html").write_text(f'<!DOCTYPE html><a href="{name}">{name}</a>')

    def _add_package(self) -> None:
        files = {
            "package/package.json": json.dumps({"name": "tinynode", "version": "1.0.0", "main": "index.js"}),
            "package/index.js": "module.exports = 'from the registry';\n",
        }
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            for name, text in files.items():
                entry = tarfile.TarInfo(name)
                entry.size = len(text)
                tar.addfile(entry, io.BytesIO(text.encode()))
        (self.root / "tinynode-1.0.0.tgz").write_bytes(packed.getvalue())
        integrity = "sha512-" + base64.b64encode(hashlib.sha512(packed.getvalue()).digest()).decode()
        dist = {"tarball": f"{self.url}/tinynode-1.0.0.tgz", "integrity": integrity}
        version = {"name": "tinynode", "version": "1.0.0", "main": "index.js", "dist": dist}
        told = {"name": "tinynode", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        (self.root / "tinynode").write_text(json.dumps(told))

    def _add_repository(self, directory: Path) -> None:
        work, self.bare = directory / "work", self.root / "tiny.git"
        identity = {"GIT_AUTHOR_NAME": "t", "GIT_AUTHOR_EMAIL": "t@t", "GIT_COMMITTER_NAME": "t"}
        env = {**os.environ, **identity, "GIT_COMMITTER_EMAIL": "t@t", "GIT_CONFIG_GLOBAL": "/dev/null"}
        git = partial(subprocess.run, check=True, capture_output=True, env=env)
        git(["git", "init", "-q", str(work)])
        (work / "word").write_text("from the forge\n")
        git(["git", "-C", str(work), "add", "."])
        git(["git", "-C", str(work), "commit", "-qm", "one"])
        git(["git", "clone", "-q", "--bare", str(work), str(self.bare)])
        git(["git", "-C", str(self.bare), "update-server-info"])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class Site:
    def __init__(self, driver: LocalDriver, registry: Registry, ws: WorkspaceSpec) -> None:
        self.driver = driver
        self.registry = registry
        self.ws = ws

    async def run(self, command: str) -> tuple[int, str]:
        begun = await asyncio.to_thread(driver_rig.begin, self.driver, self.ws, command)
        return await asyncio.to_thread(driver_rig.end, self.driver, self.ws, begun)


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    with tempfile.TemporaryDirectory(prefix="pm-") as directory:
        registry = await asyncio.to_thread(Registry, Path(directory))
        config = LocalConfig(data_dir=Path(directory) / "data", net_allow_private=(f"{REGISTRY}/32",))
        names = Names()
        names.set(NAME, [REGISTRY])
        egress_sockets = EgressSockets(config.data_dir, names.guard(*config.net_allow_private))
        machine = await asyncio.to_thread(driver_rig.known_machine)
        driver = LocalDriver(config, agent_bundle.build, machine=machine, egress_sockets=egress_sockets)
        authority = "/home/agent/ca.pem"
        trust = ("PIP_CERT", "npm_config_cafile", "GIT_SSL_CAINFO", "CURL_CA_BUNDLE")
        ws = driver_rig.spec(env=dict.fromkeys(trust, authority))
        made = Site(driver, registry, ws)
        try:
            await driver.start(ws, print)
            await made.run(f"printf %s {shlex.quote(registry.authority)} > {authority}")
            yield made
        finally:
            await driver.delete(ws)
            await driver.egress_sockets.close()
            await asyncio.to_thread(registry.close)


def require(program: str) -> None:
    """Skip unless the program is below /usr: a workspace sees nothing else."""
    if shutil.which(program, path="/usr/bin:/usr/local/bin") is None:
        pytest.skip(f"there is no {program} below /usr")


async def test_pip_installs_from_a_registry_that_is_exempt(site: Site) -> None:
    if (await site.run("python3 -m pip --version"))[0] != 0:
        pytest.skip("there is no pip below /usr")

    index = f"{site.registry.url}/simple"
    code, output = await site.run(f"python3 -m pip install -q --no-cache-dir --target ~/lib -i {index} tinywheel 2>&1")

    assert code == 0, output
    assert await site.run("PYTHONPATH=~/lib python3 -c 'import tinywheel; print(tinywheel.WORD)'") == (
        0,
        "from the index\n",
    )
    assert site.driver.egress_sockets.stats.requests["allowed"] >= 2


async def test_npm_installs_from_a_registry_that_is_exempt(site: Site) -> None:
    require("npm")

    install = f"npm install --no-audit --no-fund --registry {site.registry.url}/ tinynode"
    code, output = await site.run(f"mkdir -p ~/project && cd ~/project && echo {{}} > package.json && {install} 2>&1")

    assert code == 0, output
    assert await site.run("cd ~/project && node -p 'require(\"tinynode\")'") == (0, "from the registry\n")
    assert site.driver.egress_sockets.stats.requests["allowed"] >= 2


async def test_git_clones_over_https_from_a_forge_that_is_exempt(site: Site) -> None:
    require("git")

    code, output = await site.run(f"git clone -q {site.registry.url}/tiny.git ~/clone 2>&1")

    assert code == 0, output
    assert await site.run("cat ~/clone/word") == (0, "from the forge\n")


async def test_git_clones_over_ssh_by_the_command_that_the_workspace_has_for_it(site: Site, tmp_path: Path) -> None:
    require("git")
    require("ssh")
    sshd = await asyncio.to_thread(Sshd, tmp_path)
    sshd.configure(f"ListenAddress {REGISTRY}:{sshd.port}")
    await asyncio.to_thread(sshd.start)
    try:
        place = sshd.place()
        key = shlex.quote((place.identity or "").strip())
        await site.run(f"umask 077; mkdir -p ~/.ssh; printf '%s\\n' {key} > ~/.ssh/id")
        options = "-i ~/.ssh/id -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
        url = f"ssh://{place.user}@{NAME}:{sshd.port}{site.registry.bare}"
        code, output = await site.run(f"GIT_SSH_COMMAND='ssh {options}' git clone -q {url} ~/clone 2>&1")
        refused = await site.run(f"ssh {options} -p {sshd.port} root@127.0.0.3 true 2>&1")
    finally:
        await asyncio.to_thread(sshd.stop)

    assert code == 0, output
    assert await site.run("cat ~/clone/word") == (0, "from the forge\n")
    assert refused[0] != 0
    assert "127.0.0.3 leads to an address of the server's machine" in refused[1]


async def test_programs_that_speak_socks_are_answered_at_the_same_port(site: Site) -> None:
    require("curl")
    socks = "env -u HTTPS_PROXY -u https_proxy -u ALL_PROXY -u all_proxy curl -sS -x socks5h://127.0.0.1:3128"

    code, output = await site.run(f"{socks} {site.registry.url}/tiny.git/HEAD 2>&1")
    refused = await site.run(f"{socks} https://127.0.0.3:{site.registry.port}/ 2>&1")

    assert (code, output.startswith("ref: refs/heads/")) == (0, True), output
    assert refused[0] != 0
    assert site.driver.egress_sockets.stats.requests == {"allowed": 1, "blocked_address": 1}


async def test_connect_is_a_connection_on_standard_input_and_output(site: Site) -> None:
    connect = "python3 -I /run/rookery-agent.pyz connect"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        said = await reader.read(-1)  # until the other side has closed
        writer.write(said.upper())
        writer.close()

    server = await asyncio.start_server(answer, REGISTRY, 0)
    port = server.sockets[0].getsockname()[1]
    reached = await site.run(f"(head -c 300000 /dev/zero | tr '\\0' x; echo y) | {connect} {NAME} {port} | tail -c 5")
    server.close()
    refused = await site.run(f"{connect} 127.0.0.3 80 < /dev/null 2>&1")
    wrong = [await site.run(f"{connect} {words} < /dev/null 2>&1") for words in ("", "a.test", "a.test x", "'a b' 80")]

    assert reached == (0, "XXXY\n")
    assert refused == (1, refused[1])
    assert "which workspaces cannot reach" in refused[1]
    assert [(code, text.startswith("usage: ")) for code, text in wrong] == [(2, True)] * 4
    assert site.driver.egress_sockets.stats.requests == {"allowed": 1, "blocked_address": 1}
