"""When a daemon is idle, draining, or at its end. Pure: time comes in, no socket and no thread is known here.

Rules:

- Idle is: no session and no work. The clock starts when the last of them ends (a daemon that counts a long session as idle
  kills it: sccache#204).
- The name goes first, then the backlog is served, then the process (a queued client would get ECONNRESET).
- Draining declines what comes (it serves itself), lets sessions end, and does not come back. Until then it keeps its name,
  so that it can be looked at and told not to wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

MAX_SESSIONS: Final = 64
"""More at once are declined and serve themselves: each is a thread and up to a dozen descriptors."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What the entry decides. `memory_bytes` is resident memory above which the daemon drains; None is no limit."""

    idle_seconds: float = 1800.0
    memory_bytes: int | None = None
    sessions: int = MAX_SESSIONS
    rest_seconds: float = 10.0
    """So long after the last session the memory that is free is given back."""
    tick_seconds: float = 1.0


class State(Enum):
    SERVING = "serving"
    LEAVING = "leaving"
    """Idle for too long: the name is gone, the backlog is still served."""
    DRAINING = "draining"


class Lifecycle:
    """The life of one daemon. Called by the loop's thread only."""

    def __init__(self, limits: Limits, now: float) -> None:
        self.limits = limits
        self.state = State.SERVING
        self.reason = ""
        self.connections = 0
        self._quiet_since = now
        self._rested = True

    def opened(self) -> None:
        """A connection was accepted."""
        self.connections += 1

    def closed(self, now: float, *, served: bool) -> None:
        """A connection has ended; `served` if it was a session (looking at the status keeps nobody awake)."""
        self.connections -= 1
        if served:
            self._quiet_since = now
            self._rested = False

    def worked(self, now: float) -> None:
        """There is work without a session."""
        self._quiet_since = now

    def declines(self) -> str | None:
        """Why a session cannot begin on the connection that was just opened."""
        if self.state is State.DRAINING:
            return f"draining: {self.reason}"
        return "full" if self.connections > self.limits.sessions else None

    def idle(self, now: float) -> bool:
        return self.connections == 0 and now - self._quiet_since >= self.limits.idle_seconds

    def rests(self, now: float) -> bool:
        """Whether nobody has come for a while; once after each session."""
        if self._rested or self.connections or now - self._quiet_since < self.limits.rest_seconds:
            return False
        self._rested = True
        return True

    def leave(self, reason: str) -> None:
        """Give up the name, serve the backlog, go."""
        if self.state is State.SERVING:
            self.state, self.reason = State.LEAVING, reason

    def drain(self, reason: str) -> None:
        """Take nobody any more, go when the last session has ended."""
        if self.state is not State.DRAINING:
            self.state, self.reason = State.DRAINING, reason

    @property
    def over(self) -> bool:
        """Whether nothing holds the process any more, once the backlog is empty."""
        return self.state is not State.SERVING and self.connections == 0

    def wait_seconds(self, now: float) -> float:
        """How long the loop may sleep."""
        if self.state is not State.SERVING or self.connections:
            return self.limits.tick_seconds
        return max(0.0, min(self.limits.tick_seconds, self._quiet_since + self.limits.idle_seconds - now))
