"""`git theta add` is `git add` with more to say."""

from __future__ import annotations

from tests.cli.theta import ok, theta
from tests.git.models import model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import looks_like_pointer


def test_options_and_paths_reach_git(models: GitRepo) -> None:
    """git's own options, and paths behind `--` that look like options, are git's to understand; so is the exit status."""
    models.write("-n.m", model().bytes())
    models.write("other.m", model().bytes())
    ok(models, "add", "--dry-run", ".")
    assert models.text("ls-files") == ".gitattributes"
    ok(models, "add", "--", "-n.m")
    assert models.text("ls-files").split() == ["-n.m", ".gitattributes"]
    assert looks_like_pointer(models("cat-file", "blob", ":-n.m"))
    assert theta(models, "add", "none.m").returncode == models.run("add", "none.m").returncode != 0
