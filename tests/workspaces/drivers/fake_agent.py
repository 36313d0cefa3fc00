"""A fake agent that runs commands and, if FAKE in its environment says so, misbehaves.

Standard library only: it is put into sandboxes in place of the real one.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socketserver
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Server

    def do_GET(self) -> None:
        if self._allowed():
            self._answer(
                200, {"generation": self.server.generation + (self.server.fake == "lying"), "pid": os.getpid()}
            )

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])) or b"{}")
        if not self._allowed():
            return
        if self.path == "/v1/shutdown" and self.server.fake != "stubborn":
            Path(self.server.run_dir, "grace").write_text(str(body["grace_s"]))
            self._answer(200, {})
            threading.Thread(target=os._exit, args=(0,)).start()
        elif self.path == "/v1/shutdown":
            self._answer(200, {})
        else:
            done = subprocess.run(
                ["/bin/sh", "-c", body["command"]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
            )
            self._answer(200, {"code": done.returncode, "output": done.stdout.decode("utf-8", "replace")})

    def _allowed(self) -> bool:
        if self.headers["Authorization"] != f"Bearer {self.server.token}":
            self._answer(401, {"code": "unauthorized"})
            return False
        return True

    def _answer(self, status: int, value: object) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


class Server(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    run_dir: Path
    token: str
    generation: int
    fake: str


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--run-dir", type=Path)
    parser.add_argument("--listen", default=None)
    options = parser.parse_args()
    # Like the real one: no process inside may end the first process, and a handler would let a signal through.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    config = json.loads((options.run_dir / "config.json").read_text())
    fake = config["env"].get("FAKE", "")
    if fake == "exiting":
        sys.exit("this agent does not like it here")
    if fake == "silent":
        signal.pause()
    path = options.listen.partition(":")[2] if options.listen else str(options.run_dir / "agent.sock")
    server = Server(path, Handler)
    server.run_dir = options.run_dir
    server.token = (options.run_dir / "token").read_text()
    server.generation = config["generation"]
    server.fake = fake
    server.serve_forever()


main()
