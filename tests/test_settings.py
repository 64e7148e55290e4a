"""Settings: git's spelling, the environment over it, and errors that name the key."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.gitrepo import GitRepo
from theta_daemon.errors import ConfigError
from theta_daemon.gitvalues import parse_boolean, parse_integer
from theta_daemon.history.git import read_config
from theta_daemon.invocation import Invocation
from theta_daemon.settings import SETTINGS, DaemonMode, Settings, default_tensor_cache, memory_bytes, settings_table


def test_defaults() -> None:
    """Without configuration: the daemon when there is one, half an hour, no disk cache, depth 16, fsync."""
    settings = Settings.load({}, {})
    assert settings.daemon is DaemonMode.AUTO
    assert settings.idle_seconds == 1800
    assert settings.tensor_cache == default_tensor_cache() == min(4 << 30, memory_bytes() // 4)
    assert settings.disk_cache_bytes == 0
    assert (settings.max_depth, settings.fsync, settings.skip_smudge) == (16, True, False)
    assert settings.worker_count >= 1
    assert settings == Settings()


def test_git_configuration_is_understood() -> None:
    """Keys in any case, sizes with units, the last value of several, thetaUrl by remote (whose name keeps its case)."""
    settings = Settings.load(
        {
            "theta.daemon": ["never", "Always"],
            "THETA.tensorcache": ["1", "512M"],
            "theta.diskCache": ["2g"],
            "theta.idleSeconds": ["2.5"],
            "theta.workers": ["3"],
            "theta.fsync": ["off"],
            "theta.cachedir": ["~/cache"],
            "theta.remote": ["s3://bucket/path"],
            "remote.My.Fork.thetaurl": ["gs://a/b"],
            "remote.thetaurl": ["no remote's"],
            "theta.unknown": ["x"],
        },
        {"HOME": "/home/x"},
    )
    assert settings.daemon is DaemonMode.ALWAYS
    assert (settings.tensor_cache, settings.disk_cache_bytes) == (512 << 20, 2 << 30)
    assert (settings.idle_seconds, settings.workers, settings.worker_count) == (2.5, 3, 3)
    assert settings.fsync is False
    assert settings.cache_dir == Path("/home/x/cache")
    assert settings.remote == "s3://bucket/path"
    assert settings.theta_urls == {"My.Fork": "gs://a/b"}


def test_the_environment_wins() -> None:
    """Each setting has a variable that overrides git's configuration; an empty one does not."""
    config = {setting.key: ["never" if setting.field == "daemon" else "1"] for setting in SETTINGS}
    config["theta.cacheDir"] = ["/from/git"]
    values = {
        "daemon": ("auto", DaemonMode.AUTO),
        "idle_seconds": ("7", 7.0),
        "tensor_cache": ("8k", 8192),
        "disk_cache": ("0", 0),
        "cache_dir": ("/from/env", Path("/from/env")),
        "cache_compression": ("no", False),
        "workers": ("9", 9),
        "max_depth": ("0", 0),
        "fsync": ("no", False),
        "remote": ("other", "other"),
        "skip_smudge": ("false", False),
        "allow_incomplete_push": ("no", False),
    }
    assert values.keys() == {setting.field for setting in SETTINGS}
    env = {setting.environment: values[setting.field][0] for setting in SETTINGS}
    overridden = Settings.load(config, env)
    empty = Settings.load(config, dict.fromkeys(env, ""))
    for field, (_, value) in values.items():
        assert getattr(overridden, field) == value
        assert getattr(empty, field) != value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("theta.daemon", "sometimes"),
        ("theta.idleSeconds", "soon"),
        ("theta.idleSeconds", "0"),
        ("theta.idleSeconds", "nan"),
        ("theta.tensorCache", "-1"),
        ("theta.tensorCache", "4 GiB"),
        ("theta.tensorCache", "9999999999g"),
        ("theta.diskCache", "big"),
        ("theta.cacheDir", "relative"),
        ("theta.cacheDir", "~/x"),
        ("theta.workers", "-2"),
        ("theta.maxDepth", "1025"),
        ("theta.fsync", "maybe"),
        ("theta.skipSmudge", "tru"),
    ],
)
def test_a_value_that_is_not_understood_names_its_key(key: str, value: str) -> None:
    """The error names the key, or the variable when that was the source, the value, and what may stand there."""
    setting = next(setting for setting in SETTINGS if setting.key == key)
    with pytest.raises(ConfigError) as error:
        Settings.load({key: [value]}, {})
    assert error.value.message.startswith(f"{key}: {value!r}")
    assert error.value.hint == f"give {setting.values}"
    with pytest.raises(ConfigError) as error:
        Settings.load({}, {setting.environment: value})
    assert error.value.message.startswith(f"{setting.environment}: {value!r}")


def test_paths() -> None:
    """A relative cache directory is taken from the base; a disk cache directory alone switches the disk cache on."""
    settings = Settings.load({"theta.cacheDir": [".cache/theta"]}, {}, Path("/repo"))
    assert settings.cache_dir == Path("/repo/.cache/theta")
    assert settings.disk_cache_bytes == 10 << 30
    assert Settings.load({"theta.cacheDir": [""]}, {}).cache_dir is None


def test_spelling_is_gits(git: GitRepo) -> None:
    """Booleans and integers are read, or refused, as `git config --type` does."""
    texts = [
        "true",
        "YES",
        "On",
        "1",
        "-1",
        "false",
        "No",
        "oFF",
        "0",
        "",
        "k",
        "2k",
        "2K",
        "-3m",
        "1g",
        "1t",
        "0x10",
        "1 k",
        "a",
        "00",
        "+5",
    ]
    for text in texts:
        git.config("x.y", text)
        for kind, ours in (("bool", parse_boolean), ("int", parse_integer)):
            done = git.run("config", "--type", kind, "x.y")
            try:
                mine: str | None = str(ours(text)).lower()
            except ValueError:
                mine = None
            if text in ("0x10", "+5", "") and mine is None:
                continue  # git reads what C's strtol does; refused here
            assert mine == (done.stdout.decode().strip() if done.returncode == 0 else None), (kind, text)


@given(st.text())
def test_no_text_does_harm(text: str) -> None:
    """Any text is a value or a ValueError."""
    for parse in (parse_boolean, parse_integer):
        try:
            parse(text)
        except ValueError:
            continue


def test_settings_from_real_configuration(git: GitRepo) -> None:
    """What `git config` writes, `-c` passes and a bare key says arrives."""
    git.config("theta.maxDepth", "4")
    with (git.path / ".git" / "config").open("a") as file:
        file.write("[theta]\n\tskipSmudge\n")
    env = {**os.environ, "GIT_CONFIG_PARAMETERS": "'theta.workers'='2'"}
    settings = Settings.load(read_config(Invocation(git.path, env, 0o022, os.getuid())), env)
    assert (settings.max_depth, settings.skip_smudge, settings.workers) == (4, True, 2)
    assert settings.daemon is DaemonMode.NEVER


def test_broken_configuration_is_an_error_in_gits_words(git: GitRepo) -> None:
    """A configuration file that git cannot read is a ConfigError with git's line."""
    with (git.path / ".git" / "config").open("a") as file:
        file.write("[theta\n")
    with pytest.raises(ConfigError, match="bad config"):
        read_config(Invocation(git.path, dict(os.environ), 0o022, os.getuid()))


def test_the_table_has_every_setting() -> None:
    """One line a setting, for the README."""
    table = settings_table()
    assert all(f"| `{setting.key}` | `{setting.environment}` |" in table for setting in SETTINGS)
    assert len(table.splitlines()) == len(SETTINGS) + 3
    assert {setting.field for setting in SETTINGS} | {"theta_urls"} == set(Settings.model_fields)


def test_the_readme_has_the_table() -> None:
    """The README's table is the one the code makes."""
    readme = Path(__file__).resolve().parents[1] / "README.md"
    assert settings_table() in readme.read_text()
