"""Smudge: from a pointer to its checkpoint, at once or with the whole checkout's batch.

What is no pointer passes through unchanged. A pointer is delayed where git allows it, except where git may be writing out a
conflict: it crashes when a filter then delays. One that breaks a rule is delayed too, to fail after the good files: git dies
at the first error. Keyed by pathname, as git asks again by pathname.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from protocol.events import Request
from theta_daemon.errors import ThetaError
from theta_daemon.filters.batch import Batch, Prepared, Wanted, too_large
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import MAX_POINTER_BYTES, PREFIX
from theta_daemon.tensor import Buffer

_LARGE_BYTES: Final = 16 << 20


class Smudger:
    """One session's checkouts, one round after the other."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._delayed: dict[bytes, Wanted] = {}
        self._failed: dict[bytes, ThetaError] = {}
        self._texts: dict[str, tuple[Wanted, bytes]] = {}
        self._batch: Batch | None = None

    def smudge(self, request: Request, payload: Spool) -> Iterator[Buffer] | None:
        """The file's bytes, or None: the answer comes with the batch. Raises ThetaError."""
        if payload.size == 0:
            if self._batch is not None and request.pathname in self._batch:
                return self._batch.content(request.pathname)
            return iter(())
        try:
            wanted = self._pointer(payload)
        except ThetaError as error:
            if not self._can_delay(request):
                raise
            self._failed[request.pathname] = error
            return None
        if wanted is None:
            return payload.pieces()
        if self._can_delay(request):
            self._delayed[request.pathname] = wanted
            return None
        impossible = too_large(wanted.pointer)
        if impossible is not None:
            raise impossible
        return Prepared(self._workspace, {request.pathname: wanted}).stream(request.pathname)

    def available(self) -> list[bytes]:
        """Delayed files that can be had now; empty when none is left, and the round is over."""
        if self._batch is None:
            if not self._delayed and not self._failed:
                return []
            delayed, self._delayed = self._delayed, {}
            failed, self._failed = self._failed, {}
            self._batch = Batch(self._workspace, delayed, failed)
        pathnames = self._batch.next()
        if not pathnames:
            self.close()
        return pathnames

    def close(self) -> None:
        """Forget the round, but for the pointers: content that was checked out shall be cleaned to the one it had."""
        if self._batch is not None:
            self._batch.close()
        self._batch = None
        texts, self._texts = self._texts, {}
        proven = {
            wanted.pointer.digest: text for blob, (wanted, text) in texts.items() if blob in self._workspace.proven
        }
        self._workspace.memo.remember_all(proven)

    def _pointer(self, payload: Spool) -> Wanted | None:
        """The pointer in the payload, unless it shall stay as it is."""
        blob, pointer, text = None, None, b""
        if payload.size <= MAX_POINTER_BYTES and payload.startswith(PREFIX):
            if self._workspace.settings.skip_smudge:
                return None
            text = bytes(payload.read(0, payload.size))
            blob, pointer = self._workspace.history.pointer_of(text)
        if blob is None or pointer is None:
            self._workspace.report(
                "not a theta pointer; written as it is (`git add --renormalize` converts checkpoints)"
            )
            return None
        wanted = Wanted(blob, pointer)
        self._texts[blob] = wanted, text
        self._look_up_proof(wanted, text)
        return wanted

    def _look_up_proof(self, wanted: Wanted, text: bytes) -> None:
        """What this repository has made from its content, or once rebuilt to it, needs no proof any more."""
        proven = self._workspace.proven
        large = wanted.pointer.size >= _LARGE_BYTES  # else hashing costs less than looking
        if large and wanted.blob not in proven and self._workspace.memo.pointer(wanted.pointer.digest) == text:
            proven.add(wanted.blob)

    def _can_delay(self, request: Request) -> bool:
        return request.can_delay and not self._conflicting(request)

    def _conflicting(self, request: Request) -> bool:
        """Whether git may be writing out a conflict: one that there is, or one that `checkout -m` brings back."""
        history = self._workspace.history
        entry = history.index_entry(request.pathname)
        if entry is not None and entry.unmerged:
            return True
        return request.treeish is None and history.resolved_conflict(request.pathname)
