"""Random recipes: torch's streams, numpy's generators, and nothing that another machine would make otherwise."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from theta_daemon.errors import HintError, RecordError
from theta_daemon.tensor import CHUNK_WORDS, DTYPES, TensorSpec, Words
from theta_daemon.testing.updates import BytesRecord, Case, UpdateContract
from theta_daemon.updates.base import Hint, Update
from theta_daemon.updates.quantile import normal_quantile
from theta_daemon.updates.random import Random, read_recipe
from theta_daemon.updates.streams import Stream

TORCH = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def recipe(**options: Any) -> Hint:
    return Hint("random", {}, {"generator": "philox", "seed": 7, "distribution": "uniform"} | options)


def torch_recipe(**options: Any) -> Hint:
    return recipe(generator="mt19937", distribution="torch-uniform", **options)


def words_of(tensor: torch.Tensor) -> Words:
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return tensor.view(integers).numpy().reshape(-1).view(f"<u{tensor.element_size()}")


@pytest.mark.parametrize("name", TORCH)
def test_what_torch_made_is_recognised(name: str) -> None:
    """`rand` and `uniform_` in a row from one seed, 200,000 elements each, by seed, skip and bounds alone."""
    spec = TensorSpec(DTYPES[name], (200_000,))
    torch.manual_seed(1234)
    first = torch.rand(200_000, dtype=TORCH[name])
    second = torch.empty(200_000, dtype=TORCH[name]).uniform_(-0.04, 0.09)
    for tensor, options in ((first, {}), (second, {"skip": 200_000, "low": -0.04, "high": 0.09})):
        record = Random().encode(spec, words_of(tensor), None, torch_recipe(seed=1234, **options))
        assert record is not None
        assert len(record) < 250
        out = np.empty(spec.words, spec.dtype.word_dtype)
        Random().open(spec, BytesRecord(record)).apply(0, spec.words, out)
        assert np.array_equal(out, words_of(tensor))


def test_a_linear_layers_own_initialisation() -> None:
    """`torch.nn.Linear` draws its weight, then its bias, both within 1/√in of zero."""
    torch.manual_seed(5)
    layer = torch.nn.Linear(64, 32)
    bound = 1 / 64**0.5
    hints = (torch_recipe(seed=5, low=-bound, high=bound), torch_recipe(seed=5, skip=2048, low=-bound, high=bound))
    for tensor, hint in zip((layer.weight, layer.bias), hints, strict=True):
        spec = TensorSpec(DTYPES["F32"], tuple(tensor.shape))
        assert Random().encode(spec, words_of(tensor.detach()), None, hint) is not None


def test_doubles_take_two_words_each() -> None:
    """torch.rand in float64."""
    torch.manual_seed(6)
    spec = TensorSpec(DTYPES["F64"], (1000,))
    assert (
        Random().encode(spec, words_of(torch.rand(1000, dtype=torch.float64)), None, torch_recipe(seed=6)) is not None
    )


def test_one_other_bit_is_declined() -> None:
    """Values that the recipe does not make to the last bit are another form's."""
    spec = TensorSpec(DTYPES["F32"], (100_000,))
    value = Random().define(spec, None, recipe())
    assert value is not None
    assert Random().encode(spec, value, None, recipe()) is not None
    assert Random().encode(spec, value, None, None) is None
    assert Random().encode(spec, value, None, recipe(seed=8)) is None
    value[-1] ^= np.uint32(1)
    assert Random().encode(spec, value, None, recipe()) is None


@pytest.mark.parametrize(("generator", "seed"), [("mt19937", 2**32 + 9), ("philox", 9), ("pcg64", 2**64 - 1)])
def test_streams_are_numpys(generator: Any, seed: int) -> None:
    """Any stretch of the stream, in any order, equals numpy's words read in a row (MT19937: the seed's low 32 bits)."""
    made: dict[str, Any] = {
        "mt19937": lambda: np.random.RandomState(seed & 0xFFFFFFFF)._bit_generator,
        "philox": lambda: np.random.Philox(seed),
        "pcg64": lambda: np.random.PCG64(seed),
    }
    whole = made[generator]().random_raw(3 * CHUNK_WORDS)
    stream = Stream(generator, seed, 5)
    for start, count in ((2 * CHUNK_WORDS, 1000), (0, 3), (1, CHUNK_WORDS), (CHUNK_WORDS - 5, 10), (7, 1), (3, 0)):
        assert np.array_equal(stream.words(start, count), whole[start + 5 : start + 5 + count])


def test_the_quantile_is_the_standard_librarys() -> None:
    """To some 15 digits, tails included."""
    tails = [2.0**-53, 1e-300, 1e-12, 0.0749, 0.0751, 0.9249, 0.9251, 1 - 1e-12, 1 - 2.0**-53, 0.5]
    probability = np.concatenate([np.random.default_rng(2).random(5000), tails])
    expected = np.array([NormalDist().inv_cdf(p) for p in probability.tolist()])
    assert np.allclose(normal_quantile(probability), expected, rtol=3e-15, atol=1e-16)


def test_distributions_are_what_they_say() -> None:
    """Means, deviations and bounds of 2¹⁹ elements."""
    spec = TensorSpec(DTYPES["F32"], (CHUNK_WORDS,))

    def numbers(**options: Any) -> Any:
        value = Random().define(spec, None, recipe(**options))
        assert value is not None
        return value.view("<f4").astype(np.float64)

    uniform = numbers(low=-2.0, high=6.0)
    assert -2 <= uniform.min() < -1.99 < 5.99 < uniform.max() <= 6
    assert abs(uniform.mean() - 2) < 0.02
    normal = numbers(distribution="normal", mean=3.0, std=0.5)
    assert abs(normal.mean() - 3) < 0.004
    assert abs(normal.std() - 0.5) < 0.003
    below, above = NormalDist().cdf(-2), NormalDist().cdf(2)
    cut = numbers(distribution="trunc-normal", std=0.02, below=below, above=above)
    assert abs(cut).max() <= 0.04 * (1 + 1e-6)
    assert abs(cut.std() / 0.02 - 0.8796) < 0.005


@pytest.mark.parametrize(
    ("options", "digest"),
    [
        ({"generator": "mt19937", "seed": 1}, "e3a541f95662748d"),
        ({"generator": "pcg64", "low": -0.1, "high": 0.3}, "23e507c788baa860"),
        ({"distribution": "normal", "std": 0.02}, "02b8746dcad11487"),
        ({"distribution": "trunc-normal", "below": 0.02275, "above": 0.97725}, "d4b33dac029b2df8"),
        ({"generator": "mt19937", "distribution": "torch-uniform", "low": -0.3, "fma": True}, "f4b75b848b376bcf"),
    ],
)
def test_the_bits_are_these_for_ever(options: dict[str, Any], digest: str) -> None:
    """Stored recipes are promises: later versions and other machines must make the same bits."""
    spec = TensorSpec(DTYPES["F32"], (20_000,))
    value = Random().define(spec, None, recipe(**options))
    assert value is not None
    assert hashlib.sha256(value.tobytes()).hexdigest()[:16] == digest


@pytest.mark.parametrize(
    "options",
    [
        {"seed": -1},
        {"seed": 2**64},
        {"seed": "7"},
        {"generator": "xorshift"},
        {"distribution": "cauchy"},
        {"low": float("nan")},
        {"high": float("inf")},
        {"below": 1.5},
        {"skip": -1},
        {"skipp": 1},
        {"version": 2},
        {"low": {1}},
    ],
)
def test_bad_recipes_are_hint_errors(options: dict[str, Any]) -> None:
    """Unknown names and impossible numbers, said before anything is made."""
    with pytest.raises(HintError):
        read_recipe(recipe(**options).options)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{}",
        b"[" * 4000,
        b'{"generator":"mt19937","seed":1,"distribution":"uniform","skip":4000000000000000000}',
        b'{"generator":"mt19937","seed":1,"distribution":"uniform","skip":1073741820}',
        b'{"generator":"philox","seed":1,"distribution":"torch-uniform"}',
        b'{"generator":"philox","seed":1e400,"distribution":"uniform"}',
        b'{"generator":"philox","seed":1,"distribution":"trunc-normal","below":0.5,"above":0.5}',
        b'{"generator":"philox","seed":1,"distribution":"uniform"}' + b" " * 5000,
    ],
)
def test_hostile_records(text: bytes) -> None:
    """Refused at once; none makes decoding run for long."""
    with pytest.raises(RecordError):
        Random().open(TensorSpec(DTYPES["F32"], (100,)), BytesRecord(text))


@given(st.integers(0, 2**62 - 1), st.sampled_from(["philox", "pcg64"]))
def test_far_away_words_are_as_near_as_the_first(skip: int, generator: str) -> None:
    """Counters jump: a skip of 2⁶² costs nothing."""
    spec = TensorSpec(DTYPES["F32"], (9,))
    record = json.dumps({"generator": generator, "seed": 1, "distribution": "uniform", "skip": skip}).encode()
    out = np.empty(9, "<u4")
    Random().open(spec, BytesRecord(record)).apply(0, 9, out)
    assert 0 <= out.view("<f4").min() <= out.view("<f4").max() <= 1


class TestRandom(UpdateContract):
    """random"""

    def make(self) -> Update:
        return Random()

    def cases(self) -> Iterator[Case]:
        for name, shape, options in (
            ("F32", (7, 9), {"distribution": "normal"}),
            (
                "BF16",
                (2, CHUNK_WORDS // 2 + 500),
                {"generator": "mt19937", "distribution": "torch-uniform", "low": -1.0},
            ),
            ("F16", (100,), {"generator": "pcg64", "distribution": "trunc-normal", "below": 0.1, "above": 0.8}),
            ("F64", (50,), {"generator": "mt19937", "distribution": "uniform"}),
        ):
            spec = TensorSpec(DTYPES[name], shape)
            value = Random().define(spec, None, recipe(**options))
            assert value is not None
            yield Case(spec, np.zeros_like(value), value, recipe(**options))
