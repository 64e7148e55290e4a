"""What `git theta warm` shows: a bar on a terminal, plain lines elsewhere, and what was done, for people and for scripts."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from theta_daemon.cli.output import shown, size
from theta_daemon.complaint import explain

if TYPE_CHECKING:
    from rich.progress import Progress

    from theta_daemon.filters.warm import Warmed

_PATIENCE_SECONDS: Final = 1.0
_LINE_SECONDS: Final = 10.0


class Bar:
    """How far the work is, on stderr: nothing for the first second, then a bar, or a line every ten seconds."""

    def __init__(self) -> None:
        self._terminal = sys.stderr.isatty()
        self._next = time.monotonic() + (_PATIENCE_SECONDS if self._terminal else _LINE_SECONDS)
        self._bar: Progress | None = None

    def advance(self, files: int, all_files: int, nbytes: int, all_bytes: int) -> None:
        """Show the work done so far."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + (0.1 if self._terminal else _LINE_SECONDS)
        if not self._terminal:
            sys.stderr.write(f"warming: {files} of {all_files} files, {size(nbytes)} of {size(all_bytes)}\n")
            sys.stderr.flush()
            return
        if self._bar is None:
            self._bar = self._draw(all_bytes)
        self._bar.update(self._bar.task_ids[0], completed=nbytes, description=f"warming {files}/{all_files} files")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def _draw(self, all_bytes: int) -> Progress:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.add_task("warming", total=all_bytes)
        bar.start()
        return bar


@dataclass(frozen=True, slots=True)
class Report:
    """All that is told of one warming."""

    done: Warmed
    counts: Mapping[str, int]
    folder: str
    cache_bytes: int
    commits: int
    seconds: float
    key: str

    @property
    def status(self) -> str:
        """In a word, as the exit status says it in a number."""
        return "failed" if self.done.failed else "partly" if self.done.skipped else "warm"

    def lines(self) -> Sequence[str]:
        """For people."""
        done, counts = self.done, self.counts
        lines = [
            f"{done.warm} of {done.files} checkpoint versions in {self.commits} commits are warm ({self.seconds:.1f} s)",
            f"tensors: {done.built} built ({size(done.built_bytes)}), {done.there} already there ({size(done.there_bytes)})",
            (
                f"fetched: {counts.get('fetch.objects', 0)} objects ({size(counts.get('fetch.bytes', 0))}); "
                f"pointers read: {counts.get('pointers_parsed', 0)}"
            ),
            f"cache: {size(self.cache_bytes)} in {shown(self.folder)}",
        ]
        if done.skipped:
            lines.append(f"no room in the budget for {len(done.skipped)} checkpoint versions")
        return lines

    def json(self) -> dict[str, Any]:
        """For scripts."""
        done, counts = self.done, self.counts
        return {
            "status": self.status,
            "commits": self.commits,
            "files": done.files,
            "files_warm": done.warm,
            "tensors": done.tensors,
            "tensors_built": done.built,
            "tensors_there": done.there,
            "bytes_built": done.built_bytes,
            "bytes_there": done.there_bytes,
            "objects_fetched": counts.get("fetch.objects", 0),
            "bytes_fetched": counts.get("fetch.bytes", 0),
            "fetch_rounds": counts.get("fetch.rounds", 0),
            "fetch_requests": counts.get("fetch.requests", 0),
            "blobs_read": counts.get("blobs_read", 0),
            "pointers_parsed": counts.get("pointers_parsed", 0),
            "updates_decoded": counts.get("updates_decoded", 0),
            "seconds": round(self.seconds, 3),
            "cache": self.folder,
            "cache_bytes": self.cache_bytes,
            "key": self.key,
            "skipped": [name.decode(errors="surrogateescape") for name in done.skipped],
            "failed": {name.decode(errors="surrogateescape"): explain(error) for name, error in done.failed.items()},
        }
