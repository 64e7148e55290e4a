"""A git filter written from gitattributes(5) alone, sharing no code with this package; it records both streams.

    python -P trivial_filter.py TRANSCRIPT [delay]

clean reverses the content, smudge reverses it again; content that holds "refuse" backwards fails at smudge.
"""

from __future__ import annotations

import os
import sys

LOG = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
DELAY = "delay" in sys.argv[2:]


def record(direction: bytes, data: bytes) -> None:
    os.write(LOG, b"%b %d\n%b\n" % (direction, len(data), data))


def exactly(count: int) -> bytes:
    data = b""
    while len(data) < count:
        piece = os.read(0, count - len(data))
        if not piece:
            sys.exit(0)
        data += piece
    return data


def until_flush() -> list[bytes]:
    raw = b""
    payloads: list[bytes] = []
    while True:
        header = exactly(4)
        raw += header
        if header == b"0000":
            record(b">", raw)
            return payloads
        payloads.append(exactly(int(header, 16) - 4))
        raw += payloads[-1]


def say(*lists: list[bytes]) -> None:
    """Each list's payloads and a flush."""
    raw = b"".join(b"".join(b"%04x" % (len(item) + 4) + item for item in items) + b"0000" for items in lists)
    record(b"<", raw)
    for at in range(0, len(raw), 4096):
        os.write(1, raw[at : at + 4096])


def main() -> None:
    waiting: dict[bytes, bytes] = {}
    offered: set[bytes] = set()
    until_flush()
    say([b"git-filter-server\n", b"version=2\n"])
    until_flush()
    say([b"capability=clean\n", b"capability=smudge\n", b"capability=delay\n"])
    while True:
        said = dict(line[:-1].split(b"=", 1) for line in until_flush())
        if said[b"command"] == b"list_available_blobs":
            ready = sorted(set(waiting) - offered)[:2]
            offered.update(ready)
            say([b"pathname=%b\n" % name for name in ready], [b"status=success\n"])
            continue
        name = said[b"pathname"]
        content = b"".join(until_flush())
        if DELAY and said.get(b"can-delay") == b"1":
            waiting[name] = content
            say([b"status=delayed\n"])
            continue
        if name in offered:
            offered.remove(name)
            content = waiting.pop(name)
        if said[b"command"] == b"smudge" and b"esufer" in content:
            say([b"status=error\n"])
            continue
        answer = content[::-1]
        pieces = [answer[at : at + 50_000] for at in range(0, len(answer), 50_000)]
        say([b"status=success\n"], pieces, [])


main()
