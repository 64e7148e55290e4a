"""Zip directories that lie are refused before a byte is believed."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Callable

import pytest

from theta_daemon.errors import FormatError
from theta_daemon.formats.zipfile_layout import MAX_COMMENT, members
from theta_daemon.testing.formats import BytesSource


def archive(comment: bytes = b"") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a", b"A" * 100)
        file.writestr("b", b"B" * 100, compress_type=zipfile.ZIP_DEFLATED)
        file.comment = comment
    return out.getvalue()


def patched(data: bytes, at: int, layout: str, *values: int) -> bytes:
    out = bytearray(data)
    struct.pack_into(layout, out, at, *values)
    return bytes(out)


GOOD = archive()
CENTRAL = GOOD.index(b"PK\x01\x02")
SECOND = GOOD.index(b"PK\x01\x02", CENTRAL + 4)
LOCAL = GOOD.index(b"PK\x03\x04", 4)
END = GOOD.index(b"PK\x05\x06")


def test_members() -> None:
    """Stored members and deflated ones are found, with the range of their bytes as they lie."""
    a, b = members(BytesSource(GOOD))
    assert (a.name, a.plain, GOOD[a.offset : a.end]) == ("a", True, b"A" * 100)
    assert (b.name, b.plain) == ("b", False)
    assert b.end == CENTRAL


@pytest.mark.parametrize("comment", [b"c", b"PK\x05\x06" * 200, b"x" * MAX_COMMENT])
def test_comments(comment: bytes) -> None:
    """A comment of any length, even one full of end marks, hides nothing."""
    assert len(members(BytesSource(archive(comment)))) == 2


LIES: dict[str, Callable[[], bytes]] = {
    "no directory": lambda: GOOD[:END],
    "prefix": lambda: b"#!/bin/sh\n" + GOOD,
    "suffix": lambda: GOOD + b"x",
    "directory elsewhere": lambda: patched(GOOD, END + 16, "<I", CENTRAL - 1),
    "directory outside": lambda: patched(GOOD, END + 16, "<I", 1 << 31),
    "directory size zero": lambda: patched(GOOD, END + 12, "<I", 0),
    "fewer entries": lambda: patched(GOOD, END + 8, "<2H", 1, 1),
    "more entries": lambda: patched(GOOD, END + 8, "<2H", 3, 3),
    "65535 entries, no zip64": lambda: patched(GOOD, END + 8, "<2H", 0xFFFF, 0xFFFF),
    "second disk": lambda: patched(GOOD, END + 4, "<2H", 1, 1),
    "entry on another disk": lambda: patched(GOOD, CENTRAL + 34, "<H", 3),
    "same member twice": lambda: patched(GOOD, SECOND + 42, "<I", 0),
    "same name twice": lambda: GOOD.replace(b"b", b"a"),
    "member inside another": lambda: patched(GOOD, CENTRAL + 20, "<2I", 150, 150),
    "member in the directory": lambda: patched(GOOD, SECOND + 42, "<I", CENTRAL),
    "member outside": lambda: patched(GOOD, SECOND + 42, "<I", 0x7FFFFFFF),
    "data beyond the directory": lambda: patched(GOOD, SECOND + 20, "<I", 5000),
    "local size differs": lambda: patched(GOOD, 18, "<I", 99),
    "local name differs": lambda: patched(GOOD, 30, "<B", ord("c")),
    "local method differs": lambda: patched(GOOD, 8, "<H", 8),
    "local says encrypted": lambda: patched(GOOD, 6, "<H", 1),
    "stored, sizes differ": lambda: patched(patched(GOOD, 22, "<I", 200), CENTRAL + 24, "<I", 200),
    "zip64 without its field": lambda: patched(GOOD, CENTRAL + 20, "<2I", 0xFFFFFFFF, 0xFFFFFFFF),
    "local name longer than the file": lambda: patched(GOOD, LOCAL + 26, "<H", 0xFFFF),
    "bad utf-8": lambda: patched(
        patched(patched(GOOD, 30, "<B", 255), CENTRAL + 46, "<B", 255), CENTRAL + 8, "<H", 1 << 11
    ),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(name: str) -> None:
    """A directory that contradicts itself, its members or the file's end is a FormatError."""
    data = LIES[name]()
    assert data != GOOD
    with pytest.raises(FormatError):
        members(BytesSource(data))


def test_zip64_contradictions() -> None:
    """A zip64 end record that disagrees with the plain one is refused; one that agrees is read."""
    size = END - CENTRAL
    record = struct.pack("<4sQ2H2I4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, 2, 2, size, CENTRAL)
    locator = struct.pack("<4sIQI", b"PK\x06\x07", 0, END, 1)
    good = GOOD[:END] + record + locator + GOOD[END:]
    assert len(members(BytesSource(good))) == 2
    full = patched(good, good.index(b"PK\x05\x06") + 8, "<2H2I", 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF)
    assert len(members(BytesSource(full))) == 2
    for bad in (
        patched(good, END + 24, "<2Q", 3, 3),
        patched(good, END + 40, "<Q", size - 1),
        patched(good, END + 48, "<Q", CENTRAL - 1),
        patched(good, END + 4, "<Q", 1 << 63),
        patched(good, END + 56 + 8, "<Q", 1 << 63),
        patched(full, END + 24, "<2Q", 1 << 40, 1 << 40),
    ):
        with pytest.raises(FormatError):
            members(BytesSource(bad))
