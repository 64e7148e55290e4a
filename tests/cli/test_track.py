"""`git theta track` and `untrack`: the line takes effect by git's own judgement, and goes without a trace."""

from __future__ import annotations

import os
import subprocess

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cli.theta import ok, ok_json, theta
from tests.gitrepo import GitRepo
from theta_daemon.cli import attributes

LINE = "filter=theta diff=theta merge=theta -text\n"


def filter_of(git: GitRepo, path: str | bytes) -> str:
    return os.fsdecode(git("check-attr", "-z", "filter", "--", path).split(b"\0")[2])


ODD = [
    "*.pt",
    "a b.pt",
    "#a.pt",
    "!a.pt",
    '"a.pt',
    "[attr]a.pt",
    "tab\there.pt",
    "line\nend.pt",
    " lead.pt",
    "trail.pt ",
    "ü.pt",
]


def test_git_agrees_with_what_was_tracked(git: GitRepo) -> None:
    """Whatever characters a pattern holds, git sees the filter on a file that it means, and on no other; and it goes again."""
    before = b"# models\r\n*.txt text\n*.bin filter=theta\n"
    git.write(".gitattributes", before)
    names = {pattern: {"*.pt": "x.pt", "[attr]a.pt": "ta.pt"}.get(pattern, pattern) for pattern in ODD}
    for name in names.values():
        git.write(name, b"x")
    effects = ok_json(git, "track", "--json", "--", *ODD[1:])
    assert [(effect["changed"], effect["matches"], effect["elsewhere"]) for effect in effects] == [(True, 1, {})] * (
        len(ODD) - 1
    )
    assert filter_of(git, "x.pt") == filter_of(git, "other.txt") == "unspecified"
    assert {filter_of(git, name) for pattern, name in names.items() if pattern != "*.pt"} == {"theta"}
    ok(git, "track", "*.pt")
    assert filter_of(git, "x.pt") == "theta"
    ok(git, "untrack", "--", *ODD)
    assert git.read(".gitattributes") == before


def test_a_bytes_name_that_is_no_unicode(git: GitRepo) -> None:
    """A pattern of any bytes is tracked, listed and untracked."""
    name = b"caf\xe9.pt"
    git.write(name, b"x")
    ok(git, "track", name)
    assert filter_of(git, name) == "theta"
    listed = ok_json(git, "track", "--json")
    assert [os.fsencode(entry["pattern"]) for entry in listed["patterns"]] == [name]
    assert [os.fsencode(path) for path in listed["files"]] == [name]
    ok(git, "untrack", name)
    assert not (git.path / ".gitattributes").exists()


def test_tracking_twice_changes_nothing(git: GitRepo) -> None:
    """The second time the file keeps its bytes, its inode and its time."""
    ok(git, "track", "*.pt", "a b.pt")
    file = git.path / ".gitattributes"
    before, content = file.stat(), file.read_bytes()
    assert "already tracked" in ok(git, "track", "*.pt", "a b.pt")
    assert (file.stat().st_ino, file.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert file.read_bytes() == content == f"*.pt {LINE}".encode() + f'"a b.pt" {LINE}'.encode()


def test_a_last_line_without_end_is_not_glued_to_ours(git: GitRepo) -> None:
    """An attributes file whose last line lacks its newline keeps that line's meaning."""
    git.write(".gitattributes", b"*.txt filter=other")
    ok(git, "track", "*.pt")
    assert git.read(".gitattributes") == b"*.txt filter=other\n*.pt " + LINE.encode()
    assert (filter_of(git, "a.txt"), filter_of(git, "a.pt")) == ("other", "theta")


def test_a_later_line_that_unsets_is_reported(git: GitRepo) -> None:
    """Where a later line takes the filter away, track says so and names the file, though its own line is there."""
    git.write(".gitattributes", f"*.pt {LINE}small.pt -filter\n".encode())
    git.write("small.pt", b"x")
    git.write("large.pt", b"x")
    done = theta(git, "track", "*.pt")
    assert done.returncode == 0
    assert b"no effect on 1 of its files" in done.stderr
    assert b"small.pt" in done.stderr


def test_a_macro_that_sets_another_filter_is_seen(git: GitRepo) -> None:
    """Attributes that come through a macro count like written ones."""
    git.write(".gitattributes", b"[attr]big filter=lfs -text\n")
    git.write("models/.gitattributes", b"*.pt big\n")
    git.write("models/a.pt", b"x")
    [effect] = ok_json(git, "track", "--json", "*.pt")
    assert effect["elsewhere"] == {"models/a.pt": "lfs"}


def test_a_pattern_without_files_is_judged_by_an_example(git: GitRepo) -> None:
    """No file yet: git is asked about a made-up one, so that an override is known before the first add."""
    git.write(".git/info/attributes", b"*.pt -filter\n")
    [effect] = ok_json(git, "track", "--json", "models/*.pt")
    assert effect["elsewhere"] == {"models/x.pt": "unset"}


def test_a_folder_has_a_file_of_its_own(git: GitRepo) -> None:
    """In a sub-directory the pattern is relative to it, its special characters included, and so is the file."""
    folder = git.path / "run [1]" / "deep"
    git.write("run [1]/deep/w/a.pt", b"x")
    git.write("run 1/deep/w/a.pt", b"x")
    git.write("run [1]/deep/b.bin", b"x")
    effects = ok_json(git, "track", "--json", "w/*.pt", "*.bin", cwd=folder)
    assert [effect["file"] for effect in effects] == ["run [1]/deep/.gitattributes"] * 2
    assert [effect["matches"] for effect in effects] == [1, 1]
    assert filter_of(git, "run [1]/deep/w/a.pt") == filter_of(git, "run [1]/deep/b.bin") == "theta"
    assert filter_of(git, "run 1/deep/w/a.pt") == "unspecified"
    assert not (git.path / ".gitattributes").exists()


def test_a_folder_means_the_files_in_it(git: GitRepo) -> None:
    """`models/` alone would match nothing in attributes; it is taken as everything below."""
    git.write("models/deep/a", b"x")
    ok(git, "track", "models/")
    assert filter_of(git, "models/deep/a") == "theta"
    ok(git, "untrack", "models/")
    assert filter_of(git, "models/deep/a") == "unspecified"


def test_what_was_committed_raw_needs_renormalize(git: GitRepo) -> None:
    """Only committed files whose filter changes are told about."""
    git.commit("raw", **{"a.pt": b"x", "b.txt": b"x"})
    git.write("new.pt", b"x")
    [effect] = ok_json(git, "track", "--json", "*.pt")
    assert effect["renormalize"] == ["a.pt"]
    [again] = ok_json(git, "track", "--json", "*.pt")
    assert again["renormalize"] == []


def test_untrack_of_what_is_not_tracked_fails(git: GitRepo) -> None:
    """A pattern without a line of ours is an error that names it; a line made by hand stays."""
    git.write(".gitattributes", b"*.pt filter=theta\n")
    done = theta(git, "untrack", "*.pt")
    assert done.returncode == 1
    assert b"*.pt" in done.stderr
    assert git.read(".gitattributes") == b"*.pt filter=theta\n"


def test_untrack_says_when_another_line_still_tracks(git: GitRepo) -> None:
    """Removing a line does not promise that the files are free of the filter; git is asked."""
    git.write("a.pt", b"x")
    ok(git, "track", "*.pt", "a.*")
    done = theta(git, "untrack", "*.pt")
    assert done.returncode == 0
    assert b"another line still" in done.stderr


def test_no_repository_and_no_work_tree_are_errors(git: GitRepo) -> None:
    """Outside a work tree track ends with 1 and git's own words, and writes nothing."""
    outside = git.path.parent
    done = theta(outside, "track", "*.pt")
    assert done.returncode == 1
    assert b"not a git repository" in done.stderr
    assert not (outside / ".gitattributes").exists()
    assert theta(git, "track", "*.pt", cwd=git.path / ".git").returncode == 1


def test_a_linked_attributes_file_is_not_followed(git: GitRepo) -> None:
    """git does not read a .gitattributes that is a symbolic link, so nothing is written through one."""
    target = git.path.parent / "target"
    target.write_bytes(b"")
    (git.path / ".gitattributes").symlink_to(target)
    done = theta(git, "track", "*.pt")
    assert done.returncode == 1
    assert b"symbolic link" in done.stderr
    assert target.read_bytes() == b""


def test_empty_patterns_and_long_ones_are_refused(git: GitRepo) -> None:
    """What git would silently ignore is not written."""
    assert theta(git, "track", "").returncode == 1
    assert theta(git, "track", "x" * 2048).returncode == 1
    assert not (git.path / ".gitattributes").exists()


@given(st.binary(min_size=1, max_size=12).filter(lambda name: b"\0" not in name))
def test_quoting_is_undone(pattern: bytes) -> None:
    """`unquoted` gives back what `quoted` took, for any bytes."""
    assert attributes.unquoted(attributes.quoted(pattern)) == pattern
    assert b"\n" not in attributes.quoted(pattern)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25)
@given(name=st.binary(min_size=1, max_size=8))
def test_git_reads_the_quotes_as_we_write_them(git: GitRepo, name: bytes) -> None:
    """A literal name of any bytes, its glob characters escaped, is matched by git through our line."""
    name = name.translate(None, b"\0/") or b"x"
    if name in {b".", b".."}:
        name = b"x"
    pattern = b"".join(b"\\" + bytes([byte]) if byte in b"*?[\\!" else bytes([byte]) for byte in name)
    git.write(".gitattributes", attributes.line(pattern) + b"\n")
    done = subprocess.run(
        ["git", "check-attr", "-z", "--stdin", "filter"],
        input=name + b"\0",
        capture_output=True,
        check=True,
        cwd=git.path,
    )
    assert done.stdout.split(b"\0")[2] == b"theta"
