"""`git theta warm`: fills the disk cache with the checkpoints of some revisions, so that their checkouts need nothing else.

Exit status: 0 all is warm; 3 the budget had no room for some files; 1 some files could not be had (they are listed);
2 usage.
"""

from __future__ import annotations

import json as json_module
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from theta_daemon.cli.exits import DONE, FAILED, complain
from theta_daemon.cli.output import say, shown
from theta_daemon.complaint import explain
from theta_daemon.errors import ThetaError
from theta_daemon.gitvalues import parse_integer

if TYPE_CHECKING:
    from theta_daemon.filters.workspace import Workspace

PARTLY: Final = 3
_NAMED: Final = 20


def _bytes(text: str) -> int:
    try:
        return parse_integer(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} {error}; give bytes, with k, m or g") from None


def warm(
    revisions: Annotated[list[str] | None, typer.Argument(metavar="[REV]...", help="Commits, or ranges; HEAD.")] = None,
    *,
    all_: Annotated[bool, typer.Option("--all", help="The tips of all branches and tags.")] = False,
    paths: Annotated[
        list[str] | None,
        typer.Option("--paths", metavar="PATTERN", help="Only these files; may be repeated. `*` matches slashes, too."),
    ] = None,
    depth: Annotated[
        int | None, typer.Option("--depth", min=1, metavar="N", help="The last N commits of each REV (1; ranges: all).")
    ] = None,
    jobs: Annotated[int | None, typer.Option("--jobs", min=1, metavar="N", help="Threads that rebuild.")] = None,
    cache_dir: Annotated[
        Path | None, typer.Option("--cache-dir", metavar="D", help="Where the cache is, instead of theta.cacheDir.")
    ] = None,
    budget: Annotated[
        int | None,
        typer.Option("--budget", parser=_bytes, metavar="BYTES", help="What these revisions may take, newest first."),
    ] = None,
    prune_to: Annotated[
        int | None,
        typer.Option("--prune-to", parser=_bytes, metavar="BYTES", help="Trim the cache to this size afterwards."),
    ] = None,
    offline: Annotated[bool, typer.Option("--offline", help="Fetch nothing: prove that nothing is missing.")] = False,
    key: Annotated[bool, typer.Option("--key", help="Only print a key that names what these revisions need.")] = False,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", help="Write what was done as JSON; - is stdout.")
    ] = None,
) -> int:
    """Fill the disk cache with the checkpoints of REV: their checkouts then need neither objects, history nor network.

    May be repeated and interrupted at will. Exit status 3: the budget had no room for some files.
    """
    from theta_daemon.cli import warm_items
    from theta_daemon.cli.warm_report import Bar, Report
    from theta_daemon.filters.warm import Warmer, cache_key

    start = time.monotonic()
    commits = warm_items.commits(revisions or [], everything=all_, depth=depth)
    limit = min((amount for amount in (budget, prune_to) if amount is not None), default=None)
    with _workspace(cache_dir, limit, jobs, offline=offline) as workspace:
        found = warm_items.items(workspace.history, workspace.invocation, commits, paths or [], fetch=not offline)
        name = cache_key(item.wanted.pointer for item in found.items)
        if key:
            say(name)
            _tell(found.damaged)
            return FAILED if found.damaged else DONE
        disk = workspace.machinery.disk
        if disk is None:
            raise ThetaError("there is no place for a cache", "name a folder with --cache-dir")
        with Bar() as bar:
            room = disk.budget_bytes if limit is None else limit
            done = Warmer(workspace, found.items, room, bar.advance, offline=offline).run()
        stats = disk.trim(disk.budget_bytes if prune_to is None else prune_to)
        counts = workspace.machinery.counters.snapshot()
    done.failed.update({path: ThetaError(why) for path, why in found.damaged.items()})
    report = Report(done, counts, str(disk.folder), stats.size_bytes, len(commits), time.monotonic() - start, name)
    if json is not None and str(json) != "-":
        json.write_text(json_module.dumps(report.json(), indent=2) + "\n")
    say(*([json_module.dumps(report.json(), indent=2)] if str(json) == "-" else report.lines()))
    _tell({path: explain(error) for path, error in done.failed.items()})
    if done.failed:
        return FAILED
    return PARTLY if done.skipped else DONE


@contextmanager
def _workspace(cache_dir: Path | None, limit: int | None, jobs: int | None, *, offline: bool) -> Iterator[Workspace]:
    """The means of this command: the options stand above the settings, and the cache is on."""
    from theta_daemon.cli.caller import STDERR, caller
    from theta_daemon.engine import Engine
    from theta_daemon.history.git import read_config
    from theta_daemon.settings import DEFAULT_DISK_CACHE, Settings

    invocation = caller()
    given = {}
    if cache_dir is not None:
        given["THETA_CACHE_DIR"] = str(invocation.path(cache_dir))
    if jobs is not None:
        given["THETA_WORKERS"] = str(jobs)
    if offline:
        given["GIT_NO_LAZY_FETCH"] = "1"
    settings = Settings.load(read_config(invocation), {**invocation.env, **given}, invocation.cwd)
    given["THETA_DISK_CACHE"] = str(max(settings.disk_cache or DEFAULT_DISK_CACHE, limit or 0))
    invocation = replace(invocation, env={**invocation.env, **given})
    engine = Engine(settings)
    try:
        with engine.workspace(invocation, complain, STDERR) as workspace:
            yield workspace
    finally:
        engine.close()


def _tell(failed: Mapping[bytes, str]) -> None:
    for path, why in list(failed.items())[:_NAMED]:
        complain(f"{shown(path)}: {why}")
    if len(failed) > _NAMED:
        complain(f"and {len(failed) - _NAMED} more files")
