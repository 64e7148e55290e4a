"""The daemon's main thread: it accepts, watches clients for their end, and keeps the clock. It computes nothing.

Other threads speak to it by `_post`, signal handlers by `signal.set_wakeup_fd`; both only write a byte to a socket pair, so
all that happens here happens between two waits.
"""

from __future__ import annotations

import gc
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Final

from theta_daemon import heap
from theta_daemon.server.code import CodeWatch
from theta_daemon.server.connection import INTERRUPT, Connection, Desk
from theta_daemon.server.host import Host
from theta_daemon.server.lifecycle import Lifecycle, Limits, State
from theta_daemon.server.listener import Listener
from theta_daemon.server.memory import resident_bytes

_POSTED: Final = b"\0"
"""The byte of `_post`; a signal's byte is its number."""

_CODE_TICKS: Final = 10
"""The code is looked at once in so many ticks even if nobody connects: after an upgrade nobody finds us any more."""

_log = logging.getLogger(__name__)


class Resident:
    """Serves at a listener until it is idle for too long, told to stop, deaf, too large or outdated."""

    def __init__(self, listener: Listener, host: Host, build: str, limits: Limits, code: CodeWatch) -> None:
        self._listener = listener
        self._host = host
        self._code = code
        self._life = Lifecycle(limits, time.monotonic())
        self._started = time.time()
        self._accepted = 0
        self._served = 0
        self._ticks = 0
        self._connections: set[Connection] = set()
        self._watched: set[Connection] = set()
        self._posts: deque[Callable[[], None]] = deque()
        self._selector = selectors.DefaultSelector()
        self._ear, self._mouth = socket.socketpair()
        self._ear.setblocking(False)
        self._mouth.setblocking(False)
        self._desk = Desk(
            host=host,
            build=build,
            uid=os.geteuid(),
            watch=lambda connection: self._post(lambda: self._watch(connection)),
            release=lambda connection: self._post(lambda: self._release(connection)),
            status=self._status,
            stop=lambda now: self._post(lambda: self._stop(now=now)),
        )

    def run(self) -> str:
        """Serve to the end; why it came. Must be called in the process's main thread."""
        signal.set_wakeup_fd(self._mouth.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, _nothing)
        signal.signal(INTERRUPT, _nothing)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        self._selector.register(self._ear, selectors.EVENT_READ, self._hear)
        self._selector.register(self._listener.socket, selectors.EVENT_READ, self._accept)
        last_tick = time.monotonic()
        while not (self._life.over and not self._accept()):
            for key, _ in self._selector.select(self._life.wait_seconds(time.monotonic())):
                key.data()
            now = time.monotonic()
            if now - last_tick >= self._life.limits.tick_seconds:
                last_tick = now
                self._tick(now)
            if self._life.idle(now):
                self._life.leave("idle")
            if self._life.over:
                self._listener.unlink()
        signal.set_wakeup_fd(-1)
        return self._life.reason

    def _accept(self) -> bool:
        """Attend to everybody who waits; whether there was anybody."""
        anybody = False
        while (client := self._listener.accept()) is not None:
            anybody = True
            if not self._life.connections:
                self._check_code()
            self._accepted += 1
            self._life.opened()
            connection = Connection(client, self._desk, self._accepted, self._life.declines())
            self._connections.add(connection)
            try:
                connection.start()
            except RuntimeError:  # no thread can be had: the client serves itself
                _log.exception("connection %d was dropped", self._accepted)
                self._release(connection)
        return anybody

    def _hear(self) -> None:
        try:
            heard = self._ear.recv(4096)
        except BlockingIOError:
            return
        for number in heard.replace(_POSTED, b""):
            if number == signal.SIGTERM:
                self._stop(now=self._life.state is State.DRAINING)
        while self._posts:
            self._posts.popleft()()

    def _post(self, action: Callable[[], None]) -> None:
        """Have the main thread do something."""
        self._posts.append(action)
        with suppress(BlockingIOError):  # then it has enough to wake up for
            self._mouth.send(_POSTED)

    def _watch(self, connection: Connection) -> None:
        if connection in self._connections:
            self._watched.add(connection)
            self._selector.register(connection.client, selectors.EVENT_READ, lambda: self._gone(connection))

    def _unwatch(self, connection: Connection) -> None:
        if connection in self._watched:
            self._watched.remove(connection)
            self._selector.unregister(connection.client)

    def _gone(self, connection: Connection) -> None:
        """An adopted client has nothing more to say, so what can be read is its end."""
        self._unwatch(connection)
        connection.cancel()

    def _release(self, connection: Connection) -> None:
        self._unwatch(connection)
        self._connections.discard(connection)
        connection.close()
        self._served += connection.served
        self._life.closed(time.monotonic(), served=connection.served)

    def _stop(self, *, now: bool) -> None:
        self._drain("stopped")
        if now:
            for connection in tuple(self._connections):
                connection.cancel()

    def _drain(self, reason: str) -> None:
        if self._life.state is not State.DRAINING:
            _log.info("draining: %s", reason)
            self._life.drain(reason)

    def _check_code(self) -> None:
        changed = self._code.changed()
        if changed is not None:
            self._drain(f"{changed} has changed")

    def _tick(self, now: float) -> None:
        self._ticks += 1
        if self._host.busy():
            self._life.worked(now)
        if self._life.rests(now):
            heap.release()
        if self._life.state is State.SERVING and not self._listener.ours():
            self._drain("the socket is gone")
        if self._ticks % _CODE_TICKS == 0:
            self._check_code()
        limit = self._life.limits.memory_bytes
        if limit is not None and resident_bytes() > limit:
            gc.collect()
            self._drain(f"more than {limit} bytes of memory")

    def _status(self) -> dict[str, object]:
        """For `git theta daemon status`; called in connections' threads."""
        sessions = sum(connection.served for connection in tuple(self._connections))
        return {
            "pid": os.getpid(),
            "build": self._desk.build,
            "state": self._life.state.value,
            "uptime_seconds": round(time.time() - self._started, 1),
            "sessions": sessions,
            "sessions_served": self._served,
            "connections_accepted": self._accepted,
            "resident_bytes": resident_bytes(),
            "idle_seconds": self._life.limits.idle_seconds,
            "memory_limit_bytes": self._life.limits.memory_bytes,
            "host": self._host.status(),
        }


def _nothing(number: int, frame: FrameType | None) -> None:
    """The wake-up descriptor tells the loop; a handler that did something would do it in the middle of anything."""
