"""The claim to be the daemon of a place, and the socket that goes with it.

One truth: a kernel lock on `Place.lock`, held for life and freed by the kernel on any death. No pid file, no status file:
nothing to be inconsistent with. Rules:

- Under the lock: unlink what is there, bind at the final path, listen. Never bind and rename: systemd-tmpfiles knows a live
  socket by its path in /proc/net/unix and deletes others from /tmp (systemd#20635). It also spares locked directories, so
  a shared lock is held on ours.
- The socket belongs to an inode, not to a path: when the path is gone or another's, we are deaf and must drain, and what is
  not ours is never unlinked (git's unix-stream-server.c, Mercurial's chgserver).
- A socket that systemd listens on (LISTEN_FDS) is neither bound nor unlinked.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from contextlib import suppress
from typing import Final

from theta_daemon import runtime
from theta_daemon.runtime import Place

BACKLOG: Final = 128

_PAUSE_SECONDS: Final = 0.05

LEFT_BEHIND: Final = (b".crash", b".log", b".log.1", b".log.2")

ACTIVATED_FD: Final = 3
"""SD_LISTEN_FDS_START of sd_listen_fds(3)."""


class Claim:
    """The lifelong lock on a place. `close` is for tests; the daemon lets the kernel do it."""

    def __init__(self, place: Place, lock: int, directory: int) -> None:
        self.place = place
        self._descriptors = [lock, directory]

    def close(self) -> None:
        descriptors, self._descriptors = self._descriptors, []
        for descriptor in descriptors:
            os.close(descriptor)


def claim(places: list[Place], uid: int) -> Claim | None:
    """The first place where a private directory is or can be made; None when none is, or a daemon holds it."""
    for place in places:
        try:
            directory = runtime.create_private(place.directory, uid)
        except OSError:
            continue
        try:
            lock = lock_file(place)
            if lock is not None:
                fcntl.flock(directory, fcntl.LOCK_SH | fcntl.LOCK_NB)
                os.lockf(lock, os.F_TLOCK, 0)  # can be looked at without being taken: see `spawn.under_way`
                return Claim(place, lock, directory)
        except OSError:  # a read-only or full file system: perhaps the next place is better
            os.close(directory)
            continue
        os.close(directory)
        return None
    return None


def lock_file(place: Place) -> int | None:
    """The place's lock, held, as a descriptor; None when another process has it."""
    while True:
        descriptor = os.open(place.lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        try:
            if os.path.samestat(os.fstat(descriptor), os.stat(place.lock)):  # noqa: PTH116 - bytes path
                return descriptor
        except FileNotFoundError:
            pass
        os.close(descriptor)  # whoever swept it away did so before we had it: there is a newer one


def sweep(claimed: Claim) -> None:
    """Remove what dead daemons of other builds left in our directory."""
    directory = claimed.place.directory
    for name in os.listdir(directory):  # noqa: PTH208 - bytes path
        if not name.endswith(b".lock") or directory + b"/" + name == claimed.place.lock:
            continue
        other = Place(directory, "")
        other.lock = directory + b"/" + name
        stem = other.lock.removesuffix(b".lock")
        with suppress(OSError):
            lock = lock_file(other)
            if lock is not None:
                for path in (stem, *(stem + suffix for suffix in LEFT_BEHIND), other.lock):
                    with suppress(FileNotFoundError):
                        os.unlink(path)  # noqa: PTH108 - bytes path
                os.close(lock)


class Listener:
    """A listening socket. `inode` is None for one that systemd made."""

    def __init__(self, listening: socket.socket, path: bytes, inode: tuple[int, int] | None) -> None:
        self.socket = listening
        self.path = path
        self._inode = inode
        listening.setblocking(False)

    def ours(self) -> bool:
        """Whether clients that look for us still find us."""
        return self._inode is None or _socket_inode(self.path) == self._inode

    def unlink(self) -> None:
        """Take our name away, unless it is not ours. What is in the backlog can still be accepted."""
        if self._inode is not None and self.ours():
            with suppress(OSError):
                os.unlink(self.path)  # noqa: PTH108 - bytes path

    def accept(self) -> socket.socket | None:
        """The next waiting connection, blocking mode, or None."""
        try:
            connection, _ = self.socket.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return None
        except OSError:  # no descriptor is free: who waits has patience for some of these pauses, then serves itself
            time.sleep(_PAUSE_SECONDS)
            return None
        connection.setblocking(True)
        return connection

    def close(self) -> None:
        self.socket.close()


def bind(place: Place) -> Listener:
    """Listen at the place, which must be claimed. Raises OSError."""
    with suppress(FileNotFoundError):
        os.unlink(place.socket)  # noqa: PTH108 - bytes path
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listening.bind(place.socket)  # the directory is private, so the socket needs no mode of its own
        listening.listen(BACKLOG)
        made = os.lstat(place.socket)
    except BaseException:
        listening.close()
        raise
    return Listener(listening, place.socket, (made.st_dev, made.st_ino))


def activated(environ: dict[bytes, bytes], pid: int) -> bool:
    """Whether systemd hands us one listening socket."""
    return environ.get(b"LISTEN_PID") == b"%d" % pid and environ.get(b"LISTEN_FDS") == b"1"


def adopt() -> Listener:
    """The socket that systemd listens on, moved away from the number that it came under. Raises OSError."""
    listening = socket.socket(fileno=fcntl.fcntl(ACTIVATED_FD, fcntl.F_DUPFD_CLOEXEC, 10))
    os.close(ACTIVATED_FD)
    return Listener(listening, os.fsencode(listening.getsockname()), None)


def _socket_inode(path: bytes) -> tuple[int, int] | None:
    try:
        found = os.lstat(path)
    except OSError:
        return None
    return (found.st_dev, found.st_ino) if stat.S_ISSOCK(found.st_mode) else None
