"""One long-lived `git cat-file --batch`: whatever git itself can read, fetching included.

Started when first needed. Every answer is read to its end, so that the next one is in its place; an object above the
caller's limit is read and dropped. A child that died (a fetch that failed, damage) is started again a few times, then
left alone: then nothing more is there. The wait for git ends when
`stopped` says so. Not thread-safe.
"""

from __future__ import annotations

import select
import subprocess
from collections.abc import Callable
from typing import IO, Final

from theta_daemon.history.git import child_env
from theta_daemon.invocation import Invocation

MAX_STARTS: Final = 4
_TICK_MILLISECONDS: Final = 100
_DROP_BYTES: Final = 1 << 20
_MAX_HEADER_BYTES: Final = 4096


class CatFile:
    """The child of one session. Its stderr is the caller's, or nobody's."""

    def __init__(self, invocation: Invocation, stderr_fd: int | None, stopped: Callable[[], bool]) -> None:
        self._invocation = invocation
        self._stopped = stopped
        self._stderr = subprocess.DEVNULL if stderr_fd is None else stderr_fd
        self._child: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def read(self, oid: str, max_bytes: int) -> tuple[str, bytes] | None:
        """Kind and bytes of an object; None when git does not have it or it is larger than `max_bytes`."""
        child = self._running()
        if child is None:
            return None
        stdin, stdout = child.stdin, child.stdout
        assert stdin is not None and stdout is not None  # noqa: S101, PT018  (both are pipes)
        try:
            stdin.write(f"{oid}\n".encode())
            stdin.flush()
            self._wait(stdout)
            fields = stdout.readline(_MAX_HEADER_BYTES).split()
            if fields[1:] == [b"missing"]:
                return None
            name, kind, size_text = fields
            size = int(size_text)
            data = None
            if size <= max_bytes:
                data = _take(stdout, size)
            else:
                _drop(stdout, size)
            if name != oid.encode() or stdout.read(1) != b"\n":
                raise ValueError("git cat-file: an answer to another question")  # noqa: TRY301
        except (OSError, ValueError):
            self._end()
            return None
        return None if data is None else (kind.decode(), data)

    def close(self) -> None:
        """End the child. Not while another thread reads."""
        self._end()

    def _wait(self, stdout: IO[bytes]) -> None:
        """Until git answers (it may be fetching) or nobody wants to know any more. The pipe is read dry between answers."""
        poll = select.poll()  # not select: descriptors above 1023 are nothing rare in a daemon
        poll.register(stdout, select.POLLIN)
        while not poll.poll(_TICK_MILLISECONDS):
            if self._stopped():
                raise ValueError("git cat-file: cancelled")

    def _running(self) -> subprocess.Popen[bytes] | None:
        if self._stopped():
            return None
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        if self._starts >= MAX_STARTS:
            return None
        self._starts += 1
        try:
            self._child = subprocess.Popen(
                ["git", "cat-file", "--batch"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._stderr,
                cwd=self._invocation.cwd,
                env=child_env(self._invocation),
            )
        except OSError:
            self._starts = MAX_STARTS
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.kill()
        for pipe in (child.stdin, child.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:  # unsent bytes of a dead child
                pass
        child.wait()


def _take(stdout: IO[bytes], size: int) -> bytes:
    data = stdout.read(size)
    if len(data) != size:
        raise ValueError("git cat-file: ended within an object")
    return data


def _drop(stdout: IO[bytes], size: int) -> None:
    while size:
        step = len(stdout.read(min(size, _DROP_BYTES)))
        if not step:
            raise ValueError("git cat-file: ended within an object")
        size -= step
