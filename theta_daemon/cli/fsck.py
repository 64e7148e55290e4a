"""`git theta fsck`: whether the checkpoints can be had, bit for bit."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from theta_daemon.cli import git
from theta_daemon.cli.exits import DONE, FAILED, complain
from theta_daemon.cli.output import say, say_json, shown

_UNCACHED: Final = {"THETA_TENSOR_CACHE": "0", "THETA_DISK_CACHE": "0"}
"""What is to be proven is what the store holds."""


def fsck(
    revisions: Annotated[list[str] | None, typer.Argument(metavar="[REV]...", help="HEAD and the index.")] = None,
    *,
    all_: Annotated[
        bool, typer.Option("--all", help="All that refs, reflogs and indexes reach, and every object.")
    ] = False,
    pointers: Annotated[bool, typer.Option("--pointers", help="Pointers, and that their objects are here.")] = False,
    objects: Annotated[bool, typer.Option("--objects", help="The objects' bytes, too.")] = False,
    rebuild: Annotated[bool, typer.Option("--rebuild", help="Rebuild every checkpoint and check its digest.")] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Fetch objects that are missing or damaged.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> int:
    """Check the checkpoints of REV: pointers and objects, unless told which. Exit status 1 when something is wrong.

    Nothing is believed that is only cached. A clone has the objects of what it checked out; --repair brings others.
    """
    from theta_daemon.cli.caller import STDERR
    from theta_daemon.cli.filtering import filtering
    from theta_daemon.cli.progress import Counted
    from theta_daemon.history.reach import reach
    from theta_daemon.upkeep.fsck import Fsck

    for name in revisions or ():
        git.ask("rev-parse", "--revs-only", "--end-of-options", name)
    objects = objects or repair or not (pointers or rebuild)
    with filtering(env=_UNCACHED) as one, Counted(STDERR, "Checking") as progress:
        if all_:
            options = ["--all", "--reflog", "--indexed-objects"]
        else:
            options = ["--no-walk"] if not any(".." in name for name in revisions or ()) else []
            options += [] if revisions else ["--indexed-objects"]
        head = ["HEAD"] if git.try_ask("rev-parse", "--verify", "--quiet", "HEAD") else []
        names = [] if all_ else revisions or head
        check = Fsck(one.workspace, reach(one.workspace.invocation, names, *options), progress)
        if objects:
            check.objects(everything=all_)
        if repair:
            check.repair()
        if rebuild:
            check.rebuild()
    report = check.report
    if json:
        say_json(
            {
                "pointers": report.pointers,
                "objects": report.objects,
                "rebuilt": report.rebuilt,
                "repaired": report.repaired,
                "problems": [
                    {
                        "kind": problem.kind,
                        "name": problem.name,
                        "path": problem.path.decode(errors="surrogateescape"),
                        "reason": problem.reason,
                    }
                    for problem in report.problems
                ],
            }
        )
        return FAILED if report.problems else DONE
    for problem in report.problems:
        where = f" ({shown(problem.path)})" if problem.path else ""
        say(f"{problem.kind} {problem.name}{where}: {problem.reason}")
    say(
        f"{report.pointers} pointers and {report.objects} objects checked, {report.rebuilt} checkpoints rebuilt, "
        f"{len(report.repaired)} objects repaired, {len(report.problems)} problems"
    )
    if report.problems and not repair:
        complain("`git theta fsck --repair` fetches what is missing or damaged from the remotes")
    return FAILED if report.problems else DONE
