"""How fast is a checkout against git-theta's? A 75 MB model, eight sparse updates deep.

git-theta 0.2.0 from PyPI, in an environment of its own (`rivals`), its sparse updates asked for at each add. Both check the
same version out of the same history, turn about. git-theta writes the safetensors header anew and adds floats, so that its
file need not be the one that was added; whether it was is told.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from benchmarks import models, rivals
from benchmarks.results import Cell, Plot, Report, Table
from benchmarks.rounds import Lane, columns, interleave
from benchmarks.sites import Daemon, Repository, Site, digest, expect, link, site

NAME = "git_theta"
QUESTION = "How fast is a checkout against git-theta's, with eight sparse updates on top of each other?"
FULL_BYTES = 75_000_000
QUICK_BYTES = 1_500_000
FILE = "model.safetensors"
AGAINST = ("git-theta",)
OURS = ("cold", "warm", "in-process")


def run(*, quick: bool = False, rounds: int = 5, cases: frozenset[str] = frozenset()) -> Report:
    """The report; without figures, and saying why, where git-theta cannot be had."""
    del cases
    depth = 2 if quick else 8
    with site() as place:
        try:
            theirs = rivals.git_theta_repository(place)
        except rivals.UnavailableError as error:
            return Report(NAME, QUESTION, notes=[str(error)])
        ours = place.repository("theta")
        wanted = _history(place, ours, theirs, QUICK_BYTES if quick else FULL_BYTES, depth)
        different: list[str] = []
        lanes = _lanes(place, ours, theirs, wanted, different)
        outcome = interleave(lanes, 2 if quick else rounds, warm_up=not quick, what=NAME)
        stored = [repository.object_bytes() / 1e6 for repository in (ours, theirs)]
        size = (ours.path / FILE).stat().st_size / 1e6
    figures = {f"{NAME}.checkout.{lane}/git-theta": outcome.ratio(lane, "git-theta") for lane in OURS}
    bars: list[tuple[Cell, float]] = [(lane, outcome.seconds(lane)) for lane in outcome.costs]
    table = Table(f"checkout, {size:.0f} MB, sparse, depth {depth}", columns(AGAINST), outcome.rows(AGAINST))
    notes = [f"objects of all {depth + 1} versions: ours {stored[0]:.1f} MB, git-theta's {stored[1]:.1f} MB"]
    if different:
        notes.append("git-theta's file was not the one that was added")
    plot = Plot(
        "git_theta", f"Checkout of a {size:.0f} MB model, depth {depth}", "bars", "", "seconds", {"": bars}, log=True
    )
    return Report(NAME, QUESTION, [table], [plot], figures, notes)


def _history(place: Site, ours: Repository, theirs: Repository, nbytes: int, depth: int) -> str:
    """The same versions in both; the last one's digest."""
    daemon = place.daemon("builder")
    source = place.top / FILE
    models.build(source, nbytes)
    for version in range(depth + 1):
        if version:
            models.edit_sparsely(source, version)
        for repository, resident in ((ours, daemon), (theirs, None)):
            copy = place.top / "copy"
            copy.write_bytes(source.read_bytes())
            link(copy, repository.path / FILE)
            update = "sparse" if version else "dense"
            repository.commit(f"version {version}", daemon=resident, env={"GIT_THETA_UPDATE_TYPE": update})
        print(f"  {NAME}: version {version} of {depth} added", file=sys.stderr, flush=True)
    daemon.stop()
    return digest(source)


def _lanes(place: Site, ours: Repository, theirs: Repository, wanted: str, different: list[str]) -> list[Lane]:
    cold, warm = place.daemon("cold"), place.daemon("warm")

    def compare(path: Path) -> None:
        if digest(path) != wanted:
            different.append(path.name)

    return [
        _lane("git-theta", theirs, None, partial(compare, theirs.path / FILE)),
        _lane("cold", ours, cold, partial(expect, ours.path / FILE, wanted), cold.restart),
        _lane("warm", ours, warm, partial(expect, ours.path / FILE, wanted)),
        _lane("in-process", ours, None, partial(expect, ours.path / FILE, wanted)),
    ]


def _lane(
    name: str,
    repository: Repository,
    daemon: Daemon | None,
    check: Callable[[], None],
    freshen: Callable[[], None] | None = None,
) -> Lane:
    def prepare() -> None:
        (repository.path / FILE).unlink(missing_ok=True)
        os.sync()
        if freshen is not None:
            freshen()

    return Lane(name, partial(repository.measure, "checkout", "-q", "--", FILE, daemon=daemon), prepare, check)
