"""Repositories that push to, and clone from, real remotes on loopback."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cli.theta import SCRIPTS
from tests.gitrepo import GitRepo
from tests.remotes.sites import KINDS, Site, site_of


@pytest.fixture
def here(installed: None, shared_daemon: psutil.Process, git: GitRepo, monkeypatch: pytest.MonkeyPatch) -> GitRepo:
    """A repository where *.m are checkpoints; `git theta` is on the PATH, as the hook needs it."""
    monkeypatch.setenv("PATH", f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}")
    git.commit("attributes", **{".gitattributes": b"*.m filter=theta diff=theta merge=theta -text\n"})
    return git


@pytest.fixture(params=KINDS)
def site(request: pytest.FixtureRequest, here: GitRepo, forgetful: dict[str, str]) -> Iterator[Site]:
    """`here` has an empty remote `origin` of each kind."""
    with site_of(request.param, here, forgetful) as found:
        yield found


@pytest.fixture
def local(here: GitRepo, forgetful: dict[str, str]) -> Iterator[Site]:
    """`here` has an empty bare repository beside it as `origin`."""
    with site_of("path", here, forgetful) as found:
        yield found


@pytest.fixture
def bare(local: Site) -> Path:
    """The bare repository of `local`."""
    return local.bare
