"""Remotes on this disk: another repository's `lfs/objects`, or a plain folder. Needs no git-lfs.

A repository is found as git finds it from a path (`enter_repo` in path.c): `X/.git`, `X`, `X.git/.git`, `X.git`; its own
configuration says where its objects are (lfs.storage) and what modes they have (core.sharedRepository). Copies, never hard
links: what rots in one repository must not rot in the other.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from theta_daemon.errors import RemoteError, StoreError
from theta_daemon.invocation import Invocation
from theta_daemon.store.alternates import alternate_roots
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.modes import SharedMode
from theta_daemon.store.remote.base import (
    Progress,
    Remote,
    TransferReport,
    copy_object,
    each,
    lacking,
    require,
)

_JOBS: Final = 4
_FILE: Final = "file://"


class LocalRemote(Remote):
    """The objects of `store`, which belongs to somebody else."""

    def __init__(self, name: str, store: LfsStore) -> None:
        self.name = name
        self._store = store

    @classmethod
    def repository(cls, name: str, url: str, invocation: Invocation) -> LocalRemote:
        """The repository at a path or file:// URL; relative ones are relative to the caller. Raises RemoteError."""
        path = Path(os.path.normpath(invocation.path(local_path(url))))
        common = _common_dir(path)
        if common is None:
            raise RemoteError(f"remote {name}: {path} is not a git repository", "check the remote's URL")
        config = _config(common / "config", invocation)
        root = common / config.get("lfs.storage", "lfs") / "objects"
        shared = SharedMode.parse(config.get("core.sharedrepository"))
        alternates = alternate_roots(common)
        return cls(name, LfsStore(root, umask=invocation.umask, shared=shared, alternates=alternates))

    @classmethod
    def folder(cls, name: str, url: str, invocation: Invocation, shared: SharedMode | None = None) -> LocalRemote:
        """A plain folder in the layout of a store."""
        root = Path(os.path.normpath(invocation.path(local_path(url))))
        return cls(name, LfsStore(root, umask=invocation.umask, shared=shared))

    def fetch(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        return each(lacking(objects, store), lambda oid, size: self._fetch(oid, size, store), _JOBS, progress)

    def push(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        require(objects, store)
        there = self.has(objects)
        absent = {oid: size for oid, size in objects.items() if oid not in there}

        def work(oid: str, size: int) -> None:
            try:
                copy_object(store.open(oid), self._store, oid, size)
            except StoreError as error:
                raise RemoteError(f"remote {self.name}: {error.message}", error.hint) from error

        report = each(absent, work, _JOBS, progress)
        if absent and len(report.failed) == len(absent):
            raise RemoteError(next(iter(report.failed.values())))
        return report

    def has(self, objects: Mapping[str, int]) -> frozenset[str]:
        try:
            return frozenset(oid for oid, size in objects.items() if self._store.holds(oid, size))
        except StoreError as error:
            raise RemoteError(f"remote {self.name}: {error.message}", error.hint) from error

    def _fetch(self, oid: str, size: int, store: LfsStore) -> None:
        try:
            reader = self._store.open(oid)
        except StoreError as error:  # theirs cannot be read; ours is another matter
            raise RemoteError(error.message) from error
        try:
            copy_object(reader, store, oid, size)
        finally:
            reader.close()


def is_local(url: str) -> bool:
    """Whether git would take `url` for a path: file://, or no scheme and no `host:` (url_is_local_not_ssh)."""
    if "://" in url:
        return url.startswith(_FILE)
    colon, slash = url.find(":"), url.find("/")
    return colon < 0 or 0 <= slash < colon


def local_path(url: str) -> str:
    """The path of a local `url`; a file:// URL is percent-decoded, as git does."""
    return unquote(url[len(_FILE) :], errors="surrogateescape") if url.startswith(_FILE) else url


def _common_dir(path: Path) -> Path | None:
    for candidate in (
        path / ".git",
        path,
        path.with_name(path.name + ".git") / ".git",
        path.with_name(path.name + ".git"),
    ):
        git_dir = _git_dir(candidate)
        if git_dir is not None and (git_dir / "HEAD").exists():
            common = _line(git_dir / "commondir")
            return git_dir if common is None else Path(os.path.normpath(git_dir / common))
    return None


def _git_dir(path: Path) -> Path | None:
    if path.is_dir():
        return path
    line = _line(path)
    if line is None or not line.startswith("gitdir: "):
        return None
    return Path(os.path.normpath(path.parent / line.removeprefix("gitdir: ")))


def _line(path: Path) -> str | None:
    try:
        with path.open("rb") as file:
            return os.fsdecode(file.read(65536)).rstrip("\r\n")
    except OSError:
        return None


def _config(path: Path, invocation: Invocation) -> dict[str, str]:
    # --file: no question of ownership arises, nothing in there is run.
    done = subprocess.run(
        ["git", "config", "--file", path, "--list", "-z"],
        cwd=invocation.cwd,
        env=dict(invocation.env),
        capture_output=True,
        check=False,
    )
    items = [os.fsdecode(item).partition("\n") for item in done.stdout.split(b"\0")[:-1]]
    return {key: value if newline else "true" for key, newline, value in items}
