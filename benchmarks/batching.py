"""How much of a checkout is repeated work when each parameter walks its history alone?

Three ways to the same bytes, on the same primitives (`History`, `pointer.parse`, `Chain`, one pool):

- (a) alone: every parameter goes back by itself: at each step it reads the blob of the previous pointer and parses it;
- (b) memoized: the same, but "the pointer in that blob" is remembered, so that each is read and parsed once;
- (c) batch: what this program does: one plan for all parameters and files, values that are needed twice computed once.

Nothing is cached between runs. All three check every value's digest; (c) also puts the file together and checks the whole.
Where (a) would take minutes it is run for some of the parameters only and scaled up, which is exact for the counts of work
and fair for the time, as its parameters share nothing; such cells say ~.
"""

from __future__ import annotations

import os
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
from blake3 import blake3

from benchmarks import models
from benchmarks.results import Cell, Plot, Report, Table
from benchmarks.sites import Repository, Site, WrongBytesError, site
from theta_daemon.engine import Engine
from theta_daemon.filters.batch import Prepared, Wanted
from theta_daemon.filters.chain import Chain
from theta_daemon.filters.plan import Node, value_key
from theta_daemon.filters.workspace import Workspace
from theta_daemon.invocation import Invocation
from theta_daemon.pointer import Parameter, Pointer, parse
from theta_daemon.settings import Settings

NAME = "batching"
QUESTION = "How much of a checkout is repeated work when each parameter walks its history alone?"
PARAMETERS = (50, 500, 5000)
DEPTHS = (1, 4, 16, 64)
ELEMENTS = 1024
FILES = 8
SHARED_DEPTH = 16
WAYS = ("alone", "memoized", "batch")
_ALONE_SECONDS = 3.0
"""About as long (a) may take in one round."""

Read = Callable[[str], Pointer]


@dataclass(frozen=True, slots=True)
class Work:
    """What one way did for one checkout. `share`: which part of the parameters it was done for."""

    seconds: float
    counts: Mapping[str, int]
    share: float = 1.0

    @property
    def total_seconds(self) -> float:
        return self.seconds / self.share

    def count(self, name: str) -> int:
        return round(self.counts.get(name, 0) / self.share)


@dataclass(frozen=True, slots=True)
class Case:
    """A checkout: pointers by pathname. `key` is its name in figures."""

    key: str
    name: str
    parameters: int
    depth: int
    files: Mapping[bytes, Wanted]
    works: dict[str, list[Work]] = field(default_factory=dict)

    def median(self, way: str) -> Work:
        """The run with the median time."""
        return sorted(self.works[way], key=lambda work: work.seconds)[len(self.works[way]) // 2]

    def times(self, way: str) -> float:
        """How often the batch's time, within the rounds."""
        pairs = zip(self.works[way], self.works["batch"], strict=True)
        return statistics.median(one.total_seconds / two.total_seconds for one, two in pairs)


def run(*, quick: bool = False, rounds: int = 5, cases: frozenset[str] = frozenset()) -> Report:
    """The report. `cases`: numbers of parameters, and `files`; all when empty."""
    rounds = 2 if quick else rounds
    depths = DEPTHS[:3] if quick else DEPTHS
    measured: list[Case] = []
    with site() as place:
        for parameters in PARAMETERS[:2] if quick else PARAMETERS:
            if cases and str(parameters) not in cases:
                continue
            repository = _chain(place, f"p{parameters}", parameters, max(depths))
            measured += _measure(repository, _of_depths(repository, parameters, depths), rounds)
        if not cases or "files" in cases:
            repository = _family(place, 50 if quick else 500, SHARED_DEPTH)
            measured += _measure(repository, [_of_files(repository, 50 if quick else 500)], rounds)
    return _report(measured)


def _chain(place: Site, name: str, parameters: int, depth: int) -> Repository:
    """A file of small parameters, and `depth` versions in which each of them has another element."""
    repository = place.repository(name)
    daemon = place.daemon("builder")
    file = repository.path / "model.safetensors"
    models.write_small(file, parameters, ELEMENTS)
    for version in range(depth + 1):
        if version:
            models.edit_sparsely(file, version, 1 / ELEMENTS)
        sparse = {"THETA_MAX_DEPTH": str(depth), "GIT_THETA_UPDATE_TYPE": "sparse"}
        repository.commit(f"version {version}", daemon=daemon, env=sparse)
        repository.git("tag", f"depth-{version}")
    return repository


def _family(place: Site, parameters: int, depth: int) -> Repository:
    """Eight fine-tunings of one model: each changes a tenth of the parameters of its version of depth `depth`."""
    repository = _chain(place, "family", parameters, depth)
    daemon = place.daemon("builder")
    content = (repository.path / "model.safetensors").read_bytes()
    files = [repository.path / f"tuned-{number}.safetensors" for number in range(FILES)]
    for file in files:
        file.write_bytes(content)
    repository.commit("copies: the same pointer", daemon=daemon)
    for number, file in enumerate(files):
        with models.tensors(file, write=True) as found:
            for name in sorted(found)[::10]:
                found[name][number] ^= 1
    repository.commit("a family", daemon=daemon, env={"THETA_MAX_DEPTH": str(depth + 1)})
    return repository


def _of_depths(repository: Repository, parameters: int, depths: Sequence[int]) -> list[Case]:
    return [
        Case(
            f"{parameters}x{depth}",
            f"{parameters} parameters, depth {depth}",
            parameters,
            depth,
            _wanted(repository, f"depth-{depth}", "model"),
        )
        for depth in depths
    ]


def _of_files(repository: Repository, parameters: int) -> Case:
    name = f"{FILES} files of {parameters} parameters, nine tenths shared, depth {SHARED_DEPTH}"
    return Case("files", name, parameters * FILES, SHARED_DEPTH, _wanted(repository, "HEAD", "tuned"))


def _wanted(repository: Repository, revision: str, start: str) -> dict[bytes, Wanted]:
    """The pointers of a commit's files whose names start so."""
    files = {}
    for line in repository.git("ls-tree", revision).splitlines():
        meta, _, name = line.partition("\t")
        if name.startswith(start):
            blob = meta.split()[2]
            pointer = parse((repository.git("cat-file", "blob", blob) + "\n").encode())
            assert pointer is not None, f"{name} is no pointer"
            files[os.fsencode(name)] = Wanted(blob, pointer)
    return files


def _measure(repository: Repository, cases: Sequence[Case], rounds: int) -> Sequence[Case]:
    for case in cases:
        share = _affordable(case)
        for number in range(rounds + 1):
            for way in (*WAYS[number % 3 :], *WAYS[: number % 3]):
                work = _once(repository, case, way, share if way == "alone" else 1.0)
                if number:
                    case.works.setdefault(way, []).append(work)
        print(f"  {NAME} {case.name}", file=sys.stderr, flush=True)
    return cases


def _affordable(case: Case) -> float:
    """The share of the parameters that (a) can do in its time, by what reading and parsing one pointer takes."""
    wanted = next(iter(case.files.values()))
    text = wanted.pointer.encode()
    start = time.perf_counter()
    parse(text)
    steps = max(1, case.parameters * case.depth)
    return min(1.0, max(2 / case.parameters, _ALONE_SECONDS / (steps * (time.perf_counter() - start))))


def _once(repository: Repository, case: Case, way: str, share: float) -> Work:
    """One checkout's values by one way, in a process state that knows nothing of them."""
    with _workspace(repository) as (engine, workspace):
        before = engine.counters.snapshot()
        start = time.perf_counter()
        done = 1.0
        if way == "batch":
            prepared = Prepared(workspace, case.files)
            for pathname in case.files:
                for _ in prepared.stream(pathname):
                    pass
        else:
            done = _each_alone(
                workspace, case, _memoized(workspace) if way == "memoized" else _reader(workspace), share
            )
        seconds = time.perf_counter() - start
        after = engine.counters.snapshot()
    return Work(seconds, {name: count - before.get(name, 0) for name, count in after.items()}, done)


@contextmanager
def _workspace(repository: Repository) -> Iterator[tuple[Engine, Workspace]]:
    engine = Engine(Settings(tensor_cache=0))
    invocation = Invocation(repository.path, dict(repository.environment), 0o022, os.geteuid())
    try:
        with engine.workspace(invocation, lambda text: print(text, file=sys.stderr)) as workspace:
            yield engine, workspace
    finally:
        engine.close()


def _each_alone(workspace: Workspace, case: Case, read: Read, share: float) -> float:
    """Rebuild a share of the parameters, each by itself; the share that was done."""
    wanted = [parameter for file in case.files.values() for parameter in file.pointer.parameters]
    step = max(1, round(1 / share))
    chosen = wanted[::step]
    list(workspace.machinery.pool.map(lambda parameter: _rebuild(workspace, parameter, read), chosen))
    return len(chosen) / len(wanted)


def _rebuild(workspace: Workspace, parameter: Parameter, read: Read) -> None:
    """Walk back to the self-contained value, then apply the updates. Raises WrongBytesError."""
    steps = [parameter]
    while (previous := steps[-1].previous) is not None:
        steps.append(read(previous).by_name[steps[-1].base_name])
    nodes: list[Node] = []
    for step in reversed(steps):
        key = value_key(step.digest, step.spec)
        base = nodes[-1].key if nodes else None
        nodes.append(Node(key, step.spec, step.update, step.ref, base, step.digest, step.name))
    machinery = workspace.machinery
    words = np.empty(parameter.spec.words, parameter.spec.dtype.word_dtype)
    chain = Chain(nodes, None, machinery.records, machinery.updates, machinery.counters)
    chain.fill(parameter.spec, 0, parameter.spec.words, words)
    if blake3(words.view(np.uint8).data).hexdigest() != parameter.digest:
        raise WrongBytesError(parameter.name)


def _reader(workspace: Workspace) -> Read:
    """(a): every call reads and parses."""

    def read(blob: str) -> Pointer:
        text = workspace.history.blob(blob)
        pointer = None if text is None else parse(text)
        assert pointer is not None, f"{blob} is no pointer"
        workspace.machinery.counters.add("pointers_parsed")
        return pointer

    return read


def _memoized(workspace: Workspace) -> Read:
    """(b): each pointer is read and parsed once, whoever asks first."""
    read, known, lock = _reader(workspace), dict[str, Pointer](), threading.Lock()

    def remembered(blob: str) -> Pointer:
        with lock:
            if blob not in known:
                known[blob] = read(blob)
            return known[blob]

    return remembered


def _report(measured: Sequence[Case]) -> Report:
    columns = ["one checkout", "way", "seconds", "÷ batch", "blobs read", "pointers parsed", "updates decoded"]
    tables: dict[str, list[list[Cell]]] = {}
    figures: dict[str, float | None] = {}
    plots: dict[str, list[tuple[Cell, float]]] = {}
    for case in measured:
        title, _, name = case.name.partition(", ")
        for letter, way in zip("abc", WAYS, strict=True):
            work = case.median(way)
            mark = "" if work.share == 1 else "~"
            counts = [work.count(name) for name in ("blobs_read", "pointers_parsed", "updates_decoded")]
            tables.setdefault(title, []).append([
                name, f"({letter}) {way}", f"{mark}{work.total_seconds:.3g}", f"{mark}{case.times(way):.2f}",
                *(f"{mark}{count:,}" for count in counts),
            ])  # fmt: skip
            figures[f"{NAME}.{case.key}.{way}.seconds"] = work.total_seconds
            if case.key != "files":
                series = plots.setdefault(f"({letter}) {way}, {case.parameters} parameters", [])
                series.append((case.depth, work.total_seconds))
        # (b) reads each pointer that is needed once, so its count is that of distinct pointers.
        needed, read = (case.median(way).count("blobs_read") for way in ("memoized", "batch"))
        figures[f"{NAME}.{case.key}.blobs/needed"] = read / needed if needed else None
        figures[f"{NAME}.{case.key}.alone/batch"] = case.times("alone")
        figures[f"{NAME}.{case.key}.memoized/batch"] = case.times("memoized")
    plot = Plot(
        "batching", "A checkout's values, nothing cached", "lines", "depth of the chains", "seconds", plots, log=True
    )
    return Report(NAME, QUESTION, [Table(title, columns, rows) for title, rows in tables.items()], [plot], figures)
