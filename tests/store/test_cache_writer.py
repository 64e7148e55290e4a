"""Writing a value into the disk cache piece by piece: whole or not at all, whoever ends it, whenever."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from theta_daemon.store.disk_cache import DiskCache
from theta_daemon.tensor import CHUNK_WORDS

VALUE = np.random.default_rng(3).normal(size=CHUNK_WORDS * 3 + 77).astype("<f4").tobytes()
DIGEST = blake3(VALUE).hexdigest()


@pytest.mark.parametrize("compress", [False, True])
def test_pieces_in_any_order_from_several_threads(tmp_path: Path, compress: bool) -> None:
    """Chunks written by four threads, the last one first: the value that was committed comes back."""
    cache = DiskCache(tmp_path, 1 << 30, compress=compress)
    writer = cache.writer(DIGEST, len(VALUE), 4)
    assert writer is not None
    step = CHUNK_WORDS * 4
    assert step % writer.step == 0

    def write(start: int) -> None:
        writer.write(start, VALUE[start : start + step])

    threads = [threading.Thread(target=write, args=(start,)) for start in reversed(range(0, len(VALUE), step))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not cache.has(DIGEST)
    assert cache.commit(DIGEST, writer)
    found = cache.get(DIGEST, len(VALUE))
    assert found is not None
    assert bytes(found) == VALUE
    assert not list(tmp_path.rglob("*.tmp"))


def test_what_is_aborted_or_forgotten_leaves_nothing(tmp_path: Path) -> None:
    """Neither entry nor temporary file; writes that come later touch no descriptor that is another file's by now."""
    cache = DiskCache(tmp_path, 1 << 30)
    for end in ("abort", "forget"):
        writer = cache.writer(DIGEST, len(VALUE))
        assert writer is not None
        writer.write(0, VALUE[:1000])
        if end == "abort":
            writer.abort()
            bystander = os.open(tmp_path / "bystander", os.O_RDWR | os.O_CREAT)
            writer.write(0, VALUE)
            assert os.fstat(bystander).st_size == 0
            os.close(bystander)
            assert not writer.commit()
        del writer
        assert not cache.has(DIGEST)
        assert not list(tmp_path.rglob("*.tmp"))


def test_a_folder_in_the_place_of_an_entry(tmp_path: Path) -> None:
    """An empty one makes way; one with something in it stays, and the value is not kept."""
    cache = DiskCache(tmp_path, 1 << 20)
    assert cache.put(blake3(b"x").hexdigest(), b"x")
    (entry,) = [entry.path for entry in cache.entries()]
    entry.unlink()
    entry.mkdir()
    assert cache.put(entry.name, b"x")
    entry.unlink()
    entry.mkdir()
    (entry / "file").touch()
    assert not cache.put(entry.name, b"x")
    assert (entry / "file").exists()
