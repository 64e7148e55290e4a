"""What was added comes back, every byte."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import numpy as np
import pytest

from scripts import inputs
from tests.git.models import Model, model
from tests.gitrepo import GitRepo
from theta_daemon.pointer import looks_like_pointer, parse

REAL = ["silero", "silero-jit-5", "g2p", "lpips-alex"]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def variants(data: bytes) -> list[bytes]:
    """The file, and versions that differ from it in bytes here and there (which no format needs to understand)."""
    rng = np.random.default_rng(len(data))
    versions = [data]
    for count in (3, 200):
        array = np.frombuffer(versions[-1], "u1").copy()
        start = array.size // 3
        array[start + rng.choice(array.size - start - 1024, count, replace=False)] ^= 1
        versions.append(array.tobytes())
    return versions


def check(repo: GitRepo, versions: list[dict[str, bytes]]) -> None:
    """Commit the versions, then have each again: here, and in a clone that has no more than git and the objects."""
    commits = [repo.commit(f"version {number}", **files) for number, files in enumerate(versions)]
    for commit, files in zip(commits, versions, strict=True):
        for name, data in files.items():
            text = repo.blob(name, commit)
            assert text == b"" if not data else looks_like_pointer(text)
    expected = [{name: sha256(data) for name, data in files.items()} for files in versions]
    other = repo.clone(repo.path.with_name("clone"), "--no-checkout")
    shutil.copytree(repo.path / ".git" / "lfs", other.path / ".git" / "lfs")
    numbers = range(len(versions))
    for place, order in ((repo, [*reversed(numbers), len(versions) - 1]), (other, numbers)):
        for number in order:
            place("checkout", "-q", commits[number])
            assert {name: sha256(place.read(name)) for name in expected[number]} == expected[number]
        assert place.status() == ""


def test_every_kind_of_file(either: GitRepo) -> None:
    """safetensors, npz, an empty file, one byte, random bytes, half a checkpoint, with and without the daemon."""
    versions = []
    current = model()
    for number in range(3):
        current = current.step(number)
        data = current.bytes()
        versions.append(
            {
                "a.safetensors": data,
                "b.npz": current.without("empty").npz(),
                "empty": b"" if number != 1 else b"filled",
                "byte": bytes([number]),
                "random": np.random.default_rng(number // 2).bytes(300_000 + number),
                "half": data[: len(data) // 2 - number],
            }
        )
    check(either, versions)


@pytest.mark.parametrize("name", REAL)
def test_real_checkpoints(repo: GitRepo, name: str) -> None:
    """Files that people have published, as they are and with bytes changed anywhere."""
    path = inputs.path(name)
    check(repo, [{path.name: data} for data in variants(path.read_bytes())])


def test_ten_megabytes_of_noise(repo: GitRepo) -> None:
    """What no codec can shrink comes back, and is stored once."""
    data = np.random.default_rng(1).bytes(10_000_000)
    check(repo, [{"noise.bin": data}, {"noise.bin": data, "copy.bin": data}, {"noise.bin": data[:-1] + b"!"}])
    stored = sum(path.stat().st_size for path in (repo.path / ".git" / "lfs" / "objects").rglob("*") if path.is_file())
    assert stored < 10_200_000


def test_a_real_model_through_time(repo: GitRepo) -> None:
    """MiniLM: retrained in one tensor, edited in a few places, fine-tuned as a whole; each in its smallest form."""
    first = inputs.path("minilm").read_bytes()
    header = int.from_bytes(first[:8], "little") + 8
    array = np.frombuffer(first, "<f4", offset=header).copy()
    rng = np.random.default_rng(0)
    versions = [{"model.safetensors": first}]
    edits = rng.choice(array.size, array.size // 1000, replace=False)
    array[edits] *= 1.5
    versions.append({"model.safetensors": first[:header] + array.tobytes()})
    array[:] += 1e-5 * rng.standard_normal(array.size, np.float32)
    versions.append({"model.safetensors": first[:header] + array.tobytes()})
    check(repo, versions)
    types = []
    for revision in ("main~2", "main~1", "main"):
        pointer = parse(repo.blob("model.safetensors", revision))
        assert pointer is not None
        types.append({parameter.update for parameter in pointer.parameters})
    assert "sparse" not in types[0]
    assert "sparse" in types[1]
    assert "delta" in types[2]


def test_empty_tensors_and_no_tensors(repo: GitRepo) -> None:
    """A checkpoint of nothing but empty tensors, and one without any."""
    nothing = Model({"a": np.zeros((0, 3), "<f4"), "b": np.zeros((5, 0), "<f8")})
    check(repo, [{"m": nothing.bytes()}, {"m": Model().bytes()}, {"m": nothing.without("a").bytes()}])


def test_an_add_of_the_same_bytes_elsewhere_needs_no_new_object(repo: GitRepo, short_dir: Path) -> None:
    """The same file under another name and in another folder is stored once."""
    data = model().bytes()
    repo.commit("one", a=data)
    objects = sorted((repo.path / ".git" / "lfs" / "objects").rglob("*"))
    repo.commit("two", **{"b": data, "folder/c": data})
    assert sorted((repo.path / ".git" / "lfs" / "objects").rglob("*")) == objects
    assert repo.blob("a") == repo.blob("b") == repo.blob("folder/c")
