#!/usr/bin/env python3
"""Warms theta-daemon's cache in a CI job. One file, standard library only: copy it into a repository, or run it from here.

    python scripts/warm_cache.py --key [REV…]       names what the revisions need; GitHub: step output `key`
    python scripts/warm_cache.py [REV…] [OPTION…]   warms; all options are those of `git theta warm`

Of its own: `--tries N` (3) tries again when something could not be fetched, and `--strict` lets a budget that has no room for
everything be a failure (exit status 3) instead of a warning. On GitHub it also sets the outputs `key`, `status` and
`fetched`, and writes a line to the job's summary. Recipes: docs/ci.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARTLY = 3
PAUSE_SECONDS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0], add_help=True)
    parser.add_argument("--key", action="store_true", help="only name what is needed")
    parser.add_argument("--tries", type=int, default=3, metavar="N", help="tries where something could not be fetched")
    parser.add_argument("--strict", action="store_true", help="a budget that has no room for everything is a failure")
    own, others = parser.parse_known_args()
    if own.key:
        done = subprocess.run(
            ["git", "theta", "warm", "--key", *others], stdout=subprocess.PIPE, text=True, check=False
        )
        key = done.stdout.strip()
        print(key)
        output(key=key)
        return done.returncode
    with tempfile.TemporaryDirectory() as folder:
        status = warm(others, Path(folder, "report.json"), own.tries)
    if status == PARTLY and not own.strict:
        print("::warning::the cache's budget has no room for all checkpoints" if on_github() else "not all fits")
        return 0
    return status


def warm(options: list[str], report: Path, tries: int) -> int:
    """`git theta warm`, again where it failed; its exit status."""
    status = 1
    for attempt in range(max(tries, 1)):
        if attempt:
            print(f"trying again in {PAUSE_SECONDS} s", flush=True)
            time.sleep(PAUSE_SECONDS)
        status = subprocess.run(["git", "theta", "warm", "--json", str(report), *options], check=False).returncode
        if status in (0, 2, PARTLY):
            break
    if report.exists():
        tell(json.loads(report.read_text()))
    return status


def tell(report: dict[str, object]) -> None:
    """GitHub's outputs and summary."""
    output(key=report["key"], status=report["status"], fetched=report["objects_fetched"])
    line = (
        f"theta cache: {report['files_warm']} of {report['files']} checkpoint versions warm in {report['seconds']} s; "
        f"{report['tensors_built']} tensors built, {report['tensors_there']} there, {report['objects_fetched']} objects fetched"
    )
    append("GITHUB_STEP_SUMMARY", line)


def output(**values: object) -> None:
    """Step outputs."""
    for name, value in values.items():
        append("GITHUB_OUTPUT", f"{name}={value}")


def append(variable: str, line: str) -> None:
    """A line to the file that GitHub names by a variable."""
    path = os.environ.get(variable)
    if path:
        with Path(path).open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def on_github() -> bool:
    return bool(os.environ.get("GITHUB_ACTIONS"))


if __name__ == "__main__":
    sys.exit(main())
