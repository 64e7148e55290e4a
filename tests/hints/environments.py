"""Environments of their own with plug-ins installed, beside the one that the tests run in."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import theta_daemon
from tests.gitrepo import GitRepo

EXAMPLE = Path(__file__).resolve().parent.parent / "plugin_example"

_COMMAND = "import sys; from theta_daemon.cli import main; sys.argv[0] = 'git-theta'; sys.exit(main())"

_BROKEN = """\
[theta_daemon.updates]
unloadable = broken_plugins_missing:Nothing
crashing = broken_plugins:Crashing
delta = broken_plugins:Crashing
[theta_daemon.formats]
unloadable = broken_plugins_missing:Nothing
"""

_BROKEN_MODULE = """\
from theta_daemon.updates.base import Update

class Crashing(Update):
    name = "crashing"
    incremental = False
    automatic = True

    def encode(self, spec, value, previous, hint):
        raise RuntimeError("out of order")

    def open(self, spec, record):
        raise RuntimeError("out of order")
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment on top of this one, and the git configuration that `git theta install` of it writes."""

    python: Path
    config: Path

    @property
    def variables(self) -> dict[str, str]:
        """For git: this environment's filter."""
        return {"GIT_CONFIG_GLOBAL": str(self.config)}

    def theta(self, repo: GitRepo, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """`git theta ARGUMENTS` of this environment."""
        env = {**os.environ, **repo.env, **self.variables}
        command = [str(self.python), "-c", _COMMAND, *arguments]
        return subprocess.run(command, cwd=repo.path, env=env, capture_output=True, check=False, timeout=120)


def make(folder: Path, git_config: str) -> Environment:
    """With nothing but theta-daemon itself."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    python = folder / "venv" / "bin" / "python"
    root = Path(theta_daemon.__file__).resolve().parent.parent
    outer = [str(root), *(path for path in sys.path if path.endswith("site-packages"))]
    _packages(python).joinpath("outer.pth").write_text("\n".join([*outer, ""]))
    home = folder / "home"
    home.mkdir()
    (home / ".gitconfig").write_text(git_config)
    env = {"HOME": str(home), "PATH": os.environ["PATH"], "LC_ALL": "C"}
    subprocess.run([python, "-c", _COMMAND, "install"], env=env, check=True, capture_output=True)
    return Environment(python, home / ".gitconfig")


def install_example(environment: Environment, folder: Path) -> None:
    """As its author's users would: pip builds and installs it, here without a network."""
    source = shutil.copytree(EXAMPLE, folder / "source")
    pip = [sys.executable, "-m", "pip", "--quiet", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--target", _packages(environment.python), source], check=True, capture_output=True)


def install_broken(environment: Environment) -> None:
    """A package whose update types cannot be loaded, fail when used, or take a built-in's name."""
    packages = _packages(environment.python)
    (packages / "broken_plugins.py").write_text(_BROKEN_MODULE)
    metadata = packages / "broken_package-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: broken-package\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(_BROKEN)


def _packages(python: Path) -> Path:
    (found,) = (python.parent.parent / "lib").glob("python3.*/site-packages")
    return found
