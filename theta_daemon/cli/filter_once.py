"""`git-theta-filter clean|smudge PATH`: one file from stdin to stdout, for tools that call filters a file at a time.

Git itself falls back to these when it does not speak the process protocol. PATH is relative to the top of the work tree and
any bytes at all: it is never taken for an option. Nothing is written to stdout by a clean before it is known to be right; a
smudge that fails half way ends with 1, upon which git drops what it got.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing
from typing import BinaryIO

from theta_daemon.cli.exits import DONE, EPILOGUE, USAGE, guarded

_USAGE = f"""usage: git-theta-filter clean PATH < checkpoint > pointer
       git-theta-filter smudge PATH < pointer > checkpoint

PATH is the file's path from the top of the work tree.
{EPILOGUE}
"""


def main() -> int:
    """The executable `git-theta-filter`; its exit status."""
    arguments = sys.argv[1:]
    if arguments in (["-h"], ["--help"]):
        sys.stdout.write(_USAGE)
        return DONE
    if len(arguments) != 2 or arguments[0] not in {"clean", "smudge"}:
        sys.stderr.write(_USAGE)
        return USAGE
    return guarded(lambda: run(arguments[0], os.fsencode(arguments[1])))


def run(command: str, path: bytes) -> int:
    """Filter stdin to stdout."""
    from theta_daemon.cli.filtering import filtering
    from theta_daemon.cli.output import shown
    from theta_daemon.errors import ThetaError

    pieces = _pieces(sys.stdin.buffer)
    try:
        with filtering(skip_allowed=True) as one:
            if command == "clean":
                with closing(one.spool()) as content:
                    for piece in pieces:
                        content.write(piece)
                    sys.stdout.buffer.write(one.clean(path, content))
            else:
                for made in one.smudge(path, pieces):
                    sys.stdout.buffer.write(made)
            sys.stdout.buffer.flush()
    except ThetaError as error:
        raise error.within(shown(path)) from error
    return DONE


def _pieces(stream: BinaryIO) -> Iterator[bytes]:
    while piece := stream.read(1 << 20):
        yield piece
