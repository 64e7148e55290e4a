"""Sees to it that a repository in which checkpoints are added has the pre-push hook: a clone has none of its own accord."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from theta_daemon.errors import ThetaError
from theta_daemon.gitvalues import absolute
from theta_daemon.history.repository import Repository
from theta_daemon.hooks import COMMAND_KEY, Hooks


def hooks(repository: Repository) -> Hooks:
    """The folder in which git looks for this repository's hooks (core.hooksPath, from the top of the work tree)."""
    configured = repository.setting("core.hookspath")
    folder = absolute(configured, repository.invocation.env, repository.top) if configured else None
    return Hooks(folder or repository.common_dir / "hooks")


def ensure(repository: Repository, report: Callable[[str], None]) -> None:
    """Put the hook in place where the user has installed us and where the folder is the repository's own.

    In a folder that is tracked or shared nothing is written unasked; a missing hook is worth a word.
    """
    if repository.setting(COMMAND_KEY) is None:
        return
    try:
        found = hooks(repository)
        if found.installed():
            return
        if _within(found.folder, repository.common_dir):
            found.install()
            return
        reason = f"{found.folder} is not this repository's own folder"
    except (ThetaError, ValueError) as error:
        reason = error.message if isinstance(error, ThetaError) else f"core.hooksPath {error}"
    report(
        f"the pre-push hook is missing, `git push` would leave the objects of checkpoints behind ({reason})\n"
        "  remedy: `git theta install` writes it, `git theta push` does its work by hand"
    )


def _within(folder: Path, parent: Path) -> bool:
    return folder.resolve().is_relative_to(parent.resolve())
