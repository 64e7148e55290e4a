"""Fill: checkpoints in the place of the pointers that a skipped smudge left in the work tree.

All files are one batch, as in a checkout. Each is written beside its place and takes it when it is whole, and only while
there is still the very pointer that git has for it: nothing of the user's is written over.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from theta_daemon.errors import StoreError, ThetaError
from theta_daemon.filters.batch import Batch, Wanted
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import MAX_POINTER_BYTES, PREFIX

Failed = Callable[[bytes, Exception], None]
"""Told of each file that could not be had."""


@dataclass(frozen=True, slots=True)
class Place:
    """A file of the index that stands in the work tree as a pointer."""

    path: bytes
    file: Path
    wanted: Wanted
    text: bytes


def places(workspace: Workspace, top: Path, entries: Iterable[tuple[bytes, str]]) -> list[Place]:
    """Those of `entries` (path, blob in the index) whose file is the blob's own text, and that a pointer."""
    found = []
    for path, blob in entries:
        file = top / os.fsdecode(path)
        text = _pointer_text(file)
        if text is None or workspace.history.blob_id(text) != blob:
            continue
        try:
            _, pointer = workspace.history.pointer_of(text)
        except ThetaError:
            continue  # damaged: a checkout would say so, and so does `git theta status`
        if pointer is not None:
            found.append(Place(path, file, Wanted(blob, pointer), text))
    return found


def fill(workspace: Workspace, found: Iterable[Place], failed: Failed) -> list[bytes]:
    """Write the checkpoints; the paths of those that were written."""
    by_path = {place.path: place for place in found}
    if not by_path:
        return []
    written = []
    batch = Batch(workspace, {path: place.wanted for path, place in by_path.items()})
    try:
        while ready := batch.next():
            for path in ready:
                try:
                    if _write(batch, by_path[path]):
                        written.append(path)
                except (ThetaError, OSError) as error:
                    failed(path, error)
    finally:
        batch.close()
    return written


def _write(batch: Batch, place: Place) -> bool:
    content = batch.content(place.path)
    first = next(content, None)  # a failing file costs no scratch file
    try:
        descriptor, name = tempfile.mkstemp(prefix=f".{place.file.name[:64]}.theta-", dir=place.file.parent)
    except OSError as error:
        raise StoreError(f"cannot write beside {place.file}: {error.strerror}") from error
    scratch = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            if first is not None:
                file.write(first)
            for piece in content:
                file.write(piece)
            os.fchmod(file.fileno(), stat.S_IMODE(place.file.stat().st_mode))
        if _pointer_text(place.file) != place.text:
            return False
        scratch.replace(place.file)
    finally:
        scratch.unlink(missing_ok=True)
    return True


def _pointer_text(file: Path) -> bytes | None:
    """The text of a regular file that starts as a pointer does."""
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_POINTER_BYTES:
            return None
        head = stream.read(len(PREFIX))
        return head + stream.read() if head == PREFIX else None
