"""`git theta textconv FILE`: git's diff driver. A checkpoint as text, one line a parameter.

Git hands over what a checkout would write (a smudged blob), or the file of the work tree itself; where the filter is not
set up, or skips, that is a pointer. Both give the same text, so that only values that differ show up in a diff, however they are
stored. What is neither (conflict marks, a damaged pointer) is shown as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from theta_daemon.cli.content import Described, File, described
from theta_daemon.cli.exits import DONE, USAGE, complain
from theta_daemon.cli.output import say, shown

_SHORT: int = 16
"""Hex digits of a digest that are shown: 64 bits tell any two versions of a value apart."""


def run(arguments: list[str]) -> int:
    """The text on stdout; the exit status."""
    if len(arguments) != 1:
        complain("usage: git theta textconv FILE")
        return USAGE
    with File(Path(arguments[0])) as file:
        if file.size == 0:
            return DONE
        pointer = file.pointer()
        if pointer is not None:
            parameters = [Described(one.name, one.dtype, one.shape, one.digest) for one in pointer.parameters]
            say(*_text(pointer.size, pointer.digest, parameters))
        elif file.resembles_pointer():
            for piece in file.pieces():
                sys.stdout.buffer.write(piece)
        else:
            from theta_daemon.registry import find_layout

            _, layout = find_layout(file)
            say(*_text(file.size, file.digest(), described(file, layout)))
    return DONE


def _text(size: int, digest: str, parameters: list[Described]) -> Iterator[str]:
    yield f"checkpoint of {size} bytes, digest {digest[:_SHORT]}"
    for one in parameters:
        shape = ", ".join(str(length) for length in one.shape)
        yield f"{shown(one.name)} {one.dtype} [{shape}] {one.digest[:_SHORT]}"
