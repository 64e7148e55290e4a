"""Starting a daemon that outlives its starter and holds nothing of it.

Rules: own session, standard descriptors on /dev/null, every other inherited one closed (a daemon that keeps a caller's pipe
makes `out=$(git …)` hang), cwd `/` (a daemon in a directory pins it), no `GIT_*` in its environment (they mean something
beside the first caller's cwd only). All else is kept: CI runners find their processes by variables such as
RUNNER_TRACKING_ID and may reap this one. The starter neither waits nor forks; what it cannot do, `detach` does in the daemon.

On the thin client's path when there is no daemon: no import but `posix`.
"""

import posix

_CALLERS = (b"GIT_", b"LISTEN_", b"LD_PRELOAD", b"DYLD_INSERT_LIBRARIES")


def scrubbed(environ: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """The daemon's environment: the caller's without what means something to the caller alone.

    Git's variables, socket activation's, and preloaded libraries (under `fakeroot` they talk to a process that ends).
    """
    return {name: value for name, value in environ.items() if not name.startswith(_CALLERS)}


def under_way(lock: bytes) -> bool:
    """Whether a daemon has this lock, so that another would start for nothing. Takes nothing."""
    try:
        descriptor = posix.open(lock, posix.O_RDWR | posix.O_NOFOLLOW | posix.O_CLOEXEC)
    except OSError:
        return False
    try:
        posix.lockf(descriptor, posix.F_TEST, 0)
    except OSError:
        return True
    finally:
        posix.close(descriptor)
    return False


def start(python: str, flags: list[str], environ: dict[bytes, bytes]) -> int | None:
    """Start a daemon and return at once: its process id, or None when that was not possible."""
    null = b"/dev/null"
    actions = [
        (posix.POSIX_SPAWN_OPEN, 0, null, posix.O_RDONLY, 0),
        (posix.POSIX_SPAWN_OPEN, 1, null, posix.O_WRONLY, 0),
        (posix.POSIX_SPAWN_OPEN, 2, null, posix.O_WRONLY, 0),
    ]
    command = [python, *flags, "-m", "theta_daemon.server"]
    try:
        try:
            return posix.posix_spawn(python, command, scrubbed(environ), file_actions=actions, setsid=True)
        except NotImplementedError:  # an old C library: `detach` makes the session a moment later
            return posix.posix_spawn(python, command, scrubbed(environ), file_actions=actions)
    except OSError:
        return None


def detach(kept: int = 2) -> None:
    """In the daemon, first of all: a session of its own, no inherited descriptor above `kept`, no directory pinned."""
    try:  # noqa: SIM105 - contextlib would cost the client a millisecond
        posix.setsid()
    except PermissionError:
        pass  # the session was made at the start
    try:
        highest = posix.sysconf("SC_OPEN_MAX")
    except (OSError, ValueError):
        highest = -1
    posix.closerange(kept + 1, max(highest, 1 << 16))
    posix.chdir("/")
