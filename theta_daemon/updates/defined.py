"""Updates that say what the new value is, instead of finding a form for one that is there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from theta_daemon.tensor import TensorSpec, Words
from theta_daemon.updates.base import Hint


@runtime_checkable
class Definable(Protocol):
    """An update type whose hints can define a value: from the previous one (low-rank, ia3, sparse) or none (random)."""

    def define(self, spec: TensorSpec, previous: Words | None, hint: Hint) -> Words | None:
        """The new value, a new array with the same bits on every machine; None where the hint does not apply.

        Encoding that value with the same hint and the same previous value gives a record without a residual. Raises
        HintError for a hint that contradicts itself.
        """
        ...


@runtime_checkable
class Described(Protocol):
    """A self-contained update type whose records are made of the hint alone; the value need only be compared."""

    def records(self, spec: TensorSpec, hint: Hint) -> Sequence[bytes]:
        """The records that a value of `spec` may have by this hint, the likeliest first. Raises HintError."""
        ...
