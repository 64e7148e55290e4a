"""A site for each test: its own runtime directory, repository and launcher."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.daemons import end
from tests.gitrepo import GitRepo
from tests.server import site as sites
from tests.server.site import Site


@pytest.fixture
def site(runtime_dir: Path, short_dir: Path, git: GitRepo) -> Iterator[Site]:
    """A repository whose filter is the real client in front of the stand-in, and no daemon yet.

    A test may change the environment: what it was comes back.
    """
    before = dict(os.environ)
    made = Site.make(short_dir, git)
    yield made
    end(made.daemons())
    sites.reap()
    os.environ.clear()
    os.environ.update(before)
