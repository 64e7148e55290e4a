"""A checkout as one batch: planned once, objects fetched once, handed back good files first.

Rules:
- A file whose values have all been rebuilt and checked cannot fail any more when git asks for it; such files come first, in
  groups bounded by `PROVE_BYTES`, the next group being proven while git takes the last one. Files too large for that are
  streamed after them. Files that fail come last, so that git has written the others by then (git dies at the first error).
- What fails in a shared plan is tried once more in a plan of its own: what it shared may have been at fault.
- The whole file's digest is checked too, until its pointer has once been proven.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from theta_daemon.errors import DigestError, MissingHistoryError, MissingObjectError, ThetaError
from theta_daemon.filters.plan import Plan, Planner
from theta_daemon.filters.rebuild import Rebuilder
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import Pointer
from theta_daemon.tensor import Buffer

PROVE_BYTES: Final = 160 << 20
"""Checkpoints up to this size are rebuilt and checked before git is told that they can be had."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pointer to smudge and the id it has as a git blob."""

    blob: str
    pointer: Pointer


class Prepared:
    """Some files, planned together: their bytes, or why a file cannot be had."""

    def __init__(self, workspace: Workspace, files: Mapping[bytes, Wanted]) -> None:
        self._workspace = workspace
        self._files = files
        values: dict[str, memoryview] = {}
        tensors = workspace.machinery.tensors

        def at_hand(key: str, digest: str) -> bool:
            value = tensors.get(digest)
            if value is not None:
                values[key] = value
            return value is not None

        reasons = self._walk(at_hand, fetch=False)
        if any(isinstance(error, MissingHistoryError) for error in self._plan.failed.values()):
            reasons = self._walk(at_hand, fetch=True)
        self.failed: dict[bytes, ThetaError] = dict(self._plan.failed)
        for pathname in self._plan.files:
            error = self._obstacle(self._plan, pathname, reasons)
            if error is not None:
                self.failed[pathname] = error
        self._rebuilder = Rebuilder(self._plan, workspace.machinery, values)
        workspace.machinery.counters.add("plans")

    def stream(self, pathname: bytes) -> Iterator[Buffer]:
        """The file's bytes in order, checked as they appear. Raises ThetaError, at the latest after the last byte."""
        if pathname in self.failed:
            raise self.failed[pathname]
        wanted = self._files[pathname]
        pointer = wanted.pointer
        digest = None if wanted.blob in self._workspace.proven else blake3()
        size = 0
        for buffer in self._rebuilder.stream(self._plan.files[pathname]):
            size += memoryview(buffer).nbytes
            if digest is not None:
                digest.update(buffer)
            yield buffer
        if size != pointer.size or (digest is not None and digest.hexdigest() != pointer.digest):
            raise DigestError(
                "the rebuilt file is not the one that was added, although its parameters are",
                "the pointer was damaged or put together by hand: take it from another commit",
            )
        self._workspace.proven.add(wanted.blob)

    def _walk(self, at_hand: Callable[[str, str], bool], *, fetch: bool) -> Mapping[str, ThetaError]:
        """Make the plan; the reasons for objects that could not be had. `fetch`: git may ask its remote for history."""
        workspace = self._workspace
        planner = Planner(at_hand)
        for pathname, wanted in self._files.items():
            planner.add(pathname, wanted.pointer)
        workspace.resolve(planner, fetch=fetch)
        reasons = self._fetch(planner)
        workspace.supply_lineages(planner)
        self._plan = planner.plan()
        return reasons

    def _fetch(self, planner: Planner) -> Mapping[str, ThetaError]:
        """Bring all objects that are missing here in one go."""
        plan = planner.plan()
        by_lineage = planner.wanted_lineages()
        missing: dict[str, int] = {}
        for pathname, wanted in self._files.items():
            sizes = wanted.pointer.objects
            needed = sizes.keys() if pathname in by_lineage or pathname in plan.failed else plan.objects(pathname)
            holds = self._workspace.store.holds
            missing |= {oid: sizes[oid] for oid in needed if oid in sizes and not holds(oid, sizes[oid])}
        return self._workspace.fetch(missing) if missing else {}

    def _obstacle(self, plan: Plan, pathname: bytes, reasons: Mapping[str, ThetaError]) -> ThetaError | None:
        """Why this file cannot be rebuilt, as far as that shows before its records are read."""
        for oid in sorted(plan.objects(pathname)):
            if self._workspace.store.has(oid):
                continue
            reason = reasons.get(oid)
            why = (
                "is in neither the local store nor a remote"
                if reason is None
                else f"could not be had: {reason.message}"
            )
            hint = None if reason is None else reason.hint
            return MissingObjectError(
                f"{plan.reader_of(pathname, oid)}: object {oid} {why}",
                hint or "fetch it with `git theta fetch`, from a remote or a clone that has it",
            )
        try:
            for update in plan.updates(pathname):
                self._workspace.registry.update(update)
        except ThetaError as error:
            return error
        return None


class Batch:
    """The delayed files of one round."""

    def __init__(self, workspace: Workspace, files: Mapping[bytes, Wanted]) -> None:
        self._workspace = workspace
        self._files = files
        self._sources: dict[bytes, Prepared | list[Buffer]] = {}
        self._failed: dict[bytes, ThetaError] = {}
        self._ahead: ThreadPoolExecutor | None = None
        together = Prepared(workspace, files)
        for pathname in files:
            self._sources[pathname] = together
        for pathname in together.failed:
            self._try_alone(pathname, together.failed[pathname])
        good = [pathname for pathname in sorted(files) if pathname not in self._failed]
        small = [pathname for pathname in good if files[pathname].pointer.size <= PROVE_BYTES]
        self._large = [pathname for pathname in good if files[pathname].pointer.size > PROVE_BYTES]
        self._groups = list(_groups(small, files))
        self._proving: Future[list[bytes]] | None = None
        self._told_failed = False

    def __contains__(self, pathname: bytes) -> bool:
        return pathname in self._sources

    def next(self) -> list[bytes]:
        """The files to hand back now; empty when all have been."""
        if len(self._files) == 1 and self._groups:
            # Nothing else could be spared by proving it first.
            return self._groups.pop()
        while self._groups or self._proving is not None:
            proven = self._prove_next()
            if proven:
                return proven
        if self._large:
            large, self._large = self._large, []
            return large
        if self._failed and not self._told_failed:
            self._told_failed = True
            return sorted(self._failed)
        return []

    def content(self, pathname: bytes) -> Iterator[Buffer]:
        """The file's bytes, once. Raises ThetaError."""
        if pathname in self._failed:
            raise self._failed[pathname]
        source = self._sources.pop(pathname)
        if isinstance(source, Prepared):
            yield from source.stream(pathname)
        else:
            source.reverse()
            while source:
                yield source.pop()

    def close(self) -> None:
        """Give up what is still to be done."""
        if self._ahead is not None:
            self._ahead.shutdown(wait=False, cancel_futures=True)

    def _prove_next(self) -> list[bytes]:
        if self._proving is None:
            self._start_proving()
        proving, self._proving = self._proving, None
        proven = [] if proving is None else proving.result()
        if self._groups:
            self._start_proving()
        return proven

    def _start_proving(self) -> None:
        if self._ahead is None:
            self._ahead = ThreadPoolExecutor(1, "theta-ahead")
        self._proving = self._ahead.submit(self._prove, self._groups.pop(0))

    def _prove(self, group: Sequence[bytes]) -> list[bytes]:
        """Those of `group` that can be had for certain; the others have failed."""
        proven = []
        for pathname in group:
            source = self._sources[pathname]
            if not isinstance(source, Prepared):
                continue
            try:
                self._sources[pathname] = list(source.stream(pathname))
            except ThetaError as error:
                if not self._try_alone(pathname, error):
                    continue
            proven.append(pathname)
        return proven

    def _try_alone(self, pathname: bytes, error: ThetaError) -> bool:
        """Whether the file can be had in a plan of its own; if not it has failed."""
        if len(self._files) > 1:
            alone = Prepared(self._workspace, {pathname: self._files[pathname]})
            try:
                self._sources[pathname] = (
                    list(alone.stream(pathname)) if self._files[pathname].pointer.size <= PROVE_BYTES else alone
                )
            except ThetaError:
                pass
            else:
                if pathname not in alone.failed:
                    return True
        self._failed[pathname] = error
        return False


def _groups(pathnames: Sequence[bytes], files: Mapping[bytes, Wanted]) -> Iterator[list[bytes]]:
    group: list[bytes] = []
    nbytes = 0
    for pathname in pathnames:
        size = files[pathname].pointer.size
        if group and nbytes + size > PROVE_BYTES:
            yield group
            group, nbytes = [], 0
        group.append(pathname)
        nbytes += size
    if group:
        yield group
