"""Lanes side by side: every round runs each lane once, in turning order, so that a busy minute of the machine is everybody's.

Ratios are medians of the ratios within the rounds, not ratios of medians.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.measure import Cost, median
from benchmarks.results import Cell


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True)
class Lane:
    """One way of doing the work. `prepare` and `check` are not measured; `check` raises where the work was done wrong."""

    name: str
    run: Callable[[], Cost]
    prepare: Callable[[], None] = _nothing
    check: Callable[[], None] = _nothing


@dataclass(frozen=True, slots=True)
class Outcome:
    """The costs of all lanes, round by round."""

    costs: Mapping[str, Sequence[Cost]] = field(default_factory=dict)

    def ratio(self, lane: str, other: str) -> float | None:
        """How much longer `lane` took than `other`; None where one of them was not there."""
        if lane not in self.costs or other not in self.costs:
            return None
        pairs = zip(self.costs[lane], self.costs[other], strict=True)
        return statistics.median(one.seconds / two.seconds for one, two in pairs)

    def seconds(self, lane: str) -> float:
        return median(self.costs[lane]).seconds

    def peak_bytes(self, lane: str) -> int:
        return median(self.costs[lane]).peak_bytes

    def rows(self, against: Sequence[str]) -> list[list[Cell]]:
        """A row a lane, as `columns` says."""
        rows: list[list[Cell]] = []
        for lane, costs in self.costs.items():
            middle = median(costs)
            times = [cost.seconds for cost in costs]
            ratios = [self.ratio(lane, other) for other in against]
            row: list[Cell] = [lane, middle.seconds, f"{min(times):.3g} to {max(times):.3g}"]
            row += ["-" if ratio is None else f"{ratio:.3f}" for ratio in ratios]
            peak = f"{middle.peak_bytes / 1e6:,.0f}" if middle.peak_bytes else "-"  # nobody looked, or it was too short
            rows.append([*row, middle.cpu_seconds, peak])
        return rows


def columns(against: Sequence[str]) -> list[str]:
    """Headings of `Outcome.rows`."""
    return ["way", "seconds", "range", *(f"÷ {other}" for other in against), "CPU s", "peak MB"]


def interleave(lanes: Sequence[Lane], rounds: int, *, warm_up: bool = True, what: str = "") -> Outcome:
    """Run them; the first round is thrown away where `warm_up`."""
    costs: dict[str, list[Cost]] = {lane.name: [] for lane in lanes}
    for number in range(rounds + warm_up):
        turn = number % len(lanes)
        for lane in [*lanes[turn:], *lanes[:turn]]:
            lane.prepare()
            cost = lane.run()
            lane.check()
            if number or not warm_up:
                costs[lane.name].append(cost)
        print(f"  {what}: round {number + (not warm_up)} of {rounds}", file=sys.stderr, flush=True)
    return Outcome(costs)
