"""Warms the disk cache: everything that checkouts of some pointers will need, rebuilt, proven and kept there.

Rules:
- Pointers come newest first. Those whose values fit into the budget together are chosen in that order; one that does not
  fit is passed over, and smaller ones behind it still have their chance.
- All chosen pointers are one plan: missing objects are fetched in one go, each distinct value is rebuilt and written once.
- A pointer counts as warm when its whole file was rebuilt to its digest with all its values in the cache: now, or at an
  earlier warming whose values are all still right. Every value that is there already is read and checked.
- Killed at any moment, what was written stays good, and the next warming goes on from there.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from theta_daemon.errors import MissingObjectError, StoreError, ThetaError
from theta_daemon.filters.batch import Prepared, Wanted
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import Pointer
from theta_daemon.store.disk_cache import DiskCache

KEY_PREFIX: Final = "theta-1-"
_OFFLINE: Final = "is not here, and nothing is fetched offline"


@dataclass(frozen=True, slots=True)
class Item:
    """A pointer to warm, and what people call it."""

    name: bytes
    wanted: Wanted


@dataclass(slots=True)
class Warmed:
    """What was done. Bytes are those of values and skeletons, raw."""

    files: int = 0
    """Distinct pointers."""
    warm: int = 0
    tensors: int = 0
    """Distinct values and skeletons of those that were chosen."""
    built: int = 0
    built_bytes: int = 0
    there: int = 0
    there_bytes: int = 0
    skipped: list[bytes] = field(default_factory=list)
    """Files that the budget has no room for."""
    failed: dict[bytes, Exception] = field(default_factory=dict)


Progress = Callable[[int, int, int, int], None]
"""Told of files done, files in all, bytes done, bytes in all."""


def cache_key(pointers: Iterable[Pointer]) -> str:
    """The same for the same values and needed objects, on every machine; another one if any of them differs."""
    parts: set[str] = set()
    for pointer in pointers:
        parts.add(f"file {pointer.digest}")
        parts.update(f"value {digest}" for digest, _ in values_of(pointer))
        parts.update(f"object {oid}" for oid in pointer.objects)
    return KEY_PREFIX + hashlib.sha256("\n".join(sorted(parts)).encode()).hexdigest()[:40]


def values_of(pointer: Pointer) -> Iterator[tuple[str, int]]:
    """Digest and bytes of all that the cache holds for a pointer: its skeleton and its values."""
    if pointer.skeleton is not None:
        literals = pointer.size - sum(parameter.spec.nbytes for parameter in pointer.parameters)
        yield pointer.skeleton.digest, literals + 8 * (len(pointer.parameters) + 1)
    for parameter in pointer.parameters:
        yield parameter.digest, parameter.spec.nbytes


class Warmer:
    """One warming of `items` (newest first) into the workspace's disk cache, which takes at most `budget_bytes` for them."""

    def __init__(
        self,
        workspace: Workspace,
        items: Sequence[Item],
        budget_bytes: int,
        progress: Progress,
        *,
        offline: bool = False,
    ) -> None:
        if workspace.machinery.disk is None:
            raise ThetaError("there is no disk cache", "name a folder with --cache-dir")
        self._disk: DiskCache = workspace.machinery.disk
        fetch = _nothing if offline else workspace.fetch
        self._workspace = replace(workspace, machinery=replace(workspace.machinery, warms=True), fetch=fetch)
        self._items = list({item.wanted.blob: item for item in reversed(items)}.values())[::-1]
        self._budget = min(budget_bytes, self._disk.budget_bytes)
        self._progress = progress
        self._right: dict[str, bool] = {}

    def run(self) -> Warmed:
        """Warm. Raises ThetaError for what concerns no single file."""
        done = Warmed(files=len(self._items))
        chosen, done.skipped = self._choose()
        values = {digest: nbytes for item in chosen for digest, nbytes in values_of(item.wanted.pointer)}
        self._verify(values)
        done.tensors = len(values)
        done.there = sum(self._right.values())
        done.there_bytes = sum(values[digest] for digest, right in self._right.items() if right)
        cold = [item for item in chosen if not self._settled(item)]
        done.warm = len(chosen) - len(cold)
        self._build(cold, done)
        built = [digest for digest, right in self._right.items() if not right and self._disk.has(digest)]
        done.built = len(built)
        done.built_bytes = sum(values[digest] for digest in built)
        return done

    def _choose(self) -> tuple[list[Item], list[bytes]]:
        """The items that fit, and the names of the others. What is there already is renewed, so that it stays."""
        counted: set[str] = set()
        used = 0
        chosen, skipped = [], []
        for item in self._items:
            new = {digest: nbytes for digest, nbytes in values_of(item.wanted.pointer) if digest not in counted}
            sizes = {digest: self._disk.size_of(digest) for digest in new}
            cost = sum(nbytes if (size := sizes[digest]) is None else size for digest, nbytes in new.items())
            if used + cost > self._budget:
                skipped.append(item.name)
                continue
            used += cost
            counted |= new.keys()
            chosen.append(item)
            for digest, size in sizes.items():
                if size is not None:
                    self._disk.renew(digest)
        return chosen, skipped

    def _verify(self, values: Mapping[str, int]) -> None:
        """Find out which values are there and right."""

        def check(digest: str, nbytes: int) -> bool:
            value = self._disk.open(digest, nbytes) if self._disk.has(digest) else None
            if value is not None:
                value.close()
            return value is not None

        pool = self._workspace.machinery.pool
        checks = pool.map(check, values.keys(), values.values())
        self._right = dict(zip(values, checks, strict=True))

    def _settled(self, item: Item) -> bool:
        everything = all(self._right[digest] for digest, _ in values_of(item.wanted.pointer))
        return everything and item.wanted.blob in self._workspace.proven

    def _build(self, items: Sequence[Item], done: Warmed) -> None:
        """Rebuild these files and throw them away: what stays is in the cache."""
        if not items:
            return
        labels = {b"%s (%s)" % (item.name, item.wanted.blob[:10].encode()): item for item in items}
        prepared = Prepared(self._workspace, {label: item.wanted for label, item in labels.items()})
        in_all = sum(item.wanted.pointer.size for item in items)
        nbytes = 0
        for number, (label, item) in enumerate(labels.items()):
            before = nbytes
            error: ThetaError | None = None
            # What a shared plan cannot build may still be had alone: a record of another file may have been at fault.
            for source in (prepared, None) if len(labels) > 1 else (prepared,):
                try:
                    if source is None:
                        source = Prepared(self._workspace, {label: item.wanted})  # noqa: PLW2901
                    for buffer in source.stream(label):
                        nbytes += memoryview(buffer).nbytes
                        self._progress(number, len(items), nbytes, in_all)
                    self._expect(item)
                except ThetaError as caught:
                    error = error or caught
                    nbytes = before
                else:
                    error = None
                    break
            if error is None:
                done.warm += 1
            else:
                done.failed[label] = error
            nbytes = before + item.wanted.pointer.size
            self._progress(number + 1, len(items), nbytes, in_all)

    def _expect(self, item: Item) -> None:
        """Raises StoreError unless the cache has all values of the file now."""
        for digest, _ in values_of(item.wanted.pointer):
            if not self._disk.has(digest):
                raise StoreError(
                    f"could not be kept in {self._disk.folder}", "is there space left, and may the folder be written?"
                )


def _nothing(objects: Mapping[str, int]) -> Mapping[str, ThetaError]:
    return {oid: MissingObjectError(_OFFLINE, "run it without --offline") for oid in objects}
