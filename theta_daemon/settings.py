"""All settings: git configuration, each with an environment override for scripts.

One table (`SETTINGS`) says what there is; the model, the README's table and the messages follow it. Values are spelled as
git spells them: booleans, and sizes with k, m or g. Knows no git: the configuration is handed in as a mapping.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from theta_daemon.errors import ConfigError
from theta_daemon.gitvalues import absolute, parse_boolean, parse_integer

MIB: Final = 1 << 20
GIB: Final = 1 << 30


class DaemonMode(Enum):
    """Whether a resident daemon is used, and started for the next command."""

    AUTO = "auto"
    ALWAYS = "always"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table. `field` is the model's; `parse` raises ValueError."""

    field: str
    key: str
    environment: str
    values: str
    default: str
    meaning: str
    parse: Callable[[str], Any]


class Settings(BaseModel):
    """The settings of one caller. Sizes are bytes."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    daemon: DaemonMode = DaemonMode.AUTO
    idle_seconds: float = Field(default=1800, gt=0)
    tensor_cache: int = Field(default_factory=lambda: default_tensor_cache(), ge=0)  # noqa: PLW0108  (defined below)
    disk_cache: int | None = Field(default=None, ge=0)
    cache_dir: Path | None = None
    cache_compression: bool = False
    workers: int = Field(default=0, ge=0, le=1024)
    max_depth: int = Field(default=16, ge=0, le=1024)
    fsync: bool = True
    remote: str | None = None
    skip_smudge: bool = False
    allow_incomplete_push: bool = False
    theta_urls: Mapping[str, str] = Field(default_factory=dict)

    @classmethod
    def load(cls, config: Mapping[str, Sequence[str]], env: Mapping[str, str], base: Path | None = None) -> Settings:
        """What git's configuration says, the last value of a key winning, and the environment over it.

        `base` is what relative paths are taken from (the top of the work tree, or the caller's cwd); without it they
        are errors. An empty variable is as good as none. Raises ConfigError, naming the key or the variable.
        """
        last = {_plain(key): values[-1] for key, values in config.items() if values}
        found: dict[str, Any] = {}
        for setting in SETTINGS:
            override = env.get(setting.environment)
            name = setting.environment if override else setting.key
            text = override or last.get(_plain(setting.key))
            if text is None:
                continue
            try:
                value = setting.parse(text)
                found[setting.field] = absolute(text, env, base) if isinstance(value, Path) else value
                cls(**{setting.field: found[setting.field]})
            except ValidationError as error:
                raise ConfigError(f"{name}: {text!r}: {error.errors()[0]['msg']}", f"give {setting.values}") from None
            except ValueError as error:
                raise ConfigError(f"{name}: {text!r} {error}", f"give {setting.values}") from None
        found["theta_urls"] = _theta_urls(last)
        return cls(**found)

    @property
    def disk_cache_bytes(self) -> int:
        """The disk cache's budget: nothing until a directory or a size is set."""
        if self.disk_cache is not None:
            return self.disk_cache
        return 0 if self.cache_dir is None else DEFAULT_DISK_CACHE

    def cache_folder(self, env: Mapping[str, str]) -> Path | None:
        """Where this caller's disk cache is or would be: as configured, else in the user's cache folder, if there is one."""
        places = (env.get("XDG_CACHE_HOME", ""), ""), (env.get("HOME", ""), ".cache")
        users = [Path(folder, below, "theta-daemon") for folder, below in places if folder.startswith("/")]
        return self.cache_dir or next(iter(users), None)

    @property
    def worker_count(self) -> int:
        """Threads of the pool."""
        return self.workers or usable_cpus()


DEFAULT_DISK_CACHE: Final = 10 * GIB


def usable_cpus() -> int:
    """The processors this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


@cache
def most_memory_bytes() -> int:
    """More than this no process of this machine can ever hold: its memory and its swap space."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return 8 * total  # swap space that grows as it is needed (macOS)
    return total + 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("SwapTotal:"))


@cache
def memory_bytes() -> int:
    """The memory of this machine, or of this container where that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for file in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(file).read_text()))
        except (OSError, ValueError):
            continue
    return total


def default_tensor_cache() -> int:
    """4 GiB, or a quarter of the memory where that is less."""
    return min(4 * GIB, memory_bytes() // 4)


def settings_table() -> str:
    """The README's table, Markdown."""
    rows = ["| git config | environment | values | default | meaning |", "|---|---|---|---|---|"]
    rows += [f"| `{s.key}` | `{s.environment}` | {s.values} | {s.default} | {s.meaning} |" for s in SETTINGS]
    rows.append("| `remote.NAME.thetaUrl` | | a URL | none | where NAME's objects are, instead of its git-lfs server |")
    return "\n".join(rows) + "\n"


def _daemon_mode(text: str) -> DaemonMode:
    try:
        return DaemonMode(text.lower())
    except ValueError:
        raise ValueError("is not one of auto, always, never") from None


def _theta_urls(last: Mapping[str, str]) -> dict[str, str]:
    urls = {}
    for key, value in last.items():
        if key.startswith("remote.") and key.endswith(".thetaurl") and len(key) > len("remote..thetaurl") and value:
            urls[key[len("remote.") : -len(".thetaurl")]] = value
    return urls


def _plain(key: str) -> str:
    """`key` with section and variable in lower case; what is between them is the user's."""
    section, dot, rest = key.partition(".")
    subsection, inner, variable = rest.rpartition(".")
    return f"{section.lower()}{dot}{subsection}{inner}{variable.lower()}"


_SIZE: Final = "bytes, with k, m or g"
_YES: Final = "true or false"

SETTINGS: Final[tuple[Setting, ...]] = (
    Setting(
        "daemon",
        "theta.daemon",
        "THETA_DAEMON",
        "auto, always or never",
        "auto",
        "whether git's filter runs in the resident daemon; auto starts none where `CI` is set",
        _daemon_mode,
    ),
    Setting(
        "idle_seconds",
        "theta.idleSeconds",
        "THETA_IDLE_SECONDS",
        "seconds",
        "1800",
        "an idle daemon exits after this time",
        float,
    ),
    Setting(
        "tensor_cache",
        "theta.tensorCache",
        "THETA_TENSOR_CACHE",
        _SIZE,
        "4g, or a quarter of the memory",
        "rebuilt parameters kept in the daemon's memory",
        parse_integer,
    ),
    Setting(
        "disk_cache",
        "theta.diskCache",
        "THETA_DISK_CACHE",
        _SIZE,
        "10g where theta.cacheDir is set or `git theta warm` was used, else 0",
        "rebuilt parameters kept on disk",
        parse_integer,
    ),
    Setting(
        "cache_dir",
        "theta.cacheDir",
        "THETA_CACHE_DIR",
        "a directory",
        "`theta-daemon` in `$XDG_CACHE_HOME` or `~/.cache`",
        "where the disk cache is; may be saved and restored between CI jobs",
        Path,
    ),
    Setting(
        "cache_compression",
        "theta.cacheCompression",
        "THETA_CACHE_COMPRESSION",
        _YES,
        "false",
        "whether the disk cache is compressed: smaller to keep and to upload, slower to read",
        parse_boolean,
    ),
    Setting(
        "workers",
        "theta.workers",
        "THETA_WORKERS",
        "a number of threads",
        "one a processor",
        "threads that decode and encode; 0 is the default",
        parse_integer,
    ),
    Setting(
        "max_depth",
        "theta.maxDepth",
        "THETA_MAX_DEPTH",
        "a number from 0 to 1024",
        "16",
        "updates on top of each other before a parameter is stored whole again",
        parse_integer,
    ),
    Setting(
        "fsync",
        "theta.fsync",
        "THETA_FSYNC",
        _YES,
        "true",
        "whether objects are on the disk before git is answered",
        parse_boolean,
    ),
    Setting(
        "remote",
        "theta.remote",
        "THETA_REMOTE",
        "a URL or the name of a git remote",
        "git's own remote, by git-lfs",
        "where objects are fetched from and pushed to",
        str,
    ),
    Setting(
        "skip_smudge",
        "theta.skipSmudge",
        "GIT_THETA_SKIP_SMUDGE",
        _YES,
        "false",
        "leave pointers in the work tree instead of checkpoints",
        parse_boolean,
    ),
    Setting(
        "allow_incomplete_push",
        "theta.allowIncompletePush",
        "THETA_ALLOW_INCOMPLETE_PUSH",
        _YES,
        "false",
        "push pointers although objects that they need are neither here nor at the remote",
        parse_boolean,
    ),
)
