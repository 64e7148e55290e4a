"""Children that move objects: started as the caller would start them, their words handed on, stopped when nobody waits.

A child gets the caller's environment, cwd and umask. What it says on stdout and stderr goes to the caller's stderr, never
to stdout, where git reads the filter protocol; the end of it is kept for the error message.
"""

from __future__ import annotations

import os
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import IO, Final

from theta_daemon.errors import RemoteError
from theta_daemon.invocation import Invocation

_KEPT_LINES: Final = 4000
_POLL_SECONDS: Final = 0.2
_GRACE_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended: its status and what it said, without progress lines that it wrote over."""

    status: int
    lines: tuple[str, ...]

    def about(self, word: str) -> str | None:
        """The last line that holds `word`."""
        return next((line for line in reversed(self.lines) if word in line), None)

    @property
    def last(self) -> str:
        """The last thing it said that was no progress."""
        told = [line for line in self.lines if line.strip() and "% (" not in line]
        return told[-1] if told else f"it ended with status {self.status}"


def run(
    command: Sequence[str],
    invocation: Invocation,
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    stderr_fd: int | None = None,
    stop: threading.Event | None = None,
    on_line: Callable[[str], None] | None = None,
) -> Ended:
    """Run `command`. With `on_line` its stdout is for us, line by line, and only stderr for the caller.

    Raises RemoteError when it cannot be started, or when `stop` was set meanwhile.
    """
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if on_line is None else subprocess.PIPE,
            cwd=invocation.cwd,
            env={**invocation.env, **(env or {})},
            umask=invocation.umask,
        )
    except OSError as error:
        raise RemoteError(f"{command[0]} cannot be started: {error.strerror}", "see that it is in PATH") from error
    assert process.stdin is not None  # noqa: S101  (PIPE)
    assert process.stdout is not None  # noqa: S101
    kept: deque[str] = deque(maxlen=_KEPT_LINES)
    threads = [threading.Thread(target=_feed, args=(process.stdin, stdin), daemon=True)]
    if on_line is None:
        threads.append(threading.Thread(target=_relay, args=(process.stdout, stderr_fd, kept), daemon=True))
    else:
        threads.append(threading.Thread(target=_listen, args=(process.stdout, on_line), daemon=True))
        threads.append(threading.Thread(target=_relay, args=(process.stderr, stderr_fd, kept), daemon=True))
    for thread in threads:
        thread.start()
    stopped = _wait(process, stop)
    for thread in threads:
        thread.join()
    if stopped:
        raise RemoteError("the transfer was interrupted", "run the command again: what has arrived is kept")
    return Ended(process.returncode, tuple(kept))


def _wait(process: subprocess.Popen[bytes], stop: threading.Event | None) -> bool:
    while True:
        try:
            process.wait(None if stop is None else _POLL_SECONDS)
        except subprocess.TimeoutExpired:
            if stop is None or not stop.is_set():
                continue
            process.terminate()
            try:
                process.wait(_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            return True
        return False


def _feed(pipe: IO[bytes], data: bytes) -> None:
    with suppress(OSError):  # it may end without reading everything; its status says why
        pipe.write(data)
        pipe.flush()
    with suppress(OSError):
        pipe.close()


def _listen(pipe: IO[bytes], on_line: Callable[[str], None]) -> None:
    with pipe:
        for line in pipe:
            on_line(line.decode(errors="replace").rstrip("\n"))


def _relay(pipe: IO[bytes], stderr_fd: int | None, kept: deque[str]) -> None:
    rest = b""
    with pipe:
        while data := os.read(pipe.fileno(), 65536):
            if stderr_fd is not None:
                with suppress(OSError):  # the caller has gone: the transfer's result still counts
                    os.write(stderr_fd, data)
            *lines, rest = (rest + data).replace(b"\r", b"\n").split(b"\n")
            kept.extend(line.decode(errors="replace") for line in lines)
    kept.extend([rest.decode(errors="replace")] if rest else [])
