"""What a process inherits and should not keep when it serves others: its starter's resource limits and processors.

Soft limits are lifted to the hard ones, but for core dumps: git would wait while the caches are written to disk. A starter whose hard limits or priority are lower than usual (a batch system, a
`nice`d job) starts nothing for others: they would get its limits without knowing why.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from typing import Final

_MATTER: Final = {
    "file size": resource.RLIMIT_FSIZE,
    "processor time": resource.RLIMIT_CPU,
    "address space": resource.RLIMIT_AS,
    "data size": resource.RLIMIT_DATA,
}


def lift() -> str | None:
    """Lift what can be lifted; what cannot, in a word, when that makes this process no daemon for others."""
    for number in (*_MATTER.values(), resource.RLIMIT_NOFILE):
        hard = resource.getrlimit(number)[1]
        with suppress(OSError, ValueError):  # macOS knows a hard limit of descriptors that it does not grant
            resource.setrlimit(number, (hard, hard))
    resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):
            os.sched_setaffinity(0, range(os.cpu_count() or 1))
    for name, number in _MATTER.items():
        if resource.getrlimit(number)[0] != resource.RLIM_INFINITY:
            return f"limited {name}"
    return "low priority" if os.getpriority(os.PRIO_PROCESS, 0) > 0 else None
