"""Pictures of reports: bars with a line at 1 where ratios are shown, lines on logarithmic axes where growth is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.results import Plot, Report


def draw_all(reports: Sequence[Report], folder: Path) -> None:
    """A PNG for each plot of each report."""
    folder.mkdir(parents=True, exist_ok=True)
    for report in reports:
        for plot in report.plots:
            if plot.series:
                draw(plot, folder / f"{plot.name}.png")


def draw(plot: Plot, path: Path) -> None:
    """One picture."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 4.5), layout="constrained")
    try:
        (_bars if plot.kind == "bars" else _lines)(axes, plot)
        axes.set(title=plot.title, xlabel=plot.x, ylabel=plot.y)
        axes.legend(fontsize="small")
        axes.grid(visible=True, axis="y" if plot.kind == "bars" else "both", alpha=0.3)
        figure.savefig(path, dpi=110)
    finally:
        pyplot.close(figure)


def _bars(axes: Any, plot: Plot) -> None:
    labels = list(dict.fromkeys(str(label) for points in plot.series.values() for label, _ in points))
    width = 0.8 / len(plot.series)
    for number, (series, points) in enumerate(plot.series.items()):
        values = {str(label): value for label, value in points}
        places = [index + (number - (len(plot.series) - 1) / 2) * width for index in range(len(labels))]
        axes.bar(places, [values.get(label, 0) for label in labels], width, label=series)
    axes.set_xticks(range(len(labels)), labels, rotation=20 if len(labels) > 4 else 0)
    if plot.y.startswith("×"):
        axes.axhline(1, color="black", linewidth=0.8)
    if plot.log:
        axes.set_yscale("log")


def _lines(axes: Any, plot: Plot) -> None:
    for series, points in plot.series.items():
        axes.plot([point[0] for point in points], [point[1] for point in points], marker="o", label=series)
    if plot.log:
        axes.set_xscale("log")
        axes.set_yscale("log")
