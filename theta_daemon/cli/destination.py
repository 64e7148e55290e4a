"""Where a command writes a file's bytes: stdout, or a file that appears under its name only when everything is in it."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from theta_daemon.cli.output import shown
from theta_daemon.errors import ThetaError


@contextmanager
def destination(output: Path | None) -> Iterator[tuple[BinaryIO, Callable[[bytes | bytearray | memoryview], object]]]:
    """Where to write. A file appears under its name only when everything is in it; links are followed."""
    if output is None:
        yield sys.stdout.buffer, sys.stdout.buffer.write
        sys.stdout.buffer.flush()
        return
    target = output.resolve()
    if target.exists() and not target.is_file():
        with _explained(output), target.open("wb") as special:  # a device or a pipe: there is nothing to replace
            yield special, special.write
        return
    with _explained(output):
        descriptor, scratch_name = tempfile.mkstemp(prefix=f".{target.name[:64]}.", dir=target.parent)
    scratch = Path(scratch_name)
    try:
        with _explained(output), os.fdopen(descriptor, "wb") as file:
            yield file, file.write
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), _mode(target))
            scratch.replace(target)
    finally:
        scratch.unlink(missing_ok=True)


def _mode(target: Path) -> int:
    """The mode of the file that is replaced, or that of a new one."""
    try:
        return target.stat().st_mode & 0o777
    except FileNotFoundError:
        umask = os.umask(0o077)
        os.umask(umask)
        return 0o666 & ~umask


@contextmanager
def _explained(output: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ThetaError(f"{shown(str(output))} cannot be written: {error.strerror or error}") from error
