"""How many bytes does a commit take? By what changed, against git-lfs, git-theta, ZipNN, zstd and content-defined chunks.

Counted is what the repository grows by: objects, and git's own blob (the pointer), compressed as git compresses it. ZipNN and
zstd compress each version by itself; chunks (64 KiB on average, zstd) know those of the version before. Every version of
ours is checked out again and compared.

Inputs: all-MiniLM-L6-v2 in fp32 and bf16 (91 and 45 MB), chgnet 0.3.0 and its published fine-tuning r2scan. Edits: 0.1 % of
each tensor's values; one tensor retrained; N(0, 1e-5) on every value; W + R·C of rank 8 on all matrices, saved as torch
would (in fp32 arithmetic), added with its factors; every attention matrix scaled by a vector; one tensor zeroed; a copy
under another name.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks import models, rivals
from benchmarks.measure import CommandError
from benchmarks.results import Cell, Plot, Report, Table
from benchmarks.sites import Repository, Site, digest, expect, site
from scripts import inputs

NAME = "storage"
QUESTION = "How many bytes does a commit take, by what changed?"
WAYS = ("theta", "git-lfs", "git-theta", "zipnn", "zstd", "chunks")
RANK = 8
QUICK_BYTES = 6_000_000
QUICK_CASES = ("dense-bf16", "sparse-fp32", "low-rank", "ia3")

Edit = Callable[[Path], Mapping[str, str]]
"""Changes a file in place; what to say to ours when it is added (environment)."""


@dataclass(frozen=True, slots=True)
class Case:
    """A first version, and the edit that the measured commit is; without one the first commit is measured.

    `hint` is what git-theta is told: its types are asked for, not found. None: it is not asked (it cannot).
    """

    first: Callable[[Path], object]
    edit: Edit | None
    dtype: str
    hint: str | None = "dense"
    suffix: str = ".safetensors"


def run(*, quick: bool = False, rounds: int = 1, cases: frozenset[str] = frozenset()) -> Report:
    """The report, of all cases when none is named. Sizes do not vary: `rounds` is ignored."""
    del rounds
    rows: list[list[Cell]] = []
    figures: dict[str, float | None] = {}
    bars: dict[str, list[tuple[Cell, float]]] = {}
    notes: list[str] = []
    for name, case in _cases(quick=quick).items():
        if name not in cases if cases else quick and name not in QUICK_CASES:
            continue
        print(f"  {NAME} {name}", file=sys.stderr, flush=True)
        with site() as place:
            raw, sizes, updates = _measure(place, case, notes)
        cells = ["-" if size is None else f"{size / 1e6:.2f} ({100 * size / raw:.1f} %)" for size in sizes.values()]
        rows.append([name, f"{raw / 1e6:.1f}", *cells, updates])
        ours = sizes["theta"] or 0
        for way, size in sizes.items():
            figures[f"{NAME}.{name}.{way}"] = size
            if way != "theta":
                figures[f"{NAME}.{name}.theta/{way}"] = ours / size if size else None
            if size is not None:
                bars.setdefault(way, []).append((name, max(100 * size / raw, 0.001)))
    table = Table("MB a commit (% of the version's raw bytes)", ("commit", "raw MB", *WAYS, "our updates"), rows)
    plot = Plot("storage", "Bytes a commit, % of the raw version", "bars", "", "% (logarithmic)", bars, log=True)
    return Report(NAME, QUESTION, [table], [plot], figures, sorted(set(notes)))


def _cases(*, quick: bool) -> dict[str, Case]:
    def source(name: str, dtype: str) -> Callable[[Path], object]:
        if quick:
            return lambda path: models.build(path, QUICK_BYTES, dtype)
        return partial(shutil.copyfile, inputs.path(name))

    fp32, bf16 = source("minilm", "F32"), source("minilm-bf16", "BF16")
    found = {
        "dense-fp32": Case(fp32, None, "F32"),
        "dense-bf16": Case(bf16, None, "BF16"),
        "unchanged-copy": Case(fp32, _nothing, "F32"),
        "one-tensor": Case(fp32, _silent(lambda path: models.retrain(path, 1, 0.001)), "F32"),
        "sparse-fp32": Case(fp32, _silent(lambda path: models.edit_sparsely(path, 1)), "F32", "sparse"),
        "sparse-bf16": Case(bf16, _silent(lambda path: models.edit_sparsely(path, 1)), "BF16", "sparse"),
        "tuned-fp32": Case(fp32, _silent(lambda path: models.tune(path, 1)), "F32"),
        "tuned-bf16": Case(bf16, _silent(lambda path: models.tune(path, 1)), "BF16"),
        "low-rank": Case(fp32, _merge_low_rank, "F32"),
        "ia3": Case(fp32, _scale_rows, "F32"),
        "zeroed": Case(fp32, _silent(_zero), "F32"),
    }
    if not quick:
        found["chgnet-fine-tuned"] = Case(
            partial(shutil.copyfile, inputs.path("chgnet-0.3.0")),
            _silent(partial(shutil.copyfile, inputs.path("chgnet-r2scan"))),
            "F32",
            None,
            ".tar",
        )
    return found


def _silent(edit: Callable[[Path], object]) -> Edit:
    def edited(path: Path) -> Mapping[str, str]:
        edit(path)
        return {}

    return edited


def _nothing(path: Path) -> Mapping[str, str]:
    """The same bytes under another name: the first one goes."""
    path.rename(path.with_name(f"copy{path.suffix}"))
    return {}


def _zero(path: Path) -> None:
    with models.tensors(path, write=True) as found:
        found[max(found, key=lambda name: found[name].size)][:] = 0


def _merge_low_rank(path: Path) -> Mapping[str, str]:
    """W + R·C on every matrix, in fp32 as a library would; the factors go beside it."""
    generator = np.random.default_rng(8)
    factors: dict[str, models.Array] = {}
    shapes = models.shapes(path)
    with models.tensors(path, write=True) as found:
        for name, words in found.items():
            if len(shapes[name]) == 2 and words.dtype == "<u4" and min(shapes[name]) > RANK:
                rows, columns = shapes[name]
                r = generator.standard_normal((rows, RANK), dtype=np.float32) * np.float32(0.01)
                c = generator.standard_normal((RANK, columns), dtype=np.float32) * np.float32(0.01)
                values = words.view("<f4").reshape(rows, columns)
                values += r @ c
                factors |= {f"{name}/R": r, f"{name}/C": c}
    return _hint("low-rank", path, factors)


def _scale_rows(path: Path) -> Mapping[str, str]:
    """Every attention matrix, row by row, by a learned vector."""
    generator = np.random.default_rng(9)
    vectors: dict[str, models.Array] = {}
    shapes = models.shapes(path)
    with models.tensors(path, write=True) as found:
        for name, words in found.items():
            if "attention" in name and len(shapes[name]) == 2 and words.dtype == "<u4":
                rows, columns = shapes[name]
                vector = 1 + generator.standard_normal((rows, 1), dtype=np.float32) * np.float32(0.01)
                values = words.view("<f4").reshape(rows, columns)
                values *= vector
                vectors[f"{name}/ia3"] = vector
    return _hint("ia3", path, vectors)


def _hint(update: str, path: Path, arrays: Mapping[str, models.Array]) -> Mapping[str, str]:
    """The environment that says: by this type, with these arrays (written outside the work tree)."""
    data = path.parent / ".git" / "hint.safetensors"
    header, position = {}, 0
    for name, array in arrays.items():
        header[name] = {"dtype": "F32", "shape": array.shape, "data_offsets": [position, position + array.nbytes]}
        position += array.nbytes
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    data.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(array.tobytes() for array in arrays.values()))
    return {"GIT_THETA_UPDATE_TYPE": update, "GIT_THETA_UPDATE_DATA_PATH": str(data)}


def _measure(place: Site, case: Case, notes: list[str]) -> tuple[int, dict[str, int | None], str]:
    """Raw bytes of the measured version, bytes by way, and what our pointer says."""
    name = f"model{case.suffix}"
    theta = place.repository("theta", "theta", f"*{case.suffix}")
    size = _two_commits(theta, theta.path / name, case)
    changed = next(iter(sorted(theta.path.glob(f"*{case.suffix}"))))
    sizes: dict[str, int | None] = {"theta": size}
    expect_back(theta, changed)
    sizes["git-lfs"] = None
    if place.has_lfs:
        lfs = place.repository("lfs", "lfs", f"*{case.suffix}")
        sizes["git-lfs"] = _two_commits(lfs, lfs.path / name, case)
    sizes["git-theta"] = _by_git_theta(place, case, name, notes)
    chunks = rivals.ChunkStore()
    if case.edit is not None:
        before = place.top / name
        case.first(before)
        chunks.add(before)
    sizes["zipnn"] = rivals.zipnn_bytes(changed, case.dtype)
    sizes["zstd"] = rivals.zstd_bytes(changed)
    sizes["chunks"] = chunks.add(changed)
    return changed.stat().st_size, sizes, _updates(theta, changed.name)


def _two_commits(repository: Repository, path: Path, case: Case, hint: Mapping[str, str] | None = None) -> int:
    """Commit the first version and, if there is one, the edit; what the last commit added.

    `hint`: what to say when it is added, instead of what the edit says.
    """
    before = _stored(repository)
    case.first(path)
    said: Mapping[str, str] = {}
    if case.edit is not None:
        repository.commit("first")
        before = _stored(repository)
        said = case.edit(path)
    repository.commit("measured", env=said if hint is None else hint)
    return _stored(repository) - before


def _stored(repository: Repository) -> int:
    """Bytes of objects and of git's own."""
    own = (path for path in (repository.path / ".git" / "objects").rglob("*") if path.is_file())
    return repository.object_bytes() + sum(path.stat().st_size for path in own)


def expect_back(repository: Repository, path: Path) -> None:
    """Raises WrongBytesError unless a new checkout has the same bytes."""
    wanted = digest(path)
    path.unlink()
    repository.git("checkout", "-q", "--", path.name)
    expect(path, wanted)


def _by_git_theta(place: Site, case: Case, name: str, notes: list[str]) -> int | None:
    if case.hint is None:
        notes.append("git-theta reads chgnet's files only by running the code in them; it was not asked.")
        return None
    try:
        repository = rivals.git_theta_repository(place)
        return _two_commits(repository, repository.path / name, case, {"GIT_THETA_UPDATE_TYPE": case.hint})
    except (rivals.UnavailableError, CommandError) as error:
        lines = str(error).strip().splitlines()
        raised = [line for line in lines if re.match(r"[\w.]*(Error|Exception)\b", line)]
        notes.append(f"git-theta, {case.dtype}, told {case.hint!r}: {(raised or lines)[-1]}")
        return None


def _updates(theta: Repository, name: str) -> str:
    pointer = json.loads(theta.git("cat-file", "blob", f"HEAD:{name}"))
    kinds = Counter(parameter["update"] for parameter in pointer["parameters"])
    return ", ".join(f"{count} {kind}" for kind, count in kinds.most_common())
