"""The spool: whatever the sizes of packets and limits, the payload can be read back and its hash is right."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from theta_daemon.errors import StoreError
from theta_daemon.filters.spool import Spool


@given(st.lists(st.integers(0, 5000), max_size=20), st.integers(0, 30_000), st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_what_is_written_is_read(tmp_path: Path, sizes: list[int], limit: int, draw: st.DataObject) -> None:
    """Pieces of any size, a limit anywhere: size, hash and every part are those of the whole."""
    pieces = [os.urandom(size) for size in sizes]
    whole = b"".join(pieces)
    spool = Spool(tmp_path, limit)
    for piece in pieces:
        spool.write(memoryview(piece))
    offset = draw.draw(st.integers(0, len(whole)))
    length = draw.draw(st.integers(0, len(whole) - offset))
    assert spool.size == len(whole)
    assert bytes(spool.read(offset, length)) == whole[offset : offset + length]
    assert spool.hexdigest() == blake3(whole).hexdigest()
    assert spool.in_memory == (len(whole) <= limit)
    assert list(tmp_path.iterdir()) == []
    spool.close()


@pytest.mark.parametrize("limit", [1 << 30, 3_000_000, 0])
def test_large_payloads_in_packets(tmp_path: Path, limit: int) -> None:
    """Nine megabytes in packets as git sends them, through memory, across the limit, and through the file."""
    data = os.urandom(9_000_000)
    spool = Spool(tmp_path, limit)
    for start in range(0, len(data), 65516):
        packet = bytearray(data[start : start + 65516])
        spool.write(memoryview(packet))
        packet[:] = bytes(len(packet))  # the session uses its buffer again
    assert bytes(spool.read(0, len(data))) == data
    assert bytes(spool.read(1_048_570, 100)) == data[1_048_570:1_048_670]
    assert spool.hexdigest() == blake3(data).hexdigest()
    spool.close()


@pytest.mark.parametrize(("offset", "length"), [(0, 11), (10, 1), (-1, 1), (0, -1), (11, 0)])
@pytest.mark.parametrize("limit", [0, 100])
def test_reads_outside_are_refused(tmp_path: Path, limit: int, offset: int, length: int) -> None:
    """A read that leaves the payload raises ValueError."""
    spool = Spool(tmp_path, limit)
    spool.write(b"0123456789")
    with pytest.raises(ValueError, match="outside"):
        spool.read(offset, length)
    spool.close()


def test_what_was_read_stays_valid(tmp_path: Path) -> None:
    """Views outlive the spool, cannot be written, and a spool that was read or closed takes no more."""
    for limit in (0, 100):
        spool = Spool(tmp_path, limit)
        spool.write(b"0123456789")
        view = memoryview(spool.read(2, 3))
        assert view.readonly
        with pytest.raises(ValueError, match="read already"):
            spool.write(b"more")
        spool.close()
        spool.close()
        assert bytes(view) == b"234"
        with pytest.raises(ValueError, match="closed"):
            spool.read(0, 1)


@pytest.mark.parametrize("limit", [0, 1 << 30])
def test_threads_read_at_once(tmp_path: Path, limit: int) -> None:
    """Positional reads of eight threads do not disturb each other, the first read included."""
    data = os.urandom(1 << 20)
    spool = Spool(tmp_path, limit)
    spool.write(data)
    wrong: list[int] = []
    gate = threading.Barrier(8, timeout=20)

    def work(seed: int) -> None:
        gate.wait()
        for step in range(100):
            offset = (seed * 7919 + step * 104_729) % (len(data) - 5000)
            if bytes(spool.read(offset, 5000)) != data[offset : offset + 5000]:
                wrong.append(offset)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    spool.close()


def test_a_long_payload_does_not_stay_in_memory(tmp_path: Path) -> None:
    """A 200 MB payload raises the process's peak by a few batches only, and leaves no file behind."""
    code = """
import resource, sys
from pathlib import Path
from theta_daemon.filters.spool import Spool
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
packet = memoryview(bytes(65516))
warm = Spool(Path(sys.argv[1]), 1 << 20)
for _ in range(100): warm.write(packet)
warm.close()
before = peak()
spool = Spool(Path(sys.argv[1]), 1 << 20)
for _ in range(3053): spool.write(packet)
spool.hexdigest()
print(peak() - before)
spool.close()
"""
    out = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, check=True).stdout
    assert int(out) < 8 * 1024, "KiB"
    assert list(tmp_path.iterdir()) == []


def test_no_room_is_a_store_error(tmp_path: Path) -> None:
    """A folder that is gone, and a file that may not grow: StoreError that names the folder."""
    spool = Spool(tmp_path / "gone", 0)
    with pytest.raises(StoreError, match="gone"):
        spool.write(bytes(2 << 20))
    spool.close()
    code = """
import resource, signal, sys
from pathlib import Path
from theta_daemon.errors import StoreError
from theta_daemon.filters.spool import Spool
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
spool = Spool(Path(sys.argv[1]), 0)
try:
    for _ in range(100): spool.write(bytes(65516))
except StoreError as error:
    print(error.describe())
spool.close()
"""
    out = subprocess.run([sys.executable, "-c", code, tmp_path], capture_output=True, check=True).stdout
    assert str(tmp_path).encode() in out
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] == resource.RLIM_INFINITY
