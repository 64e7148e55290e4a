"""Resident memory of this process."""

from __future__ import annotations

import resource
import sys
from pathlib import Path


def resident_bytes() -> int:
    """Bytes resident now; where the system does not tell (macOS), the most they ever were."""
    if sys.platform == "linux":
        pages = Path("/proc/self/statm").read_text().split()[1]
        return int(pages) * resource.getpagesize()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
