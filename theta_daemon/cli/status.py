"""`git theta status`: what is set up, what the next commit would change in checkpoints, and what is missing here."""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta_daemon.cli import git
from theta_daemon.cli.exits import DONE
from theta_daemon.cli.output import say, say_json, shown, size

if TYPE_CHECKING:
    from theta_daemon.cli.listing import Entry
    from theta_daemon.history.history import History
    from theta_daemon.pointer import Pointer
    from theta_daemon.store.lfs import LfsStore

_NAMED = 5
"""Parameters of a conflict that are named."""


@dataclass(frozen=True, slots=True)
class Change:
    """What a staged checkpoint changes against HEAD: names of parameters, and how the new values are stored."""

    path: str
    changed: tuple[str, ...]
    added: tuple[str, ...]
    removed: tuple[str, ...]
    updates: dict[str, int]
    stored: int

    def json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__slots__}


def status(*, json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False) -> int:
    """Show staged changes parameter by parameter, edited files, files stored raw, what a push would bring, and objects missing here."""
    from theta_daemon.cli import listing
    from theta_daemon.cli.caller import STDERR, caller
    from theta_daemon.depot import Depot
    from theta_daemon.upkeep.unpushed import unpushed

    top = git.top_level()
    configured = git.try_ask("config", "filter.theta.process") is not None
    with Depot.open(caller(), STDERR) as depot:
        history = depot.history
        entries = listing.entries(history, paths=(":/",))
        staged = [change for entry in entries if (change := _change(history, entry)) is not None]
        missing = _missing(depot.store, entries)
        remote = depot.transfer.push_name()
        ahead = unpushed(history, remote) if git.try_ask("config", f"remote.{remote}.url") else None
        conflicts = {_text(path): list(names) for path, names in listing.conflicts(history).items()}
    raw = [
        _text(entry.path)
        for entry in entries
        if entry.pointer is None and entry.problem is None and _has_content(entry)
    ]
    damaged = {_text(entry.path): entry.problem for entry in entries if entry.problem is not None}
    edited = [_text(path) for path in git.fields(git.ask("-C", top, "diff", "--name-only", "-z", "--no-ext-diff"))]
    edited = [path for path in edited if os.fsencode(path) in {entry.path for entry in entries}]
    if json:
        say_json(
            {
                "configured": configured,
                "tracked": len(entries),
                "staged": [change.json() for change in staged],
                "conflicts": conflicts,
                "edited": edited,
                "raw": raw,
                "damaged": damaged,
                "missing_objects": missing,
                "to_push": None
                if ahead is None
                else {
                    "remote": remote,
                    "pointers": ahead.pointers,
                    "objects": len(ahead.objects),
                    "bytes": sum(ahead.objects.values()),
                },
            }
        )
        return DONE
    if not configured:
        say("git is not set up for checkpoints here: git theta install")
    say(f"{len(entries)} checkpoint{'' if len(entries) == 1 else 's'} in the index")
    for change in staged:
        say(f"  to be committed: {shown(change.path)}: {_summary(change)}")
    for path, names in conflicts.items():
        disputed = ", ".join(shown(name) for name in names[:_NAMED]) + (", …" if len(names) > _NAMED else "")
        say(f"  in conflict: {shown(path)}" + (f": both sides changed {disputed}" if names else ""))
    for path in edited:
        say(f"  edited, not added: {shown(path)}")
    for path in raw:
        say(f"  held by git as it is: {shown(path)} (git add --renormalize)")
    for path, problem in damaged.items():
        say(f"  damaged pointer: {shown(path)}: {problem}")
    if missing:
        say(f"  {len(missing)} objects ({size(sum(missing.values()))}) are not here; a checkout fetches them")
    if ahead is not None and ahead.pointers:
        nbytes = size(sum(ahead.objects.values()))
        say(
            f"  to be pushed to {shown(remote)}: {ahead.pointers} checkpoint versions, {len(ahead.objects)} objects ({nbytes})"
        )
    return DONE


def _change(history: History, entry: Entry) -> Change | None:
    head = history.head_entry(entry.path)
    if entry.pointer is None or (head is not None and head.blob == entry.blob):
        return None
    old = None if head is None else history.pointer(head.blob)
    return _compare(_text(entry.path), old, entry.pointer)


def _compare(path: str, old: Pointer | None, new: Pointer) -> Change:
    before = {} if old is None else old.by_name
    added = tuple(name for name in new.by_name if name not in before)
    removed = tuple(name for name in before if name not in new.by_name)
    changed = tuple(name for name, one in new.by_name.items() if name in before and one.digest != before[name].digest)
    fresh = {new.by_name[name].ref: new.by_name[name] for name in (*changed, *added)}
    updates = Counter(parameter.update for parameter in fresh.values())
    return Change(path, changed, added, removed, dict(updates), sum(parameter.stored for parameter in fresh.values()))


def _summary(change: Change) -> str:
    parts = [
        f"{len(names)} {word}"
        for word, names in (("changed", change.changed), ("added", change.added), ("removed", change.removed))
        if names
    ]
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(change.updates.items()))
    return f"{', '.join(parts) or 'no parameter changed'}" + (f" ({kinds}; {size(change.stored)})" if kinds else "")


def _missing(store: LfsStore, entries: list[Entry]) -> dict[str, int]:
    """Objects that the index's pointers need and the local store lacks, or has cut short."""
    needed: dict[str, int] = {}
    for entry in entries:
        needed |= {} if entry.pointer is None else entry.pointer.objects
    return {oid: nbytes for oid, nbytes in needed.items() if not store.holds(oid, nbytes)}


def _has_content(entry: Entry) -> bool:
    """Whether the blob is more than an empty file, which is its own pointer."""
    return git.ask("cat-file", "-s", entry.blob).strip() != b"0"


def _text(path: bytes) -> str:
    return os.fsdecode(path)
