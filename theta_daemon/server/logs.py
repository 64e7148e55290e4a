"""The daemon's log: bounded, private, and without anybody's secrets.

Rules: only the daemon opens it; it rotates by size while it runs (a log that rotates at start only grows for months);
environment *names* may be logged, values never. A crash in native code leaves its trace in a file of its own, which the
next daemon takes over into the log.
"""

from __future__ import annotations

import faulthandler
import logging
import os
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Final

from theta_daemon.runtime import Place

MAX_BYTES: Final = 1 << 20
BACKUPS: Final = 2
"""Three files in all."""

_CRASH_BYTES: Final = 1 << 16


def open_log(place: Place) -> None:
    """Send this process's log and crash traces to the place. Without room for them there are none."""
    root = logging.getLogger()
    root.setLevel(logging.INFO)
    try:
        handler = RotatingFileHandler(os.fsdecode(place.log), maxBytes=MAX_BYTES, backupCount=BACKUPS, errors="replace")
        crashed = _take_crash(Path(os.fsdecode(place.crash)))
    except OSError:
        root.addHandler(logging.NullHandler())
        return
    handler.setFormatter(logging.Formatter("%(asctime)s %(process)d %(threadName)s %(levelname)s %(message)s"))
    root.addHandler(handler)
    if crashed:
        root.error("the daemon before this one crashed:\n%s", crashed)


def _take_crash(path: Path) -> str:
    """What the last daemon left; from now on this one's crashes go there."""
    file = path.open("a+b", buffering=0)
    file.seek(0)
    text = file.read(_CRASH_BYTES).decode(errors="replace")
    file.truncate(0)
    # It keeps the file open. Only the thread that crashed: the others run on, and to walk their frames meanwhile can go
    # round in circles, while git waits for our end.
    faulthandler.enable(file, all_threads=False)
    return text


def read_log(place: Place) -> str:
    """All that is kept, oldest first."""
    path = Path(os.fsdecode(place.log))
    files = [path.with_name(f"{path.name}.{number}") for number in range(BACKUPS, 0, -1)] + [path]
    return "".join(file.read_text(errors="replace") for file in files if file.is_file())
