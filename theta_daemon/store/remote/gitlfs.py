"""git-lfs servers, through the git-lfs client: transfer, authentication and parallelism are its business.

Pushing is `git lfs push --object-id REMOTE --stdin`. For fetching by id there is no such command, but `git lfs fetch REMOTE
COMMIT` fetches, in parallel and straight into the store, all that a commit's tree points to. So a commit is made whose
tree holds one git-lfs pointer an object, in a temporary object database (GIT_OBJECT_DIRECTORY) that is deleted afterwards:
the repository itself never sees it. git-lfs verifies what it downloads.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from theta_daemon.errors import RemoteError
from theta_daemon.invocation import Invocation
from theta_daemon.store.disk import store_error
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.remote.base import Progress, Remote, TransferReport, lacking, require, total
from theta_daemon.store.remote.child import Ended, run

_INSTALL_HINT: Final = "install git-lfs (https://git-lfs.com), or set theta.remote to a folder or an object store"
_POINTER: Final = "version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize {size}\n"
_FETCH_OPTIONS: Final = ("lfs.fetchinclude=", "lfs.fetchexclude=", "lfs.fetchrecentalways=false")
_IDENTITY: Final = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (("NAME", "theta"), ("EMAIL", "theta@localhost"), ("DATE", "@0 +0000"))
}


class GitLfsRemote(Remote):
    """A remote (name or URL) as git-lfs knows it. `git_objects` is the repository's own object database.

    Progress and complaints of git-lfs go to `stderr_fd`; setting `stop` ends a transfer. Where git-lfs shows its own
    progress nobody else is told of any.
    """

    def __init__(
        self,
        name: str,
        invocation: Invocation,
        git_objects: Path,
        stderr_fd: int | None = None,
        stop: threading.Event | None = None,
    ) -> None:
        self.name = name
        self._invocation = invocation
        self._git_objects = git_objects
        self._stderr_fd = stderr_fd
        self._stop = stop

    def fetch(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        wanted = lacking(objects, store)
        if not wanted:
            return TransferReport(rounds=0)
        store.writer().abort()  # says now, and with a remedy, if the store cannot be written
        try:
            scratch = Path(tempfile.mkdtemp(prefix="theta-fetch-", dir=store.root.parent / "tmp"))
        except OSError as error:
            raise store_error("write to", store.root.parent / "tmp", error) from error
        try:
            ended = self._fetch(wanted, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        absent = lacking(wanted, store)
        if len(absent) == len(wanted) and ended.status != 0 and not any(ended.about(oid) for oid in absent):
            raise self._failure("fetch from", ended)
        moved = wanted.keys() - absent.keys()
        reasons = {oid: ended.about(oid) or ended.last for oid in absent}
        self._tell(progress, len(moved), total(wanted, moved))
        return TransferReport(frozenset(moved), total(wanted, moved), reasons, requests=1)

    def push(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        require(objects, store)
        if not objects:
            return TransferReport(rounds=0)
        ids = "".join(f"{oid}\n" for oid in sorted(objects)).encode()
        ended = self._lfs("push", "--object-id", self.name, "--stdin", stdin=ids)
        if ended.status != 0:
            raise self._failure("push to", ended)
        self._tell(progress, len(objects), total(objects, objects))
        return TransferReport(frozenset(objects), total(objects, objects), requests=1)

    def has(self, objects: Mapping[str, int]) -> frozenset[str] | None:
        return None  # the client has no such question; pushing again is cheap: the server names what it lacks

    def _fetch(self, wanted: Mapping[str, int], scratch: Path) -> Ended:
        database = scratch / "objects"
        database.mkdir()
        paths = []
        for oid, size in wanted.items():
            path = scratch / oid
            path.write_text(_POINTER.format(oid=oid, size=size))
            paths.append(os.fsencode(path))
        alternates = [str(self._git_objects), self._invocation.env.get("GIT_ALTERNATE_OBJECT_DIRECTORIES", "")]
        env = {
            **_IDENTITY,
            "GIT_OBJECT_DIRECTORY": str(database),
            # The real database stays readable: git-lfs may need .lfsconfig from HEAD.
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(filter(None, alternates)),
        }
        blobs = self._git(
            ["hash-object", "-w", "--no-filters", "--stdin-paths"], b"".join(p + b"\n" for p in paths), env
        )
        entries = zip(blobs.split(), wanted, strict=True)
        tree = self._git(
            ["mktree"], b"".join(b"100644 blob %s\t%s\n" % (blob, oid.encode()) for blob, oid in entries), env
        )
        commit = self._git(["commit-tree", tree.decode().strip(), "-m", "objects to fetch"], b"", env).decode().strip()
        return self._lfs("fetch", self.name, commit, env=env, options=_FETCH_OPTIONS)

    def _git(self, arguments: list[str], stdin: bytes, env: Mapping[str, str]) -> bytes:
        done = subprocess.run(
            ["git", *arguments],
            input=stdin,
            capture_output=True,
            cwd=self._invocation.cwd,
            env={**self._invocation.env, **env},
            check=False,
        )
        if done.returncode:
            said = done.stderr.decode(errors="replace").strip()
            raise RemoteError(f"cannot prepare a fetch from {self.name}: git {arguments[0]}: {said}")
        return done.stdout

    def _lfs(
        self,
        *arguments: str,
        stdin: bytes = b"",
        env: Mapping[str, str] | None = None,
        options: tuple[str, ...] = (),
    ) -> Ended:
        command = ["git", *(part for option in options for part in ("-c", option)), "lfs", *arguments]
        progress = {"GIT_LFS_FORCE_PROGRESS": "1"} if self._on_terminal() else {}
        return run(
            command,
            self._invocation,
            stdin=stdin,
            env={**(env or {}), **progress},
            stderr_fd=self._stderr_fd,
            stop=self._stop,
        )

    def _tell(self, progress: Progress | None, count: int, size: int) -> None:
        if progress is not None and self._stderr_fd is None:
            progress(count, size)

    def _on_terminal(self) -> bool:
        return self._stderr_fd is not None and os.isatty(self._stderr_fd)

    def _failure(self, doing: str, ended: Ended) -> RemoteError:
        if ended.about("is not a git command") is not None:
            return RemoteError(f"cannot {doing} {self.name}: git-lfs is not installed", _INSTALL_HINT)
        return RemoteError(
            f"cannot {doing} {self.name}: git-lfs says: {ended.last}", "see above, then run the command again"
        )
