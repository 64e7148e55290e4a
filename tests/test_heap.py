"""Freed memory: kept while there is work, given back after it."""

from __future__ import annotations

import subprocess
import sys

import pytest

_SCRIPT = """
import gc, resource, sys
import numpy as np
from theta_daemon import heap
from theta_daemon.server.memory import resident_bytes

if sys.argv[1] == "settle" and not heap.settle():
    sys.exit("not glibc")

def work():
    values = [np.ones(1 << 19, np.uint32) for _ in range(40)]  # 40 values of 2 MB, as large as a chunk

work()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    work()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
kept = resident_bytes()
heap.release()
print(faults, kept, resident_bytes())
"""


def _run(how: str) -> tuple[int, int, int]:
    done = subprocess.run([sys.executable, "-c", _SCRIPT, how], capture_output=True, text=True, check=False)
    if "not glibc" in done.stderr:
        pytest.skip("another C library")
    faults, kept, left = map(int, done.stdout.split())
    return faults, kept, left


def test_memory_that_was_freed_is_used_again_and_given_back_on_demand() -> None:
    """Five rounds over 80 MB fetch next to no new page (by themselves 20,000 each); `release` gives all of it back."""
    faults, kept, left = _run("settle")
    assert faults < 5_000
    assert kept - left > 60 << 20


def test_without_it_pages_are_fetched_again_and_again() -> None:
    """What it is for; once a C library keeps memory by itself it can go."""
    faults, _, _ = _run("let")
    if faults < 50_000:
        pytest.skip("this C library keeps freed memory by itself")
