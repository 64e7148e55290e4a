"""How long does git wait for a small file? `git add` and checkout of a 1 MB model, against `cat` as the filter.

A `cat` filter is the least a filter can be: two processes that copy. The difference is what a user feels, in milliseconds.
Measured runs follow each other at once, each lane once a round.
"""

from __future__ import annotations

from collections.abc import Callable

from benchmarks import models
from benchmarks.results import Cell, Plot, Report, Table
from benchmarks.rounds import Lane, Outcome, columns, interleave
from benchmarks.sites import Daemon, Repository, Site, digest, expect, link, site

NAME = "latency"
QUESTION = "How long does git wait for a 1 MB model?"
FILE = "model.safetensors"
MODEL_BYTES = 1_000_000
CAT = ["-c", "filter.cat.clean=cat", "-c", "filter.cat.smudge=cat", "-c", "filter.cat.required=true"]


def run(*, quick: bool = False, rounds: int = 21, cases: frozenset[str] = frozenset()) -> Report:
    """The report. `cases`: add, checkout; all when empty."""
    rounds = 3 if quick else rounds
    tables: list[Table] = []
    figures: dict[str, float | None] = {}
    bars: dict[str, list[tuple[Cell, float]]] = {}
    with site() as place:
        source = place.top / FILE
        models.build(source, MODEL_BYTES)
        repositories = {name: place.repository(name, name) for name in _filters(place)}
        for name, repository in repositories.items():
            if name == "null":
                link(source, repository.content / FILE)
            link(source, repository.path / FILE)
            repository.git(*(CAT if name == "cat" else []), "add", FILE)
            repository.git("commit", "-q", "-m", "model")
        for case, lanes in (("checkout", _checkout), ("add", _add)):
            if cases and case not in cases:
                continue
            outcome = interleave(lanes(place, repositories, digest(source)), rounds, what=f"{NAME} {case}")
            tables.append(
                Table(f"{case}, 1 MB, median of {rounds}", columns(("cat", "null")), outcome.rows(("cat", "null")))
            )
            bars |= {case: [(lane, outcome.seconds(lane) * 1e3) for lane in outcome.costs]}
            figures |= _figures(case, outcome)
    plot = Plot("latency", "1 MB model: what git waits for", "bars", "", "ms", bars)
    return Report(NAME, QUESTION, tables, [plot], figures)


def _filters(place: Site) -> list[str]:
    return ["cat", "null", "theta", *(["lfs"] if place.has_lfs else [])]


def _checkout(place: Site, repositories: dict[str, Repository], wanted: str) -> list[Lane]:
    def lane(name: str, repository: Repository, daemon: Daemon | None = None, *options: str) -> Lane:
        file = repository.path / FILE
        return Lane(
            name,
            lambda: repository.measure(*options, "checkout", "-q", "--", FILE, daemon=daemon, memory=False),
            file.unlink,
            lambda: expect(file, wanted),
        )

    return _lanes(lane, place, repositories)


def _add(place: Site, repositories: dict[str, Repository], _: str) -> list[Lane]:
    """Content that is known, under a new modification time: what git does when a file was saved again."""

    def lane(name: str, repository: Repository, daemon: Daemon | None = None, *options: str) -> Lane:
        file = repository.path / FILE

        def check() -> None:
            assert not repository.git("diff", "--cached", "--name-only"), f"{name}: add staged something else"

        return Lane(
            name,
            lambda: repository.measure(*options, "add", FILE, daemon=daemon, memory=False),
            lambda: place.touch(file),
            check,
        )

    return _lanes(lane, place, repositories)


def _lanes(lane: Callable[..., Lane], place: Site, repositories: dict[str, Repository]) -> list[Lane]:
    lanes = [lane("cat", repositories["cat"], None, *CAT), lane("null", repositories["null"])]
    lanes.append(lane("daemon", repositories["theta"], place.daemon("warm")))
    lanes.append(lane("in-process", repositories["theta"]))
    if "lfs" in repositories:
        lanes.append(lane("git-lfs", repositories["lfs"]))
    return lanes


def _figures(case: str, outcome: Outcome) -> dict[str, float | None]:
    extra = (outcome.seconds("daemon") - outcome.seconds("cat")) * 1e3
    return {f"{NAME}.{case}.daemon-cat.ms": extra, f"{NAME}.{case}.daemon.ms": outcome.seconds("daemon") * 1e3}
