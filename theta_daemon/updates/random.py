"""Random: a generator, a seed and a distribution instead of values. From a recipe only, and only if the bits are the same.

A record is the recipe as JSON. What may stand in one is what every machine computes alike: words of MT19937, Philox or
PCG64 (`streams`), scaled by single operations in float64, one rounding (`floats`). torch's `uniform_` and `rand` are among
them: torch takes the low bits of MT19937's words; whether its compiler fused the multiplication and the addition depends
on the machine that made the values, so that is recorded. torch's and numpy's own normal distributions are not portable;
`normal` here is another one (`quantile`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any, ClassVar, Final, Literal

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as record_text

from theta_daemon.errors import HintError, RecordError
from theta_daemon.store.base import Record
from theta_daemon.tensor import CHUNK_WORDS, TensorSpec, Words
from theta_daemon.updates.base import Decoder, Hint, Update
from theta_daemon.updates.floats import FLOATS, Float64s, narrow
from theta_daemon.updates.quantile import normal_quantile
from theta_daemon.updates.streams import Generator, Stream

_BLOCK: Final = 1 << 13
_MAX_RECORD: Final = 4096
_MAX_MERSENNE: Final = 1 << 30
"""MT19937 cannot jump; passing over so many words takes seconds."""

_Finite = Annotated[float, Field(allow_inf_nan=False)]
_Probability = Annotated[float, Field(ge=0, le=1)]


@record_text(frozen=True, slots=True, config=ConfigDict(strict=True, extra="forbid", defer_build=True))
class Recipe:
    """How to make a value.

    - `uniform`: low + (high - low) · u
    - `normal`: mean + std · quantile(u)
    - `trunc-normal`: the same, of u mapped to the probabilities [`below`, `above`] of the two bounds
    - `torch-uniform`: torch's `uniform_(low, high)`, fused or not (`fma`); needs mt19937

    u is in [0, 1) for `uniform`, in (0, 1) for the others: 52 bits of a 64-bit word, all of a 32-bit one. `skip` words of the
    stream are passed over. The first element takes the first word (two for F64 of `torch-uniform`).
    """

    generator: Generator
    seed: Annotated[int, Field(ge=0, lt=1 << 64)]
    distribution: Literal["uniform", "normal", "trunc-normal", "torch-uniform"]
    skip: Annotated[int, Field(ge=0, lt=1 << 62)] = 0
    low: _Finite = 0.0
    high: _Finite = 1.0
    mean: _Finite = 0.0
    std: _Finite = 1.0
    below: _Probability = 0.0
    above: _Probability = 1.0
    fma: bool = False
    version: Literal[1] = 1


_RECIPE: Final = TypeAdapter(Recipe)


class Random(Update):
    """Takes a float value that the recipe in a hint's options makes bit for bit."""

    name: ClassVar[str] = "random"
    incremental: ClassVar[bool] = False

    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        if hint is None or not hint.options:
            return None
        for recipe in _possible_variants(spec, hint):
            if _makes(spec, recipe, value):
                return _RECIPE.dump_json(recipe, exclude_defaults=True)
        return None

    def records(self, spec: TensorSpec, hint: Hint) -> list[bytes]:
        """The records that a value may have by this hint; see `defined.Described`."""
        return [_RECIPE.dump_json(recipe, exclude_defaults=True) for recipe in _possible_variants(spec, hint)]

    def define(self, spec: TensorSpec, previous: Words | None, hint: Hint) -> Words | None:
        """The value that the recipe makes; None where it cannot make one of this dtype. Raises HintError."""
        recipe = read_recipe(hint.options)
        if _possible(spec, recipe) is not None:
            return None
        words = np.empty(spec.words, spec.dtype.word_dtype)
        _Maker(spec, recipe).apply(0, spec.words, words)
        return words

    def open(self, spec: TensorSpec, record: Record) -> Decoder:
        if record.length > _MAX_RECORD:
            raise RecordError(f"random record of {record.length} bytes")
        try:
            recipe = _RECIPE.validate_json(bytes(record.read(0, record.length)))
        except ValidationError as error:
            raise RecordError(f"random record: {_first(error)}") from error
        reason = _possible(spec, recipe)
        if reason is not None:
            raise RecordError(f"random record: {reason}")
        return _Maker(spec, recipe)


def read_recipe(options: Mapping[str, Any]) -> Recipe:
    """The recipe in a hint's options. Raises HintError that names the field."""
    try:
        return _RECIPE.validate_json(json.dumps(dict(options)))
    except ValidationError as error:
        raise HintError(f"recipe: {_first(error)}") from error
    except (TypeError, ValueError) as error:
        raise HintError(f"recipe: {error}") from error


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"


def _variants(recipe: Recipe) -> list[Recipe]:
    """The recipe, and for torch the other way to round too: nobody knows how the torch that made a value was compiled."""
    if recipe.distribution != "torch-uniform":
        return [recipe]
    return [recipe, replace(recipe, fma=not recipe.fma)]


def _possible_variants(spec: TensorSpec, hint: Hint) -> list[Recipe]:
    return [recipe for recipe in _variants(read_recipe(hint.options)) if _possible(spec, recipe) is None]


def _possible(spec: TensorSpec, recipe: Recipe) -> str | None:
    """Why a recipe cannot make a value; None if it can."""
    if spec.dtype.name not in FLOATS:
        return f"dtype {spec.dtype.name} has no random recipe"
    if recipe.generator == "mt19937" and recipe.skip + 2 * spec.elements > _MAX_MERSENNE:
        return f"{recipe.skip} words to skip and {spec.elements} elements are too many for mt19937"
    if recipe.distribution == "torch-uniform":
        if recipe.generator != "mt19937":
            return f"torch-uniform is made by mt19937, not by {recipe.generator}"
        if spec.dtype.name == "F64" and recipe.fma:
            return "torch-uniform of F64 with fma is not known"
    if recipe.distribution == "trunc-normal" and not recipe.below < recipe.above:
        return "trunc-normal needs below < above"
    return None


def _makes(spec: TensorSpec, recipe: Recipe, value: Words) -> bool:
    """Whether the recipe makes `value`. A wrong one is known after its first block."""
    maker = _Maker(spec, recipe)
    for start, stop in [(0, min(_BLOCK, spec.words)), *spec.spans()]:
        words = np.empty(stop - start, spec.dtype.word_dtype)
        maker.apply(start, stop, words)
        if not np.array_equal(words, value[start:stop]):
            return False
    return True


class _Maker(Decoder):
    def __init__(self, spec: TensorSpec, recipe: Recipe) -> None:
        self._dtype = spec.dtype
        self._recipe = recipe
        self._stream = Stream(recipe.generator, recipe.seed, recipe.skip)

    def apply(self, start: int, stop: int, words: Words) -> None:
        torch_uniform = self._recipe.distribution == "torch-uniform"
        each = 2 if torch_uniform and self._dtype.name == "F64" else 1
        for begin in range(start, stop, CHUNK_WORDS):
            end = min(begin + CHUNK_WORDS, stop)
            drawn = self._stream.words(each * begin, each * (end - begin))
            for position in range(begin, end, _BLOCK):
                block = words[position - start : min(position + _BLOCK, end) - start]
                part = drawn[each * (position - begin) :][: each * block.size]
                with np.errstate(all="ignore"):
                    narrow(self._torch_uniform(part) if torch_uniform else self._numbers(part), self._dtype, block)
                if torch_uniform:
                    # What rounds up to the open bound, often in short types, torch replaces by the closed one.
                    block[block == self._bound(self._recipe.high)] = self._bound(self._recipe.low)

    def _bound(self, bound: float) -> Any:
        words = np.empty(1, self._dtype.word_dtype)
        narrow(np.array([bound]), self._dtype, words)
        return words[0]

    def _numbers(self, drawn: Words) -> Float64s:
        recipe = self._recipe
        bits = min(self._stream.bits, 52)
        places = (drawn >> np.uint64(self._stream.bits - bits)).astype(np.float64)
        step = 2.0**-bits
        if recipe.distribution == "uniform":
            return places * step * (recipe.high - recipe.low) + recipe.low
        inner = (places + 0.5) * step
        if recipe.distribution == "trunc-normal":
            inner = inner * (recipe.above - recipe.below) + recipe.below
            inner = np.minimum(np.maximum(inner, 2.0**-53), 1 - 2.0**-53)
        return normal_quantile(inner) * recipe.std + recipe.mean

    def _torch_uniform(self, drawn: Words) -> Float64s:
        """What torch computes, in float64 that holds it exactly; for F32 and shorter it computes in float32."""
        recipe = self._recipe
        if self._dtype.name == "F64":
            places = ((drawn[::2] << np.uint64(32)) | drawn[1::2]) & np.uint64((1 << 53) - 1)
            return places.astype(np.float64) * 2.0**-53 * (recipe.high - recipe.low) + recipe.low
        low, high = np.float32(recipe.low), np.float32(recipe.high)
        width = np.float64(high - low)
        # 24 bits times 24 bits: exact.
        product = (drawn & np.uint64(0xFFFFFF)).astype(np.float64) * 2.0**-24 * width
        if recipe.fma:
            return _add_once(product, np.float64(low)).astype(np.float32).astype(np.float64)
        rounded = product.astype(np.float32).astype(np.float64)
        return (rounded + np.float64(low)).astype(np.float32).astype(np.float64)


def _add_once(left: Float64s, right: np.float64) -> Float64s:
    """The sum rounded to odd, so that rounding it to float32 afterwards rounds the exact sum once, as a fused add does."""
    total = left + right
    part = total - left
    error = (left - (total - part)) + (right - part)  # Knuth's exact error of the sum
    bits = total.view("<i8")
    inexact = (error != 0) & ((bits & 1) == 0)
    away = (error > 0) == (total > 0)
    bits[inexact & away] += 1
    bits[inexact & ~away] -= 1
    return total
