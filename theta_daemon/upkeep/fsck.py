"""Fsck: whether the checkpoints that some revisions reach can be had, bit for bit.

Three questions, one after the other: are the pointers sound and their objects here; are the objects' bytes what their names
say (`objects`); does every pointer rebuild to its digest (`rebuild`). Nothing is fetched and no cache is believed. Repair
moves a damaged object out of the way, and back again where no remote has a good one: some of its records may be whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Final

from theta_daemon.errors import MissingObjectError, ThetaError
from theta_daemon.filters.batch import Prepared, Wanted
from theta_daemon.filters.workspace import Workspace
from theta_daemon.history.reach import Reached, candidates
from theta_daemon.pointer import parse
from theta_daemon.store.disk import store_error
from theta_daemon.upkeep.needs import Needs
from theta_daemon.upkeep.prune import packs

_READ_BYTES: Final = 4 << 20
_TOGETHER: Final = 16
"""Pointers that are rebuilt by one plan: neighbours share most of what they need."""

Progress = Callable[[str, int, int], None]
"""Told what is being checked, how many of it have been, and how many there are."""


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong with a pointer (`name` is its blob) or an object; `path` is one that needs it."""

    kind: str
    name: str
    path: bytes
    reason: str


@dataclass(slots=True)
class Report:
    """Counts of what was looked at, what was repaired, what is wrong."""

    pointers: int = 0
    objects: int = 0
    rebuilt: int = 0
    repaired: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


class Fsck:
    """One check of what `reached` holds."""

    def __init__(self, workspace: Workspace, reached: Reached, progress: Progress) -> None:
        self._workspace = workspace
        self._store = workspace.store
        self._progress = progress
        self._wanted: dict[bytes, Wanted] = {}
        self._bad: dict[str, int] = {}
        self._needs = Needs()
        self.report = Report()
        self._read(reached)

    def objects(self, *, everything: bool) -> None:
        """Hash what the pointers need and is here; with `everything` all our packs, needed or not."""
        sizes = {oid: size for oid, size in self._needs.objects.items() if oid not in self._bad}
        if everything:
            sizes = {**{oid: size for oid, (size, _) in packs(self._store)}, **sizes}
        checks = self._workspace.machinery.pool.map(self._check, sizes)
        for count, (oid, reason) in enumerate(zip(sizes, checks, strict=True), 1):
            self.report.objects += 1
            self._progress("objects", count, len(sizes))
            if reason is not None:
                self._bad[oid] = sizes[oid]
                self._found("damaged object", oid, self._needs.users.get(oid, b""), reason)

    def repair(self) -> None:
        """Fetch what is missing or damaged. Raises StoreError."""
        if not self._bad:
            return
        aside = [oid for oid in self._bad if self._move(self._store.path(oid), self._bad_path(oid))]
        try:
            failed = self._workspace.fetch(self._bad)
        finally:
            for oid in aside:
                if self._store.holds(oid, self._bad[oid]):
                    continue
                self._move(self._bad_path(oid), self._store.path(oid))
        good = [oid for oid in self._bad if oid not in failed and self._check(oid) is None]
        self.report.repaired += good
        self.report.problems = [one for one in self.report.problems if one.name not in good]
        for oid, error in failed.items():
            self._found("not repaired", oid, self._needs.users.get(oid, b""), error.message)
        self._bad = {oid: size for oid, size in self._bad.items() if oid not in good}

    def rebuild(self) -> None:
        """Rebuild every pointer, and throw it away again."""
        workspace = replace(self._workspace, fetch=_fetch_nothing)
        wanted = iter(self._wanted.items())
        while group := dict(islice(wanted, _TOGETHER)):
            together = Prepared(workspace, group)
            for path, one in group.items():
                try:
                    _drain(together, path)
                except Exception:  # noqa: BLE001 - what was shared may have been at fault
                    self._rebuild_alone(workspace, path, one)
                self.report.rebuilt += 1
                self._progress("checkpoints", self.report.rebuilt, len(self._wanted))

    def _read(self, reached: Reached) -> None:
        history = self._workspace.history
        for candidate in candidates(history, reached.blobs, fetch=True):
            self.report.pointers += 1
            try:
                pointer = parse(candidate.text)
            except ThetaError as error:
                self._found("bad pointer", candidate.blob, candidate.path, error.message)
                continue
            if pointer is None:
                self._found("bad pointer", candidate.blob, candidate.path, "it starts as a pointer and is none")
                continue
            self._needs.add_pointer(candidate.blob, candidate.path, pointer)
            self._wanted[candidate.path + b" (blob " + candidate.blob[:12].encode() + b")"] = Wanted(
                candidate.blob, pointer
            )
        for oid, path in reached.absent.items():
            self._found("missing in git", oid, path, "git does not have it here")
        for oid, size in self._needs.lacking(self._store).items():
            self._bad[oid] = size
            reason = "its size is wrong" if self._store.has(oid) else "it is not here"
            self._found("missing object", oid, self._needs.users[oid], reason)

    def _check(self, oid: str) -> str | None:
        """What is wrong with an object."""
        hasher = hashlib.sha256()
        try:
            reader = self._store.open(oid)
            try:
                for offset in range(0, reader.size, _READ_BYTES):
                    hasher.update(reader.read(offset, min(_READ_BYTES, reader.size - offset)))
            finally:
                reader.close()
        except ThetaError as error:
            return error.message
        return None if hasher.hexdigest() == oid else "its bytes are not what its name says"

    def _rebuild_alone(self, workspace: Workspace, path: bytes, one: Wanted) -> None:
        try:
            _drain(Prepared(workspace, {path: one}), path)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is this checkpoint's problem
            reason = error.message if isinstance(error, ThetaError) else f"{type(error).__name__}: {error}"
            self._found("cannot be rebuilt", one.blob, self._needs.pointers[one.blob], reason)

    def _bad_path(self, oid: str) -> Path:
        return self._store.root.parent / "bad" / oid  # git-lfs's own place for them

    def _move(self, source: Path, target: Path) -> bool:
        try:
            if not source.exists():
                return False
            target.parent.mkdir(parents=True, exist_ok=True)
            source.replace(target)
        except OSError as error:
            raise store_error("move", source, error) from error
        return True

    def _found(self, kind: str, name: str, path: bytes, reason: str) -> None:
        self.report.problems.append(Problem(kind, name, path, reason))


def _drain(prepared: Prepared, path: bytes) -> None:
    for _ in prepared.stream(path):
        pass


def _fetch_nothing(objects: Mapping[str, int]) -> Mapping[str, ThetaError]:
    return {oid: MissingObjectError("it is not here", "git theta fsck --repair") for oid in objects}
