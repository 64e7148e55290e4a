"""What a session held goes when it ends: the daemon looks for cycles rarely, and one could hold hundreds of megabytes."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np
import pytest

from protocol.events import Command, Request, Status
from protocol.pktline import MAX_PAYLOAD
from tests.filters.test_ahead import safetensors
from tests.gitrepo import GitRepo
from tests.gitside import GitSide, Reply
from tests.history.past import caller
from theta_daemon.engine import Engine, import_everything
from theta_daemon.filters.arriving import ASK_BYTES
from theta_daemon.settings import Settings

RANDOM = np.random.default_rng(11)
NAME = b"m.safetensors"


def packets(data: bytes) -> Iterator[memoryview]:
    view = memoryview(data)
    for start in range(0, len(data), MAX_PAYLOAD):
        yield view[start : start + MAX_PAYLOAD]


def in_cycles() -> Counter[str]:
    """Our objects and buffers that nothing but a search for cycles would free, by type."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        gc.collect()
    finally:
        gc.set_debug(0)
    kinds = Counter(f"{type(found).__module__}.{type(found).__qualname__}" for found in gc.garbage)
    gc.garbage.clear()
    gc.collect()
    buffers = ("builtins.memoryview", "builtins.bytearray", "numpy.ndarray")
    return Counter(
        {kind: kinds[kind] for kind in kinds if kind.startswith(("theta_daemon", "protocol")) or kind in buffers}
    )


@contextmanager
def no_search() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Host:
    """An engine that serves one session after the other, as a daemon does."""

    def __init__(self, repo: GitRepo, engine: Engine) -> None:
        self.repo = repo
        self.engine = engine

    def session(self, talk: Callable[[GitSide], Reply]) -> Reply:
        """One session, and nothing of it in a cycle afterwards."""
        stdin, to_filter = os.pipe()
        from_filter, stdout = os.pipe()
        stderr = os.open(os.devnull, os.O_WRONLY)

        def serve() -> None:
            self.engine.serve(caller(self.repo.path), stdin, stdout, stderr)
            for fd in (stdin, stdout, stderr):
                os.close(fd)

        thread = threading.Thread(target=serve)
        with no_search():
            thread.start()
            git = GitSide(to_filter, from_filter)
            try:
                git.handshake()
                reply = talk(git)
            finally:
                git.close()
                thread.join(60)
            assert not thread.is_alive()
            assert not (found := in_cycles()), found
        return reply

    def clean(self, data: bytes) -> bytes:
        reply = self.session(lambda git: git.clean(NAME, packets(data)))
        assert reply.status is Status.SUCCESS
        return reply.content

    def smudge(self, text: bytes) -> Reply:
        return self.session(lambda git: git.smudge(NAME, [text]))

    def smudge_delayed(self, text: bytes) -> Reply:
        def talk(git: GitSide) -> Reply:
            assert git.smudge(NAME, [text], can_delay=True).status is Status.DELAYED
            assert git.list_available_blobs()[0] == (NAME,)
            reply = git.smudge(NAME)
            with suppress(AssertionError):
                git.list_available_blobs()
            return reply

        return self.session(talk)


@pytest.fixture
def host(git: GitRepo) -> Iterator[Host]:
    import_everything()
    engine = Engine(Settings(tensor_cache=1 << 24, workers=2), resident=True)
    yield Host(git, engine)
    engine.close()


def test_nothing_of_a_session_is_left_in_a_cycle(host: Host) -> None:
    """Adding, comparing, changing, checking out from objects and from memory, a client that goes, objects that are gone."""
    arrays = {f"p{number}": RANDOM.normal(size=300_000).astype("<f4") for number in range(8)}
    arrays["large"] = RANDOM.normal(size=2_500_000).astype("<f4")
    first = safetensors(arrays)
    assert len(first) > 2 * ASK_BYTES
    arrays["p3"][::1000] += 1
    arrays["large"] = (arrays["large"].view("<i4") + RANDOM.integers(0, 50, 2_500_000, "<i4")).view("<f4")
    second = safetensors(arrays)

    text = host.clean(first)
    host.repo.commit("first", **{NAME.decode(): text})
    assert host.clean(first) == text
    changed = host.clean(second)
    host.repo.commit("second", **{NAME.decode(): changed})
    for _ in range(2):
        assert host.smudge(changed).content == second
        assert host.smudge_delayed(text).content == first

    def leave(git: GitSide) -> Reply:
        git.start(Request(Command.CLEAN, b"other.safetensors"), packets(first[: 3 * len(first) // 4]))
        return Reply(Status.ERROR, b"")

    host.session(leave)
    for path in (host.repo.path / ".git" / "lfs" / "objects").rglob("*"):
        if path.is_file():
            path.unlink()
    assert host.smudge(text).status is Status.ERROR
    assert host.smudge_delayed(changed).status is Status.ERROR
