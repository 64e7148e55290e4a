"""The filter in git's own process tree, without a daemon: the same session, hosted by this process alone.

An edge: the one place where the cwd, environment, umask and uid of this process are those of the caller. Git's two pipes
are the session's alone: they are moved away from descriptors 0 and 1, where any library or child process may read or print.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from theta_daemon import heap
from theta_daemon.engine import Engine
from theta_daemon.errors import ThetaError
from theta_daemon.history.git import read_config
from theta_daemon.invocation import Invocation
from theta_daemon.settings import Settings

INTERRUPTED = 130
"""128 + SIGINT, as shells say it."""


def this_process() -> Invocation:
    """This process as a caller. Call it before there are threads: the umask can only be read by setting it."""
    umask = os.umask(0o077)
    os.umask(umask)
    return Invocation(cwd=Path.cwd(), env=dict(os.environ), umask=umask, uid=os.geteuid())


def _take_pipes() -> tuple[int, int]:
    from_git, to_git = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    return from_git, to_git


def interruptible() -> threading.Event:
    """Have Ctrl-C raise KeyboardInterrupt, and set the event that is returned: where a destructor runs nothing can be raised."""
    cancelled = threading.Event()

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        cancelled.set()
        raise KeyboardInterrupt

    def report(unraisable: sys.UnraisableHookArgs) -> None:
        if not issubclass(unraisable.exc_type, KeyboardInterrupt):
            sys.__unraisablehook__(unraisable)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else somebody wants it ignored
        signal.signal(signal.SIGINT, interrupt)
        sys.unraisablehook = report
    return cancelled


def main() -> int:
    """Serve git on descriptors 0, 1 and 2; the exit status."""
    cancelled = interruptible()
    try:
        invocation = this_process()
        from_git, to_git = _take_pipes()
        heap.settle()
        engine = Engine(Settings.load(read_config(invocation), invocation.env, invocation.cwd))
        try:
            return engine.serve(invocation, from_git, to_git, 2, cancelled)
        finally:
            engine.close()
    except ThetaError as error:
        sys.stderr.write(f"theta-daemon: {error.describe()}\n")
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # git waits for our end: no teardown of interpreters and libraries
