"""Every update type through real git: any bits, any processor, any order of versions."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from tests.git.models import Array, Model, safetensors
from tests.git.test_content import pointer
from tests.gitrepo import GitRepo
from tests.hints.adapted import by_rule, factors
from theta_daemon.tensor import DTYPES
from theta_daemon.testing.updates import special_words

RECIPE = {"generator": "philox", "seed": 1, "distribution": "uniform"}


def raw_safetensors(tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]]) -> bytes:
    """Any dtypes at all: name → (dtype, shape, bytes)."""
    header: dict[str, object] = {}
    position = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + len(data)]}
        position += len(data)
    text = json.dumps(header).encode()
    return b"".join([len(text).to_bytes(8, "little"), text, *(data for _, _, data in tensors.values())])


def special(seed: int, changed: int) -> bytes:
    """Every dtype, each with signed zeros, infinities, NaNs with payloads, subnormals, extremes; then `changed` changes."""
    shape = (24, 16)
    tensors = {}
    for dtype in DTYPES.values():
        words = special_words(dtype, 24 * 16 * dtype.words)
        if changed:
            places = np.random.default_rng(seed).choice(words.size, changed, replace=False)
            words[places] = special_words(dtype, changed, seed)
        tensors[f"all.{dtype.name}"] = (dtype.name, shape, words.tobytes())
    large = np.array([2**53 + 1, -(2**63), 2**63 - 1, 2**53 + 2 + seed], "<i8")
    tensors["large"] = ("I64", (2, 2), large.tobytes())
    return raw_safetensors(tensors)


@pytest.mark.parametrize("update", ["dense", "constant", "sparse", "delta", "low-rank", "ia3", "random"])
def test_special_values_through_every_type(repo: GitRepo, short_dir: Path, update: str) -> None:
    """−0.0, NaN payloads, infinities, subnormals, integers beyond 2⁵³, bool, F8, complex: exact, or stored as another type."""
    ones = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}
    data: dict[str, Array] = {}
    for name in DTYPES:
        kind = ones.get(name, "<f4")
        data[f"all.{name}/ia3"] = np.full((24, 1), 1, kind)
    (short_dir / "ia3").write_bytes(safetensors(data))
    env = {"GIT_THETA_UPDATE_TYPE": update}
    env |= {"GIT_THETA_UPDATE_OPTIONS": json.dumps(RECIPE)} if update == "random" else {}
    env |= {"GIT_THETA_UPDATE_OPTIONS": '{"rank": 1}'} if update == "low-rank" else {}
    env |= {"GIT_THETA_UPDATE_DATA_PATH": str(short_dir / "ia3")} if update == "ia3" else {}
    versions = {}
    for seed, changed in ((0, 0), (1, 5), (2, 380), (3, 384)):
        content = special(seed, changed)
        repo.write("m", content)
        repo("add", "m", env=env)
        versions[repo.commit(str(seed))] = content
    if update in {"dense", "sparse", "delta"}:
        second = list(versions)[1]  # later the chains would be larger than the values
        found = [parameter for parameter in pointer(repo, "m", second).parameters if parameter.name != "large"]
        assert {parameter.update for parameter in found} == {update}
    for commit in reversed(list(versions)):
        repo("checkout", "-q", commit)
        assert repo.read("m") == versions[commit]


def test_low_rank_checks_out_alike_on_other_processors(repo: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """One commit in fp32, fp16 and bf16; kernels, threads and instruction sets differ; the file's SHA-256 does not."""
    rng = np.random.default_rng(0)
    r, c = factors(1, 300, 200, 8)
    base: dict[str, Array] = {
        "f32": (0.1 * rng.standard_normal((300, 200))).astype("<f4"),
        "f16": (0.1 * rng.standard_normal((300, 200))).astype("<f2"),
    }
    base["bf16"] = (base["f32"].view("<u4") >> np.uint32(16)).astype("<u2")
    repo.commit("base", m=safetensors(base))
    data = {f"{name}/{key}": array for name in base for key, array in (("R", r), ("C", c))}
    repo.write("factors.txt", safetensors(data))
    # bf16 is written as words: the expected ones are float64's rounded once, to nearest even.
    wide = (base["bf16"].astype("<u4") << np.uint32(16)).view("<f4").astype("<f8")
    bits = by_rule(wide, r, c, 1.0).view("<u8")
    rounded = (bits + ((bits >> np.uint64(45)) & np.uint64(1)) + np.uint64((1 << 44) - 1)) >> np.uint64(45)
    exponents = (rounded - np.uint64((1023 - 127) << 7)) & np.uint64(0x7FFF)
    merged = {name: by_rule(base[name], r, c, 1.0) for name in ("f32", "f16")}
    merged["bf16"] = (exponents | ((bits >> np.uint64(63)) << np.uint64(15))).astype("<u2")
    content = safetensors(merged)
    repo.write("m", content)
    env = {"GIT_THETA_UPDATE_TYPE": "low-rank", "GIT_THETA_UPDATE_DATA_PATH": "factors.txt"}
    repo("add", "m", env=env)
    repo.commit("merged")
    found = pointer(repo, "m")
    assert {parameter.update for parameter in found.parameters} == {"low-rank"}
    assert all(parameter.stored < 1.1 * 4 * 8 * 500 for parameter in found.parameters)
    monkeypatch.setenv("THETA_DAEMON", "never")
    cpus = [
        {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
        {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "avx2", "THETA_WORKERS": "1"},
        {"NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3", "MKL_NUM_THREADS": "2", "THETA_WORKERS": "5"},
    ]
    for cpu in cpus:
        (repo.path / "m").unlink()
        repo("checkout", "m", env=cpu)
        assert hashlib.sha256(repo.read("m")).digest() == hashlib.sha256(content).digest()


def test_ten_commits_of_four_types_each(repo: GitRepo, short_dir: Path) -> None:
    """Dense, sparse, delta and low-rank in every commit; then every version from every other one, 90 checkouts."""
    rng = np.random.default_rng(0)
    rows, columns = 64, 48
    rules = "".join(
        f'[[rule]]\npattern = "{name}"\ntype = "{update}"\n'
        for name, update in (("dense", "dense"), ("sparse", "sparse"), ("delta", "delta"))
    )
    (short_dir / "h.toml").write_text(rules + '[[rule]]\npattern = "low"\ntype = "low-rank"\ndata = "factors"\n')
    names = ("dense", "sparse", "delta", "low")
    model = Model({name: (0.1 * rng.standard_normal((rows, columns))).astype("<f4") for name in names})
    versions = {repo.commit("0", m=model.bytes()): model.bytes()}
    for number in range(1, 11):
        r, c = factors(number, rows, columns)
        (short_dir / "factors").write_bytes(safetensors({"low/R": r, "low/C": c}))
        model = model.retrain("dense", number).edit("sparse", number, 30)
        tuned = (model.tensors["delta"].view("<u4") + rng.integers(0, 2, (rows, columns), "<u4")).view("<f4")
        model = model.put(delta=tuned, low=by_rule(model.tensors["low"], r, c, 1.0))
        repo.write("m", model.bytes())
        repo("add", "m", env={"GIT_THETA_HINTS": str(short_dir / "h.toml")})
        versions[repo.commit(str(number))] = model.bytes()
        found = {parameter.name: parameter.update for parameter in pointer(repo, "m").parameters}
        assert found == {"dense": "dense", "sparse": "sparse", "delta": "delta", "low": "low-rank"}
    commits = list(versions)[1:]
    for one, other in itertools.combinations(commits, 2):
        for commit in (one, other):
            repo("checkout", "-q", commit)
            assert repo.read("m") == versions[commit]
    assert repo.status() == ""


def test_hints_do_without_a_daemon(repo: GitRepo, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pointer is the same whoever made it: hints travel with the request, in the daemon and in the client's process."""
    array = np.random.default_rng(0).standard_normal((40, 30)).astype("<f4")
    repo.commit("one", m=Model({"a": array}).bytes())
    repo.write("m", Model({"a": array + np.float32(1)}).bytes())
    repo("add", "m", env={"GIT_THETA_UPDATE_TYPE": "dense"})
    by_daemon = repo("cat-file", "blob", ":m")
    repo("reset", "-q", "--hard")
    for name in (repo.path / ".git").rglob("memo.sqlite*"):
        name.unlink()
    monkeypatch.setenv("THETA_DAEMON", "never")
    repo.write("m", Model({"a": array + np.float32(1)}).bytes())
    repo("add", "m", env={"GIT_THETA_UPDATE_TYPE": "dense"})
    assert repo("cat-file", "blob", ":m") == by_daemon
