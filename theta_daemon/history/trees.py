"""Commits, tags and trees as git stores them: bytes in, ids out. Pure.

Damage raises ValueError.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

_HEADER: Final = re.compile(rb"(tree|object) ([0-9a-f]{40}|[0-9a-f]{64})\n")
_ENTRIES: Final = {
    20: re.compile(rb"([0-7]{5,6}) ([^\0]+)\0(.{20})", re.DOTALL),
    32: re.compile(rb"([0-7]{5,6}) ([^\0]+)\0(.{32})", re.DOTALL),
}
_TYPE: Final = 0o170000


@dataclass(frozen=True, slots=True)
class TreeEntry:
    """One name in a tree."""

    mode: int
    oid: str

    @property
    def is_tree(self) -> bool:
        return self.mode & _TYPE == 0o040000

    @property
    def is_file(self) -> bool:
        """A regular file: neither a symbolic link nor a submodule."""
        return self.mode & _TYPE == 0o100000


def target(data: bytes) -> str:
    """The tree of a commit, or the object of a tag."""
    match = _HEADER.match(data)
    if match is None:
        raise ValueError("damaged commit or tag")
    return match.group(2).decode()


def entries(data: bytes, id_bytes: int) -> Mapping[bytes, TreeEntry]:
    """The names in a tree whose ids are `id_bytes` long."""
    found: dict[bytes, TreeEntry] = {}
    position = 0
    for match in _ENTRIES[id_bytes].finditer(data):
        if match.start() != position:
            break
        position = match.end()
        found[match.group(2)] = TreeEntry(int(match.group(1), 8), match.group(3).hex())
    if position != len(data):
        raise ValueError("damaged tree")
    return found
