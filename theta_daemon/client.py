"""The thin client: what git starts. It hands git's pipes to the daemon, or becomes the in-process filter.

Rules:

- It waits for no daemon to start. One that is there is used, otherwise one is started for the next command.
- Until the daemon has said `adopted` nothing has been read, so any failure before means: exec the in-process filter on the
  untouched descriptors. After it, this process holds none of git's pipes, so that the end of the daemon is the end of
  git's conversation, never a hang.
- No flag of descriptors 0, 1 and 2 is ever changed. The peer's uid is checked before anything is sent.

Run under `-I -S` by the launcher. Imports built-in modules, `_socket` and two light modules of this project: every import
is paid for by every git command. It knows nothing of git, checkpoints or configuration files.
"""

import _signal  # type: ignore[import-not-found]  # `signal` would import enum: milliseconds
import _socket
import posix
import sys

from protocol import control
from theta_daemon import runtime

TRUTHY_NOT = (b"", b"0", b"false", b"no")

HANDSHAKE_SECONDS = 3.0
"""A daemon that does not answer for so long is as good as none (stopped, swapped out); the descriptors are still ours."""


ORPHAN_SECONDS = 1.0
"""How often a client that waits looks whether git is still there. Its death shows in no pipe that we hold."""

FAREWELL_SECONDS = 0.1

QUIET = {b"OPENBLAS_THREAD_TIMEOUT": b"4"}
"""numpy's BLAS starts a thread a processor, and each of them spins for 2 to the 26 cycles before it sleeps, work or none."""

GONE = b"theta-daemon: the daemon ended in the middle of this command; run the command again\n"


class _GoneError(Exception):
    """The daemon went away while it was serving."""


def main(python: str, flags: list[str]) -> None:
    """Serve git, then end the process; never returns. `python` and `flags` start a full interpreter of this environment."""
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # Ctrl-C ends us without a traceback, as it ends git
    environ = {**QUIET, **posix.environ}
    mode = environ.get(b"THETA_DAEMON", b"auto").lower()
    if mode != b"never":
        try:
            status = _through_daemon(python, flags, environ, mode)
        except _GoneError:
            _say(GONE)
            status = 1
        if status is not None:
            posix._exit(status)
    try:
        posix.execve(python, [python, *flags, "-m", "theta_daemon.inprocess"], environ)
    except OSError as error:
        _say(b"theta-daemon: %b: %b; run `git theta install` again\n" % (python.encode(), str(error.strerror).encode()))
        posix._exit(1)


def _through_daemon(python: str, flags: list[str], environ: dict[bytes, bytes], mode: bytes) -> int | None:
    """The exit status when a daemon served, None when it is for us to serve. Raises _GoneError."""
    if not hasattr(_socket.socket, "sendmsg"):
        return None
    try:
        uid = posix.geteuid()
        build = runtime.build_id(python)
        places = runtime.places(environ, build, uid)
    except OSError:
        return None
    for place in places:
        connection = _connect(place, uid)
        if connection is not None:
            try:
                return _offer(connection, build, environ)
            finally:
                connection.close()
    if places and (mode == b"always" or environ.get(b"CI", b"").lower() in TRUTHY_NOT):
        from theta_daemon.server import spawn

        if not any(spawn.under_way(place.lock) for place in places):  # one that is coming up, or going
            spawn.start(python, flags, environ)
    return None


def _connect(place: runtime.Place, uid: int) -> _socket.socket | None:
    """A connection to a daemon of ours, or None."""
    try:
        posix.close(runtime.open_private(place.directory, uid))
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    except OSError:
        return None
    try:
        # With a timeout a full backlog is an error at once instead of a wait. It is set on our own socket only.
        connection.settimeout(HANDSHAKE_SECONDS)
        connection.connect(place.socket)
        if connection.fileno() > 2 and peer_uid(connection) == uid:
            return connection
    except OSError:
        pass
    connection.close()
    return None


def peer_uid(connection: _socket.socket) -> int:
    """The effective uid of the process at the other end, as the kernel knows it. Raises OSError."""
    if sys.platform == "linux":
        credentials = connection.getsockopt(_socket.SOL_SOCKET, _socket.SO_PEERCRED, 12)  # struct ucred: pid, uid, gid
    else:
        credentials = connection.getsockopt(0, 1, 76)  # SOL_LOCAL, LOCAL_PEERCRED: struct xucred: version, uid, …
    return int.from_bytes(credentials[4:8], sys.byteorder)


def _offer(connection: _socket.socket, build: str, environ: dict[bytes, bytes]) -> int | None:
    """Have the daemon serve: its exit status, or None when it declined or broke before it had read anything."""
    parent = posix.getppid()
    talk = control.Conversation(control.CLIENT)
    try:
        connection.sendall(talk.send(control.HELLO, _hello(build, environ)))
        if _receive(connection, talk).kind != control.WELCOME:
            return None
        request = talk.send(control.DESCRIPTORS)
    except Exception:  # noqa: BLE001 - whatever it was, nothing is lost: the descriptors never left
        return None
    try:
        null = posix.open("/dev/null", posix.O_RDWR | posix.O_CLOEXEC)
        descriptors = b"".join([number.to_bytes(4, sys.byteorder) for number in (0, 1, 2)])
        connection.settimeout(None)  # from here on only the daemon's word, or its end, says who may read
        sent = connection.sendmsg([request], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, descriptors)])
        connection.sendall(request[sent:])
        if _receive(connection, talk).kind != control.ADOPTED:
            return None
    except Exception:  # noqa: BLE001 - `adopted` is written before the first read: without it nothing was read
        return None
    try:
        _signal.signal(_signal.SIGTERM, lambda *_: _terminated(connection))
        posix.dup2(null, 0)
        posix.dup2(null, 1)
        connection.settimeout(ORPHAN_SECONDS)
        return _receive(connection, talk, parent).number("status") & 0xFF
    except Exception as error:
        _signal.signal(_signal.SIGTERM, _signal.SIG_IGN)  # what there is to say is said now, and the end is near
        raise _GoneError from error


def _hello(build: str, environ: dict[bytes, bytes]) -> list[tuple[str, bytes]]:
    cwd = posix.getcwdb()
    here = posix.stat(".")
    umask = posix.umask(0o077)  # the only way to read it; this process has one thread and makes no file
    posix.umask(umask)
    numbers = {
        "version": control.VERSION,
        "dev": here.st_dev,
        "ino": here.st_ino,
        "umask": umask,
        "pid": posix.getpid(),
    }
    fields = [(key, b"%d" % number) for key, number in numbers.items()]
    mounts = mount_namespace()
    if mounts is not None:
        fields.append(("mounts", mounts))
    fields += [("build", build.encode()), ("cwd", cwd)]
    fields += [("env", name + b"=" + value) for name, value in environ.items()]
    return fields


def mount_namespace() -> bytes | None:
    """A name for what this process sees as the file system, where the system has one (Linux)."""
    try:
        return posix.readlink(b"/proc/self/ns/mnt")
    except OSError:
        return None


def _receive(connection: _socket.socket, talk: control.Conversation, parent: int | None = None) -> control.Message:
    """The daemon's next message. Raises EOFError at the end of the stream, OSError, RemoteProtocolError.

    With `parent` a timeout is no error, but ends this process when its parent is another one by then.
    """
    while True:
        message = talk.next_message()
        if message is not None:
            return message
        try:
            data = connection.recv(4096)
        except TimeoutError:
            if parent is None:
                raise
            if posix.getppid() != parent:
                posix._exit(1)  # git was killed; our end tells the daemon
            continue
        if not data:
            raise EOFError
        talk.receive_data(data)


def _terminated(connection: _socket.socket) -> None:
    """SIGTERM: git ends its filter so when the pipes break. If they broke because the daemon died, say so.

    A dying process closes its pipes and sockets in no order that we could rely on, hence the patience.
    """
    try:
        connection.settimeout(FAREWELL_SECONDS)
        if connection.recv(1, _socket.MSG_PEEK) == b"":
            _say(GONE)
    except OSError:
        pass  # the daemon is there
    posix._exit(143)


def _say(text: bytes) -> None:
    try:  # noqa: SIM105 - contextlib would cost a millisecond
        posix.write(2, text)
    except OSError:
        pass  # nobody listens
