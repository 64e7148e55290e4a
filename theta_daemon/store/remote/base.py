"""What a remote promises. It knows objects by id and size, no pointer, no parameter, no ref.

Rules for all of them: what comes in is verified by SHA-256 while it streams and has no final name before; what is there
already is not moved again, so that a transfer that broke off goes on where it stopped; one object's failure is a reason in
the report, not the end of the others; failures of our own store (no space) end everything at once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Final

from theta_daemon.errors import MissingObjectError, RecordError, RemoteError, StoreError
from theta_daemon.store.base import ObjectReader, ObjectStore
from theta_daemon.store.lfs import LfsStore

Progress = Callable[[int, int], None]
"""Called with what was moved since the last call: objects, bytes. From any thread, one at a time."""

COPY_BYTES: Final = 4 << 20
"""Objects are copied in pieces of this size."""


@dataclass(frozen=True, slots=True)
class TransferReport:
    """What a transfer did: ids that were moved, their bytes, the rest with reasons, and rounds of asking (0: nothing to do).

    `requests`: what was asked for, our own further tries included: objects of a folder, calls to an object store's library, or
    runs of git-lfs. What the library tries again, and what git-lfs asks its server, cannot be seen from here.
    """

    moved: frozenset[str] = frozenset()
    moved_bytes: int = 0
    failed: Mapping[str, str] = field(default_factory=dict)
    rounds: int = 1
    requests: int = 0


class Remote(ABC):
    """A place that objects are fetched from and pushed to. `name` is for messages."""

    name: str

    @abstractmethod
    def fetch(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        """Bring `objects` (sizes by id) that `store` lacks into it, in one round.

        Raises RemoteError when the remote cannot be spoken to at all, StoreError when our store cannot take them.
        """

    @abstractmethod
    def push(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        """Bring `objects` of `store` to the remote, except for those that are there.

        Raises RemoteError when the remote cannot be spoken to, MissingObjectError when `store` lacks one: then nothing
        was moved.
        """

    @abstractmethod
    def has(self, objects: Mapping[str, int]) -> frozenset[str] | None:
        """Those of `objects` that are surely there, whole; None when this kind of remote cannot tell. Raises RemoteError."""


def lacking(objects: Mapping[str, int], store: ObjectStore) -> dict[str, int]:
    """Those of `objects` that `store` does not have, or not with their size."""
    return {oid: size for oid, size in objects.items() if not store.holds(oid, size)}


def require(objects: Mapping[str, int], store: ObjectStore) -> None:
    """Raises MissingObjectError, naming them, when `store` does not have all `objects`."""
    absent = sorted(lacking(objects, store))
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        raise MissingObjectError(
            f"cannot push: {len(absent)} objects are not here: {', '.join(absent[:3])}{more}",
            "fetch them first with `git theta fetch`",
        )


def copy_object(reader: ObjectReader, store: ObjectStore, oid: str, size: int) -> None:
    """Stream an object of another store into `store`. Raises RecordError when it is not what it should be, StoreError."""
    if reader.size != size:
        raise RecordError(f"object {oid} has {reader.size} bytes there instead of {size}")
    writer = store.writer()
    try:
        for offset in range(0, size, COPY_BYTES):
            writer.write(reader.read(offset, min(COPY_BYTES, size - offset)))
        writer.commit(expected=oid)
    finally:
        writer.abort()


def each(
    objects: Mapping[str, int], work: Callable[[str, int], None], jobs: int, progress: Progress | None
) -> TransferReport:
    """Run `work` for each object in `jobs` threads; a RecordError, MissingObjectError or RemoteError is that object's reason.

    A StoreError ends the rest and is raised.
    """
    moved: set[str] = set()
    failed: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=jobs, thread_name_prefix="transfer") as pool:
        futures = {pool.submit(work, oid, size): oid for oid, size in objects.items()}
        for future in as_completed(futures):
            oid = futures[future]
            try:
                future.result()
            except (RecordError, MissingObjectError, RemoteError) as error:
                failed[oid] = error.message
            except StoreError:
                pool.shutdown(cancel_futures=True)
                raise
            else:
                moved.add(oid)
                if progress is not None:
                    progress(1, objects[oid])
    rounds = 1 if objects else 0
    return TransferReport(frozenset(moved), total(objects, moved), failed, rounds, requests=len(objects))


def total(objects: Mapping[str, int], ids: Iterable[str]) -> int:
    """Bytes of `ids` together."""
    return sum(objects[oid] for oid in ids)
