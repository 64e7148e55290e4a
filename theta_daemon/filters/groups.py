"""How work is bundled: neighbouring small things together, each large one alone."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, TypeVar

T = TypeVar("T")

WHOLE_BYTES: Final = 8 << 20
"""Values up to this size are encoded by one task."""

GROUP_BYTES: Final = 1 << 20
"""Small values make up a task of about so many bytes."""


def grouped(items: Iterable[T], nbytes: Callable[[T], int], limit: int = GROUP_BYTES) -> Iterator[list[T]]:
    """`items` in order, in lists of up to `limit` bytes; what is larger is alone. No list is empty."""
    group: list[T] = []
    total = 0
    for item in items:
        size = nbytes(item)
        if group and total + size > limit:
            yield group
            group, total = [], 0
        group.append(item)
        total += size
    if group:
        yield group
