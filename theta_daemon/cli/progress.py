"""How far a command is, on the terminal of who waits for it: nothing for the first second, then one line that is redrawn."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from types import TracebackType
from typing import Final, Self

_PATIENCE_SECONDS: Final = 1.0
_REDRAW_SECONDS: Final = 0.1


class Counted:
    """Shows counts of things done. A context: on the way out the line is ended."""

    def __init__(self, fd: int, what: str) -> None:
        self._fd = fd if os.isatty(fd) else None
        self._what = what
        self._next = time.monotonic() + _PATIENCE_SECONDS
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        now = time.monotonic()
        if self._fd is None or now < self._next:
            return
        self._next = now + _REDRAW_SECONDS
        self._shown = True
        with suppress(OSError):  # the terminal has gone
            os.write(self._fd, f"\r{self._what} {what}: {done}/{total}\x1b[K".encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._shown and self._fd is not None:
            with suppress(OSError):
                os.write(self._fd, b"\n")
