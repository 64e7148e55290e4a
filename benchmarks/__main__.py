"""Run benchmarks: `python -m benchmarks [NAME[:CASE,…] …] [--quick] [--rounds N] [--json FILE] [--plot DIR] [--list]`.

Without a name all of them, one after the other. Full runs leave a report each in benchmarks/results (JSON, and plots);
`--quick` is for seeing that they work: small sizes, few rounds, nothing left behind unless `--json` or `--plot` say where.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from importlib import import_module
from inspect import signature
from pathlib import Path

from benchmarks import machine
from benchmarks.goals import judge
from benchmarks.plots import draw_all
from benchmarks.results import FOLDER, Report, load, merged, saved

NAMES = (
    *("checkout", "add", "latency", "batching", "storage", "scale", "git_theta"),
    *("warm", "memory", "lora", "finetune_pair", "from_scratch", "goals"),
)
"""In this order. A module has `run(quick=…, rounds=…, cases=…)`, or is a program of its own whose output is the report."""


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 when a benchmark failed; the others ran all the same."""
    parser = argparse.ArgumentParser(prog="scripts/bench", description=(__doc__ or "").partition("\n\n")[2])
    parser.add_argument("names", nargs="*", metavar="NAME[:CASE,…]", help="; ".join(_present()))
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds, no results left")
    parser.add_argument("--rounds", type=int, metavar="N", help="measured rounds of each case")
    parser.add_argument("--bytes", type=int, metavar="N", help="bytes of the models of checkout and add")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all reports to FILE")
    parser.add_argument("--plot", type=Path, metavar="DIR", help="draw plots into DIR")
    parser.add_argument("--list", action="store_true", help="name the benchmarks and their questions")
    options = parser.parse_args(arguments)
    if options.list:
        for name in _present():
            print(f"{name:14} {_question(name)}")
        return 0
    names = [str(name) for name in options.names] or _present()
    unknown = {name.partition(":")[0] for name in names} - set(_present())
    if unknown:
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    reports, failed = _run_all(names, quick=options.quick, rounds=options.rounds, nbytes=options.bytes)
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(report) for report in reports], indent=1) + "\n")
    if options.plot is not None:
        draw_all(reports, options.plot)
    for name in failed:
        print(f"{name} FAILED", file=sys.stderr)
    return 1 if failed else 0


def _run_all(
    names: Sequence[str], *, quick: bool, rounds: int | None, nbytes: int | None
) -> tuple[list[Report], list[str]]:
    described = machine.describe()
    reports: dict[str, Report] = {}
    failed = []
    for named in names:
        name, _, cases = named.partition(":")
        start = time.monotonic()
        print(f"== {name}: {_question(name)}", file=sys.stderr, flush=True)
        try:
            chosen = frozenset(filter(None, cases.split(",")))
            report = _one(name, chosen, reports, quick=quick, rounds=rounds, nbytes=nbytes)
        except Exception as error:  # noqa: BLE001 - the others are to run all the same
            print(f"{name}: {type(error).__name__}: {error}", file=sys.stderr)
            failed.append(named)
            continue
        report = reports[name] = replace(report, machine={**described, "size": "quick"} if quick else described)
        if not quick:
            _keep(report, whole=not cases)
        print(f"# {name}\n\n{report.markdown()}", flush=True)
        print(f"== {name}: {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    return list(reports.values()), failed


def _keep(report: Report, *, whole: bool) -> None:
    """Into the results; a run of some cases leaves the others as they were."""
    path = FOLDER / f"{report.name}.json"
    if not whole and path.exists():
        report = merged(load(path), report)
    report.save(path)
    draw_all([report], FOLDER)


def _one(
    name: str,
    cases: frozenset[str],
    reports: dict[str, Report],
    *,
    quick: bool,
    rounds: int | None,
    nbytes: int | None,
) -> Report:
    if name == "goals":
        return judge({**({} if quick else saved()), **reports})
    module = import_module(f"benchmarks.{name}")
    if not hasattr(module, "run"):
        return _printed(name, quick=quick)
    run: Callable[..., Report] = module.run
    given = {"rounds": rounds, "nbytes": nbytes}
    more = {key: value for key, value in given.items() if value is not None and key in signature(run).parameters}
    return run(quick=quick, cases=cases, **more)


def _printed(name: str, *, quick: bool) -> Report:
    """What a program of its own prints, as it stands."""
    command = [sys.executable, "-m", f"benchmarks.{name}", *(["--quick"] if quick else [])]
    done = subprocess.run(command, cwd=machine.TOP, stdout=subprocess.PIPE, text=True, check=True)
    return Report(name, f"{_question(name)}\n\n```\n{done.stdout.rstrip()}\n```")


def _present() -> list[str]:
    return [name for name in NAMES if (Path(__file__).parent / f"{name}.py").exists()]


def _question(name: str) -> str:
    """The first line of the module's docstring."""
    text = (Path(__file__).parent / f"{name}.py").read_text()
    return text.removeprefix('"""').partition("\n")[0].removesuffix('"""')


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that places and their daemons go
    sys.exit(main(sys.argv[1:]))
