"""Which repository a caller means: the same answer as git's own, for every kind of repository."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from tests.history.past import caller
from theta_daemon.errors import RepositoryError
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation

Made = tuple[Path, dict[str, str]]
"""Where the caller stands, and what is in its environment."""


def _top(git: GitRepo) -> Made:
    return git.path, {}


def _sub_directory(git: GitRepo) -> Made:
    git.write("a/b/file", b"x")
    return git.path / "a" / "b", {}


def _work_tree(git: GitRepo) -> Made:
    git.commit()
    git("worktree", "add", "-q", "../other")
    return git.path.parent / "other", {}


def _submodule(git: GitRepo) -> Made:
    git.commit()
    outer = GitRepo(git.path.parent / "outer")
    outer.path.mkdir()
    outer("init", "-q")
    outer("submodule", "add", "-q", str(git.path), "inner")
    return outer.path / "inner", {}


def _separate_git_dir(git: GitRepo) -> Made:
    git("init", "-q", "--separate-git-dir", "../elsewhere")
    return git.path, {}


def _own_work_tree_config(git: GitRepo) -> Made:
    git.commit()
    git.config("extensions.worktreeConfig", "true")
    git("worktree", "add", "-q", "../other")
    return git.path.parent / "other", {}


def _git_dir(git: GitRepo) -> Made:
    return git.path, {"GIT_DIR": str(git.path / ".git")}


def _relative_git_dir(git: GitRepo) -> Made:
    return git.path, {"GIT_DIR": ".git"}


def _git_dir_and_work_tree(git: GitRepo) -> Made:
    (git.path.parent / "tree").mkdir()
    return git.path.parent, {"GIT_DIR": "repo/.git", "GIT_WORK_TREE": "tree"}


def _git_dir_of_a_work_tree(git: GitRepo) -> Made:
    path, _ = _work_tree(git)
    return path, {"GIT_DIR": str(git.path / ".git" / "worktrees" / "other")}


def _configured_work_tree(git: GitRepo) -> Made:
    (git.path.parent / "tree").mkdir()
    git.config("core.worktree", "../../tree")
    return git.path.parent / "tree", {"GIT_DIR": str(git.path / ".git")}


def _bare_by_git_dir(git: GitRepo) -> Made:
    git.commit()
    git.clone(git.path.parent / "bare", "--bare")
    return git.path.parent / "bare", {"GIT_DIR": "."}


def _bare(git: GitRepo) -> Made:
    return _bare_by_git_dir(git)[0], {}


def _work_tree_of_bare(git: GitRepo) -> Made:
    bare = GitRepo(_bare_by_git_dir(git)[0])
    bare("worktree", "add", "-q", "../linked")
    return git.path.parent / "linked", {}


def _inside_git_dir(git: GitRepo) -> Made:
    return git.path / ".git" / "objects", {}


def _below_a_ceiling(git: GitRepo) -> Made:
    return _sub_directory(git)[0], {"GIT_CEILING_DIRECTORIES": str(git.path / "a" / "b")}


def _common_dir(git: GitRepo) -> Made:
    path, _ = _work_tree(git)
    own = git.path / ".git" / "worktrees" / "other"
    return path, {"GIT_DIR": str(own), "GIT_COMMON_DIR": "../repo/.git"}


def _only_work_tree(git: GitRepo) -> Made:
    (git.path / "tree").mkdir()
    return git.path, {"GIT_WORK_TREE": "tree"}


def _damaged_inner(git: GitRepo) -> Made:
    git.write("inner/.git/HEAD", b"no repository")
    return git.path / "inner", {}


def _sha256(git: GitRepo) -> Made:
    other = GitRepo(git.path.parent / "long")
    other.path.mkdir()
    other("init", "-q", "--object-format=sha256")
    return other.path, {}


ORDINARY = [
    _top,
    _sub_directory,
    _work_tree,
    _submodule,
    _separate_git_dir,
    _own_work_tree_config,
    _git_dir,
    _relative_git_dir,
    _git_dir_and_work_tree,
    _git_dir_of_a_work_tree,
    _configured_work_tree,
    _bare_by_git_dir,
    _work_tree_of_bare,
    _common_dir,
    _sha256,
]
ODD = [_bare, _inside_git_dir, _below_a_ceiling, _only_work_tree, _damaged_inner]


def _git_says(invocation: Invocation, *question: str) -> str | None:
    done = subprocess.run(
        ["git", "rev-parse", "--path-format=absolute", *question],
        capture_output=True,
        cwd=invocation.cwd,
        env=dict(invocation.env),
        check=False,
    )
    return done.stdout.decode().removesuffix("\n") if done.returncode == 0 else None


def _agrees_with_git(found: Repository, invocation: Invocation) -> None:
    assert str(found.git_dir) == _git_says(invocation, "--absolute-git-dir")
    assert found.common_dir.samefile(_git_says(invocation, "--git-common-dir") or "/nonexistent")
    inside = _git_says(invocation, "--is-inside-work-tree") == "true"
    if inside:
        assert str(found.work_tree) == _git_says(invocation, "--show-toplevel")
    assert found.object_format == _git_says(invocation, "--show-object-format")
    assert found.git_objects_dir.samefile(_git_says(invocation, "--git-path", "objects") or "/nonexistent")


@pytest.mark.parametrize("make", [*ORDINARY, *ODD])
def test_the_repository_is_the_one_git_finds(git: GitRepo, make: Callable[[GitRepo], Made]) -> None:
    """Every kind of repository: git dir, common dir, work tree and object format are those git itself names."""
    cwd, env = make(git)
    invocation = caller(cwd, env)
    _agrees_with_git(Repository.discover(invocation), invocation)


@pytest.mark.parametrize("make", ORDINARY)
def test_ordinary_repositories_need_no_child(git: GitRepo, make: Callable[[GitRepo], Made]) -> None:
    """A caller without git in PATH still gets the right answer, so no git was started."""
    cwd, env = make(git)
    found = Repository.discover(caller(cwd, {**env, "PATH": "/nonexistent"}))
    _agrees_with_git(found, caller(cwd, env))


def test_bare_repositories_have_no_work_tree(git: GitRepo) -> None:
    """Neither the bare repository named by GIT_DIR nor the one found from its inside has a work tree."""
    cwd, env = _bare_by_git_dir(git)
    assert Repository.discover(caller(cwd, env)).work_tree is None
    assert Repository.discover(caller(cwd)).work_tree is None


def test_no_repository_is_an_error_in_gits_words(short_dir: Path) -> None:
    """Outside of repositories, and below a ceiling, the error says what git says."""
    with pytest.raises(RepositoryError, match="not a git repository"):
        Repository.discover(caller(short_dir))


def test_a_ceiling_is_kept(git: GitRepo) -> None:
    """GIT_CEILING_DIRECTORIES of the caller hides the repository above it."""
    cwd, _ = _sub_directory(git)
    with pytest.raises(RepositoryError, match="not a git repository"):
        Repository.discover(caller(cwd, {"GIT_CEILING_DIRECTORIES": str(git.path / "a")}))


def test_a_wrong_git_dir_is_an_error_even_inside_a_repository(git: GitRepo) -> None:
    """GIT_DIR wins over the cwd, also when nothing is there."""
    with pytest.raises(RepositoryError, match="not a git repository"):
        Repository.discover(caller(git.path, {"GIT_DIR": "/nonexistent"}))


def test_without_git_the_odd_cases_say_so(short_dir: Path) -> None:
    """When git has to be asked and is not there, the error names the remedy."""
    with pytest.raises(RepositoryError, match="cannot be started") as error:
        Repository.discover(caller(short_dir, {"PATH": "/nonexistent"}))
    assert error.value.hint is not None
    assert "PATH" in error.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_ownership_is_for_git_to_judge(git: GitRepo) -> None:
    """A repository of another user is refused with git's own words, and served when safe.directory says so."""
    for path in (git.path, git.path / ".git"):
        os.chown(path, 12345, 12345)
    with pytest.raises(RepositoryError, match="dubious ownership"):
        Repository.discover(caller(git.path))
    trusting = {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": str(git.path)}
    assert Repository.discover(caller(git.path, trusting)).git_dir == git.path / ".git"


def test_configuration_is_the_callers(git: GitRepo, clean_environment: Path) -> None:
    """Files, includes, `-c` and GIT_CONFIG_* count; the last value wins and all are kept; a bare key means true."""
    (git.path.parent / "more").write_text("[theta]\n\tworkers = 3\n\tremote = a\n\tremote = b\n[Lfs]\n\tFSync\n")
    git.config("include.path", "../../more")
    git.config("remote.Name.thetaUrl", "s3://x/y=z")
    env = {
        "GIT_CONFIG_PARAMETERS": "'theta.workers'='5'",
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "theta.maxDepth",
        "GIT_CONFIG_VALUE_0": "7",
    }
    found = Repository.discover(caller(git.path, env))
    assert found.config["theta.workers"] == ["3", "5"]
    assert found.config["theta.remote"] == ["a", "b"]
    assert found.config["remote.Name.thetaurl"] == ["s3://x/y=z"]
    assert found.setting("theta.workers") == "5"
    assert found.setting("theta.maxdepth") == "7"
    assert found.setting("lfs.fsync") == "true"
    assert found.setting("theta.daemon") is None


@pytest.mark.parametrize("storage", [None, "elsewhere", "/tmp/lfs-of-a-test"])
def test_objects_are_where_git_lfs_keeps_its_own(git: GitRepo, storage: str | None) -> None:
    """Also with lfs.storage, relative or absolute, and from a linked work tree: the directory `git lfs env` names."""
    git.commit()
    git("worktree", "add", "-q", "../other")
    if storage is not None:
        git.config("lfs.storage", storage)
    if git.run("lfs", "version").returncode != 0:
        pytest.skip("git-lfs is not installed")
    for top in (git.path, git.path.parent / "other"):
        says = git("lfs", "env", cwd=top).decode().splitlines()
        media = next(line for line in says if line.startswith("LocalMediaDir=")).partition("=")[2]
        assert str(Repository.discover(caller(top)).objects_dir) == media


@pytest.mark.parametrize("index", [None, "other-index", "../absolute"])
def test_the_index_is_the_one_git_uses(git: GitRepo, index: str | None) -> None:
    """A relative GIT_INDEX_FILE is taken from the top of the work tree, as git does, from a sub-directory too."""
    git.write("sub/file", b"x")
    if index == "../absolute":
        index = str(git.path.parent / "absolute")
    env = {} if index is None else {"GIT_INDEX_FILE": index}
    for cwd in (git.path, git.path / "sub"):
        found = Repository.discover(caller(cwd, env))
        assert found.index_file == (git.path / ".git" / "index" if index is None else git.path / index)
    git("add", "file", env=env, cwd=git.path / "sub")
    assert found.index_file.exists()


def test_the_environment_of_this_process_plays_no_part(git: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """GIT_DIR, HOME and configuration of the process itself are nothing to its callers."""
    invocation = caller(git.path)
    monkeypatch.setenv("GIT_DIR", "/nonexistent")
    monkeypatch.setenv("GIT_CONFIG_PARAMETERS", "'theta.workers'='5'")
    monkeypatch.setenv("HOME", "/nonexistent")
    found = Repository.discover(invocation)
    assert found.git_dir == git.path / ".git"
    assert found.setting("theta.workers") is None
    assert found.setting("user.name") == "Test"
