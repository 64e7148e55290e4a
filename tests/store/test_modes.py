"""Modes are git's: compared with what the real git does under the same umask and the same core.sharedRepository."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from theta_daemon.errors import ConfigError
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.modes import SharedMode

SETTINGS = [
    None,
    "umask",
    "group",
    "all",
    "world",
    "true",
    "false",
    "1",
    "2",
    "0",
    "0640",
    "0660",
    "0664",
    "0600",
    "0777",
]


def real_git(folder: Path, umask: int, setting: str | None) -> tuple[int, int]:
    """Modes of an object folder and of the index that git itself creates."""
    # In a child: the umask belongs to a whole process.
    script = f'umask {umask:03o}; git init -q . && echo x > f && {{ [ -z "$S" ] || git config core.sharedRepository $S; }} && git add f'
    subprocess.run(["sh", "-ec", script], cwd=folder, env={**os.environ, "S": setting or ""}, check=True)
    database = folder / ".git" / "objects"
    fan_out = next(path for path in database.iterdir() if len(path.name) == 2)
    return mode(fan_out), mode(folder / ".git" / "index")


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o022, 0o002, 0o077, 0o027])
@pytest.mark.parametrize("setting", SETTINGS)
def test_objects_and_folders_have_the_modes_that_git_gives(tmp_path: Path, umask: int, setting: str | None) -> None:
    """For each umask and core.sharedRepository our folders have the mode of git's, and our files that of its index."""
    folder = tmp_path / "git"
    folder.mkdir()
    expected = real_git(folder, umask, setting)
    store = LfsStore(tmp_path / "own" / "lfs" / "objects", umask=umask, shared=SharedMode.parse(setting))
    writer = store.writer()
    writer.write(b"x")
    path = store.path(writer.commit()[0])
    assert (oct(mode(path.parent)), oct(mode(path))) == (oct(expected[0]), oct(expected[1]))
    assert mode(path.parent.parent) == mode(store.root) == mode(path.parent)


def test_the_umask_of_this_process_means_nothing(tmp_path: Path) -> None:
    """The daemon's own umask has no influence: under 077 a caller's 022 still gives a readable object."""
    before = os.umask(0o077)
    try:
        store = LfsStore(tmp_path / "objects", umask=0o022)
        writer = store.writer()
        writer.write(b"x")
        path = store.path(writer.commit()[0])
    finally:
        os.umask(before)
    assert (mode(path), mode(path.parent)) == (0o644, 0o755)


def test_a_temporary_file_is_private(tmp_path: Path) -> None:
    """Until it has its name an object can be read by its owner alone, whatever the settings say."""
    store = LfsStore(tmp_path / "lfs" / "objects", umask=0, shared=SharedMode.parse("all"))
    writer = store.writer()
    writer.write(b"x")
    assert [mode(path) for path in (tmp_path / "lfs" / "tmp").iterdir()] == [0o600]
    writer.abort()


@pytest.mark.parametrize("setting", ["0440", "0044", "nonsense", "-1", "99"])
def test_settings_that_git_refuses_are_refused(setting: str) -> None:
    """A mode in which the owner cannot read and write, or no mode at all, is a ConfigError that names the key."""
    with pytest.raises(ConfigError, match=r"core\.sharedRepository"):
        SharedMode.parse(setting)
