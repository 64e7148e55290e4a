"""The checkpoints that benchmarks are run on, and the question of batching in small."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from benchmarks import batching, models
from benchmarks.sites import site


@pytest.mark.parametrize(("dtype", "width"), [("F32", 4), ("BF16", 2)])
def test_a_model_has_its_size_and_edits_change_what_they_say(tmp_path: Path, dtype: str, width: int) -> None:
    """The library reads it; 0.1 % of the values change sparsely, all by tuning, whole tensors by retraining."""
    path = tmp_path / "model.safetensors"
    models.build(path, 3_000_000, dtype)
    assert 3_000_000 <= path.stat().st_size < 5_000_000
    with safe_open(path, "numpy") as file:
        assert all(f"{dtype}" in str(file.get_slice(name).get_dtype()) for name in file.keys())  # noqa: SIM118
    first = path.read_bytes()

    def share() -> float:
        words = np.dtype(f"u{width}")
        start = len(first) % width + 8 * width
        return float(np.mean(np.frombuffer(first[start:], words) != np.frombuffer(path.read_bytes()[start:], words)))

    models.edit_sparsely(path, 1)
    assert 0 < share() < 0.003
    models.tune(path, 1, 1e-2)
    assert share() > 0.5
    path.write_bytes(first)
    models.retrain(path, 1, 0.1)
    with models.tensors(path) as found:
        count = len(found)
    assert 0 < share() < 0.9
    assert count > 5


def test_three_ways_give_the_same_bytes_and_the_batch_reads_each_pointer_once() -> None:
    """Alone a parameter reads P x D pointers, memoized and batched D; every way has checked every digest."""
    with site() as place:
        repository = batching._chain(place, "small", 12, 2)
        (case,) = batching._measure(repository, batching._of_depths(repository, 12, [2]), 1)
        counts = {way: case.median(way).count("blobs_read") for way in batching.WAYS}
        decoded = {way: case.median(way).count("updates_decoded") for way in batching.WAYS}
    assert counts == {"alone": 24, "memoized": 2, "batch": 2}
    assert decoded == dict.fromkeys(batching.WAYS, 36)
