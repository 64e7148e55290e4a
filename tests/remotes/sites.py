"""Remotes of every kind: where git's refs go, where the objects go, and how a clone is told of it.

`path` and `file` need no git-lfs; `lfs-file` is git over HTTP whose objects git-lfs takes to a file:// URL.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from tests.git.models import Model
from tests.gitrepo import GitRepo
from tests.servers import Proxy, lfs_server, proxy, s3_server

KINDS = ["path", "file", "lfs-file", "http", "s3"]
S3_ENV = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
GET_OBJECT = {"http": r"GET /.*/objects/storage/", "s3": r"GET /bucket/"}
PUT_OBJECT = {"http": r"PUT /.*/objects/storage/", "s3": r"PUT /bucket/"}


@dataclass
class Site:
    """A remote. `url` is git's; `options` are what a clone needs to know beside it; `objects` is the folder behind it all;
    `forgetful` makes git use the daemon that keeps no value.
    """

    kind: str
    here: GitRepo
    forgetful: dict[str, str]
    bare: Path
    url: str
    objects: Path
    options: tuple[str, ...] = ()
    front: Proxy | None = None
    clones: int = field(default=0)

    def clone(self, *options: str, env: dict[str, str] | None = None) -> GitRepo:
        """A new clone, with its checkout, by a filter that remembers no value; with `options`, which may cut the history off,
        by one that remembers nothing.
        """
        done, clone = self.try_clone(*options, env=env)
        assert done.returncode == 0, done.stderr.decode(errors="replace")
        return clone

    def try_clone(
        self, *options: str, env: dict[str, str] | None = None
    ) -> tuple[subprocess.CompletedProcess[bytes], GitRepo]:
        self.clones += 1
        target = self.here.path.parent / f"clone-{self.clones}"
        command = ["clone", "-q", *self.options, *options, self.url, str(target)]
        road = {"THETA_DAEMON": "never"} if options else self.forgetful
        done = self.here.run(*command, env={**road, **(env or {})}, cwd=target.parent)
        return done, GitRepo(target, self.here.env)

    def requests(self) -> list[str]:
        """What the server of objects was asked since the last time."""
        if self.front is None:
            return []
        seen = [f"{method} {path.partition('?')[0]}" for method, path in self.front.seen]
        self.front.seen.clear()
        return seen


@dataclass(frozen=True)
class LfsRuns:
    """A git-lfs on the PATH that notes how it is called, then does what it does."""

    log: Path

    @classmethod
    def watched(cls, folder: Path) -> LfsRuns:
        """Its program is put into `folder`, which the caller puts first on the PATH."""
        real, log = shutil.which("git-lfs"), folder / "log"
        folder.mkdir()
        (folder / "git-lfs").write_text(f'#!/bin/sh\necho "$1" >> {log}\nexec {real} "$@"\n')
        (folder / "git-lfs").chmod(0o755)
        return cls(log)

    def seen(self) -> list[str]:
        """The commands since the last time."""
        found = self.log.read_text().split() if self.log.exists() else []
        self.log.unlink(missing_ok=True)
        return found


def versions(here: GitRepo, model: Model, count: int, name: str = "a.m") -> dict[str, bytes]:
    """Commit so many versions of a model; the bytes by commit."""
    made = {}
    for number in range(count):
        model = model.step(number)
        made[here.commit(f"version {number}", **{name: model.bytes()})] = model.bytes()
    return made


def stored(folder: Path) -> set[str]:
    """The objects in a folder of git-lfs's layout, or in a server's storage."""
    return {path.name for path in folder.rglob("*") if path.is_file() and len(path.name) == 64}


@contextmanager
def site_of(kind: str, here: GitRepo, forgetful: dict[str, str]) -> Iterator[Site]:
    """An empty remote of this kind, called origin in `here`."""
    top = here.path.parent
    option = "remote.origin.thetaUrl=s3://bucket/models"
    bare = top / "origin.git"
    here("init", "-q", "--bare", bare, cwd=top)
    storage = top / "storage"
    with ExitStack() as stack:
        if kind == "path":
            made = Site(kind, here, forgetful, bare, str(bare), bare / "lfs" / "objects")
        elif kind == "file":
            made = Site(kind, here, forgetful, bare, f"file://{bare}", bare / "lfs" / "objects")
        elif kind == "lfs-file":
            url = stack.enter_context(git_server(bare))
            here.commit("where objects are", **{".lfsconfig": f"[lfs]\n\turl = file://{bare}\n".encode()})
            made = Site(kind, here, forgetful, bare, url, bare / "lfs" / "objects")
        elif kind == "http":
            (storage / "bucket").mkdir(parents=True)
            front = stack.enter_context(proxy(stack.enter_context(lfs_server(storage))))
            url = stack.enter_context(git_server(bare))
            here("config", "--global", "lfs.transfer.maxretries", "1")
            here.commit(
                "where objects are", **{".lfsconfig": f"[lfs]\n\turl = {front.url}/org/models.git/info/lfs\n".encode()}
            )
            made = Site(kind, here, forgetful, bare, url, storage, (), front)
        else:
            (storage / "bucket").mkdir(parents=True)
            front = stack.enter_context(proxy(stack.enter_context(s3_server(storage, "key", "secret"))))
            os.environ.update(S3_ENV, AWS_ENDPOINT_URL=front.url, AWS_MAX_ATTEMPTS="1")
            made = Site(kind, here, forgetful, bare, str(bare), storage, ("-c", option), front)
        here("remote", "add", "origin", made.url)
        if kind == "s3":
            here("config", *option.split("=", 1))
        try:
            yield made
        finally:
            for name in (*S3_ENV, "AWS_ENDPOINT_URL", "AWS_MAX_ATTEMPTS"):
                os.environ.pop(name, None)


@contextmanager
def git_server(bare: Path) -> Iterator[str]:
    """git's own HTTP server for one bare repository, to which everybody may push; its URL."""
    subprocess.run(["git", "-C", bare, "config", "http.receivepack", "true"], check=True)
    subprocess.run(["git", "-C", bare, "config", "uploadpack.allowFilter", "true"], check=True)
    subprocess.run(["git", "-C", bare, "config", "uploadpack.allowAnySHA1InWant", "true"], check=True)

    class Handler(BaseHTTPRequestHandler):
        def do_any(self) -> None:
            path, _, query = self.path.partition("?")
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.headers.get("Transfer-Encoding") == "chunked":
                body = self.chunks()
            env = {
                **os.environ,
                "GIT_PROJECT_ROOT": str(bare.parent),
                "GIT_HTTP_EXPORT_ALL": "1",
                "PATH_INFO": path,
                "QUERY_STRING": query,
                "REQUEST_METHOD": self.command,
                "CONTENT_TYPE": self.headers.get("Content-Type", ""),
                "CONTENT_LENGTH": str(len(body)),
                "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
                "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            }
            done = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True, check=False)
            head, _, answer = done.stdout.partition(b"\r\n\r\n")
            fields = [line.decode().split(": ", 1) for line in head.split(b"\r\n")]
            status = next((value for name, value in fields if name == "Status"), "200 OK")
            self.send_response_only(int(status.split()[0]))
            for name, value in fields:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def chunks(self) -> bytes:
            body = b""
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body

        do_GET = do_POST = do_any  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/{bare.name}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
