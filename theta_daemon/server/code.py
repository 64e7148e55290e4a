"""Whether the code that runs here is still the code on disk (Mercurial's chg calls it `mtimehash`).

A resident process outlives upgrades: of this package, of a plug-in, of anything installed beside them. Watched are

- the files of this project's two packages that are loaded, against how all were before the first was;
- the folders in which distributions are installed: installing or removing one changes the folder itself;
- the files of plug-in modules and of modules that live outside those folders (editable installs), once they are loaded.

Asked at each accept, so it must cost some hundred `stat` calls at most.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Final

import protocol

PLUGIN_GROUPS: Final = ("theta_daemon.updates", "theta_daemon.formats")

_Stamp = tuple[int, int, int]


class CodeWatch:
    """The state of the code at the time of making this, to be made before the code is imported."""

    def __init__(self) -> None:
        here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # noqa: PTH100, PTH120 - many, and often
        protocol_file = protocol.__file__ or here
        roots = {here, os.path.dirname(protocol_file)}  # noqa: PTH120
        self._installed = {path for path in sys.path if _has_distributions(path)}
        self._standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
        self._own = {path: _stamp(path) for root in roots for path in _sources(root)}
        self._stamps = {path: _stamp(path) for path in self._installed}
        self._plugins = {
            entry.module.partition(".")[0] for group in PLUGIN_GROUPS for entry in entry_points(group=group)
        }
        self._seen: set[str] = set()

    def changed(self) -> str | None:
        """A path that is not what it was, or None."""
        self._look()
        for path, stamp in self._stamps.items():
            if _stamp(path) != stamp:
                return path
        return None

    def _look(self) -> None:
        """Watch what has been loaded since. A stranger's file may have changed before: then that is what was loaded."""
        for name in sys.modules.keys() - self._seen:
            self._seen.add(name)
            path = getattr(sys.modules.get(name), "__file__", None)
            if isinstance(path, str) and path not in self._stamps and self._watched(name, path):
                self._stamps[path] = self._own[path] if path in self._own else _stamp(path)

    def _watched(self, name: str, path: str) -> bool:
        if path in self._own or name.partition(".")[0] in self._plugins:
            return True
        return not any(path.startswith(f"{folder}{os.sep}") for folder in self._installed | self._standard)


def _sources(root: str) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name != "__pycache__"]
        yield from (f"{folder}{os.sep}{name}" for name in files if name.endswith(".py"))


def _has_distributions(folder: str) -> bool:
    try:
        return any(name.endswith(".dist-info") for name in os.listdir(folder))  # noqa: PTH208
    except OSError:
        return False


def _stamp(path: str) -> _Stamp | None:
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size if path.endswith(".py") else 0
