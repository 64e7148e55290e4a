"""Merging branches that trained different parameters: what one side changed is kept, what both changed is a conflict."""

from __future__ import annotations

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import looks_like_pointer, parse

BASE = model()


def branch(repo: GitRepo, name: str, start: str = "main", /, **files: bytes) -> None:
    """A branch with one commit of these files; HEAD goes there."""
    repo("checkout", "-q", "-B", name, start)
    repo.commit(name, **files)


def fork(repo: GitRepo, base: bytes, ours: bytes, theirs: bytes, name: str = "m") -> None:
    """main holds `base`, branch theirs holds `theirs`, HEAD is branch ours and holds `ours`."""
    repo.commit("base", **{name: base})
    branch(repo, "theirs", **{name: theirs})
    branch(repo, "ours", **{name: ours})


def unmerged(repo: GitRepo) -> str:
    return repo.text("diff", "--name-only", "--diff-filter=U")


def test_parameters_of_both_sides(either: GitRepo) -> None:
    """The merged file is, byte for byte, the one that has both sides' changes; status is silent, the pointer whole."""
    base = BASE.without("empty")
    ours, theirs = base.edit("embed.weight", 1), base.retrain("layer.0.weight", 2)
    both = ours.put(**{"layer.0.weight": theirs.tensors["layer.0.weight"]})
    wanted = {"m": both.bytes(), "n": both.npz()}
    either.commit("base", m=base.bytes(), n=base.npz())
    branch(either, "theirs", m=theirs.bytes(), n=theirs.npz())
    branch(either, "ours", m=ours.bytes(), n=ours.npz())
    either("merge", "-q", "--no-edit", "theirs")
    assert {name: either.read(name) for name in wanted} == wanted
    assert either.status() == ""
    either("checkout", "-q", "main")
    either("checkout", "-q", "ours")
    assert {name: either.read(name) for name in wanted} == wanted


def test_torch_files_merge_though_each_save_has_an_identity(repo: GitRepo) -> None:
    """Two torch.save files differ in checksums and in a hash of the whole; the merge has both tensors, and loads."""
    torch = pytest.importorskip("torch")

    def saved(**changed: float) -> bytes:
        file = io.BytesIO()
        state = {name: torch.full((40, 3), changed.get(name, 0.5)) for name in ("a", "b", "c")}
        torch.save({"model": state, "epoch": 3}, file)
        return file.getvalue()

    fork(repo, saved(), saved(a=1.0), saved(b=2.0))
    repo("merge", "-q", "--no-edit", "theirs")
    merged = torch.load(io.BytesIO(repo.read("m")), weights_only=True)
    assert {name: float(tensor[0, 0]) for name, tensor in merged["model"].items()} == {"a": 1.0, "b": 2.0, "c": 0.5}
    assert repo.status() == ""
    repo("checkout", "-q", "main")
    fork(repo, saved(), saved(a=1.0), saved(a=2.0, b=2.0), name="n")
    done = repo.run("merge", "theirs")
    assert done.returncode == 1
    assert b"parameter model.a" in done.stderr + done.stdout
    assert b"model.b" not in done.stderr + done.stdout


def test_a_parameter_that_both_changed_is_a_conflict(repo: GitRepo) -> None:
    """Exit 1, the disputed parameters by name and no others, ours in place and checked out, theirs to be had."""
    ours, theirs = (
        BASE.edit("embed.weight", 1).edit("ids", 1),
        BASE.edit("embed.weight", 2).retrain("layer.0.weight", 2),
    )
    fork(repo, BASE.bytes(), ours.bytes(), theirs.bytes())
    done = repo.run("merge", "theirs")
    said = done.stderr + done.stdout
    assert done.returncode == 1
    assert b"embed.weight" in said
    assert b"layer.0.weight" not in said
    assert b"ids" not in said
    assert unmerged(repo) == "m"
    assert repo.read("m") == ours.bytes()
    repo("checkout", "--theirs", "m")
    assert repo.read("m") == theirs.bytes()
    repo("checkout", "--ours", "m")
    assert repo.read("m") == ours.bytes()
    repo("add", "m")
    repo("commit", "-q", "-m", "merged")
    assert repo.status() == ""


def test_metadata_and_new_tensors_come_from_the_side_that_changed_them(repo: GitRepo) -> None:
    """One side adds a tensor and changes the header, the other trains: the result has the new layout with trained values."""
    grown = Model({"new": np.arange(6, dtype="<f4"), **BASE.without("ids").tensors}, {"format": "pt", "epoch": "2"})
    trained = BASE.retrain("layer.0.weight", 3)
    both = grown.put(**{"layer.0.weight": trained.tensors["layer.0.weight"]})
    fork(repo, BASE.bytes(), trained.bytes(), grown.bytes())
    repo("merge", "-q", "--no-edit", "theirs")
    assert repo.read("m") == both.bytes()


def test_equal_changes_are_no_conflict(repo: GitRepo) -> None:
    """Both sides made the same change, and one of them another one besides."""
    ours = BASE.edit("embed.weight", 1)
    theirs = ours.retrain("layer.0.weight", 2)
    fork(repo, BASE.bytes(), ours.bytes(), theirs.bytes())
    repo("merge", "-q", "--no-edit", "theirs")
    assert repo.read("m") == theirs.bytes()


def test_files_that_are_no_checkpoints_merge_as_wholes_only(repo: GitRepo) -> None:
    """Bytes without parameters: one-sided changes are fine, two-sided ones conflict; an empty file too."""
    repo.commit("base", a=b"base" * 100, b=b"base" * 100, c=b"filled" * 9)
    branch(repo, "theirs", a=b"theirs" * 90, b=b"theirs" * 80, c=b"other" * 9)
    branch(repo, "ours", b=b"ours" * 70, c=b"")
    assert repo.run("merge", "theirs").returncode == 1
    assert unmerged(repo).split() == ["b", "c"]
    assert repo.read("a") == b"theirs" * 90
    assert repo.read("b") == b"ours" * 70
    assert repo.read("c") == b""


def test_both_sides_added_the_file(repo: GitRepo) -> None:
    """Without an ancestor the same values merge and different ones conflict."""
    repo.commit("base")
    branch(repo, "theirs", m=BASE.bytes(), n=BASE.bytes())
    branch(repo, "ours", m=BASE.bytes(), n=BASE.edit("ids", 1).bytes())
    done = repo.run("merge", "theirs")
    assert done.returncode == 1
    assert unmerged(repo) == "n"
    assert repo.read("n") == BASE.edit("ids", 1).bytes()


def test_paths_of_any_bytes(repo: GitRepo) -> None:
    """Names with blanks, quotes, percent signs, newlines and bytes that are no UTF-8 reach the driver unharmed."""
    ours, theirs = BASE.edit("embed.weight", 1), BASE.edit("ids", 2)
    both = ours.put(ids=theirs.tensors["ids"])
    names = [os.fsdecode(name) for name in (b"a b/it's 100%O.bin", b'"q"\n$(id);caf\xe9', b"-dash")]
    repo.commit("base", **dict.fromkeys(names, BASE.bytes()))
    branch(repo, "theirs", **dict.fromkeys(names, theirs.bytes()))
    branch(repo, "ours", **dict.fromkeys(names, ours.bytes()))
    repo("merge", "-q", "--no-edit", "theirs")
    assert {name: repo.read(name) == both.bytes() for name in names} == dict.fromkeys(names, True)


def test_pick_rebase_revert_and_stash(repo: GitRepo) -> None:
    """Everything in git that merges goes by parameters."""
    ours = BASE.edit("embed.weight", 1)
    steps = [BASE.edit("ids", 2)]
    steps.append(steps[-1].retrain("layer.0.weight", 3))
    repo.commit("base", m=BASE.bytes())
    for number, step in enumerate(steps):
        branch(repo, "theirs", "main" if number == 0 else "theirs", m=step.bytes())
    branch(repo, "ours", m=ours.bytes())
    both = ours.put(**{name: steps[-1].tensors[name] for name in ("ids", "layer.0.weight")})
    repo("cherry-pick", "main..theirs")
    assert repo.read("m") == both.bytes()
    repo("revert", "--no-edit", "HEAD~1")
    assert repo.read("m") == both.put(ids=BASE.tensors["ids"]).bytes()
    repo("checkout", "-q", "theirs")
    repo("rebase", "-q", "ours~3")
    assert repo.read("m") == both.bytes()
    repo.write("m", both.put(norm=np.zeros((3, 5), "<f2")).bytes())
    repo("stash", "-q")
    repo.commit("later", m=both.edit("embed.weight", 9).bytes())
    repo("stash", "pop", "-q")
    assert repo.read("m") == both.edit("embed.weight", 9).put(norm=np.zeros((3, 5), "<f2")).bytes()


def test_criss_cross_keeps_old_disputes(repo: GitRepo) -> None:
    """Two ancestors that disagree on a parameter, each branch having chosen its own: that is a conflict, not a choice."""
    repo.commit("base", m=BASE.bytes())
    branch(repo, "one", m=BASE.edit("ids", 1).bytes())
    branch(repo, "two", m=BASE.edit("ids", 2).bytes())
    for here, there in (("one", "two~0"), ("two", "one~1")):
        repo("checkout", "-q", here)
        repo.run("merge", "--no-commit", there)
        repo("checkout", "--ours", "m")
        repo("add", "m")
        repo("commit", "-q", "-m", "each keeps its own")
    assert len(repo.text("merge-base", "--all", "one", "two").split()) == 2
    assert repo.run("merge", "one").returncode == 1
    assert unmerged(repo) == "m"
    assert repo.read("m") == BASE.edit("ids", 2).bytes()


def test_renormalizing_merges_and_raw_commits(repo: GitRepo) -> None:
    """merge.renormalize hands over what it cleaned; a side that holds the checkpoint itself is cleaned by the driver."""
    repo.write(".git/info/attributes", b"m -filter\n")
    repo.commit("raw base", m=BASE.bytes())
    (repo.path / ".git/info/attributes").unlink()
    ours, theirs = BASE.edit("embed.weight", 1), BASE.edit("ids", 2)
    branch(repo, "theirs", m=theirs.bytes())
    branch(repo, "ours", m=ours.bytes())
    assert not looks_like_pointer(repo.blob("m", "main"))
    both = ours.put(ids=theirs.tensors["ids"])
    repo("merge", "-q", "--no-edit", "theirs")
    assert repo.read("m") == both.bytes()
    assert looks_like_pointer(repo.blob("m"))
    repo("reset", "-q", "--hard", "HEAD~1")
    repo("-c", "merge.renormalize=true", "merge", "-q", "--no-edit", "theirs")
    assert repo.read("m") == both.bytes()


def test_a_renamed_file_is_merged_under_its_new_name(repo: GitRepo) -> None:
    """One side moves the file, the other trains it: git follows the pointer."""
    fork(repo, BASE.bytes(), BASE.edit("embed.weight", 1).bytes(), BASE.bytes())
    repo("checkout", "-q", "theirs")
    repo("mv", "m", "moved")
    theirs = BASE.edit("ids", 2)
    repo.commit("moved and edited", moved=theirs.bytes())
    repo("checkout", "-q", "ours")
    repo("merge", "-q", "--no-edit", "theirs")
    assert repo.read("moved") == BASE.edit("embed.weight", 1).put(ids=theirs.tensors["ids"]).bytes()


def test_an_object_that_is_not_here_leaves_ours(repo: GitRepo) -> None:
    """When a side cannot be rebuilt the merge stops with ours in place, and says which object is missing."""
    ours, theirs = BASE.edit("embed.weight", 1), BASE.retrain("layer.0.weight", 2)
    fork(repo, BASE.bytes(), ours.bytes(), theirs.bytes())
    old, new = (parse(repo.blob("m", revision)) for revision in ("main", "theirs"))
    assert old is not None
    assert new is not None
    [lost] = set(new.objects) - set(old.objects) or set()
    (repo.path / ".git/lfs/objects" / lost[:2] / lost[2:4] / lost).unlink()
    shutil.rmtree(repo.path / ".git/theta", ignore_errors=True)
    done = repo.run("merge", "theirs", env={"THETA_DAEMON": "never"})
    assert done.returncode == 1
    assert lost.encode() in done.stderr + done.stdout
    assert repo.read("m") == ours.bytes()


KINDS = {
    "apart": (BASE.edit("embed.weight", 1), BASE.edit("step", 2, 1)),
    "first and last": (BASE.retrain("embed.weight", 1), BASE.put(step=np.array(99, "<i8"))),
    "one grows": (BASE.put(new=np.ones(4, "<f4")), BASE.edit("ids", 2)),
    "both grow": (BASE.put(one=np.ones(4, "<f4")), BASE.put(two=np.ones(4, "<f4"))),
    "one shrinks": (BASE.without("ids"), BASE.edit("embed.weight", 2)),
    "everything": (BASE.tune(1), BASE.tune(2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_without_the_driver_git_conflicts(repo: GitRepo, short_dir: Path, kind: str) -> None:
    """In a clone whose user never installed anything, no two-sided change is merged as text: git conflicts each time."""
    ours, theirs = KINDS[kind]
    fork(repo, BASE.bytes(), ours.bytes(), theirs.bytes())
    home = short_dir / "home"
    home.mkdir()
    (home / ".gitconfig").write_text("[user]\n\tname = a\n\temail = a@b\n")
    plain = GitRepo(short_dir / "plain", {"HOME": str(home)})
    repo("clone", "-q", repo.path, plain.path, env={"HOME": str(home)})
    assert looks_like_pointer(plain.read("m"))
    assert plain.run("config", "merge.theta.driver").returncode == 1
    for here, there in (("ours", "theirs"), ("theirs", "ours")):
        plain("checkout", "-q", "--detach", f"origin/{here}")
        done = plain.run("merge", f"origin/{there}")
        assert done.returncode == 1
        assert unmerged(plain) == "m"
        plain("merge", "--abort")
        assert plain.run("cherry-pick", f"origin/{there}").returncode == 1
        plain("cherry-pick", "--abort")


def test_a_mixture_made_by_force_is_never_a_file(repo: GitRepo, short_dir: Path) -> None:
    """Whoever forces a text merge of pointers (`-X ours`) commits what nobody trained: a checkout says so, and writes nothing."""
    ours, theirs = KINDS["apart"]
    fork(repo, BASE.bytes(), ours.bytes(), theirs.bytes())
    repo("config", "merge.theta.driver", "git merge-file --ours %A %O %B")
    repo("merge", "-q", "--no-edit", "theirs", env={"GIT_THETA_SKIP_SMUDGE": "1"})
    mixed = repo.blob("m")
    assert mixed not in (repo.blob("m", "main"), repo.blob("m", "ours~1"), repo.blob("m", "theirs"))
    repo("config", "--unset", "merge.theta.driver")
    (repo.path / "m").unlink()
    done = repo.run("checkout", "--", "m")
    assert done.returncode != 0
    assert b"m: " in done.stderr
    assert not (repo.path / "m").exists()
