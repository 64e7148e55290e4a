"""`git theta prune`: objects that nothing needs any more."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Final

import typer

from theta_daemon.cli.exits import DONE, USAGE, complain
from theta_daemon.cli.output import say, say_json, size

_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def prune(
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would go.")] = False,
    verify_remote: Annotated[
        bool, typer.Option("--verify-remote", help="Only what the remote has; a git-lfs server gets what it lacks.")
    ] = False,
    remote: Annotated[str | None, typer.Option(metavar="NAME", help="The remote to verify with.")] = None,
    grace: Annotated[
        str, typer.Option(metavar="TIME", help="Keep what is younger: a number and s, m, h, d or w.")
    ] = "2w",
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> int:
    """Remove objects that no checkpoint needs which refs, reflogs, the stash, or a work tree's index or HEAD can reach.

    Only our own packs are removed, never what git-lfs keeps in the same folder. Do not prune what others borrow from
    (`git clone --shared`), as with git's own objects.
    """
    from theta_daemon.cli.caller import STDERR, caller
    from theta_daemon.cli.progress import Counted
    from theta_daemon.depot import Depot
    from theta_daemon.upkeep.prune import Prune

    seconds = _seconds(grace)
    if seconds is None:
        complain(f"--grace: {grace!r} is not a time, such as 2w, 36h or 0s")
        return USAGE
    verify = (remote or "") if verify_remote or remote is not None else None
    with Depot.open(caller(), STDERR) as depot, Counted(STDERR, "Looking at") as progress:
        done = Prune(depot, progress).run(grace_seconds=seconds, dry_run=dry_run, verify=verify)
    if json:
        say_json(
            {
                "kept": dict(done.kept),
                "young": dict(done.young),
                "removed": dict(done.removed),
                "unverified": dict(done.unverified),
                "dry_run": dry_run,
            }
        )
        return DONE
    verb = "would be removed" if dry_run else "removed"
    say(
        f"{_told(done.removed)} {verb}; {_told(done.kept)} needed, {_told(done.young)} too young"
        + (f", {_told(done.unverified)} not at the remote" if done.unverified else "")
    )
    return DONE


def _told(objects: Mapping[str, int]) -> str:
    nbytes = sum(objects.values())
    return f"{len(objects)} objects ({size(nbytes)})"


def _seconds(text: str) -> float | None:
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)", text.strip())
    return None if match is None else float(match.group(1)) * _UNITS[match.group(2) or "s"]
