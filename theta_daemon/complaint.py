"""Errors and pathnames as words for the person who runs git. Ground layer: knows nothing but this package's errors."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

from theta_daemon.errors import ThetaError, steady

log = logging.getLogger(__name__)


def explain(error: BaseException) -> str:
    """What to show of any error. What is not a ThetaError is a fault of ours, or of the machine.

    A fault of ours is shown with its type and place, for a report; the whole trace goes to the log.
    """
    if isinstance(error, ThetaError):
        return error.describe()
    log.info("unexpected error", exc_info=error)
    if isinstance(error, OSError):
        return steady(str(error))
    if isinstance(error, MemoryError):
        return "out of memory\n  remedy: fewer workers (theta.workers) or a smaller cache (theta.tensorCache)"
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return steady(f"internal error: {type(error).__name__}: {error}{place}")


def printable(pathname: bytes) -> str:
    """A pathname for a terminal: one line and no control characters, whatever bytes are in it."""
    text = pathname.decode(errors="backslashreplace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
