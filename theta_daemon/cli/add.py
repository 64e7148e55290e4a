"""`git theta add`: `git add`, with hints about how parameters shall be stored, or what they shall become."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from theta_daemon.cli.exits import USAGE, complain
from theta_daemon.errors import HintError

_EVERYTHING = {"-A", "--all", "-u", "--update", "--renormalize", "--no-ignore-removal"}
_NAMED = 5


def add(
    arguments: Annotated[list[str] | None, typer.Argument(metavar="[GIT-ADD-ARGUMENT]...")] = None,
    *,
    update_type: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE",
            help="Store changed parameters by this type where it is exact: dense, constant, sparse, delta, low-rank, ia3, "
            "random, or that of an installed plug-in.",
        ),
    ] = None,
    update_data: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Arrays named PARAMETER/R, /C, /ia3, /data, …; or a PEFT adapter (file or folder)."
        ),
    ] = None,
    rank: Annotated[int | None, typer.Option(metavar="N", min=1, help="Find low-rank factors of this rank.")] = None,
    update_options: Annotated[str | None, typer.Option(metavar="JSON", help="Further options of the type.")] = None,
    hints: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Rules (TOML or JSON): types by patterns of parameter names.")
    ] = None,
) -> int:
    """Add files as `git add` does, with all its options; the exit status is git's.

    Hints say how changed parameters shall be stored; what they cannot hold exactly is stored otherwise, with a message.
    Where a checkpoint is still what HEAD has, data defines its new values: the file is rewritten, then added.
    """
    given = list(arguments or [])
    if (update_type, update_data, rank, update_options, hints) == (None,) * 5:
        return subprocess.run(["git", "add", *given], check=False).returncode
    if update_type is None and (update_data, rank, update_options) != (None, None, None):
        complain("--update-data, --rank and --update-options need --update-type")
        return USAGE
    env = _environment(update_type, update_data, rank, update_options, hints)
    end = given.index("--") if "--" in given else len(given)
    pathspecs = [argument for argument in given[:end] if not argument.startswith("-")] + given[end + 1 :]
    if not pathspecs and not _EVERYTHING & set(given):
        complain("name the files that the hints are for")
        return USAGE
    return _hinted(given, pathspecs or [":/"], env)


def _environment(
    update_type: str | None, data: Path | None, rank: int | None, options: str | None, hints: Path | None
) -> dict[str, str]:
    """The hints as the filter reads them. Paths are absolute: git changes to the top of the work tree."""
    import json

    from theta_daemon.filters import hints as names

    env: dict[str, str] = {}
    if update_type is not None:
        env[names.TYPE] = update_type
    if data is not None:
        env[names.DATA] = str(data.absolute())
    if hints is not None:
        env[names.HINTS] = str(hints.absolute())
    if rank is not None:
        try:
            found = json.loads(options or "{}")
            options = json.dumps({**found, "rank": rank})
        except (ValueError, TypeError) as error:
            raise HintError(f"--update-options: {error}", "give a JSON object") from error
    if options is not None:
        env[names.OPTIONS] = options
    return env


def _hinted(given: Sequence[str], pathspecs: Sequence[str], env: dict[str, str]) -> int:
    from theta_daemon.cli import git
    from theta_daemon.cli.filtering import filtering
    from theta_daemon.cli.rewrite import Rewrite

    top = git.top_level()
    with filtering(env=env) as one:
        hints = one.workspace.hints()  # what is wrong with them is said before anything is touched
        with Rewrite(one.workspace, top) as rewrite:
            paths = _checkpoints(pathspecs)
            if not paths:
                raise HintError(
                    f"no checkpoint is called {' or '.join(pathspecs)}: hints would have no effect",
                    "see `git theta track`",
                )
            rewrite.make(paths)
            _check_names(hints.unused(rewrite.names), hints.unused([]))
            if not {"-n", "--dry-run"} & set(given):
                rewrite.place()
            status = subprocess.run(["git", "add", *given], check=False, env={**os.environ, **env}).returncode
            if status == 0:
                rewrite.keep()
    return status


def _checkpoints(pathspecs: Sequence[str]) -> list[bytes]:
    """The files with the filter that the pathspecs name, from the top of the work tree."""
    from theta_daemon.cli import git

    listed = git.ask("ls-files", "-z", "--full-name", "--cached", "--others", "--exclude-standard", "--", *pathspecs)
    paths = list(dict.fromkeys(git.fields(listed)))
    return [path for path, _, value in git.attributes(paths, "filter") if value == "theta"]


def _check_names(unused: Sequence[str], all_names: Sequence[str]) -> None:
    """Data for parameters that there are not is a mistake: all of it an error, some of it worth a word."""
    if not unused:
        return
    named = ", ".join(unused[:_NAMED]) + (f" and {len(unused) - _NAMED} more" if len(unused) > _NAMED else "")
    if len(unused) == len(all_names):
        raise HintError(
            f"no checkpoint has a parameter that the update data is for: {named}",
            "name arrays PARAMETER/KEY as in `git theta show`; a rule's `prefix` stands before the data's names",
        )
    complain(f"no checkpoint has these parameters of the update data: {named}")
