"""Pointers by blob id: which road gives them, what is counted, what is kept, and what happens when git lacks them."""

from __future__ import annotations

import os
import resource
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from tests.history.past import caller, past, pointer, text
from theta_daemon.counters import Counters
from theta_daemon.errors import PointerError
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.history import History
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation
from theta_daemon.pointer import MAX_POINTER_BYTES


def _stored(repo: GitRepo, data: bytes) -> str:
    return repo("hash-object", "-w", "--stdin", data=data).decode().strip()


@pytest.fixture
def sha256(short_dir: Path) -> GitRepo:
    """An empty repository that names its objects by SHA-256."""
    path = short_dir / "long"
    path.mkdir()
    repo = GitRepo(path)
    repo("init", "-q", "--object-format=sha256")
    return repo


def test_a_blob_comes_from_libgit2_and_is_counted(git: GitRepo) -> None:
    """An ordinary repository's blob is read without a child, loose or packed, and what is missing is None."""
    blob = _stored(git, text())
    git.commit(f=text())
    counters = Counters()
    with past(git, {"PATH": "/nonexistent"}, counters=counters) as history:
        assert history.blob(blob) == text()
        assert history.blob("0" * 40) is None
    git("gc", "-q")
    with past(git, {"PATH": "/nonexistent"}, counters=counters) as history:
        assert history.blob(blob) == text()
    assert counters.snapshot() == {"blobs_read": 2, "blobs_read.pygit2": 2}


def test_a_blob_written_while_the_session_lasts_is_seen(git: GitRepo) -> None:
    """Objects and packs that come after the database was opened are found, without a child."""
    with past(git, {"PATH": "/nonexistent"}) as history:
        assert history.blob(history.blob_id(b"later")) is None
        git.commit(f=b"later")
        git("gc", "-q")
        assert history.blob(history.blob_id(b"later")) == b"later"


def test_ids_are_those_git_gives(git: GitRepo, sha256: GitRepo) -> None:
    """blob_id is git's, in SHA-1 and in SHA-256 repositories."""
    for repo in (git, sha256):
        with past(repo) as history:
            assert history.blob_id(b"abc\0") == _stored(repo, b"abc\0")


def test_a_sha256_repository_is_read_through_git(sha256: GitRepo) -> None:
    """What libgit2 cannot read, one child reads for the whole session."""
    blobs = [_stored(sha256, text(seed)) for seed in range(5)]
    counters = Counters()
    with past(sha256, counters=counters) as history:
        assert [history.blob(blob) for blob in blobs] == [text(seed) for seed in range(5)]
        assert history.blob("0" * 64) is None
        assert history.blob("0" * 40) is None
        assert history.pointer(blobs[1]) == pointer(1)
    assert counters.get("blobs_read.cat_file") == 6
    assert counters.get("blobs_read.pygit2") == 0


def test_an_unknown_format_extension_is_left_to_git(git: GitRepo) -> None:
    """Where the repository's format has an extension that is not known, libgit2 is not trusted with its objects."""
    blob = _stored(git, text())
    git.config("extensions.laterThanThis", "true")  # with format version 0 git itself passes over it
    counters = Counters()
    with past(git, counters=counters) as history:
        assert history.blob(blob) == text()
    assert counters.get("blobs_read.cat_file") == 1


def test_a_partial_clone_fetches_what_it_lacks(git: GitRepo) -> None:
    """Blobs that a blob:none clone does not have are fetched by git itself, as the caller's configuration says."""
    git.config("uploadpack.allowFilter", "true")
    git.config("uploadpack.allowAnySHA1InWant", "true")
    git.commit(f=text(0))
    git.commit(f=text(1))
    path = git.path.parent / "partial"
    git("clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{git.path}", path)
    counters = Counters()
    with past(path, counters=counters) as history:
        entry = history.head_entry(b"f")
        assert entry is not None
        assert history.pointer(entry.blob) == pointer(1)
        assert history.pointer(history.blob_id(text(0))) == pointer(0)
        assert history.blob("0" * 40) is None
    assert counters.get("blobs_read.cat_file") == 2


def test_a_partial_clone_whose_remote_is_gone_has_less_but_does_not_hang(git: GitRepo) -> None:
    """A fetch that fails makes the blob None, again and again, and what is there is still served."""
    git.config("uploadpack.allowFilter", "true")
    git.commit(f=text(0))
    path = git.path.parent / "partial"
    git("clone", "-q", "--no-checkout", "--filter=blob:none", f"file://{git.path}", path)
    git.path.rename(git.path.parent / "gone")
    here = _stored(GitRepo(path), text(3))
    with past(path) as history:
        for _ in range(6):
            assert history.blob(history.blob_id(text(0))) is None
        assert history.blob(here) == text(3)


def test_a_shallow_clone_has_only_what_it_has(git: GitRepo) -> None:
    """Blobs beyond the depth of a shallow clone are None; HEAD's are there."""
    git.commit(f=text(0))
    git.commit(f=text(1))
    path = git.path.parent / "shallow"
    git("clone", "-q", "--depth=1", f"file://{git.path}", path)
    with past(path) as history:
        assert history.blob(history.blob_id(text(0))) is None
        assert history.pointer(history.blob_id(text(1))) == pointer(1)


@pytest.mark.parametrize("packed", [False, True])
def test_replaced_blobs_are_what_git_shows(git: GitRepo, *, packed: bool) -> None:
    """`git replace` counts as it does for git, GIT_NO_REPLACE_OBJECTS too, and never reaches another repository's cache."""
    old, new = _stored(git, text(0)), _stored(git, text(1))
    git("replace", old, new)
    if packed:
        git("pack-refs", "--all")
    cache = PointerCache()
    with past(git, cache=cache) as history:
        assert history.pointer(old) == pointer(1)
    with past(git, {"GIT_NO_REPLACE_OBJECTS": "1"}, cache=cache) as history:
        assert history.pointer(old) == pointer(0)
    with past(git, cache=cache) as history:
        assert history.pointer(old) == pointer(1)
    git("replace", "-d", old)
    with past(git, cache=cache) as history:
        assert history.pointer(old) == pointer(0)


def test_objects_of_alternates_and_of_the_callers_directories_are_found(git: GitRepo) -> None:
    """Shared clones, and GIT_OBJECT_DIRECTORY with GIT_ALTERNATE_OBJECT_DIRECTORIES as git's quarantine sets them."""
    git.commit(f=text(0))
    shared = git.clone(git.path.parent / "shared", "--shared")
    own = str(git.path.parent / "own")
    Path(own).mkdir()
    quarantine = {
        "GIT_OBJECT_DIRECTORY": own,
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": str(git.path / ".git" / "objects"),
    }
    blob = git("hash-object", "-w", "--stdin", data=text(5), env=quarantine).decode().strip()
    with past(shared, {"PATH": "/nonexistent"}) as history:
        assert history.blob(history.blob_id(text(0))) == text(0)
        assert history.blob(blob) is None
    with past(git, {**quarantine, "PATH": "/nonexistent"}) as history:
        assert history.blob(history.blob_id(text(0))) == text(0)
        assert history.blob(blob) == text(5)


def test_a_pruned_blob_is_none_for_the_next_session(git: GitRepo) -> None:
    """After gc has pruned a blob, a new session does not have it, and asking neither fails nor hangs."""
    blob = _stored(git, text())
    with past(git) as history:
        assert history.pointer(blob) == pointer()
    git("prune", "--expire=now")
    with past(git) as history:
        assert history.pointer(blob) is None


def test_a_damaged_blob_is_none(git: GitRepo) -> None:
    """A loose object whose bytes are not its name's is never handed out."""
    blob, other = _stored(git, text(0)), _stored(git, text(1))
    objects = git.path / ".git" / "objects"
    path = objects / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes((objects / other[:2] / other[2:]).read_bytes())
    with past(git) as history:
        assert history.blob(blob) is None
        assert history.blob(other) == text(1)


@pytest.mark.parametrize("object_format", ["sha1", "sha256"])
def test_a_blob_too_large_for_a_pointer_is_not_read(short_dir: Path, object_format: str) -> None:
    """A raw checkpoint in history is None on both roads, and the answer after it is in its place."""
    repo = GitRepo(short_dir)
    repo("init", "-q", f"--object-format={object_format}")
    large, small = _stored(repo, bytes(MAX_POINTER_BYTES + 1)), _stored(repo, text())
    counters = Counters()
    with past(repo, counters=counters) as history:
        assert history.blob(large) is None
        assert history.pointer(small) == pointer()
    assert counters.get("blobs_read") == 1


def test_only_ids_are_looked_up(git: GitRepo) -> None:
    """What is no full id (a revision, a path, a line more) is None and reaches no child."""
    git.commit(f=text())
    with past(git) as history:
        for odd in ("", "HEAD", "HEAD:f", "-h", "0" * 39, "0" * 40 + "\n" + "1" * 40, "G" * 40, "０" * 40):
            assert history.blob(odd) is None
        tree = git.text("rev-parse", "HEAD^{tree}")
        assert history.blob(tree) is None
        assert history.pointer(git.head()) is None


def test_a_pointer_is_read_and_parsed_once(git: GitRepo) -> None:
    """Ten sessions that ask for the same three pointers from four threads each read and parse three blobs in all."""
    blobs = [_stored(git, text(seed)) for seed in range(3)]
    cache, counters = PointerCache(), Counters()
    for _ in range(10):
        with past(git, cache=cache, counters=counters) as history:
            with ThreadPoolExecutor(4) as pool:
                answers = list(pool.map(history.pointer, blobs * 4))
            assert answers == [pointer(0), pointer(1), pointer(2)] * 4
    assert counters.get("blobs_read") == 3
    assert counters.get("pointers_parsed") == 3
    assert counters.get("pointer_cache.misses") == 3
    assert counters.get("pointer_cache.hits") == 10 * 4 * 3 - 3
    assert (cache.stats().hits, cache.stats().misses, cache.stats().entries) == (117, 3, 3)


def test_a_text_that_git_hands_over_is_parsed_once_too(git: GitRepo) -> None:
    """pointer_of names the blob, fills the cache and uses it; other texts are no pointers."""
    counters = Counters()
    with past(git, counters=counters) as history:
        blob, found = history.pointer_of(text())
        assert (blob, found) == (history.blob_id(text()), pointer())
        assert history.pointer_of(text())[1] is found
        assert history.pointer(blob) is found
        assert history.pointer_of(b"raw")[1] is None
    assert counters.get("pointers_parsed") == 1
    assert counters.get("blobs_read") == 0


def test_a_pointer_that_breaks_a_rule_is_an_error_each_time(git: GitRepo) -> None:
    """An invalid pointer in history is a PointerError, a blob that is none is None, and neither is kept."""
    broken = _stored(git, text().replace(b'"size":8', b'"size":9'))
    other = _stored(git, b"not a pointer")
    cache = PointerCache()
    with past(git, cache=cache) as history:
        for _ in range(2):
            with pytest.raises(PointerError, match="size"):
                history.pointer(broken)
            assert history.pointer(other) is None
    assert cache.stats().entries == 0


def test_the_cache_is_bounded_by_what_pointers_hold() -> None:
    """The least recently used pointers go; one that alone is too large is not kept."""
    cache = PointerCache(limit=5 * 75)
    for seed in range(5):
        cache.put(str(seed), pointer(seed, parameters=10))
    cache.get("0")
    cache.put("5", pointer(5, parameters=10))
    cache.put("huge", pointer(6, parameters=375))
    assert [name for name in ("0", "1", "2", "3", "4", "5", "huge") if cache.get(name) is not None] == [
        "0",
        "2",
        "3",
        "4",
        "5",
    ]
    assert cache.stats().size <= cache.stats().limit
    cache.clear()
    assert cache.stats().entries == 0


@pytest.mark.parametrize("closed", [True, False])
def test_a_wait_for_git_can_be_ended(sha256: GitRepo, short_dir: Path, *, closed: bool) -> None:
    """A session that is closed or cancelled while git hangs in a fetch gets None, and no child is left."""
    started = short_dir / "started"
    os.mkfifo(started)
    script = short_dir / "bin" / "git"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho $$ > {started}\nexec sleep 600\n")
    script.chmod(0o755)
    invocation = caller(sha256.path, {"PATH": f"{script.parent}:{os.environ['PATH']}"})
    cancelled = threading.Event()
    history = History(Repository.discover(invocation), invocation, PointerCache(), Counters(), None, cancelled)
    answers: list[bytes | None] = []
    reader = threading.Thread(target=lambda: answers.append(history.blob("0" * 64)), daemon=True)
    reader.start()
    pid = int(started.read_text())
    if closed:
        history.close()
    else:
        cancelled.set()
    reader.join(timeout=30)
    assert answers == [None]
    assert history.blob("0" * 64) is None
    history.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_many_open_descriptors_do_no_harm(sha256: GitRepo) -> None:
    """A child's pipes may have numbers above 1023."""
    blob = _stored(sha256, text())
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    held = [os.open("/dev/null", os.O_RDONLY) for _ in range(1100)]
    try:
        with past(sha256) as history:
            assert history.blob(blob) == text()
    finally:
        for descriptor in held:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_what_git_says_goes_to_the_callers_stderr(git: GitRepo, short_dir: Path) -> None:
    """The child's complaints are the caller's to read: its descriptor gets them, this process's own does not."""
    blob = _stored(git, text())
    path = git.path / ".git" / "objects" / blob[:2] / blob[2:]
    path.chmod(0o644)
    path.write_bytes(b"garbage")
    invocation = caller(git.path)
    repository = Repository.discover(invocation)
    with (
        (short_dir / "stderr").open("wb") as stderr,
        History(repository, invocation, PointerCache(), Counters(), stderr.fileno()) as history,
    ):
        assert history.blob(blob) is None
    assert blob.encode() in (short_dir / "stderr").read_bytes()


def test_two_work_trees_and_two_environments_in_one_process(git: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions of two repositories side by side each see their own, whatever this process's environment says."""
    other = GitRepo(git.path.parent / "second")
    subprocess.run(["git", "init", "-q", str(other.path)], check=True)
    for seed, repo in enumerate((git, other)):
        repo.commit(f=text(seed))
    env = dict(os.environ)
    monkeypatch.setenv("GIT_DIR", str(other.path / ".git"))
    monkeypatch.setenv("GIT_OBJECT_DIRECTORY", "/nonexistent")
    monkeypatch.setenv("GIT_INDEX_FILE", "/nonexistent")
    scrubbed = {name: value for name, value in env.items() if not name.startswith("GIT_")}
    for seed, repo in enumerate((git, other)):
        invocation = Invocation(repo.path, scrubbed, 0o022, os.getuid())
        with History(Repository.discover(invocation), invocation, PointerCache(), Counters()) as history:
            entry, staged = history.head_entry(b"f"), history.index_entry(b"f")
            assert entry is not None
            assert staged is not None
            assert entry.blob == staged.blob == history.blob_id(text(seed))
            assert history.pointer(entry.blob) == pointer(seed)
