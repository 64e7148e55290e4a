"""What every test stands on: a clean environment and real git in short temporary folders."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.daemons import no_daemon_is_left, runtime_dir
from tests.gitrepo import GitRepo
from tests.serving import daemon_dir, forgetful, forgetful_dir, git_configuration, installed, shared_daemon

__all__ = [
    "daemon_dir",
    "forgetful",
    "forgetful_dir",
    "git_configuration",
    "installed",
    "no_daemon_is_left",
    "runtime_dir",
    "shared_daemon",
]  # fixtures, for every folder below

settings.register_profile("suite", deadline=None, max_examples=60)  # shared machines have no steady clock
settings.load_profile("suite")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # So a shell starts what runs in its background, and git would inherit it: tests of Ctrl-C need an ear for it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

GITCONFIG = """\
[user]
	name = Test
	email = test@example.invalid
[init]
	defaultBranch = main
[core]
	autocrlf = false
	fsync = none
[gc]
	auto = 0
[advice]
	detachedHead = false
[protocol "file"]
	allow = always
[theta]
	fsync = false
"""
"""No waiting for disks: that what is written survives a power cut is not to be seen here. tests/failures and the store's own
tests do wait.
"""


SLOW = (
    "tests/git/test_bytes.py::test_every_kind_of_file[never]",
    "tests/git/test_merge.py::test_parameters_of_both_sides[never]",
    "tests/remotes/test_travel.py::test_a_clone_over_a_connection_that_breaks[s3-retried]",
    "tests/warm/test_checkout.py::test_any_warmed_revision_is_there_whatever_its_depth",
    "tests/warm/test_command.py::test_the_key",
    "tests/warm/test_command.py::test_where_the_cache_is",
)
"""What took over half a minute on a loaded machine and has a quicker sibling: run by `scripts/test --all`."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the slow ones."""
    for item in items:
        if item.nodeid in SLOW:
            item.add_marker(pytest.mark.slow)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """An empty folder right under /tmp, removed afterwards. Sockets need paths shorter than `tmp_path` gives."""
    path = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """No GIT_* or THETA_* variable, a HOME of its own, no system configuration, no daemon unless a test asks for one."""
    home = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))
    (home / ".gitconfig").write_text(GITCONFIG)
    for name in list(os.environ):
        if name.startswith(("GIT_", "THETA_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    monkeypatch.setenv("LC_ALL", "C")
    monkeypatch.setenv("THETA_DAEMON", "never")
    yield home
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def git(short_dir: Path) -> GitRepo:
    """An empty repository with a work tree. Its folder's parent is private to the test: clones may go beside it."""
    path = short_dir / "repo"
    path.mkdir()
    repo = GitRepo(path)
    repo("init", "-q")
    return repo
