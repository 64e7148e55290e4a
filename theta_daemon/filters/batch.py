"""A checkout as one batch: planned once, objects fetched once, handed back good files first.

Rules:
- A file whose values have all been rebuilt and checked cannot fail any more when git asks for it; such files come first, in
  groups bounded by `PROVE_BYTES`, the next group being proven while git takes the last one. Files too large for that are
  streamed after them. Files that fail come last, so that git has written the others by then (git dies at the first error).
- What fails in a shared plan is tried once more in a plan of its own: what it shared may have been at fault. What no remote
  could give is not asked for again.
- Whatever is raised, an error that nobody foresaw included, is one file's failure: to git a failing batch is no file at all.
- The whole file's digest is checked too, until its pointer has once been proven: by that, or by the memo, which has a pointer
  only if this repository made it from the content it names, or rebuilt that content from it.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final
from weakref import WeakMethod

from theta_daemon.errors import DigestError, MissingHistoryError, MissingObjectError, ThetaError
from theta_daemon.filters.at_hand import AtHand
from theta_daemon.filters.digests import StreamDigest
from theta_daemon.filters.groups import grouped
from theta_daemon.filters.plan import Plan, Planner
from theta_daemon.filters.rebuild import Rebuilder
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import Pointer
from theta_daemon.settings import most_memory_bytes
from theta_daemon.tensor import Buffer

PROVE_BYTES: Final = 160 << 20
"""Checkpoints up to this size are rebuilt and checked before git is told that they can be had."""


_LOSSES: Final = 2
"""After as many losses in a file the disk cache is not asked any more."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A pointer to smudge and the id it has as a git blob."""

    blob: str
    pointer: Pointer


def too_large(pointer: Pointer) -> ThetaError | None:
    """Why git cannot take this checkpoint: it holds each file that it writes in memory. A few bytes of a stranger's
    pointer can stand for more than any machine has, and git would have to be killed.
    """
    limit = most_memory_bytes()
    if pointer.size <= limit:
        return None
    return ThetaError(
        f"the checkpoint has {pointer.size} bytes; git holds a file that it writes in memory, and there are {limit}",
        "write it with `git theta cat REV:PATH --output FILE`",
    )


class Prepared:
    """Some files, planned together: their bytes, or why a file cannot be had.

    `nowhere`: objects that no remote could give, and why; what turns out to be one is added.
    """

    def __init__(
        self,
        workspace: Workspace,
        files: Mapping[bytes, Wanted],
        nowhere: dict[str, ThetaError] | None = None,
        losses: int = 0,
    ) -> None:
        """`losses`: how often what the disk cache was to give for these files was not there."""
        self._workspace = workspace
        self._files = files
        self._nowhere = {} if nowhere is None else nowhere
        self._losses = losses
        self._anew: dict[bytes, Prepared] = {}
        self._lock = threading.Lock()
        machinery = workspace.machinery
        self._at_hand = AtHand(
            None if machinery.warms else machinery.tensors, machinery.disk if losses < _LOSSES else None
        )
        self._walk(fetch=False)
        if any(isinstance(error, MissingHistoryError) for error in self._plan.failed.values()):
            self._walk(fetch=True)
        self.failed: dict[bytes, Exception] = dict(self._plan.failed)
        for pathname in self._plan.files:
            error = self._obstacle(self._plan, pathname)
            if error is not None:
                self.failed[pathname] = error
        # Weak, for the values to go with the last who needs them, not when somebody looks for cycles.
        again = WeakMethod(self._again) if losses < _LOSSES else None
        self._rebuilder = Rebuilder(self._plan, machinery, self._at_hand, again)
        workspace.machinery.counters.add("plans")

    def literals(self, pathname: bytes) -> list[memoryview]:
        """The file's bytes between its parameters. Raises ThetaError."""
        if pathname in self.failed:
            raise self.failed[pathname]
        return self._rebuilder.literals(self._plan.files[pathname])

    def stream(self, pathname: bytes) -> Iterator[Buffer]:
        """The file's bytes in order, checked as they appear. Raises ThetaError, at the latest after the last byte."""
        if pathname in self.failed:
            raise self.failed[pathname]
        wanted = self._files[pathname]
        pointer = wanted.pointer
        digest = None if wanted.blob in self._workspace.proven else StreamDigest(self._rebuilder.submit)
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

    def _again(self, pathname: bytes) -> Rebuilder:
        """A rebuilder for a file of which the disk cache has lost something. From any thread."""
        with self._lock:
            anew = self._anew.get(pathname)
            if anew is None:
                self._workspace.machinery.counters.add("disk_cache.lost")
                specs = {node.base: node.spec for node in self._plan.nodes.values() if node.base is not None}
                file = self._plan.files[pathname]
                specs |= {
                    key: parameter.spec for key, parameter in zip(file.keys, file.pointer.parameters, strict=True)
                }
                self._at_hand.recheck(specs)
                anew = Prepared(self._workspace, {pathname: self._files[pathname]}, self._nowhere, self._losses + 1)
                self._anew[pathname] = anew
        # That an object is missing for some of the file is an error only when that is asked for.
        if isinstance(error := anew.failed.get(pathname), ThetaError) and pathname not in anew._plan.files:
            raise error
        return anew._rebuilder

    def _walk(self, *, fetch: bool) -> None:
        """Make the plan. `fetch`: git may ask its remote for history."""
        workspace = self._workspace
        planner = Planner(self._at_hand)
        for pathname, wanted in self._files.items():
            planner.add(pathname, wanted.pointer)
        workspace.resolve(planner, fetch=fetch)
        self._plan = planner.plan()
        by_lineage = planner.wanted_lineages()
        self._fetch(self._plan, by_lineage)
        if by_lineage:
            workspace.supply_lineages(planner)
            self._plan = planner.plan()

    def _fetch(self, plan: Plan, by_lineage: Collection[bytes]) -> None:
        """Bring all objects that are missing here in one go; of the files `by_lineage` all that their pointers name."""
        missing: dict[str, int] = {}
        for pathname, wanted in self._files.items():
            sizes = wanted.pointer.objects
            needed = sizes.keys() if pathname in by_lineage or pathname in plan.failed else plan.objects(pathname)
            holds = self._workspace.store.holds
            missing |= {oid: sizes[oid] for oid in needed if oid in sizes and not holds(oid, sizes[oid])}
        missing = {oid: size for oid, size in missing.items() if oid not in self._nowhere}
        if missing:
            self._nowhere.update(self._workspace.fetch(missing))

    def _obstacle(self, plan: Plan, pathname: bytes) -> ThetaError | None:
        """Why this file cannot be rebuilt, as far as that shows before its records are read."""
        for oid in sorted(plan.objects(pathname)):
            if self._workspace.store.has(oid):
                continue
            reason = self._nowhere.get(oid)
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
        for update, name in plan.updates(pathname).items():
            try:
                self._workspace.registry.update(update)
            except ThetaError as error:
                return error.within(f"parameter {name!r}")
        return None


class Batch:
    """The delayed files of one round; `failed` are those whose pointers break a rule."""

    def __init__(
        self, workspace: Workspace, files: Mapping[bytes, Wanted], failed: Mapping[bytes, Exception] | None = None
    ) -> None:
        self._workspace = workspace
        self._files = files
        self._sources: dict[bytes, Prepared | list[Buffer]] = {}
        self._failed: dict[bytes, Exception] = dict(failed or {})
        self._nowhere: dict[str, ThetaError] = {}
        self._alone: set[bytes] = set()
        self._ahead: ThreadPoolExecutor | None = None
        for pathname, wanted in files.items():
            if (error := too_large(wanted.pointer)) is not None:
                self._failed[pathname] = error
        for pathname, why in self._plan_together().items():
            self._plan_alone(pathname, why)
        good = [pathname for pathname in sorted(files) if pathname not in self._failed]
        small = [pathname for pathname in good if files[pathname].pointer.size <= PROVE_BYTES]
        self._large = [pathname for pathname in good if files[pathname].pointer.size > PROVE_BYTES]
        self._groups = list(grouped(small, lambda pathname: files[pathname].pointer.size, PROVE_BYTES))
        self._proving: Future[list[bytes]] | None = None
        self._told_failed = False

    def __contains__(self, pathname: bytes) -> bool:
        return pathname in self._sources or pathname in self._failed

    def next(self) -> list[bytes]:
        """The files to hand back now; empty when all have been."""
        if len(self._files) == 1 and self._groups and not self._failed:
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
        self._sources.clear()
        self._failed.clear()

    def _plan_together(self) -> Mapping[bytes, Exception]:
        """One plan for all files; those that fail in it, and why."""
        files = {pathname: wanted for pathname, wanted in self._files.items() if pathname not in self._failed}
        try:
            together = Prepared(self._workspace, files, self._nowhere)
        except Exception as error:  # noqa: BLE001 - one file's doing; in plans of their own it alone fails
            return dict.fromkeys(files, error)
        self._sources.update(dict.fromkeys(files, together))
        return together.failed

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
        return [pathname for pathname in group if self._try_to_prove(pathname) or self._try_to_prove(pathname)]

    def _try_to_prove(self, pathname: bytes) -> bool:
        """Rebuild the file. A failure the first time leaves it with a plan of its own, and one in that is the file's."""
        source = self._sources.get(pathname)
        if not isinstance(source, Prepared):
            return False
        try:
            self._sources[pathname] = list(source.stream(pathname))
        except Exception as error:  # noqa: BLE001 - whatever it is, only this file fails
            self._plan_alone(pathname, error)
            return False
        return True

    def _plan_alone(self, pathname: bytes, error: Exception) -> None:
        """Give a file that failed with `error` a plan of its own, if it had none and that may help; else it has failed."""
        shared = len(self._files) > 1 and pathname not in self._alone
        self._alone.add(pathname)
        if shared:
            try:
                alone = Prepared(self._workspace, {pathname: self._files[pathname]}, self._nowhere)
            except Exception as again:  # noqa: BLE001 - whatever it is, only this file fails
                error = again
            else:
                if pathname not in alone.failed:
                    self._sources[pathname] = alone
                    return
        self._sources.pop(pathname, None)
        self._failed[pathname] = error
