"""How long does `git add` take? First, unchanged, and after four kinds of change; against a null clean and git-lfs.

null reads all bytes and answers one line; git-lfs copies and hashes. Ours lays the file out, looks for what is known,
encodes the rest in the smallest exact form, and makes it durable before git is answered (git-lfs leaves that to the system).
Before each run the object store is as it was before the add, and the memo of known contents is gone, except for
`unchanged`: there the file has only a new modification time, which is what git makes filters clean again for.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import models
from benchmarks.results import Cell, Plot, Report, Table
from benchmarks.rounds import Lane, Outcome, columns, interleave
from benchmarks.sites import Daemon, Repository, Site, digest, expect, link, site

NAME = "add"
QUESTION = "How long does `git add` take, against a filter that only reads and against git-lfs?"
FULL_BYTES = 1_300_000_000
QUICK_BYTES = 24_000_000
AGAINST = ("null", "git-lfs")
OURS = ("daemon", "in-process")
FILE = "model.safetensors"

CHANGES: Mapping[str, Callable[[Path], None]] = {
    "one-percent": partial(models.retrain, seed=1, share=0.01),
    "sparse": partial(models.edit_sparsely, seed=1),
    "tuned": partial(models.tune, seed=1),
    "all-changed": partial(models.retrain, seed=2),
}
"""1 % of the tensors retrained; 0.1 % of all values; N(0, 1e-5) on every value; every tensor retrained."""

CASES = ("unchanged", *CHANGES, "first")
"""`first` comes last: it forgets the objects that HEAD needs."""


@dataclass(frozen=True, slots=True)
class Places:
    """A repository for each way, with the model committed (objects as they were then in `kept`)."""

    site: Site
    source: Path
    repositories: Mapping[str, Repository]
    kept: Mapping[str, set[Path]]


def run(
    *, quick: bool = False, rounds: int = 5, cases: frozenset[str] = frozenset(), nbytes: int = FULL_BYTES
) -> Report:
    """The report, of all `CASES` when none is named."""
    rounds = 1 if quick else rounds
    tables: list[Table] = []
    figures: dict[str, float | None] = {}
    bars: dict[str, list[tuple[Cell, float]]] = {}
    with site() as place:
        places = _places(place, QUICK_BYTES if quick else nbytes)
        for case in CASES:
            if cases and case not in cases:
                continue
            content = places.source if case in ("first", "unchanged") else _changed(places, case)
            lanes = [_lane(places, case, content, *way) for way in _ways(places)]
            outcome = interleave(lanes, rounds, warm_up=not quick, what=f"{NAME} {case}")
            size = f"{content.stat().st_size / 1e6:,.0f} MB"
            tables.append(Table(f"{case}, {size}", columns(AGAINST), outcome.rows(AGAINST)))
            figures |= _figures(case, outcome, place)
            for lane in outcome.costs:
                bars.setdefault(lane, []).append((case, outcome.seconds(lane)))
            if content is not places.source:
                content.unlink()
    return Report(NAME, QUESTION, tables, [Plot("add", "git add", "bars", "", "seconds", bars)], figures)


def _places(place: Site, nbytes: int) -> Places:
    source = place.top / FILE
    models.build(source, nbytes)
    repositories = {"null": place.repository("null", "null")}
    if place.has_lfs:
        repositories["git-lfs"] = place.repository("lfs", "lfs")
    # One repository for each of our ways: their stores must not help each other.
    repositories |= {name: place.repository(name) for name in OURS}
    builder = place.daemon("daemon")
    for name, repository in repositories.items():
        link(source, repository.path / FILE)
        repository.commit("model", daemon=builder if name in OURS else None)
    builder.restart()
    kept = {name: set(_objects(repository)) for name, repository in repositories.items()}
    return Places(place, source, repositories, kept)


def _objects(repository: Repository) -> Iterator[Path]:
    return (path for path in repository.objects.rglob("*") if path.is_file())


def _changed(places: Places, case: str) -> Path:
    content = places.source.with_name(f"{case}.safetensors")
    content.write_bytes(places.source.read_bytes())
    CHANGES[case](content)
    return content


def _ways(places: Places) -> Iterator[tuple[str, Repository, Daemon | None]]:
    for name, repository in places.repositories.items():
        yield name, repository, places.site.daemon("daemon") if name == "daemon" else None


def _lane(places: Places, case: str, content: Path, name: str, repository: Repository, daemon: Daemon | None) -> Lane:
    file = repository.path / FILE
    wanted = digest(content)

    head = repository.git("rev-list", *(["--max-parents=0"] if case == "first" else ["--max-count=1"]), "main")

    def prepare() -> None:
        # For `first` a HEAD without the model: a repository that never saw it.
        repository.git("update-ref", "--no-deref", "HEAD", head)
        repository.git("read-tree", "HEAD")
        link(content, file)
        if case == "unchanged":
            # As a user has it: the file was added, then saved again as it was.
            repository.git("add", FILE, daemon=daemon)
            places.site.touch(file)
        else:
            repository.drop_objects(but=set() if case == "first" else places.kept[name])
        os.sync()

    def check() -> None:
        if name == "null":
            return
        # What was added comes back, in another process.
        file.unlink()
        repository.git("checkout", "-q", "--", FILE)
        expect(file, wanted)

    return Lane(name, partial(repository.measure, "add", FILE, daemon=daemon), prepare, check)


def _figures(case: str, outcome: Outcome, place: Site) -> dict[str, float | None]:
    figures = {f"{NAME}.{case}.{lane}/{other}": outcome.ratio(lane, other) for lane in OURS for other in AGAINST}
    beyond = outcome.peak_bytes("daemon") - place.daemon("daemon").cached_bytes
    return {**figures, f"{NAME}.{case}.daemon.peak-beyond-cache.mb": beyond / 1e6}
