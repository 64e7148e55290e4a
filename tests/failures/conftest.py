"""The fixtures of tests/git: a repository whose files are checkpoints, with a daemon and without one."""

from __future__ import annotations

from tests.git.conftest import daemon_dir, either, git_configuration, installed, repo, shared_daemon

__all__ = ["daemon_dir", "either", "git_configuration", "installed", "repo", "shared_daemon"]
