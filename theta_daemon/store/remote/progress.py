"""How far a transfer is, on the terminal of who waits for it: nothing for the first second, then one line that is redrawn.

Written to a descriptor that is the caller's stderr, and only if that is a terminal.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Final

_PATIENCE_SECONDS: Final = 1.0
_REDRAW_SECONDS: Final = 0.1
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")


class TerminalProgress:
    """Shows a transfer of `objects` (sizes by id), which `what` says in a word or two. A `Progress`; a context."""

    def __init__(self, fd: int | None, what: str, objects: Mapping[str, int]) -> None:
        self._fd = fd if fd is not None and os.isatty(fd) else None
        self._what = what
        self._objects = len(objects)
        self._bytes = sum(objects.values())
        self._done_objects = self._done_bytes = 0
        self._next = time.monotonic() + _PATIENCE_SECONDS
        self._shown = False

    def __call__(self, objects: int, nbytes: int) -> None:
        self._done_objects += objects
        self._done_bytes += nbytes
        if self._fd is not None and time.monotonic() >= self._next:
            self._next = time.monotonic() + _REDRAW_SECONDS
            self._draw("")

    def __enter__(self) -> TerminalProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown:
            self._draw("\n")

    def _draw(self, end: str) -> None:
        if self._fd is None:
            return
        share = 100 * self._done_bytes // self._bytes if self._bytes else 100
        counts = f"{self._done_objects}/{self._objects} objects, {human(self._done_bytes)} of {human(self._bytes)}"
        self._shown = True
        with suppress(OSError):  # the terminal has gone
            os.write(self._fd, f"\r{self._what}: {share:3d} % ({counts})\x1b[K{end}".encode())


def human(nbytes: int) -> str:
    """A number of bytes for people: 3 digits and a unit."""
    value = float(nbytes)
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1024
    return f"{nbytes} B" if value == nbytes and nbytes < 1000 else f"{value:.3g} {unit}"
