"""What `git theta install` puts into git's configuration, and takes out of it again.

Everything is by absolute path, so that git finds it whatever the PATH of the one who calls git. `filter.theta.process` is
run for every command that touches a checkpoint: one path without characters of the shell, so that git starts no shell.
`merge.theta.recursive` is git's own `binary`: the made-up ancestor of a criss-cross merge is then a real ancestor's file, so
that a parameter which two ancestors disagree on stays a conflict.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from theta_daemon.cli import git
from theta_daemon.errors import ConfigError, ThetaError
from theta_daemon.hooks import COMMAND_KEY, Hooks

_NO_SHELL = re.compile(r"[A-Za-z0-9_./+:,@-]+")
"""Paths in which git sees no reason to start a shell (run-command.c, prepare_shell_cmd)."""


class Scope(Enum):
    """Which of git's configuration files."""

    LOCAL = "local"
    GLOBAL = "global"
    SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was done to a configuration file: keys that were set or removed, and whether anything changed."""

    scope: Scope
    keys: tuple[str, ...]
    changed: bool
    hook: Path | None = None
    """The pre-push hook of the repository where this was run, if there is one."""


def install(scope: Scope) -> Outcome:
    """Write launcher and configuration; a second time nothing changes. Raises ThetaError."""
    present = _present(scope)
    wanted = _wanted(_launcher(scope))
    stale = {key: value for key, value in wanted.items() if present.get(key) != [value]}
    for key, value in stale.items():
        git.ask("config", f"--{scope.value}", "--replace-all", key, value)
    hooks = hooks_here()
    changed = hooks is not None and hooks.install()
    return Outcome(scope, tuple(wanted), bool(stale) or changed, None if hooks is None else hooks.path)


def uninstall(scope: Scope) -> Outcome:
    """Remove the keys that `install` writes, and no other; the launcher too where it is this repository's own."""
    present = _present(scope)
    keys = tuple(key for key in _wanted("") if key in present)
    for key in keys:
        git.ask("config", f"--{scope.value}", "--unset-all", key)
    if scope is Scope.LOCAL:
        _remove_own_launcher(present.get("filter.theta.process", []))
    hooks = hooks_here()
    elsewhere = git.try_ask("config", "--get", COMMAND_KEY) is not None
    changed = hooks is not None and not elsewhere and hooks.uninstall()
    return Outcome(scope, keys, bool(keys) or changed)


def hooks_here() -> Hooks | None:
    """The folder in which git looks for the hooks of the repository here; None outside of any."""
    folder = git.try_ask("rev-parse", "--git-path", "hooks")
    return None if folder is None else Hooks(Path.cwd() / os.fsdecode(folder.removesuffix(b"\n")))


def _wanted(launcher: str) -> Mapping[str, str]:
    """The configuration: key to value."""
    one_file = _command("git-theta-filter", "theta_daemon.cli.filter_once")
    command = _command("git-theta", "theta_daemon.cli")
    return {
        "filter.theta.process": launcher,
        "filter.theta.clean": f"{_literal(one_file)} clean %f",
        "filter.theta.smudge": f"{_literal(one_file)} smudge %f",
        "filter.theta.required": "true",
        "merge.theta.name": "checkpoints, parameter by parameter",
        "merge.theta.driver": f"{_literal(command)} merge-driver %O %A %B %P",
        "merge.theta.recursive": "binary",
        "diff.theta.textconv": f"{command} textconv",
        COMMAND_KEY: command,
    }


def _present(scope: Scope) -> dict[str, list[str]]:
    """The values of all keys called theta in the scope's file; empty when there is none."""
    pattern = r"^((filter|merge|diff)\.theta\.|theta\.command$)"
    # 1: no key or no file; anything else (no repository, no HOME, bad syntax) is for git to explain
    listing = git.ask("config", f"--{scope.value}", "-z", "--get-regexp", pattern, statuses=(0, 1))
    values: dict[str, list[str]] = {}
    for entry in git.fields(listing):
        key, _, value = entry.partition(b"\n")
        values.setdefault(os.fsdecode(key), []).append(os.fsdecode(value))
    return values


def _launcher(scope: Scope) -> str:
    """The launcher's command for git, written to the first folder that takes it; better one that needs no shell."""
    from theta_daemon.launcher import process_command, write_launcher

    writable: list[Path] = []
    failures: list[str] = []
    for folder in _folders(scope):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if not os.access(folder, os.W_OK):
                raise PermissionError(13, "not writable")
            writable.append(folder)
        except OSError as error:
            failures.append(f"{folder}: {error.strerror}")
            continue
        if _NO_SHELL.fullmatch(str(folder)):
            return process_command(write_launcher(folder))
    if writable:
        return process_command(write_launcher(writable[0]))
    raise ConfigError(
        f"the launcher can be written nowhere ({'; '.join(failures)})", "make one of these folders writable"
    )


def _folders(scope: Scope) -> Iterator[Path]:
    """Where the launcher may live. Beside Python first: it goes when Python goes, and moves with no repository."""
    yield Path(sysconfig.get_path("scripts"))
    if scope is not Scope.SYSTEM:
        data, home = os.environ.get("XDG_DATA_HOME", ""), os.environ.get("HOME", "")
        if data.startswith("/"):
            yield Path(data) / "theta-daemon"
        elif home.startswith("/"):
            yield Path(home) / ".local" / "share" / "theta-daemon"
    if scope is Scope.LOCAL:
        yield _own_folder()


def _own_folder() -> Path:
    common = Path(os.fsdecode(git.ask("rev-parse", "--git-common-dir").removesuffix(b"\n")))
    return Path.cwd() / common / "theta"


def _remove_own_launcher(commands: list[str]) -> None:
    own = _own_folder()
    for command in commands:
        for word in shlex.split(command)[:1]:
            if Path(word).parent == own:
                Path(word).unlink(missing_ok=True)


def _command(script: str, module: str) -> str:
    """A shell command for one of this package's executables, by absolute path."""
    for folder in (Path(sys.argv[0]).absolute().parent, Path(sysconfig.get_path("scripts"))):
        if (folder / script).is_file() and os.access(folder / script, os.X_OK):
            return shlex.quote(str(folder / script))
    if not sys.executable:
        raise ThetaError("the path of the Python interpreter is not known", "run git-theta by its full path")
    # -P: with -m alone Python would import from the cwd, which is a stranger's repository
    return f"{shlex.quote(sys.executable)} -P -m {module}"


def _literal(command: str) -> str:
    """`command` for a value in which git replaces %f and the like."""
    return command.replace("%", "%%")
