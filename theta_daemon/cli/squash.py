"""`git theta squash`: checkpoints that need nothing of the past."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from theta_daemon.cli import git
from theta_daemon.cli.exits import DONE
from theta_daemon.cli.output import say, shown, size
from theta_daemon.errors import ThetaError

if TYPE_CHECKING:
    from theta_daemon.cli.filtering import Filter
    from theta_daemon.cli.listing import Entry
    from theta_daemon.pointer import Pointer


def squash(
    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Only these files.")] = None,
) -> int:
    """Store checkpoints of the index anew, each parameter whole, and stage that.

    The bytes stay the same and the work tree is not touched. Afterwards a checkout needs no earlier version's objects.
    """
    from theta_daemon.cli import listing
    from theta_daemon.cli.caller import open_history
    from theta_daemon.cli.filtering import filtering

    with open_history() as history:
        entries = listing.entries(history, paths=paths or ())
    if paths and not entries:
        raise ThetaError(f"no checkpoint is called {' or '.join(paths)}", "see `git theta ls-files`")
    staged: dict[bytes, str] = {}
    with filtering() as one:
        for entry in entries:
            if entry.problem is not None:
                raise ThetaError(f"{shown(entry.path)}: {entry.problem}")
            if entry.pointer is None or entry.pointer.lineage is None:
                continue
            found = _squashed(one, entry, entry.pointer)
            staged[entry.path] = git.ask("hash-object", "-w", "--stdin", data=found.encode()).decode().strip()
            say(f"{shown(entry.path)}: {_told(entry.pointer, found)}")
    if staged:
        _stage(staged)
    else:
        say("nothing to do: every checkpoint stands on its own")
    return DONE


def _squashed(one: Filter, entry: Entry, pointer: Pointer) -> Pointer:
    from theta_daemon.filters.squash import squash as rebased

    content = one.spool()
    try:
        for piece in one.smudge(entry.path, [pointer.encode()], entry.blob):
            content.write(piece)
        return rebased(one.workspace, entry.path, pointer, content)
    except ThetaError as error:
        raise error.within(shown(entry.path)) from error
    finally:
        content.close()


def _told(before: Pointer, after: Pointer) -> str:
    count = sum(parameter.previous is not None for parameter in before.parameters)
    sizes = [size(sum(pointer.objects.values())) for pointer in (before, after)]
    return f"{count} parameters stored whole; objects needed: {sizes[0]} before, {sizes[1]} now"


def _stage(blobs: dict[bytes, str]) -> None:
    """Put the new pointers into the index, all at once, then let git see that the files are still theirs."""
    top = git.top_level()
    listed = git.fields(git.ask("-C", top, "ls-files", "-s", "-z", "--full-name"))
    modes = {path: head.split()[0] for head, _, path in (item.partition(b"\t") for item in listed)}
    lines = b"".join(b"%s %s\t%s\0" % (modes[path], blob.encode(), path) for path, blob in blobs.items())
    git.ask("-C", top, "update-index", "-z", "--index-info", data=lines)
    git.ask("-C", top, "update-index", "-q", "--refresh", statuses=(0, 1))
