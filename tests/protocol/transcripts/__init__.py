"""Conversations of real git (2.39) with a filter that shares no code with this package; see record.py."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

NAMES = sorted(path.stem for path in Path(__file__).parent.glob("*.bin"))


def sessions(name: str) -> list[tuple[bytes, bytes]]:
    """Of each filter process in the transcript: what git said, and what the filter said."""
    found: list[tuple[bytes, bytes]] = []
    for direction, data in _chunks((Path(__file__).parent / f"{name}.bin").read_bytes()):
        if direction == b">" and data.startswith(b"0016git-filter-client"):
            found.append((b"", b""))
        said, answered = found[-1]
        found[-1] = (said + data, answered) if direction == b">" else (said, answered + data)
    return found


def _chunks(raw: bytes) -> Iterator[tuple[bytes, bytes]]:
    at = 0
    while at < len(raw):
        end = raw.index(b"\n", at)
        direction, length = raw[at:end].split()
        at = end + 1 + int(length)
        yield direction, raw[end + 1 : at]
        at += 1
