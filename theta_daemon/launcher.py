"""The file that git runs: `filter.theta.process` names it.

It starts the interpreter of this environment as bare as it goes (`-I -S`: nothing of the caller's Python settings, no site
packages, no `.pth` files) and runs the thin client. An edge; called at install time.
"""

from __future__ import annotations

import os
import re
import shlex
import site
import sys
import tempfile
from pathlib import Path
from typing import Final

import protocol
import theta_daemon
from theta_daemon.errors import ConfigError

NAME: Final = "theta-filter"

SHEBANG_BYTES: Final = 127
"""The longest first line that every supported kernel reads (BINPRM_BUF_SIZE was 128 before Linux 5.1; macOS has 512)."""

_PLAIN: Final = re.compile(r"[A-Za-z0-9_./+@%,:=-]+")
"""What neither git, which looks for a shell's metacharacters (run-command.c), nor a shell gives a meaning."""

_TEXT: Final = """\
# Written by `git theta install`; it is written anew by the next one.
import sys

sys.path += {roots!r}
try:
    from theta_daemon.client import main
except ImportError:
    sys.exit("theta-daemon is not installed in {roots} any more; run `git theta install` again, or `git theta uninstall`")
main({python!r}, {flags!r})
"""


def interpreter_flags() -> list[str]:
    """How a full interpreter of this environment is started from anybody's cwd and environment.

    -E: no PYTHONPATH of the first caller for all callers; -P: no module from the cwd, which is a stranger's repository.
    """
    user_site = site.getusersitepackages() if site.ENABLE_USER_SITE else None
    needs_user_site = user_site is not None and str(_root(theta_daemon.__file__)).startswith(user_site)
    return ["-E", "-P"] if needs_user_site else ["-E", "-P", "-s"]


def write_launcher(directory: Path) -> Path:
    """Write the launcher into `directory`, which is made where missing; its absolute path. Raises ConfigError.

    The file is replaced in one step, so that a git that starts meanwhile finds the old one or the new one.
    """
    path = directory.absolute() / NAME
    roots = sorted({str(_root(theta_daemon.__file__)), str(_root(protocol.__file__))})
    text = _first_line(sys.executable) + _TEXT.format(roots=roots, python=sys.executable, flags=interpreter_flags())
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(prefix=f".{NAME}.", dir=path.parent)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
                file.write(text)
                os.fchmod(file.fileno(), 0o755)
            Path(temporary).replace(path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigError(
            f"the launcher cannot be written to {path}: {error.strerror}", "choose another place"
        ) from error
    return path


def process_command(launcher: Path) -> str:
    """What `filter.theta.process` has to say: the path, quoted for a shell only where it must be (a shell costs time)."""
    text = str(launcher)
    return text if _PLAIN.fullmatch(text) else shlex.quote(text)


def _first_line(python: str) -> str:
    plain = f"#!{python} -IS\n"
    if _PLAIN.fullmatch(python) and len(os.fsencode(plain)) <= SHEBANG_BYTES:
        return plain
    if re.search(r"[\"'\\$`\n]", python):
        raise ConfigError(f"the interpreter's path {python!r} has characters that no launcher can hold", "move it")
    # To sh the second line is a command, to Python it is the start of a string that ends in the third.
    return f"#!/bin/sh\n'''exec' \"{python}\" -IS \"$0\" \"$@\"\n' '''\n"


def _root(file: str | None) -> Path:
    return Path(str(file)).absolute().parent.parent
