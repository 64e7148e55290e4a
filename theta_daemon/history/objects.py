"""Git's objects by id: libgit2's object database first, one `git cat-file --batch` child for all it cannot give.

libgit2 reads only the objects directory (and its alternates), never the repository around it: so neither its view of
configuration, refs and ownership nor the environment of this process plays a part. It is passed over where it would not
see what git sees: other hash functions, unknown repository formats, replace refs. What it does not have (the missing
objects of a partial clone) git may fetch. Not thread-safe: `History` holds the lock.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import pygit2

from theta_daemon.history.catfile import CatFile
from theta_daemon.history.git import git_child
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation

_ID_LENGTHS: Final = {"sha1": 40, "sha256": 64}
_HEX: Final = re.compile(r"[0-9a-f]+")
_ANY_BYTES: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class GitObject:
    """One object: its kind (blob, tree, commit, tag), its bytes, and which road gave it (pygit2, cat_file)."""

    kind: str
    data: bytes
    source: str


class Objects:
    """The objects of one repository, for one session."""

    def __init__(
        self, repository: Repository, invocation: Invocation, stderr_fd: int | None, stopped: Callable[[], bool]
    ) -> None:
        self._format = repository.object_format
        self._id_length = _ID_LENGTHS.get(repository.object_format, 64)
        self._cat_file = CatFile(invocation, stderr_fd, stopped)
        self._repository = repository
        self.replaced = has_replacements(repository, invocation)
        self._odb = None
        if repository.odb_readable and not self.replaced:
            self._odb = _open(repository)

    @cached_property
    def _partial(self) -> bool:
        """Whether a remote has what is missing here. Asked only then: it may need git's configuration, from a child."""
        return self._repository.promisor is not None

    def well_formed(self, oid: str) -> bool:
        """Whether `oid` can be an id in this repository."""
        return len(oid) == self._id_length and _HEX.fullmatch(oid) is not None

    def read(self, oid: str, max_bytes: int, *, fetch: bool = True) -> GitObject | None:
        """The object; None when neither road has it, when it is larger than `max_bytes`, or when the id is none.

        Without `fetch` a partial clone is not asked for what it left with its remote: git fetches such objects one by one.
        """
        if not self.well_formed(oid):
            return None
        if self._odb is not None:
            try:
                _, size = self._odb.read_header(pygit2.Oid(hex=oid))
                if size > max_bytes:
                    return None
                number, data = self._odb.read(pygit2.Oid(hex=oid))
                return GitObject(pygit2.enums.ObjectType(number).name.lower(), data, "pygit2")
            except (KeyError, OSError, pygit2.GitError):
                pass  # not here, or damaged: git may have another copy, or words for it
            if not fetch and self._partial:
                return None
        answer = self._cat_file.read(oid, max_bytes)
        if answer is None:
            return None
        kind, data = answer
        # Git does not check what it reads (libgit2 does), and pointers are cached under their id.
        if not self.replaced and object_id(self._format, kind, data) != oid:
            return None
        return GitObject(kind, data, "cat_file")

    def has(self, oid: str) -> bool:
        """Whether git has the object here; a partial clone's remote is not asked."""
        if not self.well_formed(oid):
            return False
        if self._odb is not None and pygit2.Oid(hex=oid) in self._odb:
            return True
        return not (self._odb is not None and self._partial) and self._cat_file.read(oid, _ANY_BYTES) is not None

    def close(self) -> None:
        """End the child and let go of the packs."""
        self._odb = None
        self._cat_file.close()


def object_id(object_format: str, kind: str, data: bytes) -> str:
    """The id that git gives to these bytes."""
    hasher = hashlib.new(object_format, f"{kind} {len(data)}\0".encode())
    hasher.update(data)
    return hasher.hexdigest()


def has_replacements(repository: Repository, invocation: Invocation) -> bool:
    """Whether git would show other content for some ids (`git replace`); libgit2 does not know of it."""
    env = invocation.env
    if "GIT_NO_REPLACE_OBJECTS" in env:
        return False
    if "GIT_REPLACE_REF_BASE" in env:
        return True
    if not repository.refs_in_files:
        return bool(git_child(["for-each-ref", "--count=1", "refs/replace/"], invocation).out)
    directory = repository.common_dir / "refs" / "replace"
    try:
        if directory.is_dir() and any(directory.iterdir()):
            return True
        return b" refs/replace/" in (repository.common_dir / "packed-refs").read_bytes()
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _open(repository: Repository) -> pygit2.Odb | None:
    try:
        odb = pygit2.Odb(str(repository.git_objects_dir))
        for path in repository.invocation.env.get("GIT_ALTERNATE_OBJECT_DIRECTORIES", "").split(os.pathsep):
            if path.startswith("/"):
                odb.add_disk_alternate(path)
    except (OSError, ValueError, KeyError, pygit2.GitError):
        return None
    return odb
