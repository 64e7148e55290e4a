"""Low-rank and ia3: exact to the bits of torch's own merges, and the same bits on every machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from theta_daemon.errors import HintError, RecordError
from theta_daemon.tensor import CHUNK_WORDS, DTYPES, TensorSpec, Words
from theta_daemon.testing.updates import BytesRecord, Case, UpdateContract, special_words
from theta_daemon.updates.base import Hint, Update
from theta_daemon.updates.dense import Dense
from theta_daemon.updates.floats import Array, as_array, widen
from theta_daemon.updates.ia3 import IA3
from theta_daemon.updates.low_rank import LowRank
from theta_daemon.updates.sections import encode_array, join_sections

TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "F64": torch.float64}


def array(tensor: torch.Tensor) -> Array:
    """A tensor's bits."""
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    words = tensor.contiguous().view(integers).numpy().reshape(-1).view(f"<u{tensor.element_size()}")
    (name,) = (name for name, dtype in TORCH.items() if dtype == tensor.dtype)
    return Array(TensorSpec(DTYPES[name], tuple(tensor.shape)), words)


def adapter(name: str, shape: tuple[int, ...], rank: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Weights, and factors as a LoRA run leaves them."""
    generator = torch.Generator().manual_seed(len(shape) + rank)
    columns = int(np.prod(shape[1:]))
    sizes = ((shape, 0.02), ((shape[0], rank), 0.02), ((rank, columns), 0.03))
    first, second, third = (torch.randn(size, generator=generator) * width for size, width in sizes)
    return first.to(TORCH[name]), second.to(TORCH[name]), third.to(TORCH[name])


def decoded(update: Update, spec: TensorSpec, record: bytes, previous: Words) -> Words:
    words = previous.copy()
    update.open(spec, BytesRecord(record)).apply(0, spec.words, words)
    return words


@pytest.mark.parametrize("name", TORCH)
@pytest.mark.parametrize("shape", [(256, 192), (64, 16, 3, 3)])
def test_what_torch_merged_comes_back(name: str, shape: tuple[int, ...]) -> None:
    """W + 2 (B A) as torch computed and saved it, from the factors and a small residual."""
    weight, b, a = adapter(name, shape, 8)
    merged = weight + 2 * (b @ a).reshape(shape)
    previous, value = array(weight), array(merged)
    hint = Hint("low-rank", {"R": array(b), "C": array(a)}, {"scale": 2.0})
    record = LowRank().encode(value.spec, value.words, previous.words, hint)
    assert record is not None
    assert np.array_equal(decoded(LowRank(), value.spec, record, previous.words), value.words)
    factors = array(b).spec.nbytes + array(a).spec.nbytes
    assert len(record) < factors + 0.12 * value.spec.nbytes


@pytest.mark.parametrize("name", TORCH)
def test_a_defined_value_costs_its_factors(name: str) -> None:
    """What the rule itself makes of the factors needs no residual."""
    weight, b, a = adapter(name, (256, 192), 8)
    previous = array(weight)
    hint = Hint("low-rank", {"R": array(b), "C": array(a), "alpha": np.float32(0.5)})
    value = LowRank().define(previous.spec, previous.words, hint)
    assert value is not None
    assert not np.array_equal(value, previous.words)
    record = LowRank().encode(previous.spec, value, previous.words, hint)
    assert record is not None
    assert np.array_equal(decoded(LowRank(), previous.spec, record, previous.words), value)
    assert len(record) < array(b).spec.nbytes + array(a).spec.nbytes + 200


def test_the_rule_is_what_it_says() -> None:
    """Element by element in Python floats: products added in ascending k, times scale, plus previous, one rounding."""
    weight, b, a = adapter("F32", (5, 7), 2)
    previous = array(weight)
    value = LowRank().define(
        previous.spec, previous.words, Hint("low-rank", {"R": array(b), "C": array(a), "scale": 0.3})
    )
    assert value is not None
    for i in range(5):
        for j in range(7):
            total = float(b[i, 0]) * float(a[0, j])
            total += float(b[i, 1]) * float(a[1, j])
            expected = np.float32(total * 0.3 + float(weight[i, j]))
            assert value.view("<f4")[7 * i + j] == expected


@pytest.mark.parametrize("options", [{}, {"rank": 6}, {"rank": 500}])
def test_factors_are_found_on_request(options: Mapping[str, Any]) -> None:
    """Without factors, singular values show the rank that stands out of the rounding, or the rank that is asked for."""
    weight, b, a = adapter("F32", (300, 200), 6)
    previous, value = array(weight), array(weight + b @ a)
    record = LowRank().encode(value.spec, value.words, previous.words, Hint("low-rank", {}, options))
    assert record is not None
    assert np.array_equal(decoded(LowRank(), value.spec, record, previous.words), value.words)
    assert len(record) < (0.15 if options.get("rank") != 500 else 0.6) * value.spec.nbytes


def test_factors_of_a_large_matrix_are_found() -> None:
    """Beyond a thousand rows and columns a random projection finds them."""
    weight, b, a = adapter("BF16", (1200, 1100), 4)
    previous, value = array(weight), array(weight + 4 * (b @ a))
    record = LowRank().encode(value.spec, value.words, previous.words, Hint("low-rank"))
    assert record is not None
    assert len(record) < 0.2 * value.spec.nbytes
    assert np.array_equal(decoded(LowRank(), value.spec, record, previous.words), value.words)


def test_declines_what_does_not_help() -> None:
    """No hint, wrong factors, factors larger than the value, wrong shapes, one dimension, integers: another form."""
    weight, b, a = adapter("F32", (64, 48), 4)
    previous, value = array(weight), array(weight + b @ a)
    spec = value.spec
    r, c = array(b), array(a)

    def encode(hint: Hint | None, spec: TensorSpec = spec) -> bytes | None:
        return LowRank().encode(spec, value.words, previous.words, hint)

    assert encode(Hint("low-rank", {"R": r, "C": c})) is not None
    assert encode(None) is None
    assert encode(Hint("low-rank", {"R": r})) is None
    assert encode(Hint("low-rank", {"R": as_array(np.ones((64, 4))), "C": c})) is None
    assert encode(Hint("low-rank", {"R": c, "C": r})) is None
    assert encode(Hint("low-rank", {"R": np.ones((64, 40)), "C": np.ones((40, 48))})) is None
    assert encode(Hint("low-rank", {"R": np.ones((64, 0)), "C": np.ones((0, 48))})) is None
    assert encode(Hint("low-rank", {"R": r, "C": c}), TensorSpec(DTYPES["F32"], (64 * 48,))) is None
    assert encode(Hint("low-rank", {"R": r, "C": c}), TensorSpec(DTYPES["I32"], (64, 48))) is None
    for bad in ({"rank": 0}, {"rank": "8"}, {"rank": True}):
        with pytest.raises(HintError):
            encode(Hint("low-rank", {}, bad))
    with pytest.raises(HintError):
        encode(Hint("low-rank", {"R": r, "C": c, "scale": float("nan")}))
    with pytest.raises(HintError):
        encode(Hint("low-rank", {"R": "factors", "C": c}))


def test_nans_and_infinities_in_factors_are_exact_too() -> None:
    """Whatever the factors make, the residual leads to the value's own bits, NaN payloads included."""
    spec = TensorSpec(DTYPES["F32"], (40, 30))
    previous = special_words(spec.dtype, spec.words, 1)
    r, c = (special_words(spec.dtype, 60, seed).view("<f4")[:size] for seed, size in ((2, 40), (3, 30)))
    hint = Hint("low-rank", {"R": r.reshape(40, 1), "C": c.reshape(1, 30)})
    value = LowRank().define(spec, previous, hint)
    assert value is not None
    value[::7] ^= np.uint32(1)
    record = LowRank().encode(spec, value, previous, hint)
    assert record is not None
    assert np.array_equal(decoded(LowRank(), spec, record, previous), value)


def test_a_rank_beyond_the_matrix_is_refused() -> None:
    """A record cannot make decoding widen factors that are larger than the value."""
    spec = TensorSpec(DTYPES["BF16"], (64, 64))
    big = [Array(TensorSpec(DTYPES["F32"], shape), np.zeros(64 * 10**4, "<u4")) for shape in ((64, 10**4), (10**4, 64))]
    text = b'{"rank":10000,"scale":1.0,"r":"F32","c":"F32"}'
    record = join_sections(
        spec, text, [*map(encode_array, big), Dense().encode(spec, np.zeros(4096, "<u2"), None, None) or b""]
    )
    with pytest.raises(RecordError):
        LowRank().open(spec, BytesRecord(record))


SCRIPT = """
import hashlib, sys
import numpy as np
from theta_daemon.tensor import DTYPES, TensorSpec
from theta_daemon.updates.base import Hint
from theta_daemon.updates.ia3 import IA3
from theta_daemon.updates.low_rank import LowRank
from theta_daemon.updates.random import Random
rng = np.random.Generator(np.random.PCG64(1))
words = (rng.random(512 * 384) - 0.5).astype("<f4").view("<u4")
r, c, scale = (((rng.random(shape) - 0.5) / 8).astype("<f4") for shape in ((512, 16), (16, 384), (384,)))
recipe = {"generator": "philox", "seed": 3, "distribution": "normal", "std": 0.02}
for name in ("F32", "F16", "BF16"):
    spec = TensorSpec(DTYPES[name], (512, 384))
    previous = (words >> np.uint32(32 - 8 * spec.dtype.word_bytes)).astype(spec.dtype.word_dtype)
    low_rank = LowRank().define(spec, previous, Hint("low-rank", {"R": r, "C": c, "scale": 1.7}))
    scaled = IA3().define(spec, previous, Hint("ia3", {"ia3": scale}))
    made = Random().define(spec, None, Hint("random", {}, recipe))
    print(name, *(hashlib.sha256(value.tobytes()).hexdigest() for value in (low_rank, scaled, made)))
"""


def test_the_same_bits_on_other_processors() -> None:
    """OpenBLAS's kernels, thread counts and numpy's vector units change nothing, for each dtype and type of update."""
    settings = [
        {},
        {"OPENBLAS_CORETYPE": "Prescott", "OPENBLAS_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default"},
        {"OPENBLAS_CORETYPE": "Haswell", "OMP_NUM_THREADS": "2", "NPY_DISABLE_CPU_FEATURES": vector_features()},
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("NPY_")}
    outputs = {
        subprocess.run(
            [sys.executable, "-W", "ignore", "-c", SCRIPT],
            env=environment | setting,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for setting in settings
    }
    assert len(outputs) == 1
    assert outputs.pop().count("\n") == 3


def vector_features() -> str:
    """The vector extensions that numpy would use here and that it can be told not to use."""
    source = (
        "import numpy._core._multiarray_umath as m; print(*(f for f in m.__cpu_dispatch__ if m.__cpu_features__[f]))"
    )
    done = subprocess.run([sys.executable, "-c", source], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def low_rank_case(name: str, shape: tuple[int, ...], rank: int) -> Case:
    weight, b, a = adapter(name, shape, rank)
    previous, value = array(weight), array(weight + (b @ a).reshape(shape))
    return Case(value.spec, previous.words, value.words, Hint("low-rank", {"R": array(b), "C": array(a)}))


class TestLowRank(UpdateContract):
    """low-rank"""

    def make(self) -> Update:
        return LowRank()

    def cases(self) -> Iterator[Case]:
        yield low_rank_case("F32", (12, 10), 1)
        yield low_rank_case("BF16", (32, 4, 3), 2)
        yield low_rank_case("F16", (700, 750 + CHUNK_WORDS // 700), 2)  # rows cross the chunk's end
        yield low_rank_case("F32", (3, 100_000), 1)  # rows longer than a block


def scaled(name: str, shape: tuple[int, ...], scale_shape: tuple[int, ...]) -> Case:
    weight = adapter(name, shape, 1)[0]
    scale = (1 + torch.randn(scale_shape, generator=torch.Generator().manual_seed(5)) / 4).to(weight.dtype)
    previous, value = array(weight), array(weight * scale)
    return Case(value.spec, previous.words, value.words, Hint("ia3", {"ia3": array(scale)}))


class TestIA3(UpdateContract):
    """ia3"""

    def make(self) -> Update:
        return IA3()

    def cases(self) -> Iterator[Case]:
        yield scaled("F32", (12, 20), (20,))
        yield scaled("BF16", (12, 20), (12, 1))
        yield scaled("F64", (6, 5, 4), (5, 1))
        yield scaled("F16", (1100, 500), (1100, 1))

    def test_torch_products_need_no_residual(self) -> None:
        """One multiplication rounds the same in torch: the record is the scale and a table."""
        for case in self.cases():
            record = IA3().encode(case.spec, case.value, case.previous, case.hint)
            assert record is not None
            assert case.hint is not None
            assert len(record) < case.hint.data["ia3"].spec.nbytes + 150

    def test_declines_what_does_not_broadcast(self) -> None:
        """Scales of another shape, or larger than the value, and integers, are another form's."""
        case = scaled("F32", (12, 20), (20,))
        for shape in ((12,), (12, 20, 1), (2, 12, 20), (0,)):
            hint = Hint("ia3", {"ia3": np.ones(shape, np.float32)})
            assert IA3().encode(case.spec, case.value, case.previous, hint) is None
            assert IA3().define(case.spec, case.previous, hint) is None
        assert IA3().encode(case.spec, case.value, case.previous, Hint("ia3")) is None
        integers = TensorSpec(DTYPES["I32"], (12, 20))
        assert IA3().encode(integers, case.value, case.previous, case.hint) is None

    def test_defines_previous_times_scale(self) -> None:
        """The defined value is torch's product."""
        case = scaled("BF16", (12, 20), (20,))
        assert case.hint is not None
        value = IA3().define(case.spec, case.previous, case.hint)
        assert value is not None
        assert np.array_equal(widen(value, case.spec.dtype), widen(case.value, case.spec.dtype))
