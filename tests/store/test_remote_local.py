"""Remotes on this disk: found from any path or URL that git takes, verified copies, clear errors. No git-lfs involved."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from theta_daemon.errors import MissingObjectError, RemoteError, StoreError
from theta_daemon.invocation import Invocation
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.remote import Remote, TransferReport, open_remote
from theta_daemon.store.remote.gitlfs import GitLfsRemote
from theta_daemon.store.remote.local import LocalRemote, is_local
from theta_daemon.store.remote.objectstore import ObjectStoreRemote


def invocation(cwd: Path, **env: str) -> Invocation:
    # A PATH without git-lfs would be better still: but it lies beside git. What is checked is that no child is needed.
    return Invocation(cwd, {**os.environ, **env}, 0o022, os.geteuid())


def opened(url: str, cwd: Path, theta_url: str | None = None) -> Remote:
    return open_remote("origin", url, theta_url, invocation(cwd), cwd / ".git" / "objects")


def put(store: LfsStore, data: bytes) -> tuple[str, int]:
    writer = store.writer()
    writer.write(data)
    return writer.commit()


@pytest.fixture
def store(tmp_path: Path) -> LfsStore:
    return LfsStore(tmp_path / "own" / "lfs" / "objects", umask=0o022)


@pytest.fixture
def bare(git: GitRepo) -> Path:
    path = git.path.parent / "far away.git"
    git("init", "-q", "--bare", path)
    return path


def test_objects_travel_to_and_from_a_bare_repository(
    git: GitRepo, bare: Path, store: LfsStore, tmp_path: Path
) -> None:
    """Push to a bare repository, fetch into another store: the same bytes; only what lacks is moved; progress adds up."""
    objects = dict(put(store, os.urandom(size)) for size in (1, 100, 9_000_000))
    remote = opened(f"file://{str(bare).replace(' ', '%20')}", git.path)
    told: list[tuple[int, int]] = []
    report = remote.push(objects, store, lambda count, size: told.append((count, size)))
    assert report == TransferReport(frozenset(objects), 9_000_101, requests=3)
    assert (len(told), sum(size for _, size in told)) == (3, 9_000_101)
    assert remote.has({**objects, "0" * 64: 3}) == objects.keys()
    assert remote.push(objects, store) == TransferReport(rounds=0)
    other = LfsStore(tmp_path / "other" / "objects", umask=0o022)
    first = next(iter(objects))
    assert remote.fetch({first: objects[first]}, other).moved == {first}
    assert remote.fetch(objects, other).moved == objects.keys() - {first}
    assert remote.fetch(objects, other) == TransferReport(rounds=0)
    for oid, size in objects.items():
        assert other.open(oid).read(0, size) == store.open(oid).read(0, size)


@pytest.mark.parametrize(
    "kind", ["worktree", ".git", "bare", "without .git", "relative", "linked worktree", "submodule", "file url"]
)
def test_a_repository_is_found_as_git_finds_it(git: GitRepo, bare: Path, store: LfsStore, kind: str) -> None:
    """Whatever path git would take for a repository leads to that repository's one lfs/objects."""
    git("commit", "-q", "--allow-empty", "-m", "one")
    linked = git.path.parent / "linked"
    if kind == "linked worktree":
        git("worktree", "add", "-q", linked)
    if kind == "submodule":
        (git.path / ".git").rename(git.path.parent / "moved")
        (git.path / ".git").write_text("gitdir: ../moved\n")
    urls = {
        "worktree": (str(git.path), git.path / ".git"),
        ".git": (str(git.path / ".git"), git.path / ".git"),
        "bare": (str(bare), bare),
        "without .git": (str(bare).removesuffix(".git"), bare),
        "relative": ("../repo", git.path / ".git"),
        "linked worktree": (str(linked), git.path / ".git"),
        "submodule": (str(git.path), git.path.parent / "moved"),
        "file url": (f"file://{git.path}/", git.path / ".git"),
    }
    url, common = urls[kind]
    oid, size = put(store, b"data")
    remote = opened(url, git.path)
    assert isinstance(remote, LocalRemote)
    remote.push({oid: size}, store)
    assert (common / "lfs" / "objects" / oid[:2] / oid[2:4] / oid).read_bytes() == b"data"
    assert git.run("ls-remote", url).returncode == 0  # git agrees that this is a repository


def test_the_remote_decides_place_and_modes(git: GitRepo, bare: Path, store: LfsStore) -> None:
    """lfs.storage and core.sharedRepository of the remote's own configuration are honoured."""
    git("config", "--file", bare / "config", "lfs.storage", str(bare / "big"))
    git("config", "--file", bare / "config", "core.sharedRepository", "0660")
    oid, size = put(store, b"data")
    opened(str(bare), git.path).push({oid: size}, store)
    path = bare / "big" / "objects" / oid[:2] / oid[2:4] / oid
    assert path.stat().st_mode & 0o777 == 0o660
    assert path.parent.stat().st_mode & 0o7777 == 0o2770


def test_no_repository_is_a_remote_error(git: GitRepo) -> None:
    """A path that is no repository says so."""
    with pytest.raises(RemoteError, match="is not a git repository"):
        opened("/nonexistent/x", git.path)
    with pytest.raises(RemoteError, match="is not a git repository"):
        opened(str(git.path.parent), git.path)


@pytest.mark.parametrize("damage", ["truncated", "changed", "longer", "missing", "no file"])
def test_a_bad_object_there_is_a_reason_and_leaves_nothing_here(
    git: GitRepo, bare: Path, store: LfsStore, tmp_path: Path, damage: str
) -> None:
    """Of two objects the damaged one is reported with a reason, the other arrives; nothing wrong gets a name here."""
    good, bad = put(store, b"good"), put(store, b"bad" * 100)
    opened(str(bare), git.path).push(dict([good, bad]), store)
    path = bare / "lfs" / "objects" / bad[0][:2] / bad[0][2:4] / bad[0]

    def replace_by_folder() -> None:
        path.unlink()
        path.mkdir()

    damages: dict[str, Callable[[], object]] = {
        "truncated": lambda: os.truncate(path, 100),
        "changed": lambda: path.write_bytes(b"x" * 300),
        "longer": lambda: path.write_bytes(b"bad" * 101),
        "missing": path.unlink,
        "no file": replace_by_folder,
    }
    damages[damage]()
    mine = LfsStore(tmp_path / "mine" / "lfs" / "objects", umask=0o022)
    report = opened(str(bare), git.path).fetch(dict([good, bad]), mine)
    assert report.moved == {good[0]}
    assert report.failed.keys() == {bad[0]}
    assert bad[0] in report.failed[bad[0]]
    assert list(mine.ids()) == [good[0]]
    assert not list((tmp_path / "mine" / "lfs" / "tmp").iterdir())


def test_a_damaged_object_there_is_replaced_by_a_push(git: GitRepo, bare: Path, store: LfsStore) -> None:
    """An object of the wrong size at the remote does not count as being there."""
    oid, size = put(store, b"precious")
    remote = opened(str(bare), git.path)
    remote.push({oid: size}, store)
    path = bare / "lfs" / "objects" / oid[:2] / oid[2:4] / oid
    path.write_bytes(b"")
    assert remote.has({oid: size}) == frozenset()
    assert remote.push({oid: size}, store).moved == {oid}
    assert path.read_bytes() == b"precious"


def test_an_object_cut_short_here_is_fetched_again(git: GitRepo, bare: Path, store: LfsStore) -> None:
    """What a crash left truncated in our store counts as missing: a fetch heals it, and a push refuses to spread it."""
    oid, size = put(store, b"precious")
    remote = opened(str(bare), git.path)
    remote.push({oid: size}, store)
    os.truncate(store.path(oid), 3)
    with pytest.raises(MissingObjectError, match=oid):
        opened(str(git.path), git.path).push({oid: size}, store)
    assert remote.fetch({oid: size}, store).moved == {oid}
    assert store.open(oid).read(0, size) == b"precious"


def test_a_push_without_the_objects_moves_nothing(git: GitRepo, bare: Path, store: LfsStore) -> None:
    """An object that is not here is named, and the others stay too."""
    good = put(store, b"good")
    with pytest.raises(MissingObjectError, match="0" * 64):
        opened(str(bare), git.path).push(dict([good, ("0" * 64, 5)]), store)
    assert not (bare / "lfs").exists()


def test_our_own_full_or_forbidden_store_ends_the_fetch(
    git: GitRepo, bare: Path, store: LfsStore, tmp_path: Path
) -> None:
    """When our side cannot take objects that is a StoreError, not a reason against the remote."""
    objects = dict(put(store, bytes([number])) for number in range(20))
    remote = opened(str(bare), git.path)
    remote.push(objects, store)
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(StoreError):
        remote.fetch(objects, LfsStore(tmp_path / "file" / "objects", umask=0o022))


def test_fetches_and_pushes_at_once(git: GitRepo, bare: Path, store: LfsStore, tmp_path: Path) -> None:
    """Four threads push and fetch the same objects through one remote: all succeed, everything is whole."""
    objects = dict(put(store, os.urandom(50_000)) for _ in range(20))
    mine = LfsStore(tmp_path / "mine" / "objects", umask=0o022)
    reports: list[TransferReport] = []

    def work() -> None:
        remote = opened(str(bare), git.path)
        reports.append(remote.push(objects, store))
        reports.append(remote.fetch(objects, mine))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [report.failed for report in reports] == [{}] * 8
    assert set(mine.ids()) == objects.keys()
    assert (
        subprocess.run(
            [
                "sh",
                "-c",
                'cd "$1"; find . -type f | while read f; do echo "${f##*/}  $f"; done | sha256sum -c --quiet',
                "_",
                mine.root,
            ],
            check=False,
        ).returncode
        == 0
    )


@pytest.mark.parametrize(
    ("url", "theta_url", "kind"),
    [
        ("https://example.invalid/x.git", None, GitLfsRemote),
        ("git@example.invalid:x.git", None, GitLfsRemote),
        ("ssh://example.invalid/x.git", None, GitLfsRemote),
        ("https://example.invalid/x.git", "s3://bucket/prefix", ObjectStoreRemote),
        ("https://example.invalid/x.git", "gs://bucket", ObjectStoreRemote),
        ("https://example.invalid/x.git", "/srv/objects", LocalRemote),
        ("https://example.invalid/x.git", "file:///srv/objects", LocalRemote),
        ("https://example.invalid/x.git", "https://lfs.example.invalid/x", GitLfsRemote),
        ("https://example.invalid/x.git", "git@example.invalid:y.git", GitLfsRemote),
    ],
)
def test_the_url_decides_the_kind(tmp_path: Path, url: str, theta_url: str | None, kind: type[Remote]) -> None:
    """thetaUrl goes before git's URL; what git does not speak is an object store."""
    assert type(opened(url, tmp_path, theta_url)) is kind


@pytest.mark.parametrize(
    ("url", "local"),
    [
        ("/a/b:c", True),
        ("./a:b", True),
        ("a:b", False),
        ("host:/path", False),
        ("a/b", True),
        ("file:///a", True),
        ("x://a", False),
    ],
)
def test_local_is_what_git_takes_for_a_path(url: str, local: bool) -> None:
    """A colon before the first slash means a host, as for git."""
    assert is_local(url) is local


def test_a_plain_folder_is_a_remote(store: LfsStore, tmp_path: Path) -> None:
    """theta.remote=/folder keeps objects there in the same layout, without any repository."""
    oid, size = put(store, b"data")
    opened("https://example.invalid/", tmp_path, str(tmp_path / "shelf")).push({oid: size}, store)
    assert (tmp_path / "shelf" / oid[:2] / oid[2:4] / oid).read_bytes() == b"data"
