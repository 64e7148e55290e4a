"""One filter process's life: descriptors in, descriptors out, whoever hosts it. The one driver of the filter protocol.

Rules
1. The session drains every payload, whatever the sink does with it: a handler cannot make the stream lose step.
2. Nothing is written before the flush of the request's payload (git does not read while it writes).
3. A failing file fails alone: `status=error`, one message for the user, and the next request.
4. No flag of a descriptor is changed: they are shared with git. Reads block; whoever waits holds a thread.
5. A reader that is gone (EPIPE) ends the session quietly: git was interrupted, and has said so itself.
6. End of input ends it at once: git waits for the process to exit.

It knows neither pointers nor checkpoints; the handler does, and knows nothing of packets.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, Generic

from protocol.errors import EndedError, ProtocolError
from protocol.events import (
    EVERYTHING,
    Answer,
    Available,
    Capabilities,
    Data,
    EndOfContent,
    Event,
    Greeting,
    ListAvailable,
    Request,
    Role,
    Status,
    Verdict,
)
from protocol.filter import FilterConnection, Pause
from protocol.pktline import MAX_PAYLOAD, Buffer
from theta_daemon.complaint import explain, printable
from theta_daemon.handler import Content, Delayed, Handler, Report, Sink, SinkT
from theta_daemon.pipes import MAX_BUFFERS, SMALL_BYTES, GitGoneError, PipeReader, PipeWriter, widen

log = logging.getLogger(__name__)

__all__ = ["Content", "Delayed", "Handler", "Report", "Sink", "run"]

_STRIDE_BYTES: Final = (MAX_BUFFERS // 2 - 1) * MAX_PAYLOAD
"""What one writev can take with a header before each packet, and gathered bytes before the first."""


class _CancelledError(Exception):
    """The host wants the session to end."""


def run(
    stdin_fd: int, stdout_fd: int, handler: Handler[SinkT], report: Report, cancelled: threading.Event | None = None
) -> int:
    """Serve git on two descriptors until it has no more to ask; the exit status of the filter process.

    `cancelled` ends the session at its next step; a read that waits for git ends when git does. Never raises an
    Exception; the descriptors stay open.
    """
    session = _Session(stdin_fd, stdout_fd, handler, report, cancelled or threading.Event())
    try:
        session.serve()
    except (GitGoneError, EndedError, _CancelledError) as error:
        log.info("session ended early: %r", error)
        return 1
    except (ProtocolError, OSError) as error:
        _tell(report, f"the conversation with git broke down: {error}")
        return 1
    finally:
        session.close()
    return 0


def _go_on(cancelled: threading.Event) -> None:
    if cancelled.is_set():
        raise _CancelledError


class _Session(Generic[SinkT]):
    def __init__(
        self, stdin_fd: int, stdout_fd: int, handler: Handler[SinkT], report: Report, cancelled: threading.Event
    ) -> None:
        widen(stdin_fd)
        widen(stdout_fd)
        # Nothing here refers to the session itself: its buffers go when it does, not when somebody looks for cycles.
        self._check = partial(_go_on, cancelled)
        self._reader = PipeReader(stdin_fd)
        self._writer = PipeWriter(stdout_fd, self._check)
        self._connection = FilterConnection()
        self._handler = handler
        self._report = report
        # of the request whose payload is arriving
        self._request: Request | None = None
        self._sink: SinkT | None = None
        self._failure: Exception | None = None

    def serve(self) -> None:
        """Returns when git closes its end between two requests."""
        while True:
            self._take_contents()
            event = self._connection.next_event()
            match event:
                case Data():
                    self._take(memoryview(event.data))
                case Pause():
                    self._check()
                    self._read()
                case Request():
                    self._begin(event)
                case EndOfContent():
                    self._finish()
                case ListAvailable():
                    self._list()
                case Greeting():
                    self._say(Greeting(Role.FILTER))
                    self._writer.flush()
                case Capabilities(names):
                    self._say(Capabilities(names & EVERYTHING))
                    self._writer.flush()
                case _:
                    return

    def close(self) -> None:
        """Let go of everything; a last error is told, but changes nothing."""
        self._release()
        self._safely(self._handler.close)

    def _say(self, event: Event) -> None:
        for buffer in self._connection.send(event):
            self._writer.add(buffer)

    def _read(self) -> None:
        due = self._connection.due
        if due is None:
            self._connection.receive_data(self._reader.read())
        else:
            self._connection.receive_scattered(*self._reader.read_scattered(due))

    # a request

    def _begin(self, request: Request) -> None:
        self._request = request
        try:
            self._sink = self._handler.open_sink(request)
        except Exception as error:  # noqa: BLE001  # whatever it is, only this file fails, and its payload is drained
            self._failure = error

    def _take(self, data: memoryview) -> None:
        if self._sink is None or self._failure is not None:
            return
        try:
            self._sink.write(data)
        except Exception as error:  # noqa: BLE001  # as above
            self._failure = error

    def _take_contents(self) -> None:
        """What comes in one go. Nothing of it may be held when the next bytes are read, for them to find room."""
        for piece in self._connection.contents():
            self._take(piece)

    def _finish(self) -> None:
        try:
            outcome = self._outcome()
            if isinstance(outcome, Exception):
                self._say(Answer(self._judge(outcome)))
            elif isinstance(outcome, Delayed):
                self._say(Answer(Status.DELAYED))
            else:
                self._send(outcome)
            self._writer.flush()
        finally:
            self._release()

    def _outcome(self) -> Content | Delayed | Exception:
        """What the handler makes of the complete payload."""
        if self._failure is not None:
            return self._failure
        if self._request is None or self._sink is None:
            return AssertionError("content without a request")
        try:
            outcome = self._handler.answer(self._request, self._sink)
        except Exception as error:  # noqa: BLE001  # as above
            return error
        if isinstance(outcome, Delayed) and not self._request.can_delay:
            return AssertionError("delayed, though git did not offer to wait")
        return outcome

    def _send(self, content: Content) -> None:
        """Success, the content, and the last word on it; only a failure before the first piece can still say error."""
        pieces = _pieces(content)
        try:
            piece = _next(pieces)
            if isinstance(piece, Exception):
                self._say(Answer(self._judge(piece)))
                return
            self._say(Answer(Status.SUCCESS))
            while piece is not None and not isinstance(piece, Exception):
                self._send_piece(piece)
                piece = _next(pieces)
            self._say(EndOfContent())
            self._say(Verdict(None if piece is None else self._judge(piece)))
        finally:
            self._safely(pieces.close)

    def _send_piece(self, piece: memoryview) -> None:
        if len(piece) <= SMALL_BYTES:
            self._say(Data(piece))
            return
        for start in range(0, len(piece), _STRIDE_BYTES):
            self._writer.write(self._connection.send(Data(piece[start : start + _STRIDE_BYTES])))

    def _release(self) -> None:
        sink, self._sink, self._request, self._failure = self._sink, None, None, None
        if sink is not None:
            self._safely(sink.close)

    # delayed requests

    def _list(self) -> None:
        pathnames: tuple[bytes, ...] = ()
        status = Status.SUCCESS
        try:
            pathnames = tuple(self._handler.available())
        except Exception as error:  # noqa: BLE001  # git is told, and ends the checkout itself
            status = self._judge(error)
        self._say(Available(pathnames))
        self._say(Answer(status))
        self._writer.flush()

    # errors

    def _judge(self, error: Exception) -> Status:
        """The one place where an error becomes a status for git and a message for the user.

        Never ABORT: git would stop asking for the other files too, and take them as they are where nothing requires
        the filter.
        """
        where = "" if self._request is None else f"{printable(self._request.pathname)}: "
        _tell(self._report, where + explain(error))
        _forget_frames(error)
        return Status.ERROR

    def _safely(self, close: Callable[[], None]) -> None:
        try:
            close()
        except Exception as error:  # noqa: BLE001  # the answer is given; tidying up cannot change it
            _tell(self._report, explain(error))


def _pieces(content: Content) -> Generator[Buffer, None, None]:
    """Any content as a generator: closing it closes a generator within, and a content that is none fails as a piece."""
    yield from content


def _next(pieces: Iterator[Buffer]) -> memoryview | Exception | None:
    """The next buffer as bytes, None at the end, or what went wrong."""
    try:
        piece = next(pieces, None)
        return None if piece is None else memoryview(piece).cast("B")
    except Exception as error:  # noqa: BLE001  # the session turns it into a status
        return error


def _forget_frames(error: BaseException) -> None:
    """Who keeps an error, to raise it, is in a frame of its traceback: a cycle, in which all that they hold would stay."""
    seen: set[int] = set()
    errors: list[BaseException | None] = [error]
    while errors:
        found = errors.pop()
        if found is not None and id(found) not in seen:
            seen.add(id(found))
            found.__traceback__ = None
            errors += [found.__cause__, found.__context__]


def _tell(report: Report, message: str) -> None:
    with suppress(Exception):  # nobody may be there to read it
        report(message)
