"""`git theta cat`: a checkpoint of any revision, to stdout or to a file, without touching the work tree."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Annotated, BinaryIO

import typer

from theta_daemon.cli import git
from theta_daemon.cli.destination import destination
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
        with destination(output) as (file, _):
            _stream(found.blob, file)
        return DONE
    text = git.ask("cat-file", "blob", found.blob)
    from theta_daemon.cli.filtering import filtering

    with filtering() as one, destination(output) as (file, write):
        try:
            for piece in one.smudge(found.path, [text], found.blob):
                write(piece)
        except ThetaError as error:
            raise error.within(shown(name)) from error
    return DONE


def _stream(blob: str, file: BinaryIO) -> None:
    file.flush()
    done = subprocess.run(["git", "cat-file", "blob", blob], stdin=subprocess.DEVNULL, stdout=file, check=False)
    if done.returncode != 0:
        raise ThetaError(f"git could not read blob {blob}")
