"""The store on a real disk: crashes, full and read-only file systems, many writers, odd files in the way, git-lfs itself."""

from __future__ import annotations

import hashlib
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from tests.store.disks import tiny_disk
from theta_daemon.errors import MissingObjectError, RecordError, StoreError
from theta_daemon.store.alternates import alternate_roots
from theta_daemon.store.lfs import LfsStore

PROGRAM = """
import os, sys
from pathlib import Path
from theta_daemon.store.lfs import LfsStore
store = LfsStore(Path(sys.argv[1]), umask=0o022)
"""


@pytest.fixture
def store(tmp_path: Path) -> LfsStore:
    return LfsStore(tmp_path / "lfs" / "objects", umask=0o022)


def put(store: LfsStore, data: bytes) -> str:
    writer = store.writer()
    writer.write(data)
    return writer.commit()[0]


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def child(store: LfsStore, code: str, **options: object) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-c", PROGRAM + code, str(store.root)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, **options)  # type: ignore[call-overload, no-any-return]


def test_the_layout_is_that_of_git_lfs(store: LfsStore) -> None:
    """An object lies at aa/bb/<id>, and nothing else is left behind."""
    oid = put(store, b"hello")
    assert files(store.root.parent) == [store.root / oid[:2] / oid[2:4] / oid]


def test_writers_of_one_object_in_several_processes_all_succeed(store: LfsStore) -> None:
    """Four processes that write the same objects at once each succeed; the objects are whole and nothing else remains."""
    code = """
for number in range(20):
    writer = store.writer()
    for _ in range(10):
        writer.write(bytes([number]) * 10000)
    print(writer.commit()[0])
"""
    children = [child(store, code) for _ in range(4)]
    outputs = {process.communicate()[0] for process in children}
    assert [process.returncode for process in children] == [0] * 4
    assert len(outputs) == 1
    assert sorted(outputs.pop().decode().split()) == sorted(store.ids())
    assert len(files(store.root.parent)) == 20
    for path in files(store.root):
        assert hashlib.sha256(path.read_bytes()).hexdigest() == path.name


def test_a_killed_writer_leaves_nothing_under_a_final_name(store: LfsStore) -> None:
    """kill -9 in the middle of writing leaves at most a temporary file, which is swept after a day and not before."""
    code = """
writer = store.writer()
writer.write(b"x" * 5_000_000)
print("half", flush=True)
sys.stdin.read()
"""
    process = child(store, code, stdin=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    assert process.stdout.readline() == b"half\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert list(store.ids()) == []
    (left,) = files(store.root.parent)
    young = LfsStore(store.root, umask=0o022)
    put(young, b"a")
    assert left.exists()
    os.utime(left, (time.time() - 90000,) * 2)
    put(LfsStore(store.root, umask=0o022), b"b")
    assert not left.exists()


def test_foreign_files_in_the_temporary_folder_are_left_alone(store: LfsStore) -> None:
    """Sweeping touches only names that this store gives."""
    put(store, b"a")
    foreign = store.root.parent / "tmp" / "git-lfs-123"
    foreign.write_bytes(b"x")
    os.utime(foreign, (0, 0))
    put(LfsStore(store.root, umask=0o022), b"b")
    assert foreign.exists()


def fill(write: Callable[[bytes], object], step: int) -> None:
    while True:
        write(bytes(step))


def test_a_full_disk_is_one_clear_error(tmp_path: Path) -> None:
    """No space: a StoreError with path and remedy, no object, no temporary file; after freeing space it works."""
    with tiny_disk(tmp_path / "disk"):
        ballast = tmp_path / "disk" / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        store = LfsStore(tmp_path / "disk" / "objects", umask=0o022)
        writer = store.writer()
        with pytest.raises(StoreError, match="No space left") as failure:
            fill(writer.write, 100_000)
        assert "free some space" in failure.value.describe()
        assert str(tmp_path / "disk") in failure.value.message
        assert files(tmp_path / "disk") == [ballast]
        small = store.writer()  # less than the buffer: the disk says no only at commit
        small.write(bytes(900_000))
        filler = tmp_path / "disk" / "filler"
        with filler.open("wb", buffering=0) as file, pytest.raises(OSError, match="No space"):
            fill(file.write, 4096)
        with pytest.raises(StoreError, match="No space left"):
            small.commit()
        assert files(tmp_path / "disk") == [ballast, filler]
        ballast.unlink()
        filler.unlink()
        assert store.has(put(store, bytes(1 << 20)))


def test_a_folder_that_may_not_be_written_is_one_clear_error(store: LfsStore) -> None:
    """A read-only store: StoreError that names the folder; what is there can still be read."""
    oid = put(store, b"here")
    code = f"""
from theta_daemon.errors import StoreError
os.setgroups([])
os.setgid(12345)
os.setuid(12345)
assert store.open("{oid}").read(0, 4) == b"here"
try:
    writer = store.writer()
    writer.write(b"new")
    writer.commit()
except StoreError as error:
    print(error.describe())
"""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    # pytest's own folders are private to root: open the way for the other user.
    for parent in [store.root, *store.root.parents][:-2]:
        parent.chmod(parent.stat().st_mode | 0o011)
    out, _ = child(store, code).communicate()
    assert b"Permission denied" in out
    assert str(store.root).encode() in out
    assert b"owns the folder" in out


def test_a_read_only_file_system_is_one_clear_error(tmp_path: Path) -> None:
    """EROFS: StoreError with the remedy, and reading works."""
    with tiny_disk(tmp_path / "disk"):
        store = LfsStore(tmp_path / "disk" / "objects", umask=0o022)
        oid = put(store, b"x")
        subprocess.run(["mount", "-o", "remount,ro", tmp_path / "disk"], check=True)
        with pytest.raises(StoreError, match="Read-only") as failure:
            store.writer()
        assert failure.value.hint is not None
        assert store.open(oid).read(0, 1) == b"x"


def test_writing_an_object_again_heals_a_rotten_one(store: LfsStore) -> None:
    """An object whose file was cut short is whole again once the same bytes are added."""
    oid = put(store, b"precious")
    store.path(oid).write_bytes(b"prec")
    assert put(store, b"precious") == oid
    assert store.open(oid).read(0, 8) == b"precious"


def test_writing_an_object_again_makes_it_young(store: LfsStore) -> None:
    """The modification time is renewed, so that a prune that spares young objects spares this one."""
    oid = put(store, b"x")
    os.utime(store.path(oid), (0, 0))
    put(store, b"x")
    assert store.path(oid).stat().st_mtime > time.time() - 3600


def test_an_object_that_shrinks_while_it_is_read_is_a_record_error(store: LfsStore) -> None:
    """A file cut short under an open reader gives RecordError, not zeros and not a dead process."""
    oid = put(store, bytes(100_000))
    reader = store.open(oid)
    os.truncate(store.path(oid), 10)
    with pytest.raises(RecordError, match="cut short"):
        reader.read(0, 100_000)


def test_what_is_no_regular_file_is_no_object(store: LfsStore) -> None:
    """A folder, a pipe or a dangling link under an object's name is a missing object, without a hang."""
    odd: list[Callable[[Path], None]] = [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("/nonexistent")]
    for number, make in enumerate(odd):
        oid = f"{number:064x}"
        store.path(oid).parent.mkdir(parents=True, exist_ok=True)
        make(store.path(oid))
        assert not store.has(oid)
        with pytest.raises(MissingObjectError):
            store.open(oid)
    assert list(store.ids()) == []


def test_linked_objects_are_read(store: LfsStore, tmp_path: Path) -> None:
    """An object that its owner moved away and linked back is an object, as for git-lfs."""
    oid = put(store, b"large")
    store.path(oid).rename(tmp_path / "elsewhere")
    store.path(oid).symlink_to(tmp_path / "elsewhere")
    assert store.has(oid)
    assert store.open(oid).read(0, 5) == b"large"


def test_strange_files_are_passed_over(store: LfsStore) -> None:
    """`ids` ignores files that are not at their place."""
    oid = put(store, b"x")
    (store.root / "README").write_bytes(b"")
    (store.root / oid[:2] / oid[2:4] / "note").write_bytes(b"")
    other = store.root / "00" / "00" / ("f" * 64)
    other.parent.mkdir(parents=True)
    other.write_bytes(b"")
    assert list(store.ids()) == [oid]


def test_objects_on_another_disk_than_the_temporary_folder(store: LfsStore, tmp_path: Path) -> None:
    """When `objects` is linked to another file system the rename still is one: the temporary file goes there."""
    with tiny_disk(tmp_path / "disk"):
        store.root.parent.mkdir()
        store.root.symlink_to(tmp_path / "disk")
        oid = put(store, b"x")
        assert [path.name for path in files(tmp_path / "disk")] == [oid]
        assert store.open(oid).read(0, 1) == b"x"


def test_readers_and_writers_leave_no_descriptor(store: LfsStore) -> None:
    """Dropped readers, aborted and forgotten writers give their descriptors back."""
    oid = put(store, b"x")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        store.open(oid).read(0, 1)
        store.writer().write(b"y")
        put(store, b"z")
    assert len(os.listdir("/proc/self/fd")) == before
    assert not list((store.root.parent / "tmp").iterdir())


def test_descriptors_are_not_inherited(store: LfsStore) -> None:
    """A child of the daemon gets neither readers nor writers."""
    reader = store.open(put(store, b"x"))
    writer = store.writer()
    listing = subprocess.run(["ls", "-l", "/proc/self/fd"], capture_output=True, close_fds=False, check=True).stdout
    assert str(store.root.parent).encode() not in listing
    writer.abort()
    reader.close()


def test_a_shared_clone_reads_what_it_borrows(git: GitRepo) -> None:
    """`git clone --shared` has no objects of its own: they are found where git's alternates point, and not listed as own."""
    lender = LfsStore(git.path / ".git" / "lfs" / "objects", umask=0o022)
    oid = put(lender, b"borrowed")
    git("commit", "-q", "--allow-empty", "-m", "one")
    middle, last = git.path.parent / "middle", git.path.parent / "last"
    git("clone", "-q", "--shared", git.path, middle)
    git("clone", "-q", "--shared", middle, last)
    store = LfsStore(last / ".git/lfs/objects", umask=0o022, alternates=alternate_roots(last / ".git"))
    assert store.open(oid).read(0, 8) == b"borrowed"
    assert store.has(oid)
    assert list(store.ids()) == []
    extra = alternate_roots(last / ".git", f"/nowhere:{git.path / '.git/objects'}")
    assert extra[0] == lender.root


def lfs(git: GitRepo, *args: str, data: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    done = git.run("lfs", *args, data=data)
    if b"is not a git command" in done.stderr:
        pytest.skip("git-lfs is not installed")
    return done


def test_git_lfs_accepts_and_pushes_our_objects(git: GitRepo) -> None:
    """The real client's fsck finds nothing wrong with our objects, and its push by id carries them to another repository."""
    store = LfsStore(git.path / ".git" / "lfs" / "objects", umask=0o022)
    oid = put(store, b"model" * 1000)
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{oid}\nsize 5000\n"
    (git.path / ".gitattributes").write_text("*.bin filter=lfs -text\n")
    git("add", ".gitattributes")
    blob = git("hash-object", "-w", "--stdin", data=pointer.encode()).decode().strip()
    git("update-index", "--add", "--cacheinfo", f"100644,{blob},m.bin")
    git("commit", "-qm", "one")
    checked = lfs(git, "fsck")
    assert (checked.returncode, checked.stdout) == (0, b"Git LFS fsck OK\n")
    remote = git.path.parent / "remote.git"
    git("init", "-q", "--bare", remote)
    git("remote", "add", "origin", f"file://{remote}")
    pushed = lfs(git, "push", "--object-id", "origin", "--stdin", data=f"{oid}\n".encode())
    assert pushed.returncode == 0, pushed.stderr
    there = LfsStore(remote / "lfs" / "objects", umask=0o022)
    assert there.open(oid).read(0, 5000) == b"model" * 1000


def test_setgid_of_the_parent_is_kept(tmp_path: Path) -> None:
    """A folder made under one with the set-group-id bit keeps it, also without core.sharedRepository."""
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo").chmod(0o2775)
    store = LfsStore(tmp_path / "repo" / "lfs" / "objects", umask=0o022)
    path = store.path(put(store, b"x"))
    assert path.parent.stat().st_mode & stat.S_ISGID
