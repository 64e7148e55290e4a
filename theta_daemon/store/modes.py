"""Modes of files and directories in a repository: the caller's umask, then core.sharedRepository as git reads it.

From git's `git_config_perm` (setup.c) and `calc_shared_perm`/`adjust_shared_perm` (path.c): a *named* setting (group, all)
adds its bits to the mode that the umask gives, an *octal* one replaces the mode. Directories are readable means
searchable, and carry the set-group-id bit where the group may enter, so that new files belong to the shared group.

Never `os.umask`: it belongs to the whole process, and threads share it.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from theta_daemon.errors import ConfigError, StoreError

_GROUP: Final = 0o660
_EVERYBODY: Final = 0o664
_TRUE: Final = frozenset({"true", "yes", "on"})
_FALSE: Final = frozenset({"false", "no", "off", ""})


@dataclass(frozen=True, slots=True)
class SharedMode:
    """What core.sharedRepository asks for: permission bits, added to the umask's or (octal settings) instead of them."""

    bits: int
    replaces: bool

    @classmethod
    def parse(cls, value: str | None) -> SharedMode | None:
        """The setting's raw value; None (unset), umask and false give None. Raises ConfigError."""
        text = "umask" if value is None else value.lower()
        if text == "umask" or text in _FALSE:
            return None
        if text == "group" or text in _TRUE:
            return cls(_GROUP, replaces=False)
        if text in {"all", "world", "everybody"}:
            return cls(_EVERYBODY, replaces=False)
        try:
            number = int(text, 8)
        except ValueError:
            number = -1
        named = {0: None, 1: cls(_GROUP, replaces=False), 2: cls(_EVERYBODY, replaces=False)}
        if number in named:  # what git itself writes: `git init --shared` says 1, --shared=all says 2
            return named[number]
        if number < 0 or number & 0o600 != 0o600:
            raise ConfigError(
                f"core.sharedRepository is {value!r}: git takes umask, group, all or an octal mode such as 0640 in which "
                "the owner can read and write"
            )
        return cls(number & 0o666, replaces=True)

    def apply(self, mode: int) -> int:
        """`mode` as this setting changes it (git's calc_shared_perm)."""
        bits = self.bits
        if not mode & stat.S_IWUSR:
            bits &= ~0o222
        if mode & stat.S_IXUSR:
            bits |= (bits & 0o444) >> 2
        return (mode & ~0o777) | bits if self.replaces else mode | bits


def object_mode(umask: int, shared: SharedMode | None) -> int:
    """The mode of an object's file: git-lfs's own, 0666 without the umask's bits, then the setting."""
    mode = 0o666 & ~umask
    return mode if shared is None else shared.apply(mode)


def directory_mode(umask: int, shared: SharedMode | None) -> int:
    """The mode of a new directory."""
    mode = 0o777 & ~umask
    if shared is None:
        return mode
    mode = shared.apply(mode)
    mode |= (mode & 0o444) >> 2
    return mode | stat.S_ISGID if mode & 0o060 else mode


def make_directories(directory: Path, *, umask: int, shared: SharedMode | None, durable: bool) -> None:
    """Create `directory` and what lacks above it, each with its mode. Those that exist are left as they are.

    Raises StoreError.
    """
    missing = []
    path = directory
    while not path.is_dir():
        missing.append(path)
        if path == path.parent:
            break
        path = path.parent
    for path in reversed(missing):
        try:
            path.mkdir(0o700)
        except FileExistsError:
            if path.is_dir():
                continue  # another process was faster
            raise StoreError(f"cannot create folder {path}: a file is in the way", "move that file away") from None
        except OSError as error:
            hint = "check space, owner and permissions of the folder above it, then run the command again"
            raise StoreError(f"cannot create folder {path}: {error.strerror}", hint) from error
        _settle(path, directory_mode(umask, shared), durable=durable)


def _settle(path: Path, mode: int, *, durable: bool) -> None:
    try:
        inherited = path.stat().st_mode & stat.S_ISGID  # from a parent that has it, on Linux
        path.chmod(mode | inherited)
        if durable:
            fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.fsync(fd)
            finally:
                os.close(fd)
    except OSError as error:
        raise StoreError(f"cannot set up folder {path}: {error.strerror}") from error
