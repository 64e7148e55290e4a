"""Which files of the index or of a revision are checkpoints, as git's attributes say, and their pointers."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from theta_daemon.cli import git
from theta_daemon.errors import PointerError
from theta_daemon.filters.merge import Conflict, merge
from theta_daemon.history.history import History
from theta_daemon.pointer import Pointer


@dataclass(frozen=True, slots=True)
class Entry:
    """A file with the filter. `pointer` is None when git holds its bytes as they are, or when `problem` says why."""

    path: bytes
    blob: str
    pointer: Pointer | None
    problem: str | None = None


def entries(history: History, revision: str | None = None, paths: Iterable[str] = ()) -> list[Entry]:
    """The files with the filter below the cwd, or those of `paths` (pathspecs), in git's order. Unmerged ones are left out."""
    with _index(revision) as (env, options):
        listing = git.fields(git.ask("ls-files", "-s", "-z", "--full-name", "--", *paths, env=env))
        blobs: dict[bytes, str] = {}
        for item in listing:
            head, _, path = item.partition(b"\t")
            mode, blob, stage = head.split()
            if mode.startswith(b"100") and stage == b"0":
                blobs[path] = blob.decode()
        found = git.attributes(blobs, "filter", arguments=options, env=env)
        wanted = [path for path, _, value in found if value == "theta"]
    return [_entry(history, path, blobs[path]) for path in wanted]


def _entry(history: History, path: bytes, blob: str) -> Entry:
    try:
        return Entry(path, blob, history.pointer(blob))
    except PointerError as error:
        return Entry(path, blob, None, error.message)


@contextmanager
def _index(revision: str | None) -> Iterator[tuple[Mapping[str, str] | None, tuple[str, ...]]]:
    """The environment and the options of check-attr for the index, or for a made-up one that holds `revision`."""
    if revision is None:
        yield None, ()
        return
    with tempfile.TemporaryDirectory(prefix="theta-") as folder:
        env = {**os.environ, "GIT_INDEX_FILE": str(Path(folder) / "index")}
        tree = git.ask("rev-parse", "--verify", "--end-of-options", f"{revision}^{{tree}}").strip()
        git.ask("read-tree", tree, env=env)
        yield env, ("--cached",)


def conflicts(history: History) -> dict[bytes, tuple[str, ...]]:
    """Unmerged checkpoints, by path, with the parameters that both sides changed (none where no pointers tell)."""
    stages: dict[bytes, dict[bytes, str]] = {}
    for item in git.fields(git.ask("ls-files", "-u", "-z", "--full-name", "--", ":/")):
        head, _, path = item.partition(b"\t")
        _, blob, stage = head.split()
        stages.setdefault(path, {})[stage] = blob.decode()
    wanted = [path for path, _, value in git.attributes(stages, "filter") if value == "theta"]
    return {path: _disputed(history, stages[path]) for path in wanted}


def _disputed(history: History, stages: Mapping[bytes, str]) -> tuple[str, ...]:
    try:
        base, ours, theirs = (history.pointer(stages[side]) if side in stages else None for side in (b"1", b"2", b"3"))
    except PointerError:
        return ()
    if ours is None or theirs is None:
        return ()
    outcome = merge(base, ours, theirs)
    return outcome.parameters if isinstance(outcome, Conflict) else ()
