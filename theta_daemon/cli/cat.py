"""`git theta cat`: a checkpoint of any revision, to stdout or to a file, without touching the work tree."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from theta_daemon.cli import git
from theta_daemon.cli.exits import DONE
from theta_daemon.cli.output import shown
from theta_daemon.errors import ThetaError

_STREAMED_BYTES = 64 << 20
"""Larger blobs are no pointers; git writes them itself."""


def cat(
    name: Annotated[str, typer.Argument(metavar="[REV:]PATH", help="A file of the index, or of a revision.")],
    *,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write here, whole or not at all.")
    ] = None,
) -> int:
    """Write a checkpoint's bytes to stdout or to FILE. Fails when they are not, bit for bit, what was added."""
    from theta_daemon.cli import revisions

    found = revisions.find(name)
    nbytes = int(git.ask("cat-file", "-s", found.blob))
    if nbytes > _STREAMED_BYTES:
        with _destination(output) as (file, _):
            _stream(found.blob, file)
        return DONE
    text = git.ask("cat-file", "blob", found.blob)
    from theta_daemon.cli.filtering import filtering

    with filtering() as one, _destination(output) as (file, write):
        try:
            for piece in one.smudge(found.path, [text], found.blob):
                write(piece)
        except ThetaError as error:
            raise error.within(shown(name)) from error
    return DONE


@contextmanager
def _destination(output: Path | None) -> Iterator[tuple[BinaryIO, Callable[[bytes | bytearray | memoryview], object]]]:
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


def _stream(blob: str, file: BinaryIO) -> None:
    file.flush()
    done = subprocess.run(["git", "cat-file", "blob", blob], stdin=subprocess.DEVNULL, stdout=file, check=False)
    if done.returncode != 0:
        raise ThetaError(f"git could not read blob {blob}")
