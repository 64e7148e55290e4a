"""The file that git runs: found by any kernel, moved by no environment, and cheap."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gitrepo import GitRepo
from theta_daemon import launcher
from theta_daemon.errors import ConfigError


def works(git: GitRepo, path: Path, env: dict[str, str] | None = None) -> None:
    """git can run it: a file is added and comes back."""
    git.config("filter.theta.process", launcher.process_command(path))
    git.config("filter.theta.required", "true")
    git.write(".gitattributes", b"*.bin filter=theta -text\n")
    git.write("a.bin", os.urandom(100))
    git("add", "-A", env=env)
    assert git("cat-file", "blob", ":a.bin").startswith(b'{"theta-pointer"')


def test_a_launcher_is_written_and_works(git: GitRepo, short_dir: Path) -> None:
    """Executable, in a folder that is made for it, run without a shell; written again it is the same."""
    path = launcher.write_launcher(short_dir / "a" / "b")
    assert path.is_absolute()
    assert stat.S_IMODE(path.stat().st_mode) == 0o755
    assert path.read_text().startswith(f"#!{sys.executable} -IS\n")
    assert launcher.process_command(path) == str(path)
    works(git, path)
    before = path.read_bytes()
    assert launcher.write_launcher(short_dir / "a" / "b").read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == [launcher.NAME]


def test_a_folder_with_odd_characters(git: GitRepo, short_dir: Path) -> None:
    """Blanks, quotes and dollars in the path: quoted for git's shell, and it works."""
    path = launcher.write_launcher(short_dir / "it's $my folder")
    assert launcher.process_command(path) != str(path)
    works(git, path)


@pytest.mark.parametrize("name", ["with blank", "l" * 140])
def test_an_interpreter_that_no_shebang_can_name(
    git: GitRepo, short_dir: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A blank in the interpreter's path, or one longer than kernels read: a shell starts it."""
    environment = short_dir / name
    (environment / "bin").mkdir(parents=True)
    (environment / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    (environment / "pyvenv.cfg").write_text((Path(sys.prefix) / "pyvenv.cfg").read_text())
    (environment / "lib").symlink_to(Path(sys.prefix) / "lib")
    monkeypatch.setattr(sys, "executable", str(environment / "bin" / "python"))
    path = launcher.write_launcher(short_dir)
    assert path.read_text().startswith("#!/bin/sh\n")
    works(git, path)


@pytest.mark.parametrize("character", ['"', "'", "$", "`", "\\", "\n"])
def test_an_interpreter_that_no_launcher_can_name(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch, character: str
) -> None:
    """Refused, rather than run as something else."""
    monkeypatch.setattr(sys, "executable", f"/opt/a{character}b/python")
    with pytest.raises(ConfigError):
        launcher.write_launcher(short_dir)
    assert list(short_dir.iterdir()) == []


def test_a_place_that_cannot_be_written(short_dir: Path) -> None:
    """An error that names the place, and no half a launcher."""
    (short_dir / "file").touch()
    with pytest.raises(ConfigError, match="file"):
        launcher.write_launcher(short_dir / "file")


def test_modules_in_the_cwd_and_python_settings_are_not_met(git: GitRepo, short_dir: Path) -> None:
    """A cloned repository with a `numpy.py` in it, a PYTHONPATH, a PYTHONHOME: none of it is run."""
    path = launcher.write_launcher(short_dir / "bin")
    for folder in (git.path, short_dir / "elsewhere"):
        for name in ("numpy", "os", "protocol", "theta_daemon", "pygit2", "sitecustomize"):
            (folder / f"{name}.py").parent.mkdir(exist_ok=True)
            (folder / f"{name}.py").write_text("open('/dev/tty-hacked'); raise SystemExit('hacked')\n")
    works(git, path, {"PYTHONPATH": str(short_dir / "elsewhere"), "PYTHONSTARTUP": "x", "PYTHONINSPECT": "1"})


def test_a_launcher_whose_program_is_gone(short_dir: Path) -> None:
    """The package was removed or moved: one line that says so, not a traceback."""
    path = launcher.write_launcher(short_dir)
    lines = path.read_text().split("\n")
    path.write_text("\n".join("sys.path += ['/gone']" if line.startswith("sys.path") else line for line in lines))
    done = subprocess.run([str(path)], capture_output=True, check=False)
    assert done.returncode == 1
    assert b"git theta install" in done.stderr
    assert b"Traceback" not in done.stderr


def test_what_the_client_costs(short_dir: Path) -> None:
    """Nothing is imported on top of the bare interpreter but seven small modules: time is too noisy to assert."""
    path = launcher.write_launcher(short_dir)
    code = f"import sys; before = set(sys.modules); sys.path += {[str(Path(launcher.__file__).parents[1])]!r}\n"
    code += "import theta_daemon.client; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-IS", "-c", code], capture_output=True, check=True)
    assert eval(done.stdout) == [  # noqa: S307
        "_socket",
        "protocol",
        "protocol.control",
        "theta_daemon",
        "theta_daemon.client",
        "theta_daemon.runtime",
    ]
    assert path.exists()
