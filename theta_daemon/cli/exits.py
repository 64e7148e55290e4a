"""How a command ends: its exit status, and its last words on stderr.

0 done; 1 it could not be done (the reason and a remedy are on stderr); 2 the command line was not understood;
130 interrupted. A reader that goes away early (`| head`) is no failure of ours: 141, silently, as git does it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Final

from theta_daemon.complaint import explain
from theta_daemon.errors import ThetaError

DONE: Final = 0
FAILED: Final = 1
USAGE: Final = 2
INTERRUPTED: Final = 130
READER_GONE: Final = 141

EPILOGUE: Final = "Exit status: 0 done, 1 could not be done (why is on stderr), 2 usage, 130 interrupted."


def complain(text: str) -> None:
    """Say `text` on stderr, behind the name of the program. Names in it come from strangers: no control characters."""
    line = "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)
    sys.stderr.flush()
    sys.stderr.buffer.write(f"git-theta: {line}\n".encode())
    sys.stderr.flush()


def guarded(command: Callable[[], int]) -> int:
    """The exit status of `command`; what it raises on purpose becomes words for a person."""
    try:
        status = command()
        sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # the interpreter flushes stdout once more at exit, and must not find the broken pipe there
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return READER_GONE
    except (ThetaError, OSError, MemoryError) as error:
        complain(explain(error))
        return FAILED
    return status
