"""Anything that no other format knows: one parameter that is the whole file.

Half-written, hostile and merely unknown files come here, so clean never refuses one.
"""

from __future__ import annotations

from typing import ClassVar

from theta_daemon.formats.base import Extent, Format, Source
from theta_daemon.tensor import flat_bytes


class Opaque(Format):
    """The whole file as one U8 parameter called `data`."""

    name: ClassVar[str] = "opaque"

    def matches(self, source: Source) -> bool:
        return True

    def layout(self, source: Source) -> list[Extent]:
        return [Extent("data", flat_bytes(source.size), 0)]
