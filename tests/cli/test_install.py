"""`git theta install` and `uninstall`: git's configuration, all of it, nothing but it, as often as one likes."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.cli.theta import SCRIPTS, executable, ok, theta
from tests.git.models import model
from tests.gitrepo import GitRepo

KEYS = {
    "diff.theta.textconv",
    "filter.theta.clean",
    "filter.theta.process",
    "filter.theta.required",
    "filter.theta.smudge",
    "merge.theta.driver",
    "merge.theta.name",
    "merge.theta.recursive",
}


def configured(repo: GitRepo, scope: str) -> dict[str, str]:
    listing = repo("config", f"--{scope}", "-z", "--list").decode().split("\0")[:-1]
    entries = [entry.split("\n", 1) for entry in listing if ".theta." in entry]
    assert len({key for key, _ in entries}) == len(entries)
    return dict(entries)


def test_install_and_uninstall_leave_the_file_as_it_was(git: GitRepo, clean_environment: Path) -> None:
    """The default is the user's file; twice is once; afterwards every other byte is where it was."""
    file = clean_environment / ".gitconfig"
    with file.open("a") as open_file:
        open_file.write('[filter "lfs"]\n\tclean = git-lfs clean -- %f\n[diff "theta"]\n\txfuncname = mine\n')
    before = file.read_text()
    ok(git, "install")
    once = file.read_text()
    found = configured(git, "global")
    assert found.keys() == KEYS | {"diff.theta.xfuncname"}
    assert found["filter.theta.required"] == "true"
    process = Path(found["filter.theta.process"])
    assert process.is_absolute()
    assert os.access(process, os.X_OK)
    assert not set(str(process)) & set(" '\"$&;|<>()`\\\t\n*?[#~=%")
    assert "already" in ok(git, "install")
    assert file.read_text() == once
    ok(git, "uninstall")
    assert file.read_text() == before
    assert "nothing" in ok(git, "uninstall")


def test_what_was_installed_works_at_once(git: GitRepo) -> None:
    """install, track, add: git stores a pointer and gives the bytes back, also where the PATH has no git-theta."""
    for command in (["install", "--local"], ["track", "*.m"]):
        assert executable(git.path, *command).returncode == 0
    data = model().bytes()
    git.commit("one", **{"a.m": data})
    assert git.blob("a.m").startswith(b'{"theta-pointer":')
    (git.path / "a.m").unlink()
    git("checkout", "--", "a.m")
    assert git.read("a.m") == data


def test_scopes_are_apart(git: GitRepo, clean_environment: Path) -> None:
    """--local writes the repository's file only, --global the user's only; two scopes at once are a usage error."""
    ok(git, "install", "--local")
    assert configured(git, "local").keys() == KEYS
    assert configured(git, "global") == {}
    ok(git, "install", "--global")
    ok(git, "uninstall", "--local")
    assert configured(git, "local") == {}
    assert configured(git, "global").keys() == KEYS
    assert theta(git, "install", "--local", "--global").returncode == 2
    system = clean_environment / "system"
    ok(git, "install", "--system", env={"GIT_CONFIG_SYSTEM": str(system), "GIT_CONFIG_NOSYSTEM": "0"})
    assert "filter" in system.read_text()


def test_old_and_doubled_values_are_put_right(git: GitRepo) -> None:
    """An older installation's values, or a key written twice, are replaced by one value each."""
    for value in ("git-theta-filter clean %f", "other"):
        git("config", "--global", "--add", "filter.theta.clean", value)
    git("config", "--global", "filter.theta.process", "/gone/theta")
    ok(git, "install")
    found = configured(git, "global")
    assert found.keys() == KEYS
    assert found["filter.theta.process"] != "/gone/theta"


def test_outside_of_a_repository(short_dir: Path) -> None:
    """--global needs no repository; --local without one fails with git's words and writes nothing."""
    ok(short_dir, "install")
    done = theta(short_dir, "install", "--local")
    assert done.returncode == 1
    assert b"git repository" in done.stderr
    assert list(short_dir.iterdir()) == []


def test_no_home(short_dir: Path, git: GitRepo) -> None:
    """Without HOME --global says why it cannot, and --local works all the same."""
    for arguments, status in ((["install"], 1), (["install", "--local"], 0)):
        done = executable(git.path, *arguments, env={"LC_ALL": "C"})
        assert done.returncode == status, done.stderr
        assert b"Traceback" not in done.stderr


def test_help_and_usage(git: GitRepo) -> None:
    """Every command has a help that says what the exit statuses mean; nonsense is 2."""
    listing = ok(git, "-h")
    names = "install uninstall track untrack add status ls-files show cat daemon push fetch pull prune fsck migrate"
    for name in names.split():
        assert f"\n  {name} " in listing
    assert "Exit status" in ok(git, "ls-files", "--help")
    for arguments in (["nonsense"], ["show"], ["track", "--nonsense"], ["textconv"], ["merge-driver", "x"]):
        assert theta(git, *arguments).returncode == 2


@pytest.mark.skipif(shutil.which("setpriv") is None or os.geteuid() != 0, reason="needs root and setpriv")
def test_an_environment_that_the_user_cannot_write(git: GitRepo, short_dir: Path) -> None:
    """Where Python's folder belongs to another user, the launcher goes to the user's own data folder."""
    home = short_dir / "home"
    home.mkdir()
    shutil.chown(home, 12345, 12345)
    short_dir.chmod(0o755)
    environment = {"HOME": str(home), "PATH": f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}", "LC_ALL": "C"}
    command = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups", str(SCRIPTS / "git-theta"), "install"]
    done = subprocess.run(command, cwd="/", env=environment, capture_output=True, check=False)
    if b"Permission denied" in done.stderr and done.returncode > 1:
        pytest.skip("the interpreter cannot be reached by another user")
    assert done.returncode == 0, done.stderr
    assert (home / ".local/share/theta-daemon/theta-filter").is_file()
