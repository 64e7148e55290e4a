"""What a command costs: wall time, processor time of all that worked for it, and the peak memory of who did the work.

The processor time of git and of every child that git waited for comes from `wait4`, the daemon's from /proc/PID/stat. Memory
is the kernel's own high-water mark: the daemon's, set back before the command, and that of the greatest process below git that
is not git itself (a filter that ends with the command), looked at every few milliseconds. git holds every file that it
writes in memory, whatever the filter; that is not counted.

Linux only for processor time of daemons and for memory; elsewhere these are 0.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 0.02
"""How soon the peaks are looked at; then ever more rarely, since looking takes the processor from what is measured."""

_LOOK_AGAIN_SECONDS = 0.25


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run. `peak_bytes`: the filter's or the daemon's memory, the greater of them."""

    seconds: float
    cpu_seconds: float
    peak_bytes: int


class CommandError(Exception):
    """A command that was to be measured failed."""


def measure(
    command: Sequence[str | Path],
    cwd: Path,
    environment: Mapping[str, str],
    *,
    daemon: int | None = None,
    memory: bool = True,
) -> Cost:
    """Run it to its end. `daemon` is the pid of a process that may do the work; `memory`: whether to look for peaks."""
    before = 0.0 if daemon is None else cpu_seconds(daemon)
    if daemon is not None:
        with suppress(OSError):
            Path(f"/proc/{daemon}/clear_refs").write_text("5")  # the high-water mark falls to what is resident now
    start = time.perf_counter()
    # A file, not a pipe: nobody would read it meanwhile. Where it goes wrong, the words are wanted.
    with subprocess.Popen(
        [os.fspath(part) for part in command],
        cwd=cwd,
        env=dict(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    ) as child:
        watcher = _Watcher(child.pid) if memory else None
        complaint = b"" if child.stderr is None else child.stderr.read()
        _, status, usage = os.wait4(child.pid, 0)
        seconds = time.perf_counter() - start
        child.returncode = os.waitstatus_to_exitcode(status)
    filter_peak = 0 if watcher is None else watcher.stop()
    if child.returncode:
        raise CommandError(f"{command}: exit status {child.returncode}: {complaint.decode(errors='replace')}")
    cpu = usage.ru_utime + usage.ru_stime
    if daemon is not None:
        cpu += cpu_seconds(daemon) - before
    return Cost(seconds, cpu, max(filter_peak, 0 if daemon is None else peak_bytes(daemon)))


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of the children it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(int(field) for field in fields[11:15]) / _TICKS


def peak_bytes(pid: int) -> int:
    """The high-water mark of a process's resident memory."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0


class _Watcher:
    """Looks at the processes below one until told to stop."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._peak = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self._peak

    def _look(self) -> None:
        pause = _LOOK_SECONDS
        while not self._over.wait(pause):
            pause = min(1.2 * pause, _LOOK_AGAIN_SECONDS)
            for pid in descendants(self._root):
                if _name(pid) != "git":
                    self._peak = max(self._peak, peak_bytes(pid))


def descendants(root: int) -> Iterable[int]:
    """The processes that `root` started, and those that they started."""
    waiting = [root]
    while waiting:
        pid = waiting.pop()
        with suppress(OSError):
            children = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
            yield from children
            waiting += children


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def median(costs: Sequence[Cost]) -> Cost:
    """Each quantity's median; of peaks the greatest."""
    return Cost(
        statistics.median(cost.seconds for cost in costs),
        statistics.median(cost.cpu_seconds for cost in costs),
        max(cost.peak_bytes for cost in costs),
    )
