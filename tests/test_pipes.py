"""What was read from a pipe stays as it is while it is looked at, and costs no new memory when it is not."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator
from contextlib import closing

import pytest

from theta_daemon.lending import PIPE_BYTES
from theta_daemon.pipes import PipeReader


@pytest.fixture
def pipe() -> Iterator[tuple[PipeReader, int]]:
    source, target = os.pipe()
    with closing(os.fdopen(source, "rb", 0)), closing(os.fdopen(target, "wb", 0)):
        yield PipeReader(source), target


def test_what_was_read_never_changes(pipe: tuple[PipeReader, int]) -> None:
    """Several buffers full of it, in pieces of all sizes."""
    reader, target = pipe
    kept = []
    for number in range(200):
        data = bytes([number]) * (number * 331 % 60_000 + 1)
        os.write(target, data)
        kept.append((reader.read(), data))
    assert sum(len(data) for _, data in kept) > 3 * PIPE_BYTES
    for view, data in kept:
        assert view == data


def test_memory_is_what_is_looked_at_at_once(pipe: tuple[PipeReader, int]) -> None:
    """Who lets go of the oldest first, as one does who works ahead, needs no more buffers than that."""
    reader, target = pipe
    kept: deque[memoryview] = deque()
    places = set()
    for number in range(400):
        os.write(target, bytes([number % 251]) * 60_000)
        kept.append(reader.read())
        places.add(id(kept[-1].obj))
        if len(kept) > 40:
            assert bytes(kept.popleft()[:1]) == bytes([(number - 40) % 251])
    assert len(places) <= 5


def test_a_buffer_that_nobody_looks_at_is_used_again(pipe: tuple[PipeReader, int]) -> None:
    reader, target = pipe
    places = set()
    for _ in range(200):
        os.write(target, bytes(60_000))
        view = reader.read()
        places.add(id(view.obj))
        del view
    assert len(places) == 1
