"""How do time and memory grow: with parameters, depth of chains, files, and the length of the history?

Small values, so that what grows is the work for each parameter, update, file and commit, not the bytes. Each size is had four
ways: the add, an add of what is unchanged (under a new modification time), a checkout from a fresh daemon, and one from a daemon
that has it in memory. Growth is the slope of the logarithms over the upper half of the sizes, where what is constant no longer
hides it: 1 is proportional, 0 is no growth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import models
from benchmarks.results import Cell, Plot, Report, Table
from benchmarks.rounds import Lane, interleave
from benchmarks.sites import Daemon, Repository, Site, digest, expect, site

NAME = "scale"
QUESTION = "How do time and memory grow with parameters, depth, files and history?"
SIZES: Mapping[str, Sequence[int]] = {
    "parameters": (10, 100, 1_000, 10_000, 30_000),
    "depth": (1, 2, 4, 8, 16, 32, 64),
    "files": (1, 10, 100, 1_000),
    "history": (1, 10, 100, 400),
}
QUICK: Mapping[str, Sequence[int]] = {"parameters": (10, 300), "depth": (1, 3), "files": (1, 5), "history": (1, 5)}
ELEMENTS = 256
STEPS = ("add", "re-clean", "cold checkout", "warm checkout")


@dataclass(frozen=True, slots=True)
class Point:
    """What one size took: seconds a step, the daemon's peak, and bytes of pointers in git."""

    size: int
    seconds: Mapping[str, float]
    peak_bytes: int
    pointer_bytes: int


def run(*, quick: bool = False, rounds: int = 5, cases: frozenset[str] = frozenset()) -> Report:
    """The report. `cases`: what grows; all of `SIZES` when empty."""
    tables: list[Table] = []
    plots: list[Plot] = []
    figures: dict[str, float | None] = {}
    for what, sizes in (QUICK if quick else SIZES).items():
        if cases and what not in cases:
            continue
        points = []
        for size in sizes:
            with site() as place:
                points.append(_point(place, what, size, 1 if quick else rounds))
        tables.append(_table(what, points))
        for step in STEPS:
            figures[f"{NAME}.{what}.{step}.growth"] = _growth([(p.size, p.seconds[step]) for p in points])
        figures[f"{NAME}.{what}.memory.growth"] = _growth([(point.size, float(point.peak_bytes)) for point in points])
        series: dict[str, list[tuple[Cell, float]]] = {
            step: [(point.size, point.seconds[step]) for point in points] for step in STEPS
        }
        plots.append(Plot(f"scale-{what}", f"Growth with {what}", "lines", what, "seconds", series, log=True))
    return Report(NAME, QUESTION, tables, plots, figures)


def _table(what: str, points: Sequence[Point]) -> Table:
    rows: list[list[Cell]] = [
        [
            f"{point.size:,}",
            *(point.seconds[step] for step in STEPS),
            f"{point.peak_bytes / 1e6:,.0f}",
            f"{point.pointer_bytes / 1e3:,.1f}",
        ]
        for point in points
    ]
    grown = [_growth([(point.size, point.seconds[step]) for point in points]) for step in STEPS]
    grown += [
        _growth([(p.size, float(p.peak_bytes)) for p in points]),
        _growth([(p.size, p.pointer_bytes) for p in points]),
    ]
    rows.append(["growth", *(f"n^{value:.2f}" for value in grown)])
    return Table(f"{what}, seconds", (what, *STEPS, "peak MB", "pointers kB"), rows)


def _growth(points: Sequence[tuple[int, float]]) -> float:
    """The least-squares slope of log y over log x for the upper half of the points (two at least)."""
    upper = points[min(len(points) // 2, len(points) - 2) :]
    xs = [math.log(x) for x, _ in upper]
    ys = [math.log(max(y, 1e-9)) for _, y in upper]
    x_mean, y_mean = sum(xs) / len(xs), sum(ys) / len(ys)
    square = sum((x - x_mean) ** 2 for x in xs)
    return sum((x - x_mean) * (y - y_mean) for x, y in zip(xs, ys, strict=True)) / square


def _point(place: Site, what: str, size: int, rounds: int) -> Point:
    repository = place.repository("model")
    builder = place.daemon("builder")
    {"parameters": _parameters, "depth": _depth, "files": _files, "history": _past}[what](repository, builder, size)
    builder.stop()
    names = sorted(path.name for path in repository.path.glob("*.safetensors"))
    outcome = interleave(
        list(_lanes(place, repository, names, size)), rounds, warm_up=rounds > 1, what=f"{NAME} {what} {size}"
    )
    peak = max(outcome.peak_bytes(step) for step in STEPS)
    pointers = sum(int(repository.git("cat-file", "-s", f"HEAD:{name}")) for name in names)
    return Point(size, {step: outcome.seconds(step) for step in STEPS}, peak, pointers)


def _parameters(repository: Repository, builder: Daemon, size: int) -> None:
    models.write_small(repository.path / "model.safetensors", size, ELEMENTS)
    repository.commit("model", daemon=builder)


def _depth(repository: Repository, builder: Daemon, size: int) -> None:
    file = repository.path / "model.safetensors"
    models.write_small(file, 200, 16 * ELEMENTS)
    for version in range(size + 1):
        if version:
            models.edit_sparsely(file, version, 0.001)
        sparse = {"THETA_MAX_DEPTH": str(size), "GIT_THETA_UPDATE_TYPE": "sparse"}
        repository.commit(f"version {version}", daemon=builder, env=sparse)


def _files(repository: Repository, builder: Daemon, size: int) -> None:
    for number in range(size):
        models.write_small(repository.path / f"model-{number}.safetensors", 10, ELEMENTS, number)
    repository.commit("models", daemon=builder)


def _past(repository: Repository, builder: Daemon, size: int) -> None:
    file = repository.path / "model.safetensors"
    models.write_small(file, 50, 16 * ELEMENTS)
    for version in range(size):
        if version:
            models.edit_sparsely(file, version, 0.001)
        repository.commit(f"version {version}", daemon=builder)


def _lanes(place: Site, repository: Repository, names: Sequence[str], size: int) -> Iterator[Lane]:
    wanted = {name: digest(repository.path / name) for name in names}
    cold, warm = place.daemon("cold"), place.daemon("warm")
    kept = set(repository.objects.rglob("*"))
    head = repository.git("rev-parse", "HEAD")
    changed = [repository.path / name for name in names]
    versions = iter(range(10_000, 20_000))

    def remove() -> None:
        for path in changed:
            path.unlink()

    def freshen() -> None:
        cold.restart()
        remove()

    def check() -> None:
        for name, value in wanted.items():
            expect(repository.path / name, value)

    def edit() -> None:
        """Every file has another version, made from the one that HEAD has."""
        for path in changed:
            models.edit_sparsely(path, next(versions) % 1000 + size, 0.001)

    def restore() -> None:
        repository.git("reset", "-q", "--hard", head)
        repository.drop_objects(but=kept)

    def touch() -> None:
        # The memo went with `restore`; the index has these contents again.
        for path in changed:
            place.touch(path)

    checkout = ("checkout", "-q", "--", ".")
    yield Lane("add", partial(repository.measure, "add", "-A", daemon=warm), edit, restore)
    yield Lane("re-clean", partial(repository.measure, "add", "-A", daemon=warm), touch, check)
    yield Lane("cold checkout", partial(repository.measure, *checkout, daemon=cold), freshen, check)
    yield Lane("warm checkout", partial(repository.measure, *checkout, daemon=warm), remove, check)
