"""Which goals are met? The table of goals, judged by the figures of the other benchmarks.

Judges what a run has measured, and for what it has not, what benchmarks/results holds. A goal that one case of several
misses is missed; each case is told.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from benchmarks.results import Cell, Report, Table

NAME = "goals"
QUESTION = "Which goals are met?"
COMMANDS = ("checkout", "add", "latency", "batching", "storage", "git_theta")
"""Whose figures are judged."""


@dataclass(frozen=True, slots=True)
class Goal:
    """`pattern` matches the whole names of figures; each must be at most `limit`."""

    work: str
    against: str
    limit: float
    pattern: str
    shown: str


_DENSE = r"dense-fp32|dense-bf16|shards"
_CHAIN = r"sparse-\d+|delta-\d+"
GOALS = (
    Goal(
        "checkout 1.3 GB fp32 dense, tensors not cached",
        "null filter",
        1.10,
        r"checkout\.dense-fp32\.cold/null",
        "≤ 1.10",
    ),
    Goal("the same in bf16", "null filter", 1.15, r"checkout\.dense-bf16\.cold/null", "≤ 1.15"),
    Goal("sparse chain of depth 16, nothing cached", "null filter", 1.20, r"checkout\.sparse-16\.cold/null", "≤ 1.20"),
    Goal(
        "any of them, tensors cached or disk-warmed",
        "null filter",
        1.05,
        rf"checkout\.({_DENSE}|{_CHAIN})\.(warm|disk)/null",
        "≤ 1.05",
    ),
    Goal(
        "any of them", "git-lfs checkout", 0.85, rf"checkout\.({_DENSE}|{_CHAIN})\.(cold|warm|disk)/git-lfs", "≤ 0.85"
    ),
    Goal(
        "75 MB model, sparse depth 8",
        "git-theta",
        0.02,
        r"git_theta\.checkout\.(cold|warm|in-process)/git-theta",
        "≤ 0.02",
    ),
    Goal("first add of 1.3 GB", "git-lfs add", 0.5, r"add\.first\.daemon/git-lfs", "≤ 0.5"),
    Goal("unchanged re-clean", "null filter's clean", 1.5, r"add\.unchanged\.daemon/null", "≤ 1.5"),
    Goal("unchanged re-clean", "git-lfs", 0.15, r"add\.unchanged\.daemon/git-lfs", "≤ 0.15"),
    Goal(
        "git add/checkout of a 1 MB model, warm daemon",
        "`cat` as the filter",
        25,
        r"latency\.(add|checkout)\.daemon-cat\.ms",
        "≤ +25 ms",
    ),
    Goal("peak memory of the daemon beyond its caches", "", 512, r".*\.peak-beyond-cache\.mb", "≤ 512 MB"),
    Goal("stored bytes, dense bf16 / fp32", "ZipNN", 1.00, r"storage\.dense-(bf16|fp32)\.theta/zipnn", "≤ 1.00"),
    Goal(
        "historical blobs read for a checkout",
        "distinct pointers needed",
        1.00,
        r"batching\..*\.blobs/needed",
        "= 1.00",
    ),
)


def judge(reports: Mapping[str, Report]) -> Report:
    """The table, from the reports that there are."""
    figures = {name: value for report in reports.values() for name, value in report.figures.items()}
    rows: list[list[Cell]] = []
    judged: dict[str, float | None] = {}
    notes = []
    for goal in GOALS:
        found = dict(_matching(goal, figures))
        worst = max(found.values(), default=None)
        verdict = "not measured" if worst is None else "met" if worst <= goal.limit * (1 + 1e-9) else "**missed**"
        rows.append([goal.work, goal.against, goal.shown, "-" if worst is None else f"{worst:.3g}", verdict])
        judged[f"{NAME}.{goal.work} / {goal.against}"] = worst
        missed = {name: value for name, value in found.items() if value > goal.limit}
        if missed and len(found) > 1:
            told = ", ".join(f"{name} {value:.3g}" for name, value in sorted(missed.items()))
            notes.append(f"{goal.work} ({goal.against}): {len(missed)} of {len(found)} miss: {told}")
    table = Table("Goals: the worst figure of each", ("work", "against", "goal", "figure", ""), rows)
    return Report(NAME, QUESTION, [table], figures=judged, notes=notes)


def _matching(goal: Goal, figures: Mapping[str, float | None]) -> Iterator[tuple[str, float]]:
    for name, value in figures.items():
        if value is not None and re.fullmatch(goal.pattern, name):
            yield name, value
