"""`git diff` and `git log -p` show the parameters that changed, one line each, however they are stored."""

from __future__ import annotations

import numpy as np

from tests.cli.theta import theta
from tests.git.models import model
from tests.gitrepo import GitRepo

BASE = model()


def changed(diff: str) -> dict[str, list[str]]:
    """The parameters in a diff's removed and added lines, the header and the summary line aside."""
    found: dict[str, list[str]] = {"-": [], "+": []}
    for line in diff.splitlines():
        if line[:1] in found and not line.startswith(("---", "+++")) and not line[1:].startswith("checkpoint of"):
            found[line[0]].append(line[1:].split(" ")[0])
    return found


def textconv(repo: GitRepo, name: str) -> bytes:
    done = theta(repo, "textconv", name)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_work_tree_index_and_history(repo: GitRepo) -> None:
    """One line a changed parameter: unstaged, staged, between commits and in the log; equal values never show."""
    repo.commit("base", m=BASE.bytes())
    edited = BASE.edit("embed.weight", 1).edit("ids", 2)
    repo.write("m", edited.bytes())
    wanted = {"-": ["embed.weight", "ids"], "+": ["embed.weight", "ids"]}
    assert changed(repo.text("diff")) == wanted
    repo("add", "m")
    assert repo.text("diff") == ""
    assert changed(repo.text("diff", "--cached")) == wanted
    repo.commit("edited", m=edited.bytes())
    repo.commit("grown", m=edited.without("norm").put(new=np.ones(3, "<f4")).bytes())
    assert changed(repo.text("diff", "HEAD~1", "HEAD")) == {"-": ["norm"], "+": ["new"]}
    log = repo.text("log", "-p", "--format=tformat:commit", "-2", "--", "m").split("commit\n")
    assert [changed(part) for part in log[1:]] == [{"-": ["norm"], "+": ["new"]}, wanted]


def test_pointer_and_checkpoint_read_the_same(repo: GitRepo) -> None:
    """The text of a pointer is that of its checkpoint, so skipped smudging and missing filters show no false changes."""
    repo.commit("base", m=BASE.bytes(), n=BASE.without("empty").npz(), o=b"no checkpoint", e=b"")
    for name in ("m", "n", "o", "e"):
        repo.write(f"{name}.txt", repo.blob(name))
        assert textconv(repo, f"{name}.txt") == textconv(repo, name)
    assert len(textconv(repo, "m").splitlines()) == 1 + len(BASE.tensors)


def test_names_cannot_steer_a_terminal(repo: GitRepo) -> None:
    """Control characters in parameter names are shown in C quotes, each parameter on one line."""
    model = BASE.put(**{"evil\x1b[2J\nname": np.ones(3, "<f4")})
    repo.write("m", model.bytes())
    text = textconv(repo, "m")
    assert b"\x1b" not in text
    assert len(text.splitlines()) == 1 + len(model.tensors)


def test_what_is_no_pointer_any_more_is_shown_as_it_is(repo: GitRepo) -> None:
    """Conflict marks in a pointer are text for a person, not an error."""
    repo.commit("base", m=BASE.bytes())
    broken = repo.blob("m").replace(b'"format"', b'<<<<<<< ours\n"format"', 1)
    repo.write("broken.txt", broken)
    assert textconv(repo, "broken.txt") == broken
