"""What does warming buy, and what does it cost? Checkouts of a depth-1 clone cold, warmed and warmed offline, against a null
filter; and the warming of 1, 5 and 20 revisions.

A cold checkout fetches its objects from a repository on the same disk, the fastest remote there is. A warmed one has the disk
cache and nothing else: no object, no history, and in the lane `offline` no remote either. Counts come from a daemon's own
counters, in runs that are not timed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from benchmarks import models
from benchmarks.measure import median
from benchmarks.results import Cell, Report, Table
from benchmarks.rounds import Lane, columns, interleave
from benchmarks.sites import Daemon, Repository, Site, digest, expect, link, site

NAME = "warm"
QUESTION = "What does warming the disk cache buy, and what does it cost?"
FILE = "model.safetensors"
MODEL_BYTES = 1_300_000_000
SMALL_BYTES = 90_000_000
DEPTHS = (0, 16)
REVISIONS = (1, 5, 20)


def run(*, quick: bool = False, rounds: int = 5, cases: frozenset[str] = frozenset()) -> Report:
    """The report. `cases`: small, large, revisions; all when empty (quick: without large)."""
    rounds = 3 if quick else rounds
    tables: list[Table] = []
    figures: dict[str, float | None] = {}
    chosen = cases or frozenset({"small", "revisions"} | (set() if quick else {"large"}))
    for case, nbytes in (("small", SMALL_BYTES), ("large", MODEL_BYTES)):
        for depth in DEPTHS if case in chosen else ():
            with site() as place:
                _checkouts(place, f"{case}-{depth}", nbytes, depth, rounds, tables, figures)
    if "revisions" in chosen:
        with site() as place:
            _revisions(place, rounds, tables, figures)
    return Report(NAME, QUESTION, tables, [], figures)


def _checkouts(
    place: Site,
    case: str,
    nbytes: int,
    depth: int,
    rounds: int,
    tables: list[Table],
    figures: dict[str, float | None],
) -> None:
    origin, clone, wanted = _cloned(place, nbytes, depth, models.edit_sparsely)
    null = place.repository("null", "null")
    link(origin.path / FILE, null.content / FILE)
    link(origin.path / FILE, null.path / FILE)
    null.commit("model")
    cache = {"THETA_CACHE_DIR": str(place.top / "cache")}
    replace(clone, extra=cache).git("theta", "warm")
    hidden = origin.path.with_name("hidden")
    daemon = place.daemon("warm")

    def forget() -> None:
        (clone.path / FILE).unlink(missing_ok=True)
        shutil.rmtree(clone.path / ".git" / "lfs", ignore_errors=True)

    def lane(
        name: str,
        env: dict[str, str],
        prepare: Callable[[], object] = forget,
        served: Daemon | None = None,
    ) -> Lane:
        user = replace(clone, extra=env)

        def ready() -> None:
            prepare()
            forget()

        def check() -> None:
            expect(clone.path / FILE, wanted)
            if hidden.exists():
                hidden.rename(origin.path)

        return Lane(name, lambda: user.measure("checkout", "-q", "--", FILE, daemon=served), ready, check)

    outcome = interleave(
        [
            Lane("null", lambda: null.measure("checkout", "-q", "--", FILE), (null.path / FILE).unlink),
            lane("cold", {"THETA_DISK_CACHE": "0"}),
            lane("warmed", cache),
            lane("offline", cache, lambda: origin.path.rename(hidden)),
            lane("warmed, daemon", cache, daemon.restart, daemon),
        ],
        rounds,
        what=f"{NAME} {case}",
    )
    title = f"{nbytes / 1e6:,.0f} MB, sparse chain of depth {depth}, median of {rounds}"
    tables.append(Table(title, columns(("null",)), outcome.rows(("null",))))
    for name in ("cold", "warmed", "offline", "warmed, daemon"):
        figures[f"{NAME}.{case}.{name.replace(', ', '-')}/null"] = outcome.ratio(name, "null")
    tables.append(_counts(case, clone, daemon, forget, cache, origin, hidden, wanted, figures))


def _counts(
    case: str,
    clone: Repository,
    daemon: Daemon,
    forget: Callable[[], None],
    cache: dict[str, str],
    origin: Repository,
    hidden: Path,
    wanted: str,
    figures: dict[str, float | None],
) -> Table:
    """What each way read, once more, by the daemon's counters."""
    rows: list[list[Cell]] = []
    for name, env in (("cold", {"THETA_DISK_CACHE": "0"}), ("warmed", cache), ("offline", cache)):
        forget()
        if name == "offline":
            origin.path.rename(hidden)
        daemon.restart()
        replace(clone, extra=env).git("checkout", "-q", "--", FILE, daemon=daemon)
        counts = daemon.counters()
        expect(clone.path / FILE, wanted)
        row = [counts.get(key, 0) for key in ("fetch.objects", "fetch.bytes", "blobs_read", "updates_decoded")]
        rows.append([name, *row, "equal"])
        figures |= {f"{NAME}.{case}.{name}.objects": float(row[0]), f"{NAME}.{case}.{name}.blobs": float(row[2])}
    hidden.rename(origin.path)
    return Table(f"{case}: what it took", ("way", "objects fetched", "bytes", "blobs read", "updates", "digest"), rows)


def _revisions(place: Site, rounds: int, tables: list[Table], figures: dict[str, float | None]) -> None:
    """Warming the last 1, 5, 20 revisions: sparse edits of a few tensors each, or of all of them."""
    for what, change in (("few", _edit_few), ("all", models.edit_sparsely)):
        folder = Path(what)
        _, clone, _ = _cloned(place, SMALL_BYTES, max(REVISIONS) - 1, change, name=str(folder))
        clone.git("fetch", "-q", "--unshallow")
        rows: list[list[Cell]] = []
        for count in REVISIONS:
            costs, reports = [], []
            for _ in range(rounds):
                cache = place.top / "revisions-cache"
                shutil.rmtree(cache, ignore_errors=True)
                shutil.rmtree(clone.path / ".git" / "lfs", ignore_errors=True)
                file = place.top / "report.json"
                options = ("--depth", str(count), "--cache-dir", str(cache), "--json", str(file))
                costs.append(clone.measure("theta", "warm", *options))
                reports.append(json.loads(file.read_text()))
            middle, report = median(costs), reports[-1]
            names = ("files_warm", "tensors_built", "cache_bytes", "objects_fetched", "bytes_fetched", "blobs_read")
            rows.append([count, middle.seconds, middle.cpu_seconds, *(report[name] for name in names)])
            figures[f"{NAME}.revisions.{what}.{count}.seconds"] = middle.seconds
            figures[f"{NAME}.revisions.{what}.{count}.bytes"] = float(report["cache_bytes"])
        heads = ("revisions", "seconds", "CPU s", "warm", "tensors", "cache bytes", "objects", "fetched bytes", "blobs")
        tables.append(Table(f"Warming 90 MB, 0.1 % of {what} tensors changed a revision", heads, rows))


def _edit_few(path: Path, seed: int) -> None:
    """0.1 % of the values of three tensors."""
    with models.tensors(path, write=True) as found:
        names = sorted(found)
        for offset in range(3):
            words = found[names[(3 * seed + offset) % len(names)]]
            words[:: max(1, min(1000, words.size))] ^= words.dtype.type(1)


def _cloned(
    place: Site, nbytes: int, depth: int, change: Callable[[Path, int], None], name: str = "origin"
) -> tuple[Repository, Repository, str]:
    """A repository with `depth` changes on top of a first version, its clone of depth 1 with pointers, the last digest."""
    origin = place.repository(name)
    file = origin.path / FILE
    models.build(file, nbytes)
    origin.commit("version 0")
    for number in range(1, depth + 1):
        change(file, number)
        place.touch(file)
        origin.commit(f"version {number}")
    clone = Repository(place.top / f"{name}-clone", place.environment)
    origin.git("clone", "-q", "--depth=1", f"file://{origin.path}", str(clone.path), GIT_THETA_SKIP_SMUDGE="1")
    return origin, clone, digest(file)
