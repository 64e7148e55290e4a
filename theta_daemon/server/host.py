"""What the resident needs of the program that it keeps resident. It knows nothing else of filters, git or checkpoints."""

from __future__ import annotations

import threading
from typing import Protocol

from theta_daemon.invocation import Invocation


class Host(Protocol):
    """Serves sessions; every method may be called from any thread, `serve` from several at once."""

    def accepts(self, invocation: Invocation) -> str | None:
        """A reason not to serve this caller (its configuration says never), or None. Reads no descriptor."""
        ...

    def serve(
        self, invocation: Invocation, stdin_fd: int, stdout_fd: int, stderr_fd: int, cancelled: threading.Event
    ) -> int:
        """One whole conversation with git over descriptors that stay the caller's to close; the exit status.

        When the client has gone, `cancelled` is set, and the descriptors read as ended and write as broken pipes.
        """
        ...

    def status(self) -> dict[str, object]:
        """What `git theta daemon status` shows of it, as JSON values."""
        ...

    def busy(self) -> bool:
        """Whether work goes on that outlives its session (then the daemon is not idle)."""
        ...

    def close(self) -> None:
        """End pools and children. No session is running."""
        ...
