"""Which disk cache a caller has: where it is, how large it may grow, and whether it is in use at all.

In use where `theta.cacheDir` or `theta.diskCache` is set, and where the user's cache folder has one: `git theta warm` makes
it, and from then on checkouts use it by themselves. `theta.diskCache=0` turns it off whatever else is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from theta_daemon.settings import DEFAULT_DISK_CACHE, Settings
from theta_daemon.store.disk_cache import VERSION, DiskCache


@dataclass(frozen=True, slots=True)
class CachePlace:
    """All that makes one disk cache another one."""

    folder: Path
    budget_bytes: int
    umask: int
    compress: bool

    def open(self) -> DiskCache:
        """The cache. Makes nothing yet."""
        return DiskCache(self.folder, self.budget_bytes, umask=self.umask, compress=self.compress)


def cache_place(settings: Settings, env: Mapping[str, str], umask: int) -> CachePlace | None:
    """The caller's disk cache, None where it has none."""
    folder = settings.cache_folder(env)
    if folder is None or settings.disk_cache == 0:
        return None
    budget = settings.disk_cache_bytes
    if not budget:
        if not (folder / VERSION).is_dir():
            return None
        budget = DEFAULT_DISK_CACHE
    return CachePlace(folder, budget, umask, settings.cache_compression)
