"""`git theta push`: the objects of revisions to a remote, without the refs."""

from __future__ import annotations

from typing import Annotated

import typer

from theta_daemon.cli import git
from theta_daemon.cli.exits import DONE, complain
from theta_daemon.cli.output import say, say_json, shown, size


def push(
    remote: Annotated[str | None, typer.Argument(metavar="[REMOTE]", help="A git remote, or a URL.")] = None,
    revisions: Annotated[list[str] | None, typer.Argument(metavar="[REF]...", help="What is pushed; HEAD.")] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="All branches and tags.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only say what would be pushed.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> int:
    """Push the objects that the checkpoints of REF need and that REMOTE lacks. `git push` does this by itself.

    Objects only: branches and tags are git's to push. Refuses while an object is neither here nor there
    (theta.allowIncompletePush overrides).
    """
    from theta_daemon.cli.caller import STDERR, caller
    from theta_daemon.depot import Depot
    from theta_daemon.upkeep import push as work

    if all_:
        tips = git.ask("for-each-ref", "--format=%(objectname)", "refs/heads", "refs/tags").decode().split()
    else:
        names = revisions or ["HEAD"]
        tips = [git.ask("rev-parse", "--verify", "--end-of-options", name).decode().strip() for name in names]
    with Depot.open(caller(), STDERR) as depot:
        name = remote or depot.transfer.push_name()
        done = work.run(depot, work.Push(name, tips), dry_run=dry_run)
    for path, problem in done.needs.damaged.items():
        complain(f"warning: {shown(path)} looks like a pointer, but is damaged: {problem}")
    if done.left_out:
        complain(f"warning: {len(done.left_out)} objects are left out: {done.needs.named(done.left_out)}")
    if json:
        say_json(
            {
                "remote": name,
                "pointers": len(done.needs.pointers),
                "objects": len(done.needs.objects) - len(done.left_out),
                "bytes": done.nbytes,
                "left_out": done.left_out,
            }
        )
        return DONE
    if not done.needs.pointers:
        say(f"nothing to push: {shown(name)} has every checkpoint of these revisions")
        return DONE
    count = len(done.needs.objects) - len(done.left_out)
    verb = "would be pushed" if dry_run else "are there"
    say(
        f"{len(done.needs.pointers)} checkpoint versions are new to {shown(name)}: {count} objects {verb} ({size(done.nbytes)}{' at most' if dry_run else ' sent'})"
    )
    return DONE
