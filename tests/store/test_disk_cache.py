"""The disk cache: whatever happens to its folder, a value is right or it is not there, and nothing fails."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.disks import tiny_disk
from theta_daemon.errors import RecordError
from theta_daemon.store.disk_cache import COMPRESSED, DiskCache
from theta_daemon.tensor import CHUNK_WORDS

MIB = 1 << 20


def named(value: bytes) -> str:
    return blake3(value).hexdigest()


def keep(cache: DiskCache, value: bytes, word_bytes: int = 1) -> str:
    assert cache.put(named(value), value, word_bytes)
    return named(value)


def held(cache: DiskCache, digest: str, nbytes: int) -> bytes | None:
    value = cache.get(digest, nbytes)
    return None if value is None else bytes(value)


def entry(cache: DiskCache, digest: str) -> Path:
    (found,) = [entry.path for entry in cache.entries() if entry.digest == digest]
    return found


@pytest.mark.parametrize("compress", [False, True])
@given(value=st.binary(max_size=3000), word_bytes=st.sampled_from([1, 2, 4, 8]), data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_values_come_back(tmp_path: Path, compress: bool, value: bytes, word_bytes: int, data: st.DataObject) -> None:
    """Any bytes, of whatever word size, raw or compressed, come back whole and in pieces."""
    cache = DiskCache(tmp_path, MIB, compress=compress)
    digest = keep(cache, value, word_bytes)
    assert held(cache, digest, len(value)) == value
    opened = cache.open(digest, len(value))
    assert opened is not None
    offset = data.draw(st.integers(0, len(value)))
    length = data.draw(st.integers(0, len(value) - offset))
    assert bytes(opened.read(offset, length)) == value[offset : offset + length]
    opened.close()


@pytest.mark.parametrize("compress", [False, True])
def test_a_large_value_is_read_across_its_chunks(tmp_path: Path, compress: bool) -> None:
    """Pieces that begin and end anywhere in a value of several chunks are right; compressing floats makes them smaller."""
    value = np.random.default_rng(1).normal(size=CHUNK_WORDS * 2 + 1000).astype("<f4").tobytes()
    cache = DiskCache(tmp_path, 64 * MIB, compress=compress)
    digest = keep(cache, value, 4)
    assert (entry(cache, digest).stat().st_size < 0.95 * len(value)) == compress
    opened = cache.open(digest, len(value))
    assert opened is not None
    edge = CHUNK_WORDS * 4
    for offset, length in [
        (edge - 3, 7),
        (0, len(value)),
        (edge, edge),
        (2 * edge - 1, 1),
        (2 * edge, 4000),
        (5, 2 * edge),
    ]:
        assert bytes(opened.read(offset, length)) == value[offset : offset + length]
    opened.close()
    assert held(cache, digest, len(value)) == value


def test_either_form_is_read_whatever_the_setting(tmp_path: Path) -> None:
    """A cache that was written compressed serves one that writes raw, and the other way round; nothing is written twice."""
    raw, compressed = DiskCache(tmp_path, MIB), DiskCache(tmp_path, MIB, compress=True)
    first, second = keep(raw, b"first" * 100), keep(compressed, b"second" * 100)
    assert held(compressed, first, 500) == b"first" * 100
    assert held(raw, second, 600) == b"second" * 100
    keep(compressed, b"first" * 100)
    keep(raw, b"second" * 100)
    assert sorted(path.path.name for path in raw.entries()) == sorted([first, second + COMPRESSED])


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def extend(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


def foreign(path: Path) -> None:
    path.write_bytes(b"something else entirely" * 50)


def same_size(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def link(path: Path) -> None:
    path.rename(path.with_suffix(".moved"))
    path.symlink_to(path.with_suffix(".moved"))


def folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def empty(path: Path) -> None:
    os.truncate(path, 0)


DAMAGES = [truncate, flip, extend, foreign, same_size, link, folder, pipe, empty, Path.unlink]


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("compress", [False, True])
def test_a_damaged_entry_is_no_entry_and_is_replaced(
    tmp_path: Path, damage: Callable[[Path], None], compress: bool
) -> None:
    """Truncated, changed, lengthened, foreign, linked, no file, empty, gone: not served, in neither way of reading; the
    next value that is kept is served again.
    """
    value = os.urandom(500) + bytes(500)
    cache = DiskCache(tmp_path, MIB, compress=compress)
    for read in (cache.get, cache.open):
        digest = keep(cache, value)
        damage(entry(cache, digest))
        assert read(digest, len(value)) is None
        keep(cache, value)
        assert held(cache, digest, len(value)) == value


def test_every_cut_and_every_bit_of_a_compressed_entry(tmp_path: Path) -> None:
    """A compressed entry cut at any byte or with any bit flipped is never served as another value."""
    value = np.arange(40, dtype="<u4").tobytes()
    cache = DiskCache(tmp_path, MIB, compress=True)
    digest = keep(cache, value, 4)
    path = entry(cache, digest)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        assert cache.get(digest, len(value)) is None
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(damaged)
        assert held(cache, digest, len(value)) in (None, value)


def test_a_size_that_does_not_fit_is_a_miss(tmp_path: Path) -> None:
    """Asked with another size than the value has, it is not there; sizes beyond all reason allocate nothing."""
    for compress in (False, True):
        cache = DiskCache(tmp_path, MIB, compress=compress)
        for nbytes in (999, 1001, 0, 1 << 60):
            digest = keep(cache, b"x" * 1000)
            assert cache.get(digest, nbytes) is None
            assert cache.open(digest, nbytes) is None


@pytest.mark.parametrize("digest", ["", "../" * 21 + "x", "A" * 64, "0" * 63])
def test_what_is_no_digest_never_becomes_a_path(tmp_path: Path, digest: str) -> None:
    """Names that are not 64 hex digits are refused."""
    with pytest.raises(ValueError, match="digest"):
        DiskCache(tmp_path, MIB).get(digest, 1)


def test_the_budget_holds_and_the_least_used_goes_first(tmp_path: Path) -> None:
    """Whatever is written, all entries together stay within the budget; what was read lately survives."""
    cache = DiskCache(tmp_path / "cache", 10_000)
    values = [bytes([number]) * 1000 for number in range(30)]
    for number, value in enumerate(values):
        keep(cache, value)
        # Times as a slow user would make them: file systems tick too coarsely for a fast one.
        os.utime(entry(cache, named(value)), (number, number))
        assert held(cache, named(values[0]), 1000) == values[0]
        assert sum(entry.size for entry in cache.entries()) <= 10_000
    kept = {entry.digest for entry in cache.entries()}
    assert named(values[0]) in kept
    assert named(values[29]) in kept
    assert named(values[5]) not in kept
    assert cache.stats().evictions >= 20
    assert not cache.put(named(b"y" * 10_001), b"y" * 10_001)
    assert cache.trim(2500).size_bytes <= 2500
    assert {entry.digest for entry in cache.entries()} <= kept


def test_a_budget_of_nothing_writes_nothing(tmp_path: Path) -> None:
    """With budget 0 no folder is made, and what others kept is still served."""
    off = DiskCache(tmp_path / "cache", 0)
    assert not off.put(named(b"x"), b"x")
    assert not (tmp_path / "cache").exists()
    digest = keep(DiskCache(tmp_path / "cache", MIB), b"x")
    assert held(off, digest, 1) == b"x"


def test_writing_by_others_is_noticed(tmp_path: Path) -> None:
    """Two processes' worth of caches on one folder stay near one budget together."""
    caches = [DiskCache(tmp_path, 100_000) for _ in range(4)]
    for number in range(200):
        keep(caches[number % 4], bytes([number]) * 3000)
    total = sum(entry.size for entry in caches[0].entries())
    assert total <= 100_000 * (1 + 4 / 16) + 3000


def test_a_full_disk_is_not_an_error(tmp_path: Path) -> None:
    """No space: `put` says no, nothing half-written stays, reading goes on."""
    with tiny_disk(tmp_path / "disk"):
        cache = DiskCache(tmp_path / "disk" / "cache", 1 << 30)
        digest = keep(cache, b"x" * 1000)
        assert not cache.put(named(bytes(8 * MIB)), bytes(8 * MIB))
        assert held(cache, digest, 1000) == b"x" * 1000
        assert [path.digest for path in cache.entries()] == [digest]
        assert not list((tmp_path / "disk").rglob("*.tmp"))
        assert cache.stats().unwritten == 1


PROGRAM = """
import os, sys
from pathlib import Path
from blake3 import blake3
from theta_daemon.store.disk_cache import DiskCache
cache = DiskCache(Path(sys.argv[1]), 1 << 30)
def put(value): return cache.put(blake3(value).hexdigest(), value)
"""


def child(folder: Path, code: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + code, str(folder)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )


def test_a_folder_that_may_not_be_written_is_not_an_error(tmp_path: Path) -> None:
    """A cache of another user, or read-only: its values are used as far as they can be read, `put` says no."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    folder = tmp_path / "cache"
    folder.mkdir(0o755)
    cache = DiskCache(folder, MIB, umask=0o022)
    readable, secret = keep(cache, b"readable"), keep(cache, b"secret")
    entry(cache, secret).chmod(0o600)
    for parent in list(folder.parents)[:-2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    code = f"""
os.setgroups([]); os.setgid(12345); os.setuid(12345)
print(bytes(cache.get("{readable}", 8)), cache.get("{secret}", 6), put(b"new"), put(b"readable"))
"""
    assert child(folder, code).communicate()[0] == b"b'readable' None False True\n"


def test_a_file_in_the_way_is_not_an_error(tmp_path: Path) -> None:
    """Files where folders should be: nothing is served, nothing is written, nothing fails."""
    (tmp_path / "cache").write_bytes(b"")
    cache = DiskCache(tmp_path / "cache", MIB)
    assert not cache.put(named(b"x"), b"x")
    assert cache.get(named(b"x"), 1) is None
    assert list(cache.entries()) == []


def test_who_reads_in_pieces_learns_of_a_change_and_of_another_value(tmp_path: Path) -> None:
    """`still` fails if the file was written into since it was verified, or if it was verified as another value."""
    cache = DiskCache(tmp_path / "cache", MIB)
    digest = keep(cache, b"a" * 1000)
    opened = cache.open(digest, 1000)
    assert opened is not None
    opened.still(digest)
    os.utime(entry(cache, digest))  # only renewed
    opened.still(digest)
    with pytest.raises(RecordError):
        opened.still(named(b"b" * 1000))
    with entry(cache, digest).open("r+b") as file:
        file.write(b"b")
    with pytest.raises(RecordError):
        opened.still(digest)
    opened.close()


def test_removed_while_in_use(tmp_path: Path) -> None:
    """The whole folder deleted under an open value and a running cache: the value stays readable, the cache goes on."""
    cache = DiskCache(tmp_path / "cache", MIB)
    value = os.urandom(1000)
    digest = keep(cache, value)
    opened = cache.open(digest, 1000)
    assert opened is not None
    shutil.rmtree(tmp_path / "cache")
    assert bytes(opened.read(0, 1000)) == value
    opened.close()
    assert cache.get(digest, 1000) is None
    keep(cache, value)
    assert held(cache, digest, 1000) == value


def test_a_moved_cache_serves_elsewhere(tmp_path: Path) -> None:
    """Copied to another path, with other owners and times, as CI does it: everything is still served."""
    values = [os.urandom(100) for _ in range(10)]
    cache = DiskCache(tmp_path / "one", MIB)
    for value in values:
        keep(cache, value)
    subprocess.run(["tar", "-C", tmp_path / "one", "-cf", tmp_path / "cache.tar", "."], check=True)
    (tmp_path / "two").mkdir()
    subprocess.run(
        ["tar", "-C", tmp_path / "two", "-xf", tmp_path / "cache.tar", "--no-same-owner", "--touch"], check=True
    )
    moved = DiskCache(tmp_path / "two", MIB)
    assert [held(moved, named(value), 100) for value in values] == values


def test_a_killed_writer_leaves_no_entry(tmp_path: Path) -> None:
    """kill -9 between the first byte and the rename leaves a temporary file only; after an hour it goes."""
    code = """
import theta_daemon.store.disk_cache as module
def stop(self, target):
    print("written", flush=True)
    sys.stdin.read()
module.Path.replace = stop
put(b"x" * 100000)
"""
    process = child(tmp_path, code)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"written\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    cache = DiskCache(tmp_path, MIB)
    assert list(cache.entries()) == []
    (left,) = tmp_path.rglob("*.tmp")
    os.utime(left, (time.time() - 7200,) * 2)
    assert list(cache.entries()) == []
    assert not left.exists()


def test_many_processes_write_and_evict_at_once(tmp_path: Path) -> None:
    """Four processes that fill a folder beyond its budget and read it at the same time: each value served is right."""
    code = """
cache.budget_bytes = 200_000
wrong = 0
for step in range(120):
    number = (step * 7 + int(os.getpid())) % 100
    value = bytes([number]) * 5000
    digest = blake3(value).hexdigest()
    found = cache.get(digest, 5000)
    wrong += found is not None and bytes(found) != value
    if found is None:
        put(value)
print(wrong, cache.stats().evictions > 0)
"""
    children = [child(tmp_path, code) for _ in range(4)]
    assert [process.communicate()[0] for process in children] == [b"0 True\n"] * 4
    assert not list(tmp_path.rglob("*.tmp"))


def test_threads_share_a_cache(tmp_path: Path) -> None:
    """Eight threads that read, write and evict: values are right, the counts add up."""
    cache = DiskCache(tmp_path, 100_000)
    wrong: list[int] = []

    def work(seed: int) -> None:
        for step in range(60):
            number = (seed * 13 + step * 7) % 40
            value = bytes([number]) * 5000
            found = cache.get(named(value), 5000)
            if found is None:
                cache.put(named(value), value)
            elif bytes(found) != value:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    stats = cache.stats()
    assert stats.hits + stats.misses == 8 * 60
    assert stats.rejected == 0


def test_a_new_cache_is_private_and_a_prepared_one_is_shared(tmp_path: Path) -> None:
    """A folder that the cache makes is its owner's alone; one that was prepared keeps its mode, entries follow the umask."""
    cache = DiskCache(tmp_path / "own" / "cache", MIB, umask=0o022)
    digest = keep(cache, b"x")
    assert (tmp_path / "own" / "cache").stat().st_mode & 0o777 == 0o700
    (tmp_path / "team").mkdir()
    (tmp_path / "team").chmod(0o2770)
    team = DiskCache(tmp_path / "team", MIB, umask=0o007)
    path = entry(team, keep(team, b"x"))
    assert path.stat().st_mode & 0o777 == 0o660
    assert path.parent.stat().st_mode & 0o7777 == 0o2770
    assert (tmp_path / "team" / "CACHEDIR.TAG").exists() is False
    assert (
        (tmp_path / "own" / "cache" / "CACHEDIR.TAG")
        .read_bytes()
        .startswith(b"Signature: 8a477f597d28d172789f06886806bc55")
    )
    assert held(cache, digest, 1) == b"x"
