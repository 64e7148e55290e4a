"""The session as a real process filter of real git: a filter that stores lower case and gives upper case."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

import pytest

from tests import upper
from tests.gitrepo import GitRepo

ODD = [
    b"new\nline",
    b"end in newline\n",
    b"a=b=c",
    b"caf\xe9",
    "\u00fcn\u00ef".encode(),
    b"-leading",
    b" blank ",
    b'quo"te',
]


both_ways = pytest.mark.parametrize("filtered", ["at once", "delayed"], indirect=True)


@pytest.fixture
def filtered(git: GitRepo, request: pytest.FixtureRequest) -> GitRepo:
    """A repository whose files all pass the filter, with delays unless the test says `at once`."""
    git.config("filter.upper.process", upper.command(*["delay"] * (getattr(request, "param", "delayed") == "delayed")))
    git.config("filter.upper.required", "true")
    git.write(".gitattributes", b"* filter=upper\n.gitattributes -filter\n")
    git.commit("attributes")
    return git


@both_ways
def test_files_of_all_sizes_pass_both_ways(filtered: GitRepo) -> None:
    """Empty, one byte, around a packet, larger than every pipe: stored lower, given back upper, status silent."""
    files = {f"f{size}": b"AbC\n"[: size % 4] + b"AbC\n" * (size // 4) for size in (0, 1, 65516, 65517, 9_000_000)}
    filtered.commit("files", **files)
    assert all(filtered.blob(name) == data.lower() for name, data in files.items())
    filtered("checkout", "-q", "HEAD~1")
    filtered("checkout", "-q", "main")
    assert {name: filtered.read(name) for name in files} == {name: data.upper() for name, data in files.items()}
    assert filtered.status() == ""


def test_odd_pathnames(filtered: GitRepo) -> None:
    """Any bytes that a file can be called."""
    for name in ODD:
        filtered.write(name, b"content of " + name)
    filtered.commit("odd")
    filtered("checkout", "-q", "HEAD~1")
    assert not (filtered.path / os.fsdecode(ODD[0])).exists()
    filtered("checkout", "-q", "main")
    assert [filtered.read(name) for name in ODD] == [b"content of ".upper() + name.upper() for name in ODD]
    assert filtered.status() == ""


def test_commands_with_several_rounds_or_several_filters(filtered: GitRepo) -> None:
    """cherry-pick of two and rebase ask in rounds; stash keeps one filter open while it starts another."""
    base = filtered.commit("base", a=b"A\n", b=b"B\n")
    filtered.commit("one", a=b"A1\n", c=b"C\n")
    filtered.commit("two", b=b"B2\n", d=b"D\n")
    filtered("checkout", "-q", "-b", "side", base)
    filtered.commit("side", e=b"E\n")
    filtered("cherry-pick", "main~1", "main")
    assert [filtered.read(name) for name in "abcde"] == [b"A1\n", b"B2\n", b"C\n", b"D\n", b"E\n"]
    filtered.write("a", b"STASHED\n")
    filtered("stash", "push", "-q")
    assert filtered.read("a") == b"A1\n"
    filtered("stash", "pop", "-q")
    assert filtered.read("a") == b"STASHED\n"
    filtered("reset", "-q", "--hard")
    filtered("checkout", "-q", "main")
    filtered("rebase", "-q", "side")
    assert filtered.status() == ""


def test_archive_asks_without_waiting(filtered: GitRepo, short_dir: Path) -> None:
    """Where git cannot delay, the filter answers at once."""
    filtered.commit("files", a=b"A", b=b"BB")
    filtered("archive", "-o", short_dir / "out.tar", "HEAD")
    with tarfile.open(short_dir / "out.tar") as archive:
        member = archive.extractfile("b")
        assert member is not None
        assert member.read() == b"BB"


@both_ways
def test_one_failing_file_stops_git_with_a_message(filtered: GitRepo) -> None:
    """git exits with an error, the message names the file, the reason and the remedy; no empty file is left."""
    filtered.commit("files", a=b"A", b=b"refuse", c=b"C")
    for name in "abc":
        (filtered.path / name).unlink()
    done = filtered.run("checkout", "--", ".")
    assert done.returncode != 0
    assert b"b: this file asks to be refused\n  remedy: take the word out of it" in done.stderr
    assert not (filtered.path / "b").exists()


def test_git_ends_as_soon_as_the_filter_does(filtered: GitRepo) -> None:
    """No step waits for a time-out: many small commands stay within the cost of starting Python."""
    started = time.monotonic()
    for index in range(3):
        filtered.commit("more", a=b"A" * index)
    assert time.monotonic() - started < 30  # about 1 s when nothing else runs
