"""Figures, tables and pages: what is computed from measurements."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import goals, report, scale
from benchmarks.measure import CommandError, Cost, measure
from benchmarks.results import Plot, Report, Table, from_json, load, merged
from benchmarks.rounds import Lane, interleave

BASE = Report(
    "checkout",
    "How fast?",
    [Table("dense-fp32, 1,300 MB", ("way", "seconds"), [("null", 1.5)])],
    [Plot("checkout", "Checkout", "bars", "", "× null", {"cold": [("dense-fp32", 1.05)]})],
    {"checkout.dense-fp32.cold/null": 1.05},
    ["a note"],
)


def test_lanes_take_turns_and_ratios_are_those_of_rounds() -> None:
    """Every round runs every lane once, the first round does not count, and a slow round slows both sides of a ratio."""
    seconds = {"ours": iter([9.0, 1.0, 20.0, 3.0]), "theirs": iter([1.0, 2.0, 40.0, 6.0])}
    order: list[str] = []

    def lane(name: str) -> Lane:
        def run() -> Cost:
            order.append(name)
            return Cost(next(seconds[name]), 0.0, 0)

        return Lane(name, run)

    outcome = interleave([lane("ours"), lane("theirs")], 3)
    assert order == ["ours", "theirs", "theirs", "ours"] * 2
    assert outcome.ratio("ours", "theirs") == 0.5
    assert outcome.seconds("ours") == 3.0
    assert outcome.ratio("ours", "nobody") is None


def test_growth_is_the_exponent() -> None:
    """For times that grow as n^1.5 after a constant beginning the growth is 1.5."""
    points = [(1, 5.0), (10, 5.0), (100, 100.0**1.5), (1000, 1000.0**1.5)]
    assert scale._growth(points) == pytest.approx(1.5)


def test_a_command_costs_what_its_children_burn_and_failing_is_an_error(tmp_path: Path) -> None:
    """Processor time and memory of a child are counted; a command that fails is no measurement."""
    burn = "import time\nkeep = bytearray(64 << 20)\nwhile time.process_time() < 0.3: pass"
    cost = measure(
        [sys.executable, "-c", f"import subprocess, sys; subprocess.run([sys.executable, '-c', {burn!r}])"],
        tmp_path,
        {},
    )
    assert cost.cpu_seconds >= 0.3
    assert cost.peak_bytes >= 64 << 20
    with pytest.raises(CommandError, match="told why"):
        measure([sys.executable, "-c", "import sys; sys.exit('told why')"], tmp_path, {})


def test_reports_survive_their_files_and_parts_of_a_run_are_merged(tmp_path: Path) -> None:
    """A saved report is the same when loaded; a run of another case leaves the first one's figures and points."""
    BASE.save(tmp_path / "checkout.json")
    loaded = load(tmp_path / "checkout.json")
    assert loaded.markdown() == BASE.markdown()
    assert loaded.figures == BASE.figures
    other = replace(
        BASE,
        tables=[Table("sparse-16, 1,300 MB", ("way", "seconds"), [("null", 1.5)])],
        plots=[replace(BASE.plots[0], series={"cold": [("sparse-16", 1.15)]})],
        figures={"checkout.sparse-16.cold/null": 1.15},
    )
    both = merged(loaded, other)
    assert [table.title.partition(",")[0] for table in both.tables] == ["dense-fp32", "sparse-16"]
    assert both.plots[0].series == {"cold": [("dense-fp32", 1.05), ("sparse-16", 1.15)]}
    assert both.figures == {**BASE.figures, **other.figures}
    later = merged(replace(loaded, machine={"commit": "abc"}), replace(other, machine={"commit": "def"}))
    assert [table.title for table in later.tables] == [f"{BASE.tables[0].title}; at commit abc", other.tables[0].title]
    again = merged(later, replace(other, machine={"commit": "012"}))
    assert again.tables[0].title == f"{BASE.tables[0].title}; at commit abc", "the commit that it was measured at"


def test_goals_are_met_missed_or_not_measured() -> None:
    """The worst of a goal's figures decides; a figure that is not there is said to be missing, not met."""
    figures = {
        "checkout.dense-fp32.cold/null": 1.2,
        "checkout.dense-bf16.cold/null": 1.1,
        "add.first.daemon/git-lfs": None,
    }
    judged = goals.judge({"checkout": replace(BASE, figures=figures)})
    verdicts = {(row[0], row[1]): (row[3], row[4]) for row in judged.tables[0].rows}
    assert verdicts["checkout 1.3 GB fp32 dense, tensors not cached", "null filter"] == ("1.2", "**missed**")
    assert verdicts["the same in bf16", "null filter"] == ("1.1", "met")
    assert verdicts["first add of 1.3 GB", "git-lfs add"] == ("-", "not measured")


def test_pages_are_filled_between_their_marks() -> None:
    """What stands outside the marks stays; filling twice is filling once; what was not measured says how to."""
    page = "before\n<!-- results: checkout -->\nold\n<!-- end of results -->\nafter\n<!-- results: add -->\n<!-- end of results -->\n"
    once = report.filled(page, {"checkout": BASE}, "../benchmarks/results")
    assert once.startswith("before\n<!-- results: checkout -->\n`scripts/bench checkout`\n")
    assert "old" not in once
    assert "| null | 1.50 |" in once
    assert "(../benchmarks/results/checkout.png)" in once
    assert "Not measured yet: `scripts/bench add` does." in once
    assert report.filled(once, {"checkout": BASE}, "../benchmarks/results") == once


def test_the_pages_say_what_the_results_say() -> None:
    """No page quotes other figures than benchmarks/results has."""
    assert report.main(["--check"]) == 0


def test_json_is_all_there_is() -> None:
    """A report can be made of plain JSON values."""
    value = {
        "name": "x",
        "question": "?",
        "tables": [],
        "plots": [],
        "figures": {"x.y": None},
        "notes": [],
        "machine": {},
    }
    assert from_json(value).figures == {"x.y": None}
