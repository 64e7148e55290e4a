"""The pre-push hook, beside the user's own: what was there runs first, and then the objects of what is pushed go along.

A hook that was there before is moved aside, whatever it is written in, and gets the same arguments and the same lines on
stdin; its failure is the push's. git-lfs, which silently does without its hook where there is another, is run where the
repository uses it. Ours asks git's configuration (`theta.command`) for the program, so that a moved
environment needs one `git theta install` and not one a repository. Ground layer: knows a folder, no git.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from theta_daemon.errors import ConfigError

NAME: Final = "pre-push"
ASIDE: Final = "pre-push.before-theta"
COMMAND_KEY: Final = "theta.command"
"""The configuration that holds the shell command for `git-theta`."""

MARK: Final = b"# git theta pre-push hook"

_SCRIPT: Final = (
    b"""\
#!/bin/sh
"""
    + MARK
    + b""": a push brings the objects of checkpoints along.
# Written by `git theta install`, removed by `git theta uninstall`. The hook that was here before is beside it,
# pre-push.before-theta, and runs first.
lines=$(cat; printf x)
lines=${lines%x}
push="$1 $2 $lines"
if [ "$THETA_PRE_PUSH" = "$push" ]; then
	exit 0 # run by the one that was moved aside, which took us for the hook before it
fi
before="${0%/*}/pre-push.before-theta"
if [ -x "$before" ]; then
	printf %s "$lines" | THETA_PRE_PUSH="$push" "$before" "$@" || exit
elif [ -n "$(git config --get lfs.repositoryformatversion)" ] && command -v git-lfs >/dev/null 2>&1; then
	printf %s "$lines" | git lfs pre-push "$@" || exit # git-lfs writes no hook of its own where there is one
fi
theta=$(git config --get theta.command) || theta=git-theta
printf %s "$lines" | eval "$theta pre-push \\"\\$@\\""
status=$?
if [ "$status" -ge 126 ]; then
	echo >&2 "git-theta cannot be started, so the objects of checkpoints would stay behind: run 'git theta install',"
	echo >&2 "or delete $0 if no checkpoint is pushed here any more."
fi
exit "$status"
"""
)


@dataclass(frozen=True, slots=True)
class Hooks:
    """A folder of hooks."""

    folder: Path

    @property
    def path(self) -> Path:
        return self.folder / NAME

    @property
    def aside(self) -> Path:
        """The user's own hook, moved aside."""
        return self.folder / ASIDE

    def installed(self) -> bool:
        """Whether ours is in place, in whatever version."""
        return MARK in _head(self.path)

    def install(self) -> bool:
        """Put ours in place; whether anything changed. Raises ConfigError, and then nothing has."""
        try:
            if self.path.is_file() and self.path.read_bytes() == _SCRIPT and os.access(self.path, os.X_OK):
                return False
            self.folder.mkdir(parents=True, exist_ok=True)
            if not self.installed() and (self.path.exists() or self.path.is_symlink()):
                self._move_aside()
            self._write()
        except OSError as error:
            raise ConfigError(f"the hook {self.path} cannot be written: {error.strerror}") from error
        return True

    def uninstall(self) -> bool:
        """Take ours away and put the user's own back; whether anything changed. Raises ConfigError."""
        try:
            if not self.installed():
                return False
            if self.aside.exists() or self.aside.is_symlink():
                self.aside.replace(self.path)
            else:
                self.path.unlink()
        except OSError as error:
            raise ConfigError(f"the hook {self.path} cannot be removed: {error.strerror}") from error
        return True

    def _move_aside(self) -> None:
        if self.aside.exists() or self.aside.is_symlink():
            raise ConfigError(
                f"there is a hook {self.path} and an older one {self.aside}: one of them is in the way",
                f"make one of the two, and remove {self.aside}",
            )
        # A link first: at no moment is there no hook.
        try:
            os.link(self.path, self.aside, follow_symlinks=False)
        except OSError:
            self.path.rename(self.aside)

    def _write(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f".{NAME}.", dir=self.folder)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(_SCRIPT)
                os.fchmod(file.fileno(), 0o777 & (self.folder.stat().st_mode | 0o700) & ~0o022)
            Path(name).replace(self.path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(256)
    except OSError:
        return b""
