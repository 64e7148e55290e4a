"""Remotes against real servers on loopback: git-lfs over HTTP and file://, S3; and against connections that break.

Nothing half-written ever gets a name, the error says what happened, and the next try moves only what is missing.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from tests.servers import Proxy, lfs_server, proxy, s3_server
from theta_daemon.errors import MissingObjectError, RemoteError
from theta_daemon.invocation import Invocation
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.remote import Remote
from theta_daemon.store.remote.gitlfs import GitLfsRemote
from theta_daemon.store.remote.objectstore import ObjectStoreRemote

S3_ENV = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
GET_OBJECT = {"lfs": r"GET /.*/objects/storage/", "s3": r"GET /bucket/"}
PUT_OBJECT = {"lfs": r"PUT /.*/objects/storage/", "s3": r"PUT /bucket/"}


class Place:
    """A kind of remote behind a proxy, and stores to move objects between."""

    def __init__(self, kind: str, front: Proxy, git: GitRepo) -> None:
        self.kind = kind
        self.proxy = front
        self.git = git

    def store(self, name: str = "repo") -> LfsStore:
        """The store of a repository of that name, which is made when it is not there."""
        path = self.git.path.parent / name
        if not path.exists():
            self.git("init", "-q", path)
        return LfsStore(path / ".git" / "lfs" / "objects", umask=0o022)

    def remote(self, store: LfsStore, env: dict[str, str] | None = None, umask: int = 0o022) -> Remote:
        top = store.root.parents[2]
        invocation = Invocation(top, {**os.environ, **S3_ENV, **(env or {})}, umask, os.geteuid())
        if self.kind == "lfs":
            self.git("-C", top, "config", "remote.origin.url", f"{self.proxy.url}/org/models.git")
            self.git("-C", top, "config", "lfs.transfer.maxretries", "1")
            return GitLfsRemote("origin", invocation, top / ".git" / "objects")
        options = {"AWS_ENDPOINT_URL": self.proxy.url, "AWS_MAX_ATTEMPTS": "1"}
        invocation = Invocation(top, {**options, **invocation.env}, umask, os.geteuid())
        return ObjectStoreRemote("origin", "s3://bucket/models", invocation, first_pause_seconds=0.02)


@pytest.fixture(params=["lfs", "s3"])
def place(request: pytest.FixtureRequest, git: GitRepo) -> Iterator[Place]:
    storage = git.path.parent / "storage"
    (storage / "bucket").mkdir(parents=True)
    server = lfs_server(storage) if request.param == "lfs" else s3_server(storage, "key", "secret")
    with server as url, proxy(url) as front:
        yield Place(request.param, front, git)


def put(store: LfsStore, data: bytes) -> tuple[str, int]:
    writer = store.writer()
    writer.write(data)
    return writer.commit()


def assert_whole(store: LfsStore, expected: set[str]) -> None:
    assert set(store.ids()) == expected
    for oid in expected:
        assert hashlib.sha256(store.path(oid).read_bytes()).hexdigest() == oid


def faults(place: Place, kind: str | int, pattern: str, times: int) -> None:
    """The next `times` requests that match meet this fault."""
    lock = threading.Lock()
    left = [times]

    def fault(method: str, path: str) -> str | int | None:
        with lock:
            if left[0] and re.search(pattern, f"{method} {path}"):
                left[0] -= 1
                return kind
        return None

    place.proxy.fault = fault


def test_objects_travel_there_and_back(place: Place) -> None:
    """Pushed by one repository, fetched by another: equal bytes, modes of the caller's umask. Pushed again nothing moves;
    only what lacks is asked for; what the remote does not have is named, and does not keep the rest from arriving.
    """
    mine = place.store()
    objects = dict(put(mine, os.urandom(size)) for size in (1, 1000, 3_000_000, 17_000_000))
    assert place.remote(mine).push(objects, mine).failed == {}
    uploads = place.proxy.count(PUT_OBJECT[place.kind])
    assert uploads >= 4
    assert place.remote(mine).push(objects, mine).failed == {}
    assert place.proxy.count(PUT_OBJECT[place.kind]) == uploads  # the server had them
    place.store("other")
    other = LfsStore(place.git.path.parent / "other/.git/lfs/objects", umask=0o077)
    first, *rest = objects
    put(other, mine.path(first).read_bytes())
    told: list[tuple[int, int]] = []
    remote = place.remote(other, umask=0o077)
    report = remote.fetch({**objects, "1" * 64: 10}, other, lambda count, size: told.append((count, size)))
    assert report.moved == frozenset(rest)
    assert report.failed.keys() == {"1" * 64}
    assert "1" * 64 in report.failed["1" * 64]
    assert (sum(count for count, _ in told), sum(size for _, size in told)) == (3, sum(objects[oid] for oid in rest))
    assert_whole(other, set(objects))
    assert {stat.S_IMODE(other.path(oid).stat().st_mode) for oid in rest} == {0o600}
    assert place.proxy.count(f"GET [^?]*{first}") == 0
    before = len(place.proxy.seen)
    assert remote.fetch(objects, other).rounds == 0
    assert len(place.proxy.seen) == before
    if place.kind == "lfs":  # git-lfs looks for itself what is here
        os.truncate(other.path(first), 0)  # as a crash can leave it
        assert remote.fetch(objects, other).moved == {first}
        assert_whole(other, set(objects))


def test_a_push_of_what_is_not_here_moves_nothing(place: Place) -> None:
    """MissingObjectError names the object before anybody is asked."""
    mine = place.store()
    good = put(mine, b"good")
    with pytest.raises(MissingObjectError, match="0" * 64):
        place.remote(mine).push(dict([good, ("0" * 64, 5)]), mine)
    assert place.proxy.seen == []


def test_broken_transfers_leave_nothing_half_written(place: Place) -> None:
    """An upload that is refused is told, and the next push sends it alone. Connection lost, body cut, byte changed, 500,
    403 on every download of one object each: those are told, the others arrive, nothing wrong has a name; the next try
    moves only what is missing, and one more break on the way goes unnoticed.
    """
    mine = place.store()
    objects = dict(put(mine, os.urandom(200_000)) for _ in range(8))
    refused = max(objects)
    place.proxy.fault = lambda method, path: 403 if method == "PUT" and refused in path else None
    if place.kind == "lfs":
        with pytest.raises(RemoteError, match="git-lfs says"):
            place.remote(mine).push(objects, mine)
    else:
        assert place.remote(mine).push(objects, mine).failed.keys() == {refused}
    place.proxy.fault = lambda _method, _path: None
    place.proxy.seen.clear()
    assert place.remote(mine).push(objects, mine).failed == {}
    assert place.proxy.count(PUT_OBJECT[place.kind]) == 1
    kinds: list[str | int] = ["drop", "truncate", "corrupt", 500, 403]
    bad = dict(zip(sorted(objects)[1:], kinds, strict=False))
    place.proxy.fault = lambda method, path: (
        bad.get(path.partition("?")[0].rpartition("/")[2]) if method == "GET" else None
    )
    other = place.store("other")
    report = place.remote(other).fetch(objects, other)
    assert report.moved == objects.keys() - bad.keys()
    assert report.failed.keys() == bad.keys()
    if place.kind == "s3":
        assert report.requests > len(objects)  # what was cut is asked for again
    else:
        assert report.requests == 1
    assert_whole(other, set(objects) - set(bad))
    assert not [path for path in (other.root.parent / "tmp").rglob("theta-*") if path.is_file()]
    faults(place, "drop", GET_OBJECT[place.kind], times=1)
    place.proxy.seen.clear()
    report = place.remote(other).fetch(objects, other)
    assert report.moved == bad.keys()
    assert place.proxy.count(GET_OBJECT[place.kind]) == len(bad) + 1
    assert report.requests in ((len(bad), len(bad) + 1) if place.kind == "s3" else (1,))  # s3fs tries again unseen
    assert_whole(other, set(objects))


def test_a_server_that_is_not_there_is_a_remote_error(place: Place) -> None:
    """Nobody listens: one RemoteError with a remedy, and soon, however many objects are wanted."""
    place.proxy.url = "http://127.0.0.1:9"
    other = place.store("other")
    with pytest.raises(RemoteError) as failure:
        place.remote(other).fetch({f"{number:064x}": 10 for number in range(200)}, other)
    assert failure.value.hint is not None
    assert list(other.ids()) == []


@pytest.mark.parametrize("place", ["lfs"], indirect=True)
def test_an_interrupted_transfer_ends_and_goes_on_later(place: Place) -> None:
    """Setting `stop` ends the child at once with an error that says so; what had arrived is kept."""
    mine = place.store()
    objects = dict(put(mine, os.urandom(1000)) for _ in range(5))
    place.remote(mine).push(objects, mine)
    stuck = sorted(objects)[-1]
    entered, release = threading.Event(), threading.Event()

    def fault(method: str, path: str) -> None:
        if method == "GET" and stuck in path:
            entered.set()
            release.wait(30)

    place.proxy.fault = fault
    other = place.store("other")
    remote = place.remote(other)
    stop = threading.Event()
    remote._stop = stop  # type: ignore[attr-defined]

    def interrupt() -> None:
        entered.wait(30)
        stop.set()

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(RemoteError, match="interrupted"):
        remote.fetch(objects, other)
    release.set()
    place.proxy.fault = lambda _method, _path: None
    assert stuck not in set(other.ids())
    assert place.remote(other).fetch(objects, other).failed == {}
    assert_whole(other, set(objects))


def test_credentials_are_the_callers(git: GitRepo) -> None:
    """The caller's AWS variables decide, whatever this process has: a wrong secret is refused, with the server's word."""
    storage = git.path.parent / "storage"
    (storage / "bucket").mkdir(parents=True)
    with s3_server(storage, "key", "secret") as url:
        store = LfsStore(git.path / ".git/lfs/objects", umask=0o022)
        oid, size = put(store, b"x")

        def remote(secret: str) -> ObjectStoreRemote:
            env = {**os.environ, **S3_ENV, "AWS_SECRET_ACCESS_KEY": secret, "AWS_ENDPOINT_URL": url}
            return ObjectStoreRemote("origin", "s3://bucket", Invocation(git.path, env, 0o022, os.geteuid()))

        with pytest.raises(RemoteError, match=r"Permission|Signature|Forbidden"):
            remote("wrong").push({oid: size}, store)
        assert remote("secret").push({oid: size}, store).moved == {oid}
        assert remote("secret").has({oid: size, "0" * 64: 1}) == {oid}
        assert (storage / "bucket" / oid[:2] / oid[2:4] / oid).read_bytes() == b"x"


def test_an_object_store_that_cannot_be_reached_by_name(git: GitRepo) -> None:
    """A scheme that fsspec does not know is a RemoteError that names the URL."""
    store = LfsStore(git.path / ".git/lfs/objects", umask=0o022)
    oid, size = put(store, b"x")
    invocation = Invocation(git.path, dict(os.environ), 0o022, os.geteuid())
    with pytest.raises(RemoteError, match="nonsense://bucket"):
        ObjectStoreRemote("origin", "nonsense://bucket", invocation).push({oid: size}, store)


def test_the_repository_is_not_touched_by_a_fetch_of_git_lfs(git: GitRepo) -> None:
    """The commit that makes git-lfs fetch by id exists nowhere afterwards, neither does its temporary folder; in a
    repository with commits, in one without, and in one with sha256.
    """
    remote = git.path.parent / "remote.git"
    git("init", "-q", "--bare", remote)
    there = LfsStore(remote / "lfs" / "objects", umask=0o022)
    for commits in (0, 1):
        for object_format in ("sha1", "sha256"):
            path = git.path.parent / f"clone{commits}{object_format}"
            git("init", "-q", f"--object-format={object_format}", path)
            git("-C", path, "remote", "add", "origin", f"file://{remote}")
            git("-C", path, "config", "lfs.fetchexclude", "*")
            if commits:
                git("-C", path, "commit", "-q", "--allow-empty", "-m", "one")
            oid, size = put(there, os.urandom(100))
            store = LfsStore(path / ".git/lfs/objects", umask=0o022)
            before = sorted((path / ".git" / "objects").rglob("*"))
            env = {**os.environ, "GIT_DIR": ".git"}
            lfs = GitLfsRemote("origin", Invocation(path, env, 0o022, os.geteuid()), path / ".git/objects")
            assert lfs.fetch({oid: size}, store).moved == {oid}
            assert sorted((path / ".git" / "objects").rglob("*")) == before
            assert not [entry for entry in (path / ".git/lfs/tmp").iterdir() if "theta" in entry.name]


def test_without_git_lfs_the_error_says_what_to_install(git: GitRepo) -> None:
    """A PATH with git but no git-lfs: RemoteError with the remedy, in both directions."""
    only_git = git.path.parent / "bin"
    only_git.mkdir()
    (only_git / "git").symlink_to("/usr/bin/git")
    (git.path.parent / "empty").mkdir()
    env = {**os.environ, "PATH": str(only_git), "GIT_EXEC_PATH": git.text("--exec-path")}
    if (Path(env["GIT_EXEC_PATH"]) / "git-lfs").exists():
        pytest.skip("git-lfs is installed into git itself")
    remote = GitLfsRemote(
        "https://example.invalid/x.git", Invocation(git.path, env, 0o022, 0), git.path / ".git/objects"
    )
    store = LfsStore(git.path / ".git/lfs/objects", umask=0o022)
    oid, size = put(store, b"x")
    acts: list[Callable[[], object]] = [
        lambda: remote.push({oid: size}, store),
        lambda: remote.fetch({"1" * 64: 1}, store),
    ]
    for act in acts:
        with pytest.raises(RemoteError, match="git-lfs is not installed") as failure:
            act()
        assert "install git-lfs" in (failure.value.hint or "")
