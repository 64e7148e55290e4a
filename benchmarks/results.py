"""What a benchmark found: tables to read, plots to see, figures that goals are judged by. All of it is JSON.

A figure has a flat name such as `checkout.dense-fp32.cold/null`: which benchmark, which case, what against what. Plots are
data too, so that they can be drawn again from the JSON. Knows no benchmark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

Cell = str | int | float
FOLDER = Path(__file__).resolve().parent / "results"
"""Where the committed results are."""


@dataclass(frozen=True, slots=True)
class Table:
    """Numbers in cells are shown with three significant digits."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]

    def markdown(self) -> str:
        lines = [f"**{self.title}**", "", "| " + " | ".join(self.columns) + " |", "|" + "---|" * len(self.columns)]
        lines += ["| " + " | ".join(shown(cell) for cell in row) + " |" for row in self.rows]
        return "\n".join(lines) + "\n"


@dataclass(frozen=True, slots=True)
class Plot:
    """`bars`: one number a label in each series. `lines`: points. `log`: both axes logarithmic (`lines`), or y (`bars`)."""

    name: str
    title: str
    kind: str
    x: str
    y: str
    series: Mapping[str, Sequence[tuple[Cell, float]]]
    log: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one question. `figures` by flat name; None is what could not be measured."""

    name: str
    question: str
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()
    figures: Mapping[str, float | None] = field(default_factory=dict)
    notes: Sequence[str] = ()
    machine: Mapping[str, str] = field(default_factory=dict)

    def markdown(self, *, plots: str | None = None) -> str:
        """The whole report; `plots` is the folder of the pictures as a reader's link goes."""
        parts = [f"{self.question}\n", *(table.markdown() for table in self.tables)]
        if plots is not None:
            parts += [f"![{plot.title}]({plots}/{plot.name}.png)\n" for plot in self.plots]
        parts += [f"- {note}" for note in self.notes]
        if self.machine:
            parts.append("\n_" + "; ".join(f"{key}: {value}" for key, value in self.machine.items()) + "._\n")
        return "\n".join(parts) + "\n"

    def save(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")


_AT = "; at commit "


def merged(old: Report, new: Report) -> Report:
    """`new`, and what only `old` has: tables by their first word, points of plots by label, figures by name.

    Tables of another commit say so.
    """
    commit = str(old.machine.get("commit", "unknown"))
    same = commit == new.machine.get("commit")
    tables = {_case(table): table if same else _dated(table, commit) for table in old.tables}
    tables |= {_case(table): table for table in new.tables}
    before = {plot.name: plot for plot in old.plots}
    plots = [replace(plot, series=_points(before.get(plot.name), plot)) for plot in new.plots]
    return replace(new, tables=tuple(tables.values()), plots=plots, figures={**old.figures, **new.figures})


def _case(table: Table) -> str:
    return table.title.partition(",")[0]


def _dated(table: Table, commit: str) -> Table:
    return table if _AT in table.title else replace(table, title=f"{table.title}{_AT}{commit}")


def _points(old: Plot | None, new: Plot) -> dict[str, list[tuple[Cell, float]]]:
    series: dict[str, dict[Cell, float]] = {}
    for plot in (old, new):
        for label, points in ({} if plot is None else plot.series).items():
            series.setdefault(label, {}).update((point[0], point[1]) for point in points)
    return {label: list(points.items()) for label, points in series.items()}


def load(path: Path) -> Report:
    """A report that was saved."""
    return from_json(json.loads(path.read_text()))


def from_json(value: dict[str, Any]) -> Report:
    """A report out of its JSON value."""
    tables = [Table(**table) for table in value.pop("tables")]
    plots = [Plot(**plot) for plot in value.pop("plots")]
    return Report(tables=tables, plots=plots, **value)


def saved(folder: Path = FOLDER) -> dict[str, Report]:
    """All reports of a folder by name."""
    return {path.stem: load(path) for path in sorted(folder.glob("*.json"))}


def shown(cell: Cell | None) -> str:
    """A cell for people: three significant digits, thousands apart."""
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if isinstance(cell, int):
        return f"{cell:,}"
    if cell == 0 or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:.2f}" if abs(cell) >= 1 else f"{cell:.3g}"
