"""From what git stores now to pointers: raw blobs, and git-lfs's pointers with the objects that they name."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from theta_daemon.errors import MissingObjectError, RepositoryError, ThetaError
from theta_daemon.filters.clean import pointer_text
from theta_daemon.filters.known import Known
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.history.git import child_env, git_child
from theta_daemon.history.history import HeadEntry
from theta_daemon.pointer import looks_like_pointer

_LFS_START: Final = b"version https://git-lfs.github.com/spec/v1\n"
_LFS: Final = re.compile(re.escape(_LFS_START) + rb"oid sha256:([0-9a-f]{64})\nsize ([0-9]+)\n")
_MAX_LFS_BYTES: Final = 1024
"""git-lfs reads no longer pointer."""

_READ_BYTES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class LfsPointer:
    """The object that a git-lfs pointer names."""

    oid: str
    size: int


def lfs_pointer(text: bytes) -> LfsPointer | None:
    """The git-lfs pointer that `text` is. Raises ThetaError for one with extensions, whose content only they can make."""
    if not text.startswith(_LFS_START) or len(text) > _MAX_LFS_BYTES:
        return None
    match = _LFS.fullmatch(text)
    if match is None:
        raise ThetaError("a git-lfs pointer with extensions, or a damaged one", "check it out and add it by hand")
    return LfsPointer(match.group(1).decode(), int(match.group(2)))


class Converter:
    """Makes pointers of blobs. `files`: distinct contents, `before`: their bytes, `pointers`: bytes of what git now has."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._done: dict[str, str | None] = {}
        self.before = 0
        self.pointers = 0
        self.files = 0

    def fetch_lfs(self, blobs: Mapping[str, bytes]) -> None:
        """Bring the objects of the git-lfs pointers among `blobs` (paths by id), in one round.

        Raises MissingObjectError, naming a file, when one is nowhere.
        """
        users: dict[str, bytes] = {}
        missing: dict[str, int] = {}
        for blob, path in blobs.items():
            text = self._workspace.history.blob(blob)
            found = None if text is None else lfs_pointer(text)
            if found is not None and not self._workspace.store.holds(found.oid, found.size):
                missing[found.oid] = found.size
                users[found.oid] = path
        failed = self._workspace.fetch(missing) if missing else {}
        for oid, error in failed.items():
            where = users[oid].decode(errors="backslashreplace")
            raise MissingObjectError(
                f"{where}: git-lfs object {oid}: {error.message}", "fetch it first: git lfs fetch --all"
            )

    def convert(self, path: bytes, blob: str, previous: HeadEntry | None) -> str | None:
        """The id of the pointer for a blob, which git has then; None where the blob is to stay: a pointer, or empty.

        `previous` is the file's pointer in the commit before. Raises ThetaError.
        """
        if blob not in self._done:
            try:
                self._done[blob] = self._convert(path, blob, previous)
            except ThetaError as error:
                raise error.within(path.decode(errors="backslashreplace")) from error
        return self._done[blob]

    def _convert(self, path: bytes, blob: str, previous: HeadEntry | None) -> str | None:
        workspace = self._workspace
        with closing(Spool(workspace.repository.common_dir)) as spool:
            self._read(blob, spool)
            head = bytes(spool.read(0, min(spool.size, _MAX_LFS_BYTES)))
            if spool.size == 0 or looks_like_pointer(head):
                return None
            found = lfs_pointer(head) if spool.size <= _MAX_LFS_BYTES else None
            if found is None:
                return self._pointer(path, spool, previous)
        with closing(Spool(workspace.repository.common_dir)) as spool:
            self._read_object(found, spool)
            return self._pointer(path, spool, previous)

    def _pointer(self, path: bytes, spool: Spool, previous: HeadEntry | None) -> str:
        workspace = self._workspace
        pointer = None if previous is None else workspace.pointer(previous.blob)
        known = Known(workspace, previous if pointer is not None else None, pointer, None, None)
        text = pointer_text(workspace, path, spool, known)
        self.before += spool.size
        self.pointers += len(text)
        self.files += 1
        return write_object(workspace, "blob", text)

    def _read(self, blob: str, spool: Spool) -> None:
        invocation = self._workspace.invocation
        with subprocess.Popen(
            ["git", "cat-file", "blob", blob], stdout=subprocess.PIPE, cwd=invocation.cwd, env=child_env(invocation)
        ) as child:
            assert child.stdout is not None  # noqa: S101
            while piece := child.stdout.read(_READ_BYTES):
                spool.write(memoryview(piece))
        if child.returncode != 0:
            raise RepositoryError(f"git cannot read blob {blob}", "see `git fsck`")

    def _read_object(self, found: LfsPointer, spool: Spool) -> None:
        reader = self._workspace.store.open(found.oid)
        with closing(reader):
            for offset in range(0, found.size, _READ_BYTES):
                spool.write(memoryview(reader.read(offset, min(_READ_BYTES, found.size - offset))))
        hasher = hashlib.sha256()
        for piece in spool.pieces():
            hasher.update(piece)
        if hasher.hexdigest() != found.oid:
            raise MissingObjectError(f"git-lfs object {found.oid} is damaged here", "see `git lfs fsck`")


def write_object(workspace: Workspace, kind: str, data: bytes) -> str:
    """Git has these bytes as an object from now on; its id. Raises RepositoryError."""
    done = git_child(["hash-object", "-w", "-t", kind, "--stdin"], workspace.invocation, stdin=data)
    if done.status != 0:
        raise RepositoryError(done.complaint or "git hash-object failed")
    return done.out.decode().strip()
