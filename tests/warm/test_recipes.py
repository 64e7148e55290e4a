"""The recipes of docs/ci.md, taken from the page and run, so that they cannot rot."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.theta import SCRIPTS
from tests.conftest import GITCONFIG
from tests.warm.machines import Origin, history

TOP = Path(__file__).resolve().parents[2]
PAGE = (TOP / "docs" / "ci.md").read_text()
MODULES = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


@dataclass
class Runner:
    """A CI system as far as the recipes need one: a fresh folder and HOME for each job, and the caches of its repository."""

    top: Path
    url: str
    caches: dict[str, Path] = field(default_factory=dict)
    jobs: int = 0

    def environment(self, home: Path) -> dict[str, str]:
        """What a job sees; pip is a stand-in, as the package is installed already."""
        binaries = home / "bin"
        binaries.mkdir(parents=True)
        (binaries / "pip").write_text("#!/bin/sh\nexit 0\n")
        (binaries / "pip").chmod(0o755)
        (binaries / "python").symlink_to(sys.executable)
        (home / ".gitconfig").write_text(GITCONFIG)
        return {
            "PATH": f"{binaries}{os.pathsep}{SCRIPTS}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "GIT_CONFIG_NOSYSTEM": "1",
            "CI": "true",
            "LC_ALL": "C",
        }

    def github(self, recipe: dict[str, Any]) -> tuple[Path, dict[str, dict[str, str]]]:
        """Run the job's steps in order; the work tree, and the outputs of each step with an id."""
        self.jobs += 1
        home = self.top / f"runner-{self.jobs}"
        work = home / "work" / "repo"
        env = self.environment(home) | {"GITHUB_ACTIONS": "true"}
        outputs: dict[str, dict[str, str]] = {}
        after = []
        (job,) = recipe["jobs"].values()
        for number, step in enumerate(job["steps"]):
            uses = step.get("uses", "")
            if uses.startswith("actions/checkout@"):
                depth = str(step["with"]["fetch-depth"])
                run(["git", "clone", "-q", "--depth", depth, self.url, str(work)], self.top, env)
            elif uses.startswith("actions/cache@"):
                after.append(self.restore(step["with"], home, outputs))
            elif not uses.startswith("actions/setup-python@"):
                file = home / f"output-{number}"
                script = step["run"].replace("python -m pytest", "python -c ''")
                step_env = env | {"GITHUB_OUTPUT": str(file), "GITHUB_STEP_SUMMARY": str(home / "summary")}
                run(["bash", "-e", "-c", script], work, step_env)
                if "id" in step:
                    outputs[step["id"]] = dict(line.split("=", 1) for line in file.read_text().splitlines())
        for key, path in after:
            if key not in self.caches and path.exists():
                self.caches[key] = Path(shutil.copytree(path, self.top / "caches" / key))
        return work, outputs

    def restore(self, options: dict[str, str], home: Path, outputs: dict[str, dict[str, str]]) -> tuple[str, Path]:
        """actions/cache: the folder of that key, else the newest one whose key starts as one of restore-keys says."""

        def value(match: re.Match[str]) -> str:
            return outputs[match[1]][match[2]]

        key = re.sub(r"\$\{\{ steps\.(\w+)\.outputs\.(\w+) \}\}", value, options["key"])
        assert "${{" not in key
        path = Path(options["path"].replace("~", str(home), 1))
        prefixes = [key, *options["restore-keys"].split()]
        found = [name for prefix in prefixes for name in reversed(self.caches) if name.startswith(prefix)]
        if found:
            path.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(self.caches[found[0]], path)
        return key, path


def run(command: list[str], where: Path, env: dict[str, str]) -> str:
    done = subprocess.run(command, cwd=where, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (command, done.stdout, done.stderr)
    return done.stdout


@pytest.fixture
def runner(origin: Origin) -> Runner:
    """A CI system for the origin, in which the script lies as the page says."""
    scripts = origin.repo.path / "scripts"
    scripts.mkdir()
    shutil.copy(TOP / "scripts" / "warm_cache.py", scripts)
    origin.repo("add", "-A")
    origin.repo("commit", "-q", "-m", "script")
    return Runner(origin.top, f"file://{origin.repo.path}")


def test_the_github_recipe(origin: Origin, runner: Runner) -> None:
    """Three jobs on three machines: cold; the same commit again; one commit later. The second fetches nothing, the third
    something; each has the right file, a clean status, and a cache for the next one.
    """
    (recipe,) = [yaml.safe_load(text) for text in MODULES if "actions/cache" in text]
    work, outputs = runner.github(recipe)
    assert (work / "model.st").read_bytes() == origin.versions[-1]
    assert list(runner.caches) == [outputs["theta"]["key"]]
    objects = runner.top / "origin" / ".git" / "lfs" / "objects"
    hidden = objects.rename(objects.with_name("hidden"))
    work, again = runner.github(recipe)
    assert again == outputs
    assert (work / "model.st").read_bytes() == origin.versions[-1]
    assert not list((work / ".git" / "lfs").rglob("*"))
    hidden.rename(objects)
    newer = history(len(origin.versions) + 1)[-1]
    origin.repo.write("model.st", newer)
    origin.repo("commit", "-q", "-am", "newer", env={"THETA_DAEMON": "never"})
    work, third = runner.github(recipe)
    assert third != outputs
    assert (work / "model.st").read_bytes() == newer
    fetched = sum(path.stat().st_size for path in (work / ".git" / "lfs" / "objects").rglob("*") if path.is_file())
    assert 0 < fetched < len(newer)
    assert len(runner.caches) == 2
    assert run(["git", "status", "--porcelain"], work, runner.environment(runner.top / "later")) == ""
    summary = (runner.top / "runner-3" / "summary").read_text()
    assert "1 of 1 checkpoint versions warm" in summary


def test_the_gitlab_recipe(origin: Origin, runner: Runner) -> None:
    """Its script, with the cache folder of the project carried from a first job to a second one that finds no objects."""
    (recipe,) = [yaml.safe_load(text)["model"] for text in MODULES if "GIT_DEPTH" in text]
    (cached,) = recipe["cache"]["paths"]
    for number in (1, 2):
        home = runner.top / f"gitlab-{number}"
        env = runner.environment(home)
        work = home / "builds"
        run(["git", "clone", "-q", "--depth", recipe["variables"]["GIT_DEPTH"], runner.url, str(work)], runner.top, env)
        env["CI_PROJECT_DIR"] = str(work)
        env["THETA_CACHE_DIR"] = recipe["variables"]["THETA_CACHE_DIR"].replace("$CI_PROJECT_DIR", str(work))
        if number == 2:
            shutil.copytree(runner.top / "gitlab-1" / "builds" / cached, work / cached)
            shutil.rmtree(origin.repo.path / ".git" / "lfs")
        for line in recipe["script"]:
            run(["sh", "-e", "-c", line.replace("python -m pytest", "python -c ''")], work, env)
        assert (work / "model.st").read_bytes() == origin.versions[-1]


def test_the_shell_recipe(origin: Origin, runner: Runner) -> None:
    """Any other machine: the page's lines, with a folder of the test's own."""
    first, nightly = [text for text in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if "git theta warm" in text][-2:]
    home = runner.top / "shell"
    env = runner.environment(home) | {"URL": runner.url}
    first = first.replace("/var/cache/theta", str(home / "cache"))
    run(["sh", "-e", "-c", first], home, env)
    assert (home / "work" / "model.st").read_bytes() == origin.versions[-1]
    env["THETA_CACHE_DIR"] = str(home / "cache")
    out = run(["sh", "-e", "-c", nightly], home / "work", env)
    assert f"{len(origin.versions)} of {len(origin.versions)} checkpoint versions" in out
