"""The pointers that git has for a path now, and the one that a content has had before."""

from __future__ import annotations

from dataclasses import dataclass

from theta_daemon.errors import ThetaError
from theta_daemon.filters.workspace import Workspace
from theta_daemon.history.history import HeadEntry
from theta_daemon.pointer import Pointer, parse


@dataclass(frozen=True, slots=True)
class Known:
    """The pointers that git has for a path now."""

    workspace: Workspace
    head: HeadEntry | None
    head_pointer: Pointer | None
    index_pointer: Pointer | None
    index_blob: str | None

    @classmethod
    def find(cls, workspace: Workspace, pathname: bytes) -> Known:
        entry = workspace.history.index_entry(pathname)
        blob = None if entry is None else entry.blob
        head = workspace.history.head_entry(pathname)
        head_pointer = None if head is None else workspace.pointer(head.blob)
        if head is not None and head.blob == blob:
            return cls(workspace, head, head_pointer, head_pointer, blob)
        return cls(workspace, head, head_pointer, None if blob is None else workspace.pointer(blob), blob)

    def text(self, digest: str, size: int, fingerprint: str = "") -> bytes | None:
        """The pointer that this content has already: the index's, HEAD's, or the one that the memo remembers.

        With hints (`fingerprint`) the index's does not count, and of the memo's the one that was made with the same.
        """
        blobs = [(self.head.blob if self.head else None, self.head_pointer)]
        if not fingerprint:
            blobs.insert(0, (self.index_blob, self.index_pointer))
        for blob, pointer in blobs:
            if blob is not None and pointer is not None and (pointer.digest, pointer.size) == (digest, size):
                return self.workspace.history.blob(blob)
        text = self.workspace.memo.pointer(memo_key(digest, fingerprint))
        if text is None:
            return None
        try:
            pointer = parse(text)
        except ThetaError:
            return None
        if pointer is None or (pointer.digest, pointer.size) != (digest, size):
            return None
        return text if all(self.workspace.store.freshen(oid, size) for oid, size in pointer.objects.items()) else None


def memo_key(digest: str, fingerprint: str) -> str:
    """Under which the memo has the pointer that content was given with certain hints, or with none."""
    return f"{digest} {fingerprint}" if fingerprint else digest
