"""Which of the built-in update types can define a value."""

from __future__ import annotations

from theta_daemon.registry import UPDATES, registry
from theta_daemon.updates.defined import Definable


def test_those_that_take_data() -> None:
    """Low-rank, ia3, sparse, random and constant; the others only describe a value that is there."""
    definable = {name for name in UPDATES if isinstance(registry().update(name), Definable)}
    assert definable == {"low-rank", "ia3", "sparse", "random", "constant"}
