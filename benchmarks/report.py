"""Put results into the pages that quote them: `python -m benchmarks.report [--check]`.

A page says where: what stands between `<!-- results: NAME -->` and `<!-- end of results -->` is replaced by what
benchmarks/results/NAME.json says, under the command that makes it. `--check` changes nothing and fails where a page is not what
it would become.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from benchmarks.results import FOLDER, Report, saved

TOP = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "docs/benchmarks.md", "docs/batching.md")
_BLOCK = re.compile(r"<!-- results: ([a-z_]+) -->\n.*?<!-- end of results -->", re.DOTALL)


def main(arguments: Sequence[str]) -> int:
    """Exit status 1 when `--check` finds a page that is out of date."""
    check = list(arguments) == ["--check"]
    if arguments and not check:
        print((__doc__ or "").strip(), file=sys.stderr)
        return 2
    reports = saved()
    stale = []
    for page in map(TOP.joinpath, PAGES):
        before = page.read_text()
        after = filled(before, reports, os.path.relpath(FOLDER, page.parent))
        if before != after:
            stale.append(page)
            if not check:
                page.write_text(after)
    for page in stale:
        print(f"{page.relative_to(TOP)}: {'is out of date' if check else 'filled'}")
    return 1 if check and stale else 0


def filled(text: str, reports: Mapping[str, Report], results: str) -> str:
    """The page with every block filled; `results` is the results' folder as a link of this page goes."""

    def block(match: re.Match[str]) -> str:
        name = match.group(1)
        command = f"`scripts/bench {name}`"
        report = reports.get(name)
        told = (
            f"Not measured yet: {command} does.\n"
            if report is None
            else f"{command}\n\n{report.markdown(plots=results)}"
        )
        return f"<!-- results: {name} -->\n{told}<!-- end of results -->"

    return _BLOCK.sub(block, text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
