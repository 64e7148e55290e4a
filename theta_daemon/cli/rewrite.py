"""Checkpoints in the work tree that get defined values: all of them are made beside the old ones, then take their places.

A file is rewritten only while it is what HEAD has, so that nothing of the user's is lost, and put back when git then does not
take it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from theta_daemon.cli.content import File
from theta_daemon.cli.output import shown
from theta_daemon.errors import HintError, ThetaError
from theta_daemon.filters.define import definitions, parameters
from theta_daemon.filters.workspace import Workspace


class Rewrite:
    """A context: on the way out what was not `kept` is as it was, and no scratch file is left."""

    def __init__(self, workspace: Workspace, top: Path) -> None:
        self._workspace = workspace
        self._top = top
        self._made: list[tuple[Path, Path]] = []
        self._placed: list[tuple[Path, Path]] = []
        self._edited: list[Path] = []
        self._scratch: list[Path] = []
        self.names: list[str] = []
        """The parameters of all files looked at."""

    def make(self, paths: Iterable[bytes]) -> None:
        """Make the new version of each file that the hints define. Raises HintError, ThetaError."""
        for path in paths:
            target = self._top / os.fsdecode(path)
            if target.is_symlink() or not target.is_file():
                continue
            try:
                self._make(path, target)
            except HintError as error:
                raise error.within(shown(path)) from error
            except OSError as error:
                raise ThetaError(f"{shown(path)}: {error.strerror or error}") from error

    def place(self) -> None:
        """Let the new versions take the old ones' places; have git look at the others, which it may have seen unhinted."""
        for target in self._edited:
            os.utime(target)
        for target, made in self._made:
            backup = target.with_name(f"{made.name}.before")
            self._scratch.append(backup)
            with suppress(OSError):  # a file system without links has no way back, but HEAD has the file
                os.link(target, backup)
            made.replace(target)
            self._placed.append((target, backup))

    def keep(self) -> None:
        """Git has the new versions."""
        self._placed.clear()

    def __enter__(self) -> Rewrite:
        return self

    def __exit__(self, *_: object) -> None:
        for target, backup in self._placed:
            with suppress(OSError):
                backup.replace(target)
        for path in self._scratch:
            path.unlink(missing_ok=True)

    def _make(self, path: bytes, target: Path) -> None:
        with File(target) as source:
            extents = parameters(self._workspace, path, source)
            self.names += [extent.name for extent in extents]
            self._workspace.hints().for_file(path, {extent.name: extent.spec for extent in extents})
            if not self._is_heads(path, source):
                self._edited.append(target)
                return
            made: Path | None = None
            for extent, words in definitions(self._workspace, path, source, extents):
                if made is None:
                    made = self._copy(target)
                with made.open("r+b") as file:
                    file.seek(extent.offset)
                    file.write(words.tobytes())
        if made is not None:
            with made.open("rb") as file:
                os.fsync(file.fileno())
            self._made.append((target, made))

    def _is_heads(self, path: bytes, source: File) -> bool:
        head = self._workspace.history.head_entry(path)
        pointer = None if head is None else self._workspace.pointer(head.blob)
        return pointer is not None and pointer.size == source.size and pointer.digest == source.digest()

    def _copy(self, target: Path) -> Path:
        descriptor, name = tempfile.mkstemp(prefix=f".{target.name[:64]}.theta-", dir=target.parent)
        os.close(descriptor)
        self._scratch.append(Path(name))
        shutil.copyfile(target, name)
        shutil.copymode(target, name)
        return Path(name)
