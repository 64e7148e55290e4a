"""The memo: what was remembered comes back or is a miss, whatever happens to its file."""

from __future__ import annotations

import sqlite3
import stat
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.history.past import pointer, text
from theta_daemon.history.memo import Memo
from theta_daemon.pointer import Parameter


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a memo may be; its directory is not there yet."""
    return tmp_path / "theta" / "memo.sqlite"


@pytest.fixture
def memo(path: Path) -> Iterator[Memo]:
    """A memo that nothing was remembered in."""
    memo = Memo(path)
    yield memo
    memo.close()


def _parameter(number: int) -> Parameter:
    return Parameter(f"p{number}", "F32", (number,), f"{number:064x}", "dense", "a" * 64, number, 4 * number)


def test_pointers_come_back_byte_for_byte(memo: Memo, path: Path) -> None:
    """By their key, in this process and in a later one; the last one remembered counts; another key is a miss."""
    assert memo.pointer("key") is None
    memo.remember("key", text(0))
    memo.remember("other", b"")
    assert memo.pointer("key") == text(0)
    assert memo.pointer("other") == b""
    assert memo.pointer("none") is None
    memo.remember("key", text(1))
    later = Memo(path)
    assert later.pointer("key") == text(1)
    later.close()


def test_parameters_come_back_by_digest(memo: Memo) -> None:
    """All that are known of those asked for, of more than one statement can hold."""
    known = [_parameter(number) for number in range(1200)]
    assert memo.parameters([known[0].digest]) == {}
    memo.remember_parameters(known)
    found = memo.parameters([parameter.digest for parameter in known] + ["f" * 64])
    assert found == {parameter.digest: parameter for parameter in known}
    assert memo.parameters([]) == {}


def test_an_incremental_parameter_comes_back_whole(memo: Memo) -> None:
    """Previous, base, depth and chain are kept too."""
    parameter = Parameter("p", "F32", (), "0" * 64, "delta", "a" * 64, 0, 4, 2, 9, "b" * 40, "q")
    memo.remember_parameters([parameter])
    assert memo.parameters(["0" * 64]) == {"0" * 64: parameter}


def test_asking_makes_no_file(memo: Memo, path: Path) -> None:
    """A memo that is only read leaves nothing behind."""
    assert memo.pointer("key") is None
    assert memo.parameters(["0" * 64]) == {}
    memo.remember_parameters([])
    memo.clear()
    assert not path.parent.exists()


def test_files_have_the_mode_they_were_told(path: Path) -> None:
    """The mode is the caller's, whatever the umask of this process, for the journal as well."""
    memo = Memo(path, mode=0o664, directory_mode=0o2775)
    memo.remember("key", text())
    memo.close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o664
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o2775


def test_a_directory_that_cannot_be_written_is_a_miss(tmp_path: Path) -> None:
    """Nothing can be made below a file, and nothing is raised."""
    (tmp_path / "file").touch()
    memo = Memo(tmp_path / "file" / "memo.sqlite")
    memo.remember("key", text())
    assert memo.pointer("key") is None
    memo.clear()


def test_a_read_only_memo_still_answers(short_dir: Path) -> None:
    """Where the file may only be read, what it holds is found and what is new is dropped."""
    path = short_dir / "theta" / "memo.sqlite"
    writer = Memo(path)
    writer.remember("key", text())
    writer.close()
    short_dir.chmod(0o755)
    program = (
        "import os, sys, pathlib\n"
        "from theta_daemon.history.memo import Memo\n"
        "os.setuid(12345) if os.getuid() == 0 else None\n"
        "memo = Memo(pathlib.Path(sys.argv[1])); memo.remember('new', b'x')\n"
        "print(memo.pointer('key') is not None, memo.pointer('new'))"
    )
    path.chmod(0o444)
    path.parent.chmod(0o555)
    done = subprocess.run([sys.executable, "-c", program, path], capture_output=True, text=True, check=False)
    path.parent.chmod(0o755)
    assert (done.stdout, done.stderr) == ("True None\n", "")


def test_a_locked_memo_is_a_miss_and_not_a_wait(memo: Memo, path: Path) -> None:
    """While another process writes, reading and remembering give up at once, and work afterwards."""
    memo.remember("key", text())
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    memo.remember("new", text())
    assert memo.pointer("key") is None
    other.execute("ROLLBACK")
    other.close()
    assert memo.pointer("key") == text()
    assert memo.pointer("new") is None


@pytest.mark.parametrize("junk", [b"not a database" * 500, b"SQLite format 3\0" + b"\xff" * 5000, b"\0", b""])
def test_a_damaged_file_is_made_again(memo: Memo, path: Path, junk: bytes) -> None:
    """Junk instead of the file is a miss at first and a working memo after that."""
    path.parent.mkdir()
    path.write_bytes(junk)
    assert memo.pointer("key") is None
    memo.remember("key", text())
    memo.remember("key", text())
    assert memo.pointer("key") == text()


def test_damage_anywhere_never_gives_another_text(path: Path) -> None:
    """Each 256 bytes of the file overwritten in turn: the text that was remembered, or a miss; then it works again."""
    memo = Memo(path)
    memo.remember("key", text(3))
    memo.remember_parameters([_parameter(1)])
    memo.close()
    good = path.read_bytes()
    for position in range(0, len(good), 256):
        path.write_bytes(good[:position] + b"\xa5" * 256 + good[position + 256 :])
        memo = Memo(path)
        assert memo.pointer("key") in (None, text(3))
        assert memo.parameters([_parameter(1).digest]) in ({}, {_parameter(1).digest: _parameter(1)})
        memo.remember("key", text(4))
        memo.remember("key", text(4))
        assert memo.pointer("key") in (None, text(4))
        memo.close()


def test_a_row_that_someone_changed_is_a_miss(memo: Memo, path: Path) -> None:
    """The value of one key under another key is not believed, nor is a value of another type."""
    memo.remember("a", text(0))
    memo.remember("b", text(1))
    database = sqlite3.connect(path)
    with database:
        database.execute("UPDATE pointers SET value = (SELECT value FROM pointers WHERE key = 'b') WHERE key = 'a'")
        database.execute("UPDATE pointers SET value = 5 WHERE key = 'b'")
    database.close()
    assert memo.pointer("a") is None
    assert memo.pointer("b") is None


def test_another_versions_memo_is_made_again(memo: Memo, path: Path) -> None:
    """A file of a later schema is not read and not kept."""
    memo.remember("key", text())
    memo.close()
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    assert memo.pointer("key") is None
    memo.remember("key", text())
    assert memo.pointer("key") == text()


def test_the_memo_may_be_deleted_at_any_time(memo: Memo, path: Path) -> None:
    """By clear, by hand, with its directory: it is empty then, and works."""
    memo.remember("key", text())
    memo.clear()
    assert memo.pointer("key") is None
    memo.remember("key", text())
    path.unlink()
    assert memo.pointer("key") is None
    memo.remember("key", text())
    path.unlink()
    path.parent.rmdir()
    memo.remember("key", text())
    assert memo.pointer("key") == text()


def test_rows_are_bounded(path: Path) -> None:
    """The oldest pointers and parameters go; the newest stay."""
    memo = Memo(path, max_pointers=20, max_parameters=100)
    for number in range(60):
        memo.remember(str(number), text(number))
        memo.remember_parameters([_parameter(10 * number + offset) for offset in range(10)])
    database = sqlite3.connect(path)
    assert database.execute("SELECT count(*) FROM pointers").fetchone()[0] <= 20
    assert database.execute("SELECT count(*) FROM parameters").fetchone()[0] <= 100
    database.close()
    assert memo.pointer("59") == text(59)
    assert memo.pointer("0") is None
    assert memo.parameters([_parameter(599).digest, _parameter(0).digest]).keys() == {_parameter(599).digest}
    memo.close()


def test_threads_share_a_memo(memo: Memo) -> None:
    """Eight threads that remember and ask at once get right answers or misses, and no exception."""

    def use(number: int) -> bytes | None:
        memo.remember(str(number), text(number))
        return memo.pointer(str(number))

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(use, range(64)))
    assert all(answer in (None, text(number)) for number, answer in enumerate(answers))
    assert sum(answer is not None for answer in answers) == 64


def test_processes_share_a_memo(memo: Memo, path: Path) -> None:
    """Three processes that write the same new memo at once leave one that works and holds nothing wrong."""
    program = (
        "import sys, pathlib\n"
        "from tests.history.past import text\n"
        "from theta_daemon.history.memo import Memo\n"
        "memo = Memo(pathlib.Path(sys.argv[1])); start = int(sys.argv[2])\n"
        "for number in range(start, start + 25): memo.remember(str(number), text(number)); memo.pointer('0')\n"
        "print(sum(memo.pointer(str(number)) == text(number) for number in range(start, start + 25)))"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, path, str(25 * number)], stdout=subprocess.PIPE)
        for number in range(3)
    ]
    kept = [int(child.communicate(timeout=60)[0]) for child in children]
    assert [child.returncode for child in children] == [0] * 3
    found = [memo.pointer(str(number)) for number in range(75)]
    assert all(answer in (None, text(number)) for number, answer in enumerate(found))
    assert sum(answer is not None for answer in found) == sum(kept)
    assert sum(kept) > 35
    assert pointer(0).encode() == text(0)
