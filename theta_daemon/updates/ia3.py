"""IA3: previous × scale, the scale broadcast over the value, and a residual that makes it exact.

From Liu et al. 2022 (learned vectors that rescale activations, folded into the weights). The rule: both widened to float64,
one multiplication, one rounding. The scale comes with a hint, under `ia3`, in a shape that broadcasts to the value's by
numpy's rules: (rows, 1) scales rows, (columns,) columns.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Final

import numpy as np
from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass as record_text

from theta_daemon.errors import RecordError
from theta_daemon.store.base import Record
from theta_daemon.tensor import DTYPES, TensorSpec, Words
from theta_daemon.updates.base import Decoder, Hint, Update
from theta_daemon.updates.floats import FLOATS, Array, FloatName, as_array, narrow, widen
from theta_daemon.updates.residual import Predictor, encode_residual
from theta_daemon.updates.sections import encode_array, join_sections, open_sections, read_array

_BLOCK: Final = 1 << 15
_Size = Annotated[int, Field(ge=1, lt=1 << 62)]


@record_text(frozen=True, slots=True, config=ConfigDict(strict=True, extra="forbid", defer_build=True))
class _Text:
    dtype: FloatName
    shape: Annotated[tuple[_Size, ...], Field(max_length=64)]


_TEXT: Final = TypeAdapter(_Text)


class IA3(Update):
    """Takes float values when a hint brings a scale that helps."""

    name: ClassVar[str] = "ia3"
    incremental: ClassVar[bool] = True

    def encode(self, spec: TensorSpec, value: Words, previous: Words | None, hint: Hint | None) -> bytes | None:
        scale = None if hint is None or previous is None else _scale(spec, hint)
        if scale is None or previous is None:
            return None
        prediction = previous.copy()
        _multiply(spec, scale, 0, spec.words, prediction)
        residual = encode_residual(spec, value, prediction, previous)
        if residual is None:
            return None
        text = _TEXT.dump_json(_Text(scale.float_name, scale.spec.shape))
        return join_sections(spec, text, [encode_array(scale), residual])

    def define(self, spec: TensorSpec, previous: Words | None, hint: Hint) -> Words | None:
        """The value that the hint's scale makes of `previous`; None where it does not apply."""
        scale = _scale(spec, hint)
        if scale is None or previous is None:
            return None
        value = previous.copy()
        _multiply(spec, scale, 0, spec.words, value)
        return value

    def open(self, spec: TensorSpec, record: Record) -> Decoder:
        text, (part, residual) = open_sections(spec, record, _TEXT, 2)
        scale_spec = TensorSpec(DTYPES[text.dtype], text.shape)
        if not _broadcasts(spec, scale_spec):
            raise RecordError(f"ia3 record of shape {list(text.shape)} for a value of shape {list(spec.shape)}")
        return _Decoder(spec, residual, read_array(scale_spec, part))


def _broadcasts(spec: TensorSpec, scale: TensorSpec) -> bool:
    """Whether a value is one that ia3 is for and the scale broadcasts to its shape (and not the other way round)."""
    if spec.dtype.name not in FLOATS or not spec.elements or len(scale.shape) > len(spec.shape):
        return False
    tail = spec.shape[len(spec.shape) - len(scale.shape) :]
    return all(size in (1, whole) for size, whole in zip(scale.shape, tail, strict=True))


def _scale(spec: TensorSpec, hint: Hint) -> Array | None:
    """The hint's scale; None where there is none or it does not fit. Raises HintError for what is no array of floats."""
    if "ia3" not in hint.data:
        return None
    scale = as_array(hint.data["ia3"])
    return scale if _broadcasts(spec, scale.spec) else None


def _multiply(spec: TensorSpec, scale: Array, start: int, stop: int, words: Words) -> None:
    """Turn `words`, the previous value's [start:stop], into the product's."""
    spread = np.broadcast_to(scale.words.reshape(scale.spec.shape), spec.shape).flat
    for position in range(start, stop, _BLOCK):
        end = min(position + _BLOCK, stop)
        block = words[position - start : end - start]
        with np.errstate(all="ignore"):
            product = np.multiply(widen(block, spec.dtype), widen(spread[position:end], scale.spec.dtype))
        narrow(product, spec.dtype, block)


class _Decoder(Predictor):
    def __init__(self, spec: TensorSpec, residual: Record, scale: Array) -> None:
        super().__init__(spec, residual)
        self._spec = spec
        self._scale = scale

    def predict(self, start: int, stop: int, words: Words) -> None:
        _multiply(self._spec, self._scale, start, stop, words)
