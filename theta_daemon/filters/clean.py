"""Clean: from a checkpoint's bytes to its pointer.

Git cleans unchanged files all the time, so the same content gives the same pointer: it is looked up by its digest in the
index, at HEAD and in the memo before anything is made of it (but for what `ahead` encodes while it arrives). Only new content is laid out, compared with HEAD's pointer parameter
by parameter, encoded and stored. What a caller hints counts for content that is not HEAD's: of the pointers that the memo
has for it, the one that was made with the same hints. All objects are durable before the pointer is answered.
"""

from __future__ import annotations

from theta_daemon.errors import ThetaError
from theta_daemon.filters.ahead import Ahead, ahead
from theta_daemon.filters.arriving import ArrivingSpool
from theta_daemon.filters.build import Build
from theta_daemon.filters.expecting import Match, expected
from theta_daemon.filters.known import Known, memo_key
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import MAX_POINTER_BYTES, PREFIX, newer_version, parse


def clean(workspace: Workspace, pathname: bytes, spool: Spool) -> bytes:
    """The text that git stores for the file's content in `spool`. Raises StoreError; odd content is never refused."""
    if spool.size == 0:
        return b""
    if git_reads(pathname):
        return bytes(spool.read(0, spool.size))
    text = _own_pointer(spool)
    if text is not None:
        return text
    return pointer_text(workspace, pathname, spool, Known.find(workspace, pathname))


def pointer_text(workspace: Workspace, pathname: bytes, spool: Spool, known: Known) -> bytes:
    """The pointer for content that is none, where git has `known` for the path. Raises StoreError."""
    hints = workspace.hints()
    digest = spool.hexdigest()
    text = known.text(digest, spool.size, hints.fingerprint)
    if text is not None:
        workspace.machinery.counters.add("cleans.known")
        return text
    workspace.machinery.counters.add("cleans.built")
    taker = spool.taker if isinstance(spool, ArrivingSpool) else None
    made = taker if isinstance(taker, Ahead) else None
    if made is None:
        spool.settle()  # here, not by a worker that would wait for others
    text = Build(workspace, pathname, spool, known, ahead=made).pointer().encode()
    if len(text) > MAX_POINTER_BYTES:  # a layout that no pointer can hold: the file is kept whole instead
        spool.settle()
        text = Build(workspace, pathname, spool, known, format_name="opaque").pointer().encode()
    for key in {digest, memo_key(digest, hints.fingerprint)}:
        workspace.memo.remember(key, text)
    return text


def begin(workspace: Workspace, pathname: bytes, beginning: memoryview) -> Match | Ahead | None:
    """Who takes a large payload while it arrives: what git has already is compared, what is new to it encoded."""
    expectation = expected(workspace, pathname)
    if expectation is not None:
        return Match(workspace.repository.spool_dir, workspace.machinery.pool, expectation)
    return ahead(workspace, pathname, beginning)


def git_reads(pathname: bytes) -> bool:
    """Whether git itself reads the file: a pattern such as `*` must not turn it into a pointer (no clone could read it)."""
    return pathname.rpartition(b"/")[2] in {b".gitattributes", b".gitignore", b".gitmodules", b".mailmap"}


def _own_pointer(spool: Spool) -> bytes | None:
    """The content itself if it is a pointer (left in the work tree when smudging was skipped)."""
    if spool.size > MAX_POINTER_BYTES or not spool.startswith(PREFIX):
        return None
    text = bytes(spool.read(0, spool.size))
    if newer_version(text):
        return text
    try:
        return None if parse(text) is None else text
    except ThetaError:
        return None  # made to look like a pointer: kept like any other content
