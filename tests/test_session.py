"""The session through real pipes, with git's end in this thread and the session in another."""

from __future__ import annotations

import errno
import fcntl
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.events import EVERYTHING, Command, ListAvailable, Request, Status
from protocol.pktline import MAX_PAYLOAD, lines
from tests.gitside import GitSide, Reply
from tests.upper import Collected, Upper
from theta_daemon.errors import MissingObjectError, ThetaError
from theta_daemon.pipes import PipeWriter, widen
from theta_daemon.session import Content, Delayed, Handler, run


@dataclass
class Hosted:
    """A session in a thread, and git's side of it."""

    git: GitSide
    thread: threading.Thread
    stdin: int
    stdout: int
    cancelled: threading.Event
    messages: list[str] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)

    def status(self) -> int:
        """The exit status, once the session is over."""
        self.thread.join(30)
        assert not self.thread.is_alive(), "the session hangs"
        return self.statuses[0]


def close_all(*fds: int) -> None:
    for fd in fds:
        os.close(fd)


@contextmanager
def hosted(handler: Handler[Collected] | Upper, *, shake: bool = True) -> Iterator[Hosted]:
    """Closes everything afterwards, also git's end where the test did not.

    After a minute all four ends are closed: two that wait for each other fail then, instead of waiting for ever.
    """
    stdin, to_filter = os.pipe()
    from_filter, stdout = os.pipe()
    cancelled = threading.Event()
    session = Hosted(GitSide(to_filter, from_filter), threading.Thread(), stdin, stdout, cancelled)

    def serve() -> None:
        session.statuses.append(run(stdin, stdout, handler, session.messages.append, cancelled))
        os.close(stdin)
        os.close(stdout)

    session.thread = threading.Thread(target=serve)
    session.thread.start()
    deadlock = threading.Timer(60, close_all, [stdin, stdout, to_filter, from_filter])
    deadlock.start()
    try:
        if shake:
            assert session.git.handshake() == EVERYTHING
        yield session
    finally:
        with suppress(OSError):
            session.git.close()
        session.status()
        deadlock.cancel()


class Plain(Upper):
    """Answers with whatever `contents` yields for a request."""

    def contents(self, request: Request, data: bytes) -> Content | Delayed:
        raise NotImplementedError

    def answer(self, request: Request, sink: Collected) -> Content | Delayed:
        return self.contents(request, bytes(sink.data))


def test_a_session_serves_until_git_closes() -> None:
    """Requests one after the other; then status 0, the handler closed once and every sink closed."""
    handler = Upper()
    with hosted(handler) as session:
        assert session.git.clean(b"a", [b"ABC"]) == Reply(Status.SUCCESS, b"abc")
        assert session.git.smudge(b"a", [b"abc"]) == Reply(Status.SUCCESS, b"ABC")
        assert session.git.smudge(b"empty") == Reply(Status.SUCCESS, b"")
        session.git.close()
        assert session.status() == 0
    assert handler.closed == 1
    assert [sink.closed for sink in handler.sinks] == [True] * 3
    assert session.messages == []


def test_delayed_requests_are_listed_and_given_back() -> None:
    """Content comes empty the second time; a clean in between disturbs nothing; two rounds follow one another."""
    with hosted(Upper(delay=True)) as session:
        for _ in range(2):
            for name in (b"a", b"b", b"c"):
                assert session.git.smudge(name, [name * 3], can_delay=True).status is Status.DELAYED
            assert session.git.clean(b"x", [b"X"]).content == b"x"
            assert session.git.list_available_blobs() == ((b"a", b"b"), Status.SUCCESS)
            assert session.git.smudge(b"a") == Reply(Status.SUCCESS, b"AAA")
            assert session.git.smudge(b"b") == Reply(Status.SUCCESS, b"BBB")
            assert session.git.list_available_blobs() == ((b"c",), Status.SUCCESS)
            assert session.git.smudge(b"c") == Reply(Status.SUCCESS, b"CCC")
            assert session.git.list_available_blobs() == ((), Status.SUCCESS)


def test_two_hundred_megabytes_there_and_back() -> None:
    """Neither side ever waits for the other: the payload is read to its end before a byte is answered."""
    megabyte = bytes(range(256)) * 4096
    count = 200

    class Counting(Plain):
        def contents(self, request: Request, data: bytes) -> Content:
            assert len(data) == count * len(megabyte)
            return [data]

    received = 0

    def receive(view: memoryview) -> None:
        nonlocal received
        received += len(view)

    with hosted(Counting()) as session:
        reply = session.git.ask(Request(Command.CLEAN, b"big"), (megabyte for _ in range(count)), receive)
        assert reply.status is Status.SUCCESS
        assert received == count * len(megabyte)


@pytest.mark.parametrize("size", [1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 1 << 20, 34_000_000])
def test_one_buffer_of_any_size_comes_back(size: int) -> None:
    """Also one that is larger than a single writev can take."""
    data = (bytes(range(251)) * (size // 251 + 1))[:size]

    class Echo(Plain):
        def contents(self, request: Request, data: bytes) -> Content:
            return [data]

    with hosted(Echo()) as session:
        assert session.git.smudge(b"a", [data]).content == data


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, 3_000_000), max_size=8), st.integers(0, 255))
def test_pieces_of_any_size_come_back_though_nobody_else_keeps_them(sizes: list[int], seed: int) -> None:
    """The handler lets go of each at once, and what its memory is given to next must not be what git reads."""
    wanted = b"".join(bytes([(seed + index) % 256]) * size for index, size in enumerate(sizes))

    class Forgetting(Plain):
        def contents(self, request: Request, data: bytes) -> Content:
            for index, size in enumerate(sizes):
                yield bytes([(seed + index) % 256]) * size
                rubbish = [b"\xee" * length for length in (size, size + 1, 1 << 16, 100)]
                del rubbish

    with hosted(Forgetting()) as session:
        assert session.git.smudge(b"a").content == wanted


def test_lent_memory_is_kept_until_a_slow_reader_has_had_it() -> None:
    """git stops reading in the middle; meanwhile the memory of all that was handed out is asked for by others."""
    pieces = [bytes([index]) * 300_001 for index in range(100)]
    wanted = b"".join(pieces)

    class Forgetting(Plain):
        def contents(self, request: Request, data: bytes) -> Content:
            while pieces:
                yield pieces.pop(0)

    received = bytearray()

    def receive(piece: memoryview) -> None:
        if len(received) in range(5_000_000, 5_200_000):
            time.sleep(0.3)
        scratch = [b"\xee" * 300_001 for _ in range(8)]
        received.extend(piece)
        del scratch

    with hosted(Forgetting()) as session:
        assert session.git.ask(Request(Command.SMUDGE, b"a"), [], receive).status is Status.SUCCESS
    assert received == wanted


@pytest.mark.parametrize("lends", [True, False])
def test_a_writer_keeps_exactly_what_the_pipe_may_still_need(lends: bool) -> None:
    """Nothing that git has had for certain, everything else; after a flush nothing. Without lending nothing at any time."""
    readable, writable = os.pipe()
    widen(writable)
    writer = PipeWriter(writable)
    if lends and writer._lender is None:
        pytest.skip("this system does not lend to pipes")
    if not lends:
        writer._lender = None
    received = bytearray()

    def drain() -> None:
        while piece := os.read(readable, 1 << 16):
            received.extend(piece)

    reader = threading.Thread(target=drain)
    reader.start()
    kept: list[weakref.ref[np.ndarray]] = []  # type: ignore[type-arg]
    wanted = bytearray()
    try:
        for index in range(40):
            piece = np.full(500_000, index, np.uint8)
            wanted += piece.tobytes()
            kept.append(weakref.ref(piece))
            writer.write([piece.data])
            del piece
            alive = sum(ref() is not None for ref in kept) * 500_000
            assert alive <= (5 << 20 if lends else 0)
            unread = len(wanted) - len(received)
            assert alive >= unread - (1 << 17) or not lends
        writer.flush()
        assert not any(ref() is not None for ref in kept)
    finally:
        os.close(writable)
        reader.join(30)
        os.close(readable)
    assert received == wanted


@pytest.mark.parametrize("where", ["open", "first write", "second write", "answer", "not iterable", "late delay"])
def test_whatever_a_handler_does_the_next_request_is_understood(where: str) -> None:
    """The payload is drained by the session; the file fails alone, with one message that names it."""

    refused: list[Collected] = []

    class Quitter(Collected):
        def write(self, data: memoryview) -> None:
            assert not refused or refused[-1] is not self, "written to again"
            super().write(data)
            if where == "first write" or (where == "second write" and len(self.data) > MAX_PAYLOAD):
                refused.append(self)
                raise ThetaError("the sink is full", "make room")

    class Early(Upper):
        def open_sink(self, request: Request) -> Collected:
            if request.pathname == b"good":
                return super().open_sink(request)
            if where == "open":
                raise ThetaError("no sink today")
            self.sinks.append(Quitter())
            return self.sinks[-1]

        def answer(self, request: Request, sink: Collected) -> Content | Delayed:
            if request.pathname == b"good":
                return super().answer(request, sink)
            if where == "answer":
                raise ZeroDivisionError("oh")
            return Delayed.DELAYED if where == "late delay" else 5  # type: ignore[return-value]

    handler = Early()
    with hosted(handler) as session:
        for _ in range(2):
            assert session.git.clean(b"bad", [bytes(300_000), b"0000", b"0016git-filter-client"]).status is Status.ERROR
            assert session.git.clean(b"good", [b"ABC"]) == Reply(Status.SUCCESS, b"abc")
        session.git.close()
        assert session.status() == 0
    assert len(session.messages) == 2
    assert all(message.startswith("bad: ") and "written to again" not in message for message in session.messages)
    assert all(sink.closed for sink in handler.sinks)


@pytest.mark.parametrize("before", [0, 1, 100, 300_000, 3_000_000])
def test_a_failure_in_the_middle_ends_in_an_error(before: int) -> None:
    """Before the first byte it is said at once; later it is the last word after what was sent, and git drops it all."""

    class Breaking(Plain):
        ended = 0

        def contents(self, request: Request, data: bytes) -> Content:
            try:
                if before:
                    yield bytes(before)
                raise MissingObjectError("parameter w: object abc is missing", "git theta fetch")
            finally:
                self.ended += 1

    handler = Breaking()
    with hosted(handler) as session:
        for _ in range(2):
            assert session.git.smudge(b"a", [b"x"]) == Reply(Status.ERROR, bytes(before))
    assert session.messages == ["a: parameter w: object abc is missing\n  remedy: git theta fetch"] * 2
    assert handler.ended == 2


def test_an_unforeseen_error_names_its_place() -> None:
    """It is called internal, with type, text and line; what the machine refuses is called by its own name."""

    class Broken(Plain):
        def contents(self, request: Request, data: bytes) -> Content:
            if request.pathname == b"full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/store")
            raise KeyError("layer")

    with hosted(Broken()) as session:
        session.git.smudge(b"odd\n\xff\x1b[2J")
        session.git.smudge(b"full")
    internal, full = session.messages
    assert internal.startswith(r"odd\n\xff\x1b[2J: internal error: KeyError: 'layer' (test_session.py:")
    assert full == "full: [Errno 28] No space left on device: '/store'"


def test_a_list_that_cannot_be_made_is_an_error() -> None:
    """git is told, and the conversation goes on."""

    class Listless(Upper):
        def available(self) -> Sequence[bytes]:
            raise ThetaError("the batch cannot be planned")

    with hosted(Listless(delay=True)) as session:
        assert session.git.list_available_blobs() == ((), Status.ERROR)
        assert session.git.clean(b"a", [b"A"]).content == b"a"
    assert session.messages == ["the batch cannot be planned"]


def test_errors_while_closing_change_nothing() -> None:
    """The answer stands, the status too; the errors are told; a report that fails is no error."""

    class Sticky(Collected):
        def close(self) -> None:
            raise ThetaError("the sink sticks")

    class Closing(Plain):
        def open_sink(self, request: Request) -> Collected:
            return Sticky()

        def contents(self, request: Request, data: bytes) -> Content:
            return [b"fine"]

        def close(self) -> None:
            raise ThetaError("the handler sticks")

    with hosted(Closing()) as session:
        assert session.git.smudge(b"a") == Reply(Status.SUCCESS, b"fine")
        session.git.close()
        assert session.status() == 0
    assert session.messages == ["the sink sticks", "the handler sticks"]


def test_a_report_nobody_can_read_changes_nothing() -> None:
    """A closed stderr must not fail a file, nor the session."""

    def broken_report(message: str) -> None:
        raise BrokenPipeError(message)

    stdin, to_filter = os.pipe()
    from_filter, stdout = os.pipe()
    git = GitSide(to_filter, from_filter)
    statuses: list[int] = []
    thread = threading.Thread(target=lambda: statuses.append(run(stdin, stdout, Upper(), broken_report)))
    thread.start()
    git.handshake()
    assert git.smudge(b"a", [b"refuse"]).status is Status.ERROR
    assert git.smudge(b"a", [b"fine"]).content == b"FINE"
    git.close()
    thread.join(30)
    os.close(stdin)
    os.close(stdout)
    assert statuses == [0]


@pytest.mark.parametrize("complaints", [[], ["the content sticks"]])
def test_a_reader_that_is_gone_ends_the_session_quietly(complaints: list[str]) -> None:
    """git was killed while it read: the content is closed, the handler too, and no message is ours."""

    class Endless(Plain):
        ended = 0

        def contents(self, request: Request, data: bytes) -> Content:
            try:
                while True:
                    yield bytes(1 << 20)
            finally:
                self.ended += 1
                for complaint in complaints:
                    raise ThetaError(complaint)

    handler = Endless()
    with hosted(handler) as session:
        seen = 0

        def give_up(view: memoryview) -> None:
            nonlocal seen
            seen += len(view)
            if seen > 3_000_000:
                raise InterruptedError

        with pytest.raises(InterruptedError):
            session.git.ask(Request(Command.SMUDGE, b"a"), [], give_up)
        session.git.close()
        assert session.status() == 1
    assert session.messages == complaints
    assert (handler.ended, handler.closed) == (1, 1)
    assert handler.sinks[0].closed


def test_a_writer_that_dies_in_the_middle_ends_the_session_quietly() -> None:
    """git was killed while it wrote: it has said so itself."""
    handler = Upper()
    with hosted(handler) as session:
        os.write(session.git.fds[0], lines([b"command=clean", b"pathname=a"]) + b"fff0abc")
        session.git.close()
        assert session.status() == 1
    assert session.messages == []
    assert handler.sinks[0].closed


def test_lost_step_ends_the_session_with_a_message() -> None:
    """Bytes that are no request: status 1, so that git says that the filter died."""
    with hosted(Upper()) as session:
        os.write(session.git.fds[0], b"what is this")
        assert session.status() == 1
    assert len(session.messages) == 1
    assert "broke down" in session.messages[0]


def test_a_cancelled_session_ends_at_its_next_step() -> None:
    """In the middle of content too; the iterator is closed."""
    cancel_at = 40

    class Slow(Plain):
        ended = 0

        def contents(self, request: Request, data: bytes) -> Content:
            try:
                for index in range(1_000_000):
                    if index == cancel_at:
                        session.cancelled.set()
                    yield bytes(1 << 17)
            finally:
                self.ended += 1

    handler = Slow()
    with hosted(handler) as session:
        received = bytearray()
        with pytest.raises(Exception, match="ended"):
            session.git.ask(Request(Command.SMUDGE, b"a"), [], received.extend)
        assert 0 < len(received) <= cancel_at << 17
        assert session.status() == 1
    assert handler.ended == 1
    assert session.messages == []


def test_no_flag_of_a_descriptor_is_changed() -> None:
    """They are shared with git: O_NONBLOCK would be git's too."""
    with hosted(Upper(), shake=False) as session:
        before = [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (session.stdin, session.stdout)]
        session.git.handshake()
        session.git.clean(b"a", [bytes(1_000_000)])
        assert [fcntl.fcntl(fd, fcntl.F_GETFL) for fd in (session.stdin, session.stdout)] == before


def test_descriptors_that_somebody_made_nonblocking_serve_as_well() -> None:
    """The session waits for readiness and goes on, whichever way the bytes go."""
    with hosted(Upper()) as session:
        os.set_blocking(session.stdin, False)
        os.set_blocking(session.stdout, False)
        data = bytes(range(65, 91)) * 200_000
        assert session.git.clean(b"a", [data]).content == data.lower()
        assert not os.get_blocking(session.stdin)


def test_signals_in_the_middle_of_reads_and_writes_lose_nothing() -> None:
    """An interrupted system call goes on where it stopped, whether it had moved bytes or not."""
    stdin, to_filter = os.pipe()
    from_filter, stdout = os.pipe()
    data = bytes(range(65, 91)) * 400_000
    replies: list[Reply] = []
    signals = 0

    def count(number: int, frame: object) -> None:
        nonlocal signals
        signals += 1

    def ask() -> None:
        git = GitSide(to_filter, from_filter)
        git.handshake()
        replies.append(git.clean(b"a", [data]))
        git.close()

    before = signal.signal(signal.SIGALRM, count)
    thread = threading.Thread(target=ask)
    thread.start()
    signal.setitimer(signal.ITIMER_REAL, 0.0005, 0.0005)
    try:
        assert run(stdin, stdout, Upper(), print) == 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        thread.join(30)
        close_all(stdin, stdout)
    assert replies == [Reply(Status.SUCCESS, data.lower())]
    assert signals > 3


def test_a_small_file_is_answered_with_one_write() -> None:
    """Answer, content and last word come together: git's end sees them in a single read."""
    with hosted(Upper()) as session:
        to_filter, from_filter = session.git.fds
        os.write(to_filter, lines([b"command=clean", b"pathname=a"]) + b"0007ABC0000")
        assert select.select([from_filter], [], [], 30)[0]
        assert os.read(from_filter, 1 << 16) == lines([b"status=success"]) + b"0005a0006bc" + b"0000" + b"0000"


def test_pipes_are_widened_where_that_is_allowed() -> None:
    """1 MiB on Linux; a pipe that is larger stays so."""
    if not hasattr(fcntl, "F_GETPIPE_SZ"):
        pytest.skip("only Linux has pipes of another size")
    with hosted(Upper()) as session:
        assert {fcntl.fcntl(fd, fcntl.F_GETPIPE_SZ) for fd in (session.stdin, session.stdout)} == {1 << 20}


def test_nothing_is_answered_before_the_payload_has_ended() -> None:
    """git writes all before it reads: a byte too early could fill the pipe, and both would wait for ever."""
    with hosted(Upper()) as session:
        to_filter, from_filter = session.git.fds
        os.write(to_filter, lines([b"command=clean", b"pathname=a"]) + b"0007ABC")
        assert not select.select([from_filter], [], [], 0.2)[0]
        os.write(to_filter, b"0000")
        assert select.select([from_filter], [], [], 30)[0]


def test_the_end_of_input_is_the_end() -> None:
    """git waits for the process: from its closing to the session's end it is a matter of milliseconds."""
    with hosted(Upper()) as session:
        session.git.clean(b"a", [b"A"])
        started = time.monotonic()
        session.git.close()
        assert session.status() == 0
        assert time.monotonic() - started < 5  # under 1 ms when nothing else runs


def test_git_that_offers_no_delay_is_served() -> None:
    """An old git: only what it offered is chosen."""
    with hosted(Upper(delay=True), shake=False) as session:
        assert session.git.handshake(frozenset({b"clean", b"smudge", b"future"})) == {b"clean", b"smudge"}
        assert session.git.smudge(b"a", [b"a"]).content == b"A"
        with pytest.raises(Exception, match="agreed"):
            session.git.connection.send(ListAvailable())


def test_pieces_are_the_iterators_own_business() -> None:
    """A list, a generator, an empty one, a bytearray in it: all are content."""
    answers: dict[bytes, Iterable[bytes | bytearray | memoryview]] = {
        b"list": [b"a", bytearray(b"b"), memoryview(b"cd").cast("H")],
        b"none": [],
        b"empty": iter([b""]),
    }

    class Fixed(Plain):
        def contents(self, request: Request, data: bytes) -> Content:
            return answers[request.pathname]

    with hosted(Fixed()) as session:
        assert session.git.smudge(b"list") == Reply(Status.SUCCESS, b"abcd")
        assert session.git.smudge(b"none") == Reply(Status.SUCCESS, b"")
        assert session.git.smudge(b"empty") == Reply(Status.SUCCESS, b"")
