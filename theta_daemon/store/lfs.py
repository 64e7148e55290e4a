"""Objects as files in git-lfs's layout: `<root>/aa/bb/<sha256>`, so that every git-lfs tool and server works on them.

Rules:
- A file has its final name only when it is whole: written beside as a temporary file (0600), hashed on the way, fsynced,
  given its mode, renamed, and the directories fsynced. Only `rename` is relied upon, never a lock (network file systems).
- An object that exists already is written over by the rename: the bytes are the same unless the old ones had rotted, and
  the fresh modification time tells a concurrent prune that somebody needs it (as git freshens its own objects).
- Modes come from the caller's umask and core.sharedRepository (`modes`), never from the umask of this process.
- Symbolic links are followed, as git-lfs does (people link whole folders of objects to larger disks); nothing that a clone
  brings along can place one here. What a name leads to must be a regular file.
- Temporary files of others are left alone for a day.
- `alternates` are roots of other repositories (`git clone --shared`), read and never written.

Knows no git: who calls says where the root is and what the modes are.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any, Final

from theta_daemon.errors import MissingObjectError, RecordError, StoreError
from theta_daemon.store.base import OBJECT_ID, ObjectReader, ObjectStore, ObjectWriter, object_id
from theta_daemon.store.disk import FileReader, fsync_directory, store_error
from theta_daemon.store.modes import SharedMode, make_directories, object_mode
from theta_daemon.tensor import Buffer

_BUFFER_BYTES: Final = 1 << 20
_TEMPORARY_PREFIX: Final = "theta-"
_TEMPORARY_SUFFIX: Final = ".tmp"
_OLD_SECONDS: Final = 24 * 3600
"""Temporary files older than this belong to nobody who is still alive."""


class LfsStore(ObjectStore):
    """The objects under `root`. `umask` and `shared` are the caller's and the repository's; `fsync` False is for caches."""

    def __init__(
        self,
        root: Path,
        *,
        umask: int,
        shared: SharedMode | None = None,
        fsync: bool = True,
        alternates: Sequence[Path] = (),
    ) -> None:
        self.root = root
        self._umask = umask
        self._shared = shared
        self._fsync = fsync
        self._alternates = tuple(alternates)
        self._swept = False

    def settings(self) -> dict[str, Any]:
        """What another process needs to open the same store (`from_settings`), as JSON values."""
        shared = None if self._shared is None else [self._shared.bits, self._shared.replaces]
        alternates = [str(path) for path in self._alternates]
        fields = {"umask": self._umask, "shared": shared, "fsync": self._fsync, "alternates": alternates}
        return {"root": str(self.root), **fields}

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> LfsStore:
        """The store that `settings` describes."""
        shared = settings["shared"]
        return cls(
            Path(settings["root"]),
            umask=settings["umask"],
            shared=None if shared is None else SharedMode(*shared),
            fsync=settings["fsync"],
            alternates=[Path(path) for path in settings["alternates"]],
        )

    def path(self, oid: str) -> Path:
        """Where the object is, or would be written. Raises PointerError for what is no object id."""
        return _place(self.root, oid)

    def locate(self, oid: str) -> Path | None:
        """The file that is the object, in the root or an alternate; None when it is nowhere."""
        return next((path for path, _ in self._files(oid)), None)

    def has(self, oid: str) -> bool:
        return self.locate(oid) is not None

    def holds(self, oid: str, size: int) -> bool:
        # The first one is the one that `open` reads.
        return next((found for _, found in self._files(oid)), None) == size

    def open(self, oid: str) -> ObjectReader:
        for root in (self.root, *self._alternates):
            path = _place(root, oid)
            try:
                # O_NONBLOCK: whatever else may lie under that name, a pipe say, must not hang the open.
                fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOCTTY | os.O_NONBLOCK)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise store_error("read object", path, error) from error
            reader = FileReader(fd, path)
            if reader.regular:
                return reader
            reader.close()
        raise MissingObjectError(
            f"object {oid} is not in {self.root}", "fetch it with `git theta fetch`, or from who pushed this commit"
        )

    def writer(self) -> ObjectWriter:
        return _LfsWriter(self, self._temporary_directory())

    def ids(self) -> Iterator[str]:
        for first in _entries(self.root, 2):
            for second in _entries(first, 2):
                for path in _entries(second, 64):
                    oid = path.name
                    if OBJECT_ID.fullmatch(oid) and path == _place(self.root, oid) and path.is_file():
                        yield oid

    def freshen(self, oid: str, size: int | None = None) -> bool:
        """Tell a concurrent prune that the object is needed from now on; False when it is not here (with that size).

        For who is about to name an object that may have been nobody's: found first, it could be gone a moment later.
        """
        path = self.path(oid)
        try:
            os.utime(path)
        except (FileNotFoundError, NotADirectoryError):
            pass  # an alternate may have it, which is not ours to tend
        except PermissionError:
            pass  # another user's object: then its age is all there is
        except OSError as error:
            raise store_error("look for object", path, error) from error
        return self.has(oid) if size is None else self.holds(oid, size)

    def remove(self, oid: str, older_than: float) -> bool:
        """Delete the object from the root unless it was written or freshened since `older_than` (seconds of the epoch).

        False when it was, or is not there. For prune. It is moved out of sight before its age is looked at for the last
        time: who freshens it meanwhile finds it gone, or it is put back.
        """
        path = self.path(oid)
        hidden = path.with_name(f"{_TEMPORARY_PREFIX}{oid}{_TEMPORARY_SUFFIX}")
        try:
            path.rename(hidden)
            if hidden.stat().st_mtime >= older_than:
                hidden.rename(path)
                return False
            hidden.unlink()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise store_error("remove object", path, error) from error
        return True

    def put_back(self) -> list[str]:
        """Objects that a prune had moved out of sight when it was killed get their names back; which ones."""
        found = []
        for first in _entries(self.root, 2):
            for second in _entries(first, 2):
                for path in _entries(second, len(_TEMPORARY_PREFIX) + 64 + len(_TEMPORARY_SUFFIX)):
                    oid = path.name.removeprefix(_TEMPORARY_PREFIX).removesuffix(_TEMPORARY_SUFFIX)
                    if OBJECT_ID.fullmatch(oid) and second == _place(self.root, oid).parent:
                        with suppress(FileNotFoundError):
                            path.rename(_place(self.root, oid))
                            found.append(oid)
        return found

    def _files(self, oid: str) -> Iterator[tuple[Path, int]]:
        """The regular files under the object's name, and their sizes."""
        for root in (self.root, *self._alternates):
            path = _place(root, oid)
            try:
                status = path.stat()
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise store_error("look for object", path, error) from error
            if stat.S_ISREG(status.st_mode):
                yield path, status.st_size

    def _temporary_directory(self) -> Path:
        directory = self.root.parent / "tmp"  # git-lfs's own place; it sweeps what is an hour old and not being written
        make_directories(self.root, umask=self._umask, shared=self._shared, durable=self._fsync)
        try:
            make_directories(directory, umask=self._umask, shared=self._shared, durable=False)
            # Not if it is another user's, or if `objects` is a link to another disk.
            if not os.access(directory, os.W_OK | os.X_OK) or directory.stat().st_dev != self.root.stat().st_dev:
                directory = self.root
        except (OSError, StoreError):
            directory = self.root
        if not self._swept:
            self._swept = True
            _sweep(directory)
        return directory

    def _publish(self, temporary: Path, oid: str, size: int) -> None:
        path = self.path(oid)
        make_directories(path.parent, umask=self._umask, shared=self._shared, durable=self._fsync)
        try:
            temporary.replace(path)
        except PermissionError as error:
            if not (path.is_file() and path.stat().st_size == size):  # there already, in a folder of another user
                raise store_error("write object", path, error) from error
        except OSError as error:
            raise store_error("write object", path, error) from error
        if self._fsync:
            fsync_directory(path.parent)

    def _mode(self) -> int:
        return object_mode(self._umask, self._shared)


class _LfsWriter(ObjectWriter):
    def __init__(self, store: LfsStore, directory: Path) -> None:
        self._store = store
        self._hash = hashlib.sha256()
        self._size = 0
        self._temporary = directory / f"{_TEMPORARY_PREFIX}{os.urandom(12).hex()}{_TEMPORARY_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            fd = os.open(self._temporary, flags, 0o600)
        except OSError as error:
            raise store_error("write to", directory, error) from error
        self._file: BufferedWriter | None = BufferedWriter(FileIO(fd, "wb"), _BUFFER_BYTES)

    def write(self, data: Buffer) -> None:
        if self._file is None:
            raise ValueError("this object is committed or aborted")
        try:
            self._file.write(data)
        except OSError as error:
            self.abort()
            raise store_error("write", self._temporary, error) from error
        self._hash.update(data)
        self._size += memoryview(data).nbytes

    def commit(self, expected: str | None = None) -> tuple[str, int]:
        if self._file is None:
            raise ValueError("this object is committed or aborted")
        oid = self._hash.hexdigest()
        if expected not in (None, oid):
            self.abort()
            raise RecordError(f"what came as object {expected} is another one, {oid}")
        try:
            self._file.flush()
            os.fchmod(self._file.fileno(), self._store._mode())
            if self._store._fsync:
                os.fsync(self._file.fileno())
            self._file.close()
            self._store._publish(self._temporary, oid, self._size)
        except OSError as error:
            raise store_error("write", self._temporary, error) from error
        finally:
            self.abort()
        return oid, self._size

    def abort(self) -> None:
        file, self._file = self._file, None
        if file is None:
            return
        try:
            file.close()
        except OSError:
            file.raw.close()  # the buffer could not be flushed: it is being dropped anyway
        self._temporary.unlink(missing_ok=True)

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            self.abort()


def _place(root: Path, oid: str) -> Path:
    object_id(oid)
    return root / oid[:2] / oid[2:4] / oid


def _entries(directory: Path, length: int) -> Iterator[Path]:
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if len(entry.name) == length]
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise store_error("list", directory, error) from error
    yield from (directory / name for name in names)


def _sweep(directory: Path) -> None:
    # Housekeeping only: what cannot be swept does no harm, and others may sweep or rename at the same time.
    oldest = time.time() - _OLD_SECONDS
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in entries:
            ours = entry.name.startswith(_TEMPORARY_PREFIX) and entry.name.endswith(_TEMPORARY_SUFFIX)
            with suppress(OSError):
                if ours and entry.stat(follow_symlinks=False).st_mtime < oldest:
                    Path(entry.path).unlink()
