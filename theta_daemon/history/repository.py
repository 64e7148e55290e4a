"""Which repository the caller means, and where its parts are.

Found as git finds it: GIT_DIR, GIT_WORK_TREE and GIT_COMMON_DIR of the caller, else from the caller's cwd upwards; work
trees and submodules through their `.git` files. The ordinary cases are read from the file system without a child process;
everything out of the ordinary (ceilings, other owners, bare repositories found by chance, damage) is put to
`git rev-parse`, so that git judges and its words reach the user.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from theta_daemon.errors import RepositoryError
from theta_daemon.history.git import Config, git_child, read_config
from theta_daemon.history.layout import Odd, find
from theta_daemon.invocation import Invocation

_READABLE_EXTENSIONS: Final = frozenset(
    {"noop", "partialclone", "preciousobjects", "worktreeconfig", "relativeworktrees", "objectformat", "refstorage"}
)
"""Extensions of the repository format that do not change how objects are stored."""

_NO: Final = frozenset({"false", "no", "off", "0", ""})


@dataclass(frozen=True)
class Repository:
    """A repository as one caller sees it. Paths are absolute.

    `git_dir` is the work tree's own (HEAD, index), `common_dir` is shared by all work trees (objects, refs, config).
    `extensions` are those of the repository format, lower case.
    """

    git_dir: Path
    common_dir: Path
    work_tree: Path | None
    object_format: str
    invocation: Invocation = field(repr=False)
    extensions: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def discover(cls, invocation: Invocation) -> Repository:
        """The caller's repository. Raises RepositoryError, with git's words, where there is none that git would use."""
        try:
            found = find(invocation)
        except (Odd, OSError):
            return cls._ask_git(invocation)
        return cls(
            found.git_dir,
            found.common_dir,
            found.work_tree,
            found.extensions.get("objectformat", "sha1"),
            invocation,
            found.extensions,
        )

    @classmethod
    def _ask_git(cls, invocation: Invocation) -> Repository:
        git_dir = _rev_parse(invocation, "--absolute-git-dir")
        common_dir = _rev_parse(invocation, "--path-format=absolute", "--git-common-dir")
        inside, object_format = _rev_parse(invocation, "--is-inside-work-tree", "--show-object-format").split("\n")
        work_tree = Path(_rev_parse(invocation, "--show-toplevel")) if inside == "true" else None
        config = read_config(invocation)
        extensions = {key[11:]: values[-1] for key, values in config.items() if key.startswith("extensions.")}
        return cls(Path(git_dir), Path(common_dir), work_tree, object_format, invocation, extensions)

    @cached_property
    def config(self) -> Config:
        """Git's whole configuration for this caller, read once, by a child. Raises ConfigError."""
        return read_config(self.invocation)

    def setting(self, key: str) -> str | None:
        """The last value of `key` (section and variable in lower case)."""
        values = self.config.get(key)
        return values[-1] if values else None

    @property
    def lfs_dir(self) -> Path:
        """Git-lfs's directory: `lfs.storage`, which git-lfs takes relative to the common directory."""
        return self.common_dir / (self.setting("lfs.storage") or "lfs")

    @property
    def objects_dir(self) -> Path:
        """Where the objects of this package are, beside those of git-lfs."""
        return self.lfs_dir / "objects"

    @property
    def git_objects_dir(self) -> Path:
        """Git's own objects."""
        value = self.invocation.env.get("GIT_OBJECT_DIRECTORY")
        return self.invocation.path(value) if value else self.common_dir / "objects"

    @property
    def shared_mode(self) -> str | None:
        """`core.sharedRepository` as it was written."""
        return self.setting("core.sharedrepository")

    @property
    def scratch_dir(self) -> Path:
        """Where this package keeps what can be rebuilt. Not made here: who writes there first makes it."""
        return self.common_dir / "theta"

    @property
    def spool_dir(self) -> Path:
        """Where a payload may wait: beside the objects, which have room for it; where nothing can be written (a repository
        that is mounted read-only), the caller's folder for temporary files."""
        if os.access(self.common_dir, os.W_OK | os.X_OK):
            return self.common_dir
        return self.invocation.path(self.invocation.env.get("TMPDIR") or "/tmp")  # noqa: S108 - the file has no name

    @property
    def index_file(self) -> Path:
        """The index the caller uses. Git takes a relative GIT_INDEX_FILE from the top of the work tree."""
        value = self.invocation.env.get("GIT_INDEX_FILE")
        return self.top / value if value else self.git_dir / "index"

    @property
    def top(self) -> Path:
        """Where git itself would stand: the top of the work tree if the caller is inside it, else the caller's cwd."""
        if self.work_tree is not None and self.invocation.cwd.is_relative_to(self.work_tree):
            return self.work_tree
        return self.invocation.cwd

    @property
    def odb_readable(self) -> bool:
        """Whether the objects are stored as libgit2 knows it; else only git itself may read them."""
        return self.object_format == "sha1" and self.extensions.keys() <= _READABLE_EXTENSIONS

    @property
    def promisor(self) -> str | None:
        """The remote that has what a partial clone left out: named by the format's extension, or as git now writes it."""
        named = self.extensions.get("partialclone")
        if named:
            return named
        for key, values in self.config.items():
            if key.startswith("remote.") and key.endswith(".promisor") and values[-1].lower() not in _NO:
                return key[len("remote.") : -len(".promisor")]
        return None

    @property
    def refs_in_files(self) -> bool:
        """Whether refs are loose files and packed-refs, not reftable."""
        return self.extensions.get("refstorage", "files") == "files"


def _rev_parse(invocation: Invocation, *arguments: str) -> str:
    done = git_child(["rev-parse", *arguments], invocation)
    if done.status != 0:
        raise RepositoryError(done.complaint or f"git rev-parse failed in {invocation.cwd}", "run this in a repository")
    return done.out.decode(errors="surrogateescape").removesuffix("\n")
