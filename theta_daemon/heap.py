"""Memory while there is work and after it: `settle` once all is imported, `release` when nobody works.

Values are made and let go by the megabyte. By default glibc gives many of them back to the system at once, and fetching the
same pages again, zeroed, costs more than decoding what goes into them. (That is glibc's doing; with others nothing happens
here.) And pointers are tens of thousands of small objects without a cycle: Python need not look for one after every 700.
"""

from __future__ import annotations

import ctypes
import gc
import sys
from typing import Final

KEPT_BYTES: Final = 192 << 20
"""Freed memory at the end of a heap up to this is kept."""

_LARGE_BYTES: Final = 32 << 20
"""Blocks from this size on are had from the system and given back, each by itself."""

_OBJECTS: Final = 10_000
"""New objects after which Python looks for cycles."""

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3


def settle() -> bool:
    """Keep freed memory from now on, and look for cycles less often, never among what is there already; call it when all is
    imported. Whether the C library can be told.
    """
    gc.freeze()
    gc.set_threshold(_OBJECTS, *gc.get_threshold()[1:])
    library = _glibc()
    if library is None:
        return False
    return all(
        [library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES) == 1, library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) == 1]
    )


def release() -> None:
    """Give what is free back to the system."""
    gc.collect()
    library = _glibc()
    if library is not None:
        library.malloc_trim(ctypes.c_size_t(0))


def _glibc() -> ctypes.CDLL | None:
    if not sys.platform.startswith("linux"):
        return None
    try:
        library = ctypes.CDLL(None)
        library.gnu_get_libc_version  # noqa: B018 - musl has no such function, nor `mallopt`
    except (AttributeError, OSError):
        return None
    return library
