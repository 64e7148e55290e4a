"""What answers git's requests, as the session sees it: no packet, no descriptor, no thread is known here.

Ground layer: interfaces only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import Protocol, TypeVar

from protocol.events import Request
from protocol.pktline import Buffer

Content = Iterable[Buffer]
"""The answer to a request, in order. Nobody changes a buffer, or lets its memory go, once it was handed out: the session keeps
it as long as git may read it.

A generator is closed when the session is done with it, also when it was not exhausted. An exception before the first
buffer, or in the middle, makes the file fail: git throws away what it got.
"""

Report = Callable[[str], None]
"""Shows one message to the person who runs git."""


class Delayed(Enum):
    """The answer `delayed`: only to a request that can be delayed."""

    DELAYED = "delayed"


class Sink(Protocol):
    """Takes a request's payload. Closed by the session once the answer is sent, or the request has failed."""

    def write(self, data: memoryview) -> None:
        """Consume `data`, or keep it: it does not change any more."""
        ...

    def close(self) -> None: ...


SinkT = TypeVar("SinkT", bound=Sink)


class Handler(Protocol[SinkT]):
    """Knows what to answer. All methods are called from the session's thread, one at a time.

    Any exception makes the file in question fail, and only that; a ThetaError tells the user why.
    """

    def open_sink(self, request: Request) -> SinkT:
        """Where the payload of `request` shall go."""
        ...

    def answer(self, request: Request, sink: SinkT) -> Content | Delayed:
        """The payload is complete in `sink`, which stays open until the content was sent."""
        ...

    def available(self) -> Sequence[bytes]:
        """Pathnames of delayed requests that can be answered now; waits for at least one. Empty: all were given."""
        ...

    def close(self) -> None:
        """The session is over. Must be quick: git waits."""
        ...
