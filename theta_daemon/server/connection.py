"""One accepted connection, in a thread of its own: handshake, session, farewell.

Rules:

- The peer's uid is asked of the kernel before a byte is read. Every reason to decline is found before `adopted`.
- Descriptors are closed before `finished` is sent: after it git may go on at once, and a held stderr would keep
  `git … | tee` from ending. Housekeeping comes after.
- O_NONBLOCK is never set on what was passed (it belongs to the open file, so to the caller too). A session that blocks in
  `read` or `write` is ended by `cancel`: the numbers are re-pointed (`OwnedFds.sever`), then a signal whose handler does
  nothing interrupts the thread's system call, and Python's retry (PEP 475) meets the end of file or the broken pipe.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol import control
from protocol.errors import ProtocolError
from theta_daemon.client import mount_namespace, peer_uid
from theta_daemon.invocation import Invocation
from theta_daemon.server import fdpass
from theta_daemon.server.host import Host

HANDSHAKE_SECONDS: Final = 10.0
"""For a client that connects and says nothing. Longer than the client's own patience."""

INTERRUPT: Final = signal.SIGUSR1

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Desk:
    """What a connection is attended with. `status` and `stop` serve administration."""

    host: Host
    build: str
    uid: int
    watch: Callable[[Connection], None]
    """Have `cancel` called when the client goes."""
    release: Callable[[Connection], None]
    """The connection has ended: unwatch it and call `close`."""
    status: Callable[[], dict[str, object]]
    stop: Callable[[bool], None]


class Connection:
    """A client and, once adopted, its session."""

    def __init__(self, client: socket.socket, desk: Desk, number: int, declined: str | None) -> None:
        self.client = client
        self.number = number
        self.served = False
        self._desk = desk
        self._declined = declined
        self._talk = control.Conversation(control.DAEMON)
        self._fds = fdpass.OwnedFds()
        self._cancelled = threading.Event()
        self._guard = threading.Lock()
        self._thread: int | None = None

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"session-{self.number}", daemon=True).start()

    def cancel(self) -> None:
        """The client has gone: end the session, whatever it is doing. From any thread, also when it has ended."""
        self._cancelled.set()
        with self._guard:
            if self._thread is not None:
                self._fds.sever()
                signal.pthread_kill(self._thread, INTERRUPT)
            elif not self.served and self._talk.state != "over":
                with suppress(OSError):
                    self.client.shutdown(socket.SHUT_RD)  # ends the wait for a greeting

    def close(self) -> None:
        """Let go of the client."""
        self.client.close()

    def _run(self) -> None:
        try:
            self.client.settimeout(HANDSHAKE_SECONDS)
            if peer_uid(self.client) == self._desk.uid:
                self._attend(self._receive())
        except (OSError, EOFError, ProtocolError) as error:
            _log.info("connection %d ended: %r", self.number, error)
        except Exception:  # noqa: BLE001 - one client's trouble is nobody else's
            _log.exception("connection %d failed", self.number)
        finally:
            self._desk.release(self)

    def _attend(self, message: control.Message) -> None:
        if message.kind == control.STATUS:
            text = json.dumps(self._desk.status(), default=str).encode()
            self._send(control.REPORT, [("text", text)])
        elif message.kind == control.STOP:
            self._desk.stop(message.get("now") == b"1")
            self._send(control.REPORT, [("text", b"{}")])
        else:
            self._greet(message)

    def _greet(self, hello: control.Message) -> None:
        invocation = _invocation(hello, self._desk.uid)
        reason = self._declined or _mismatch(hello, self._desk.build) or self._desk.host.accepts(invocation)
        if reason is not None:
            _log.info("connection %d declined: %s", self.number, reason)
            self._send(control.DECLINED, [("reason", reason.encode())])
            return
        self._send(control.WELCOME)
        with self._fds:
            try:
                self._receive()
                self._fds.expect(3)
            except fdpass.DescriptorError as error:
                _log.warning("connection %d declined: %s", self.number, error)
                self._send(control.DECLINED, [("reason", b"descriptors: %b" % str(error).encode())])
                return
            self._send(control.ADOPTED, [("session", b"%d" % self.number)])
            self.served = True
            status = self._serve(invocation)
        self._send(control.FINISHED, [("status", b"%d" % (status & 0xFF))])

    def _serve(self, invocation: Invocation) -> int:
        stdin_fd, stdout_fd, stderr_fd = self._fds.numbers
        self._thread = threading.get_ident()
        self._desk.watch(self)
        try:
            return self._desk.host.serve(invocation, stdin_fd, stdout_fd, stderr_fd, self._cancelled)
        except Exception:  # noqa: BLE001 - one client's trouble is nobody else's
            _log.exception("session %d failed", self.number)
            _complain(stderr_fd)
            return 1
        finally:
            with self._guard:  # after this no signal comes, and the numbers may be reused
                self._thread = None

    def _send(self, kind: str, fields: list[tuple[str, bytes]] | None = None) -> None:
        self.client.sendall(self._talk.send(kind, fields))

    def _receive(self) -> control.Message:
        """The client's next message; descriptors with it come to `self._fds`."""
        while True:
            message = self._talk.next_message()
            if message is not None:
                return message
            data = fdpass.receive(self.client, 1 << 18, self._fds)
            if not data:
                raise EOFError("the client went away")
            self._talk.receive_data(data)


def _invocation(hello: control.Message, uid: int) -> Invocation:
    pairs = (entry.partition(b"=") for entry in hello.all("env"))
    env = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    cwd = Path(os.fsdecode(hello.get("cwd") or b""))
    return Invocation(cwd=cwd, env=env, umask=hello.number("umask") & 0o777, uid=uid)


def _mismatch(hello: control.Message, build: str) -> str | None:
    """Why this client and this daemon do not see the same world."""
    if hello.number("version") != control.VERSION or hello.get("build") != build.encode():
        return "another build"
    cwd = hello.get("cwd") or b""
    if not cwd.startswith(b"/"):
        return "no absolute directory"
    try:
        here = os.stat(cwd)  # noqa: PTH116 - bytes path
    except OSError:
        return "the directory is not visible here"
    mounts = hello.get("mounts")
    if mounts is not None and mounts != mount_namespace():
        return "other mounts"
    if (here.st_dev, here.st_ino) != (hello.number("dev"), hello.number("ino")):
        return "the directory is another one here"  # a container with a shared runtime directory
    return None


def _complain(stderr_fd: int) -> None:
    with suppress(OSError):  # perhaps nobody listens
        os.write(stderr_fd, b"theta-daemon: internal error; see `git theta daemon logs`\n")
