"""The limit of what any filter can reach: a process filter that knows every answer and computes nothing.

    python benchmarks/null_filter.py FOLDER      a git process filter (filter.NAME.process)

Smudge answers with the bytes of FOLDER/pathname, straight from the page cache (mapped, 256 packets a `writev`, the pipe
widened to 1 MiB); clean reads everything and answers with one short line. It delays nothing. What is left of a checkout's
time is git's own: the pipe, its memory, its writing of the file. Standard library only, so that it starts as fast as a
Python program can; `command` gives the command line for git, `options` the configuration.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

PACKET_BYTES = 65516
PIPE_BYTES = 1 << 20
HEAD = b"%04x" % (PACKET_BYTES + 4)
FLUSH = b"0000"


def command(folder: Path) -> str:
    """What git runs."""
    return shlex.join([sys.executable, "-I", "-S", str(Path(__file__).resolve()), str(folder)])


def options(folder: Path, name: str = "theta") -> list[str]:
    """Options for git that put this filter in the place of the filter `name` for one command."""
    return [
        "-c", f"filter.{name}.process={command(folder)}",
        "-c", f"filter.{name}.clean=false",
        "-c", f"filter.{name}.smudge=false",
        "-c", f"filter.{name}.required=true",
    ]  # fmt: skip


def packet(text: bytes) -> bytes:
    return b"%04x%s" % (len(text) + 4, text)


def packets(source: BinaryIO) -> Iterator[bytes]:
    """Packets up to the next flush."""
    while True:
        head = source.read(4)
        if len(head) < 4:
            sys.exit(0)
        length = int(head, 16)
        if length == 0:
            return
        yield source.read(length - 4)


def write(fd: int, buffers: list[bytes | memoryview]) -> None:
    """All of `buffers`, at most 512 a system call."""
    while buffers:
        batch = buffers[:512]
        written = os.writev(fd, batch)
        done = 0
        while done < len(batch) and written >= len(batch[done]):
            written -= len(batch[done])
            done += 1
        del buffers[:done]
        if written:
            buffers[0] = memoryview(buffers[0])[written:]


def content(path: Path) -> list[bytes | memoryview]:
    """The packets of a file's content, without the flush."""
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if not size:
            return []
        view = memoryview(mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ))
    buffers: list[bytes | memoryview] = []
    for start in range(0, size, PACKET_BYTES):
        piece = view[start : start + PACKET_BYTES]
        buffers += [HEAD if len(piece) == PACKET_BYTES else b"%04x" % (len(piece) + 4), piece]
    return buffers


def main() -> None:
    folder = Path(sys.argv[1])
    for fd in (0, 1):
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    source = os.fdopen(0, "rb", buffering=PIPE_BYTES, closefd=False)
    list(packets(source))
    os.write(1, packet(b"git-filter-server\n") + packet(b"version=2\n") + FLUSH)
    list(packets(source))
    os.write(1, packet(b"capability=clean\n") + packet(b"capability=smudge\n") + FLUSH)
    while True:
        keys = dict(line.rstrip(b"\n").split(b"=", 1) for line in packets(source))
        size = sum(len(data) for data in packets(source))
        if keys[b"command"] == b"smudge":
            answer = content(folder / os.fsdecode(keys[b"pathname"]))
        else:
            answer = [packet(b"%s %d\n" % (keys[b"pathname"], size))]
        write(1, [packet(b"status=success\n") + FLUSH, *answer, FLUSH, FLUSH])


if __name__ == "__main__":
    main()
