"""What the C library does with freed memory: `keep` it for the next value, `release` it when nobody works.

Values are made and let go by the megabyte. By default glibc gives many of them back to the system at once, and fetching the
same pages again, zeroed, costs more than decoding what goes into them. Elsewhere than with glibc nothing happens here.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

KEPT_BYTES: Final = 192 << 20
"""Freed memory at the end of a heap up to this is kept."""

_LARGE_BYTES: Final = 32 << 20
"""Blocks from this size on are had from the system and given back, each by itself."""

_M_TRIM_THRESHOLD: Final = -1  # malloc.h
_M_MMAP_THRESHOLD: Final = -3


def keep() -> bool:
    """Keep freed memory from now on; whether that is possible here."""
    library = _glibc()
    if library is None:
        return False
    return all(
        [library.mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES) == 1, library.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES) == 1]
    )


def release() -> None:
    """Give what is free back to the system."""
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
