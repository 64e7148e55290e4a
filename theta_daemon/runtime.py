"""Where a daemon of this user and this build listens.

Rules: a runtime directory is ours (owner is the effective uid), private (no bit for group or others) and not a symbolic
link; sockets and locks live only there, never under HOME or in a repository (network file systems). Nothing needs HOME, a
user name or a passwd entry. `THETA_RUNTIME_DIR`, where set, is the only candidate: whoever names a directory means it.

The socket's name holds the control version and the build, so that a client and a daemon of different code never meet.

Ground layer, and on the thin client's path: `posix` instead of `os` saves it more than a millisecond.
"""

import posix
import sys

from protocol import control

MAX_SOCKET_PATH = 107 if sys.platform == "linux" else 103
"""Bytes of `sockaddr_un.sun_path` without its NUL: 108 on Linux, 104 on macOS and the BSDs."""

_CLIENT_FILE = __file__.replace("runtime.py", "client.py")


def build_id(python: str) -> str:
    """16 hex digits that name this code: the client's file as it is now, and the folder of the interpreter."""
    stat = posix.stat(_CLIENT_FILE)
    text = f"{stat.st_dev} {stat.st_ino} {stat.st_mtime_ns} {stat.st_size} {python.rpartition('/')[0]}"
    value = 0xCBF29CE484222325  # FNV-1a, 64 bits: hashlib would cost the client another millisecond
    for byte in text.encode("utf-8", "surrogateescape"):
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


class Place:
    """The files of one build's daemon in one runtime directory."""

    __slots__ = ("build", "crash", "directory", "lock", "log", "socket")

    def __init__(self, directory: bytes, build: str) -> None:
        stem = b"%b/v%d-%b" % (directory, control.VERSION, build.encode())
        self.directory = directory
        self.build = build
        self.socket = stem
        self.lock = stem + b".lock"
        self.log = stem + b".log"
        self.crash = stem + b".crash"


def candidates(environ: dict[bytes, bytes], uid: int) -> list[bytes]:
    """Runtime directories in the order in which they are tried; each absolute."""
    chosen = environ.get(b"THETA_RUNTIME_DIR")
    if chosen:
        return [chosen.rstrip(b"/")] if chosen.startswith(b"/") else []
    parents = [environ.get(b"XDG_RUNTIME_DIR", b""), b"/run/user/%d" % uid]
    found = [b"%b/theta-daemon" % parent.rstrip(b"/") for parent in parents if parent.startswith(b"/")]
    temporary = environ.get(b"TMPDIR") or b"/tmp"
    if temporary.startswith(b"/"):
        found.append(b"%b/theta-daemon-%d" % (temporary.rstrip(b"/"), uid))
    return list(dict.fromkeys(found))


def places(environ: dict[bytes, bytes], build: str, uid: int) -> list[Place]:
    """The places whose socket path is short enough; their directories need not exist."""
    all_places = [Place(directory, build) for directory in candidates(environ, uid)]
    return [place for place in all_places if len(place.socket) <= MAX_SOCKET_PATH]


def open_private(directory: bytes, uid: int) -> int:
    """A descriptor of the directory if it is ours, private and no symbolic link; raises OSError otherwise."""
    flags = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
    descriptor = posix.open(directory, flags)
    stat = posix.fstat(descriptor)
    if stat.st_uid != uid or stat.st_mode & 0o077:
        posix.close(descriptor)
        raise PermissionError(f"{directory!r} is not a private directory of user {uid}")
    return descriptor


def create_private(directory: bytes, uid: int) -> int:
    """Like `open_private`, after making the directory where it is missing (its parent must be there)."""
    try:  # noqa: SIM105 - contextlib would cost the client a millisecond
        posix.mkdir(directory, 0o700)
    except FileExistsError:
        pass  # whose it is, is asked next
    return open_private(directory, uid)
