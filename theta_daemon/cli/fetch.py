"""`git theta fetch` and `pull`: objects from the remotes, and checkpoints where a skipped smudge left pointers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from theta_daemon.cli import git
from theta_daemon.cli.exits import DONE, FAILED, complain
from theta_daemon.cli.output import say, say_json, shown, size
from theta_daemon.complaint import explain
from theta_daemon.errors import ThetaError

_NAMED = 5
_NAMED_OBJECTS = 3

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def fetch(
    revisions: Annotated[list[str] | None, typer.Argument(metavar="[REV]...", help="Commits, or ranges; HEAD.")] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All commits of all refs.")] = False,
    history: Annotated[bool, typer.Option("--history", help="The commits before REV, too.")] = False,
    json: Json = False,
) -> int:
    """Fetch the objects that the checkpoints of REV need, all in one round. A checkout does this by itself."""
    from theta_daemon.cli.caller import STDERR, caller
    from theta_daemon.depot import Depot
    from theta_daemon.upkeep import fetch as work

    names = None if all_ else revisions or ["HEAD"]
    for name in names or ():
        git.ask("rev-parse", "--revs-only", "--end-of-options", name)
    with Depot.open(caller(), STDERR) as depot:
        ranged = any(".." in name or name.startswith("^") for name in names or ())
        needs = work.revisions(depot, names, history=all_ or history or ranged)
        done = work.bring(depot, needs)
        counts = depot.counters.snapshot()
    for path, problem in needs.damaged.items():
        complain(f"warning: {shown(path)} looks like a pointer, but is damaged: {problem}")
    if json:
        say_json(
            {
                "pointers": len(needs.pointers),
                "objects": len(done.came),
                "bytes": done.nbytes,
                "rounds": counts.get("fetch.rounds", 0),
                "requests": counts.get("fetch.requests", 0),
                "failed": {oid: error.message for oid, error in done.failed.items()},
            }
        )
    else:
        say(
            f"{len(needs.pointers)} checkpoint versions need {len(needs.objects)} objects: "
            f"{len(done.came)} fetched ({size(done.nbytes)})"
        )
    _complain_of(done.failed, needs.users)
    return FAILED if done.failed else DONE


def pull(
    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Only these files.")] = None,
    *,
    json: Json = False,
) -> int:
    """Put checkpoints in the place of pointers in the work tree, fetching what is missing in one round.

    For work trees that were checked out with GIT_THETA_SKIP_SMUDGE or theta.skipSmudge. Edited files stay as they are.
    """
    from theta_daemon.cli import listing
    from theta_daemon.cli.filtering import filtering
    from theta_daemon.upkeep import fill

    top = git.top_level()
    failures: dict[bytes, str] = {}
    with filtering() as one:
        workspace = one.workspace
        entries = listing.entries(workspace.history, paths=paths or [":/"])
        found = fill.places(workspace, top, [(entry.path, entry.blob) for entry in entries])
        written = fill.fill(workspace, found, lambda path, error: failures.update({path: explain(error)}))
        counts = workspace.machinery.counters.snapshot()
    if written:
        _refresh(top, set(written))
    if json:
        say_json(
            {
                "files": [path.decode(errors="surrogateescape") for path in written],
                "failed": {path.decode(errors="surrogateescape"): why for path, why in failures.items()},
                "rounds": counts.get("fetch.rounds", 0),
                "requests": counts.get("fetch.requests", 0),
                "objects": counts.get("fetch.objects", 0),
                "bytes": counts.get("fetch.bytes", 0),
            }
        )
    else:
        fetched = f", {counts['fetch.objects']} objects fetched" if counts.get("fetch.objects") else ""
        say(f"{len(written)} of {len(found)} pointers became checkpoints{fetched}")
    for path, why in list(failures.items())[:_NAMED]:
        complain(f"{shown(path)}: {why}")
    return FAILED if failures else DONE


def _refresh(top: Path, written: set[bytes]) -> None:
    """Let git see that these files are what the index has.

    It takes another size for another content, without looking. So the entries are set anew, as they are, without what git
    knows of the files: then it looks. What was edited meanwhile is not staged by that.
    """
    listing = git.fields(git.ask("-C", top, "ls-files", "-s", "-z"))
    entries = b"".join(item + b"\0" for item in listing if item.partition(b"\t")[2] in written)
    git.ask("-C", top, "update-index", "-z", "--index-info", data=entries)
    git.ask("-C", top, "update-index", "-q", "--refresh", statuses=(0, 1))


def _complain_of(failed: Mapping[str, ThetaError], users: Mapping[str, bytes]) -> None:
    for oid, error in list(failed.items())[:_NAMED_OBJECTS]:
        complain(f"{shown(users[oid])}: object {oid}: {error.describe()}")
    if len(failed) > _NAMED_OBJECTS:
        complain(f"and {len(failed) - _NAMED_OBJECTS} more objects")
