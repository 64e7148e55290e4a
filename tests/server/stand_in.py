"""What stands where the engine does: real client, daemon and session around the filter of `tests.upper`.

Run as `python stand_in.py -m theta_daemon.server` or `… -m theta_daemon.inprocess`, which is how the client starts them.
Every session writes lines to the file that the caller's TRACE names: who serves, and which request it is at. Content that
holds `gate=PATH ` waits until PATH exists, or the session is cancelled.
"""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from protocol.events import Request
from tests.upper import Collected, Upper
from theta_daemon.errors import ThetaError
from theta_daemon.invocation import Invocation
from theta_daemon.server import entry
from theta_daemon.server.lifecycle import Limits
from theta_daemon.session import Content, Delayed, run


class TracedUpper(Upper):
    """The filter, telling where it is and stopping where the content says so."""

    def __init__(self, trace: Path, cancelled: threading.Event, *, delay: bool) -> None:
        super().__init__(delay=delay)
        self.trace = trace
        self.cancelled = cancelled

    def tell(self, line: str) -> None:
        with self.trace.open("a") as file:
            file.write(f"{line}\n")

    def wait_at_gate(self, data: bytes) -> None:
        found = re.search(rb"gate=(\S+)", data)
        while found and not Path(os.fsdecode(found[1])).exists():
            if self.cancelled.wait(0.005):
                raise ThetaError("cancelled")

    def answer(self, request: Request, sink: Collected) -> Content | Delayed:
        self.tell(f"{request.command.value.decode()} {os.fsdecode(request.pathname)}")
        if not request.can_delay:
            self.wait_at_gate(bytes(sink.data))
        if b"fault" in sink.data:
            os.abort()
        return super().answer(request, sink)

    def available(self) -> Sequence[bytes]:
        self.tell("list")
        for data in self.delayed.values():
            self.wait_at_gate(data)
        return super().available()


class UpperHost:
    """A Host around it."""

    def __init__(self) -> None:
        self.closed = False

    def accepts(self, invocation: Invocation) -> str | None:
        return invocation.env.get("DECLINE")

    def serve(
        self, invocation: Invocation, stdin_fd: int, stdout_fd: int, stderr_fd: int, cancelled: threading.Event
    ) -> int:
        trace = Path(invocation.env.get("TRACE", os.devnull))
        handler = TracedUpper(trace, cancelled, delay="DELAY" in invocation.env)
        handler.tell(f"session {os.getpid()} {invocation.cwd} {invocation.umask:o} {invocation.env.get('MARKER', '')}")
        if "EXPLODE" in invocation.env:
            raise RuntimeError("as asked")
        status = run(stdin_fd, stdout_fd, handler, lambda text: _report(stderr_fd, text), cancelled)
        handler.tell(f"end {status}")
        return status

    def status(self) -> dict[str, object]:
        return {"closed": self.closed}

    def busy(self) -> bool:
        return False

    def close(self) -> None:
        self.closed = True


def _report(stderr_fd: int, text: str) -> None:
    os.write(stderr_fd, f"{text}\n".encode())


def make_host() -> tuple[UpperHost, Limits]:
    """The host, and limits from the environment of who started the daemon."""
    time.sleep(float(os.environ.get("SLOW_START", "0")))
    memory = os.environ.get("MEMORY_LIMIT")
    limits = Limits(
        idle_seconds=float(os.environ.get("THETA_IDLE_SECONDS", "5")),
        memory_bytes=None if memory is None else int(memory),
        tick_seconds=float(os.environ.get("TICK_SECONDS", "0.2")),
    )
    return UpperHost(), limits


def in_process() -> int:
    """The in-process filter's page."""
    umask = os.umask(0o077)
    os.umask(umask)
    invocation = Invocation(Path.cwd(), dict(os.environ), umask, os.geteuid())
    return UpperHost().serve(invocation, 0, 1, 2, threading.Event())


if __name__ == "__main__":
    if sys.argv[-1] == "theta_daemon.server":
        entry.serve(make_host)
    sys.exit(in_process())
