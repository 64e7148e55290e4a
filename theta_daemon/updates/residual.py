"""A predicted value made exact: the sections of low-rank and ia3 records that lead from the prediction to the bits.

The prediction takes the place of the previous value in a delta record. Where arithmetic was done as the prediction does it,
the residual is a table of empty chunks; where a framework rounded otherwise, a few per cent of the value.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Final

import numpy as np

from theta_daemon.store.base import Record
from theta_daemon.tensor import TensorSpec, Words
from theta_daemon.updates.base import Decoder
from theta_daemon.updates.delta import Delta

_DELTA: Final = Delta()


class Predictor(Decoder):
    """A decoder that predicts from the previous value, then adds the residual."""

    def __init__(self, spec: TensorSpec, residual: Record) -> None:
        self._residual = _DELTA.open(spec, residual)

    @abstractmethod
    def predict(self, start: int, stop: int, words: Words) -> None:
        """Turn `words` from the previous value's [start:stop] into the predicted one's. Any bounds."""

    def apply(self, start: int, stop: int, words: Words) -> None:
        self.predict(start, stop, words)
        self._residual.apply(start, stop, words)


def encode_residual(spec: TensorSpec, value: Words, prediction: Words, previous: Words) -> bytes | None:
    """The residual; None if the prediction is no nearer to the value than the previous value was."""
    residual = _DELTA.encode(spec, value, prediction, None)
    if residual is None or np.array_equal(value, prediction):
        return residual
    plain = _DELTA.encode(spec, value, previous, None)
    return None if plain is not None and len(residual) >= len(plain) else residual
