"""What pointers need, and what of it is not here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from theta_daemon.errors import PointerError
from theta_daemon.history.history import History
from theta_daemon.history.reach import Candidate, candidates
from theta_daemon.pointer import Pointer, parse
from theta_daemon.store.lfs import LfsStore


@dataclass(frozen=True, slots=True)
class Needs:
    """`objects`: sizes by id; `users`: a path that needs each; `pointers`: how many; `damaged`: why, by path."""

    objects: dict[str, int] = field(default_factory=dict)
    users: dict[str, bytes] = field(default_factory=dict)
    pointers: dict[str, bytes] = field(default_factory=dict)
    damaged: dict[bytes, str] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History, blobs: Mapping[str, bytes], *, fetch: bool = False) -> Needs:
        """What the pointers among `blobs` (paths by id) need."""
        needs = cls()
        for candidate in candidates(history, blobs, fetch=fetch):
            needs.add(candidate)
        return needs

    def add(self, candidate: Candidate) -> None:
        """Count in one more, which may turn out to be damaged, or to be no pointer at all."""
        try:
            pointer = parse(candidate.text)
        except PointerError as error:
            self.damaged[candidate.path] = error.message
            return
        if pointer is not None:
            self.add_pointer(candidate.blob, candidate.path, pointer)

    def add_pointer(self, blob: str, path: bytes, pointer: Pointer) -> None:
        """Count in a pointer."""
        self.pointers[blob] = path
        for oid, size in pointer.objects.items():
            self.objects[oid] = size
            self.users.setdefault(oid, path)

    def lacking(self, store: LfsStore) -> dict[str, int]:
        """Those of the objects that are not here, or not whole."""
        return {oid: size for oid, size in self.objects.items() if not store.holds(oid, size)}

    def named(self, oids: Iterable[str], limit: int = 5) -> str:
        """Some of these objects with the paths that need them, for a message."""
        listed = sorted(oids)
        told = [f"{oid} for {self.users[oid].decode(errors='backslashreplace')}" for oid in listed[:limit]]
        return ", ".join(told) + (f" and {len(listed) - limit} more" if len(listed) > limit else "")
