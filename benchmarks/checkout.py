"""How fast is a checkout? Dense, sparse and delta chains, shards; against a filter that computes nothing, and git-lfs.

Each run removes the files and checks the same ones out again; all files come from the page cache, for everybody. Ways:

- null: `null_filter`, the limit; git-lfs: its filter-process, objects in its local store;
- cold: a daemon that has served another repository only; warm: one that has this very version in memory;
- in-process: no daemon, everything imported anew; disk: like cold, with every value in the disk cache.

null and git-lfs check out the first version, whatever the chain: their time depends on the size alone. Every file that
comes back is compared with the one that was added.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks import models
from benchmarks.measure import Cost
from benchmarks.results import Cell, Plot, Report, Table
from benchmarks.rounds import Lane, Outcome, columns, interleave
from benchmarks.sites import Daemon, Repository, Site, digest, expect, link, site

NAME = "checkout"
QUESTION = "How long does a checkout take, against a filter that computes nothing and against git-lfs?"
FULL_BYTES = 1_300_000_000
QUICK_BYTES = 24_000_000
DEPTHS = (1, 4, 16)
CHAINS = ("sparse", "delta")
CASES = ("dense-fp32", "dense-bf16", *(f"{kind}-{depth}" for kind in CHAINS for depth in DEPTHS), "shards")
AGAINST = ("null", "git-lfs")
OURS = ("cold", "warm", "in-process", "disk")
TUNED = 2e-6
"""The noise of a delta chain's steps (bf16): late in a fine-tuning, so that sixteen deltas pay."""


@dataclass(frozen=True, slots=True)
class Version:
    """A commit, and the digests of its files by name."""

    commit: str
    files: Mapping[str, str]
    updates: str = ""


@dataclass(frozen=True, slots=True)
class Past:
    """Three repositories with the same files; null and git-lfs have the first version only. `versions` by case."""

    null: Repository
    lfs: Repository | None
    theta: Repository
    first: Version
    versions: Mapping[str, Version]


def run(
    *, quick: bool = False, rounds: int = 5, cases: frozenset[str] = frozenset(), nbytes: int = FULL_BYTES
) -> Report:
    """The report, of all `CASES` when none is named."""
    wanted = [case for case in CASES if not cases or case in cases]
    nbytes = QUICK_BYTES if quick else nbytes
    rounds = 1 if quick else rounds
    tables: list[Table] = []
    figures: dict[str, float | None] = {}
    bars: dict[str, list[tuple[Cell, float]]] = {}
    for family in ("dense-fp32", "dense-bf16", "sparse", "delta", "shards"):
        members = [case for case in wanted if case.startswith(family)]
        if not members:
            continue
        with site() as place:
            past = _history(place, family, members, nbytes)
            for case, version in past.versions.items():
                outcome = interleave(
                    list(_lanes(place, past, version)), rounds, warm_up=not quick, what=f"{NAME} {case}"
                )
                title = f"{case}, {_size(place, past.first)}{version.updates}"
                tables.append(Table(title, columns(AGAINST), outcome.rows(AGAINST)))
                figures |= _figures(case, outcome, place)
                for lane in outcome.costs:
                    bars.setdefault(lane, []).append((case, outcome.ratio(lane, "null") or 0))
    plot = Plot("checkout", "Checkout, as a multiple of the null filter's time", "bars", "", "× null filter", bars)
    return Report(NAME, QUESTION, tables, [plot] if wanted else [], figures)


def _history(place: Site, family: str, members: Sequence[str], nbytes: int) -> Past:
    null = place.repository("null", "null")
    lfs = place.repository("lfs", "lfs") if place.has_lfs else None
    theta = place.repository("theta")
    builder = place.daemon("builder")
    _files(theta, family, nbytes)
    names = sorted(path.name for path in theta.path.glob("*.safetensors"))
    for name in names:
        copy = place.top / name
        link(theta.path / name, copy)
        for other in (null, lfs):
            if other is not None:
                link(copy, other.path / name)
        link(copy, null.content / name)
    for other in (null, lfs):
        if other is not None:
            other.commit("model")
    first = _commit(theta, builder, names)
    depths = {int(case.rpartition("-")[2]): case for case in members} if family in CHAINS else {}
    versions = {} if depths else dict.fromkeys(members, first)
    for depth in range(1, max(depths, default=0) + 1):
        for name in names:
            _unlink(theta, name)
            if family == "sparse":
                models.edit_sparsely(theta.path / name, depth)
            else:
                models.tune(theta.path / name, depth, TUNED)
        version = _commit(theta, builder, names, family)
        if depth in depths:
            versions[depths[depth]] = version
    builder.stop()
    return Past(null, lfs, theta, first, versions)


def _files(theta: Repository, family: str, nbytes: int) -> None:
    if family == "shards":
        for number in range(10):
            models.build(theta.path / f"shard-{number}.safetensors", nbytes // 10, first=number * 100)
    else:
        dtype = "F32" if family in ("dense-fp32", "sparse") else "BF16"
        models.build(theta.path / "model.safetensors", nbytes, dtype)


def _unlink(theta: Repository, name: str) -> None:
    """Make the work tree's file one of its own, so that an edit does not reach the others' copies."""
    path = theta.path / name
    if path.stat().st_nlink > 1:
        copy = path.with_name("copy")
        copy.write_bytes(path.read_bytes())
        copy.rename(path)


def _commit(theta: Repository, builder: Daemon, names: Sequence[str], hint: str = "") -> Version:
    commit = theta.commit("version", daemon=builder, env={"GIT_THETA_UPDATE_TYPE": hint} if hint else {})
    return Version(commit, {name: digest(theta.path / name) for name in names}, _updates(theta, names[0]))


def _updates(theta: Repository, name: str) -> str:
    """What the pointer is made of, in words."""
    pointer = json.loads(theta.git("cat-file", "blob", f"HEAD:{name}"))
    kinds = Counter(parameter["update"] for parameter in pointer["parameters"])
    depth = max(parameter.get("depth", 0) for parameter in pointer["parameters"])
    stored = sum(parameter["stored"] for parameter in pointer["parameters"])
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
    return f"; {told}; depth {depth}, {100 * stored / pointer['size']:.1f} % of the bytes stored by this version"


def _lanes(place: Site, past: Past, version: Version) -> Iterator[Lane]:
    theta = past.theta
    yield _lane("null", past.null, None, past.first)
    if past.lfs is not None:
        yield _lane("git-lfs", past.lfs, None, past.first)
    small = _small(place)
    cold, warm, disk = place.daemon("cold"), place.daemon("warm"), place.daemon("disk")
    cache = {"THETA_CACHE_DIR": str(place.top / "cache"), "THETA_DISK_CACHE": "16g"}
    yield _lane("cold", theta, cold, version, lambda: _freshen(cold, small))
    _checkout(theta, warm, version, {})
    yield _lane("warm", theta, warm, version)
    yield _lane("in-process", theta, None, version)
    _checkout(theta, disk, version, cache)  # fills the disk cache
    yield _lane("disk", theta, disk, version, lambda: _freshen(disk, small), cache)


def _lane(
    name: str,
    repository: Repository,
    daemon: Daemon | None,
    version: Version,
    freshen: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
) -> Lane:
    def prepare() -> None:
        if freshen is not None:
            freshen()
        # Last, for every lane: what was just freed is at hand for whoever comes next, and on a virtual machine that gives
        # free memory back to its host after a second or two that is a good part of the time.
        _remove(repository, version)
        os.sync()

    def check() -> None:
        for file, wanted in version.files.items():
            expect(repository.path / file, wanted)

    # In the null repository and git-lfs's the commit is called HEAD; only ours has several.
    commit = version.commit if repository.path.name == "theta" else "HEAD"
    command = partial(repository.measure, "checkout", "-q", commit, "--", ".", daemon=daemon, env=env)
    return Lane(name, command, prepare, check)


def _checkout(repository: Repository, daemon: Daemon, version: Version, env: Mapping[str, str]) -> Cost:
    _remove(repository, version)
    return repository.measure("checkout", "-q", version.commit, "--", ".", daemon=daemon, env=env)


def _remove(repository: Repository, version: Version) -> None:
    for file in version.files:
        (repository.path / file).unlink(missing_ok=True)


def _small(place: Site) -> Repository:
    """Another repository, for a daemon to have seen something."""
    found = Repository(place.top / "small", place.environment)
    if not found.path.exists():
        found = place.repository("small")
        models.write_small(found.path / "small.safetensors", 3, 1000)
        found.commit("small")
    return found


def _freshen(daemon: Daemon, small: Repository) -> None:
    """Nothing of what is measured is in memory, but the daemon has done its imports."""
    daemon.restart()
    (small.path / "small.safetensors").unlink()
    small.measure("checkout", "-q", "--", ".", daemon=daemon)


def _figures(case: str, outcome: Outcome, place: Site) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for lane in OURS:
        for other in AGAINST:
            figures[f"{NAME}.{case}.{lane}/{other}"] = outcome.ratio(lane, other)
        if lane != "in-process":
            beyond = outcome.peak_bytes(lane) - place.daemon(lane).cached_bytes
            figures[f"{NAME}.{case}.{lane}.peak-beyond-cache.mb"] = beyond / 1e6
    return figures


def _size(place: Site, first: Version) -> str:
    total = sum((place.top / name).stat().st_size for name in first.files)
    return f"{total / 1e6:,.0f} MB"
