"""What `git theta daemon …` does. Returns values; printing is the command line's.

Daemons of every build in this user's runtime directories are spoken to: after an upgrade the old one is still ours to stop.
Only `start` waits for a daemon to come up: its user asked for that.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from protocol import control
from protocol.errors import ProtocolError
from theta_daemon import runtime
from theta_daemon.client import peer_uid
from theta_daemon.errors import ThetaError
from theta_daemon.launcher import interpreter_flags
from theta_daemon.runtime import Place
from theta_daemon.server import listener, spawn
from theta_daemon.server.logs import read_log

_POLL_SECONDS: Final = 0.02
_ANSWER_SECONDS: Final = 5.0


class DaemonError(ThetaError):
    """A daemon that does not do what it was asked to."""


@dataclass(frozen=True, slots=True)
class Daemon:
    """A living daemon and what it says of itself: pid, build, state, uptime_seconds, sessions, resident_bytes, host, …"""

    place: Place
    current: bool
    """Whether it is of this very code, so that git's filter uses it."""
    report: Mapping[str, Any]


def current_places(environ: Mapping[bytes, bytes]) -> list[Place]:
    """Where the daemon of this code may be."""
    return runtime.places(dict(environ), runtime.build_id(sys.executable), os.geteuid())


def status(environ: Mapping[bytes, bytes]) -> list[Daemon]:
    """Every living daemon of this user that answers."""
    found = []
    build = runtime.build_id(sys.executable)
    for place in _places(environ):
        with suppress(OSError, EOFError, ProtocolError, ValueError):
            found.append(Daemon(place, place.build == build, _ask(place, control.STATUS)))
    return found


def start(environ: Mapping[bytes, bytes], timeout_seconds: float = 60.0) -> Daemon:
    """The daemon of this code, started if need be. Raises DaemonError when it does not come up."""
    deadline = time.monotonic() + timeout_seconds
    running = _current(environ)
    pid = None if running else spawn.start(sys.executable, interpreter_flags(), dict(environ))
    while running is None:
        if pid is not None and os.waitpid(pid, os.WNOHANG) != (0, 0):
            pid = None  # it has ended: perhaps another was faster
            running = _current(environ)
            if running is None and not _claimed(environ):
                raise DaemonError("the daemon ended at once", "see `git theta daemon logs`")
            continue
        if time.monotonic() > deadline:
            raise DaemonError(f"no daemon came up in {timeout_seconds:g} s", "see `git theta daemon logs`")
        time.sleep(_POLL_SECONDS)
        running = _current(environ)
    return running


def stop(environ: Mapping[bytes, bytes], *, now: bool = False, timeout_seconds: float = 60.0) -> int:
    """Ask every daemon to end and wait until it has (its lock is free); how many did. `now` ends their sessions too.

    Raises DaemonError when one is still there after the time.
    """
    deadline = time.monotonic() + timeout_seconds
    living = [place for place in _places(environ) if not _free(place)]
    for place in living:
        asked = False
        while not _free(place):
            with suppress(OSError, EOFError, ProtocolError, ValueError):  # one that is coming up cannot hear yet
                if not asked:
                    _ask(place, control.STOP, [("now", b"1" if now else b"0")])
                    asked = True
            if time.monotonic() > deadline:
                raise DaemonError(f"the daemon at {os.fsdecode(place.socket)} is still busy", "try again with --now")
            time.sleep(_POLL_SECONDS)
    return len(living)


def restart(environ: Mapping[bytes, bytes], timeout_seconds: float = 60.0) -> Daemon:
    """Stop them all, start the one of this code. Raises DaemonError."""
    stop(environ, timeout_seconds=timeout_seconds)
    return start(environ, timeout_seconds)


def logs(environ: Mapping[bytes, bytes]) -> str:
    """The log of this code's daemons, also of one that has ended; empty when there is none."""
    return "".join(read_log(place) for place in current_places(environ))


def _current(environ: Mapping[bytes, bytes]) -> Daemon | None:
    return next((daemon for daemon in status(environ) if daemon.current), None)


def _places(environ: Mapping[bytes, bytes]) -> Iterator[Place]:
    """Places in our private directories where a daemon is or was."""
    uid = os.geteuid()
    prefix = f"v{control.VERSION}-"
    for directory in runtime.candidates(dict(environ), uid):
        try:
            descriptor = runtime.open_private(directory, uid)
        except OSError:
            continue
        try:
            names = sorted(os.listdir(descriptor))  # noqa: PTH208 - of a descriptor
        finally:
            os.close(descriptor)
        stems = [name.removesuffix(".lock") for name in names if name.endswith(".lock") and name.startswith(prefix)]
        yield from (Place(directory, stem.removeprefix(prefix)) for stem in stems)


def _ask(place: Place, kind: str, fields: list[tuple[str, bytes]] | None = None) -> dict[str, Any]:
    talk = control.Conversation(control.CLIENT)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(_ANSWER_SECONDS)
        connection.connect(place.socket)
        if peer_uid(connection) != os.geteuid():
            raise PermissionError("another user listens there")
        connection.sendall(talk.send(kind, fields))
        while (message := talk.next_message()) is None:
            data = connection.recv(1 << 16)
            if not data:
                raise EOFError
            talk.receive_data(data)
    report = json.loads(message.get("text") or b"")
    if not isinstance(report, dict):
        raise ValueError("the report is no object")  # noqa: TRY004 - a wrong value from outside
    return report


def _free(place: Place) -> bool:
    try:
        lock = listener.lock_file(place)
    except OSError:
        return True  # the directory has gone, so the daemon is going
    if lock is None:
        return False
    os.close(lock)
    return True


def _claimed(environ: Mapping[bytes, bytes]) -> bool:
    return any(not _free(place) for place in current_places(environ))
