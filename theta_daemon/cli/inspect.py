"""`git theta show` and `ls-files`: what git stores instead of checkpoints. Only pointers are read, no object
(but for `show --explain`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from theta_daemon.cli import git
from theta_daemon.cli.exits import DONE, FAILED, complain
from theta_daemon.cli.output import percent, say, say_json, shown, size, table
from theta_daemon.errors import ThetaError

if TYPE_CHECKING:
    from theta_daemon.cli.listing import Entry
    from theta_daemon.pointer import Parameter, Pointer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


def show(
    name: Annotated[str, typer.Argument(metavar="[REV:]PATH", help="A file of the index, or of a revision.")],
    *,
    json: Json = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say why each parameter is stored as it is, and what else it could be.")
    ] = False,
) -> int:
    """Show a checkpoint's parameters: dtype, shape, update, depth, bytes stored and raw."""
    from theta_daemon.cli import explained, revisions
    from theta_daemon.cli.caller import open_history

    found = revisions.find(name)
    with open_history() as history:
        pointer = history.pointer(found.blob)
    if pointer is None:
        raise ThetaError(
            f"{shown(name)} is not a checkpoint's pointer, git holds the file as it is",
            "track it, then: git add --renormalize",
        )
    if explain:
        reasons = explained.explained(name, found, pointer)
        say_json(explained.as_json(reasons)) if json else explained.print_table(reasons)
        return DONE
    if json:
        say_json(_json(pointer, found.blob))
        return DONE
    say(
        f"{pointer.format}, {size(pointer.size)}, {len(pointer.parameters)} parameters, "
        f"{len(pointer.objects)} objects of {size(sum(pointer.objects.values()))}",
        f"digest {pointer.digest}",
    )
    rows = [_row(parameter) for parameter in pointer.parameters]
    stored, raw = _stored(pointer), pointer.size
    if pointer.skeleton is not None:
        literal = raw - sum(parameter.spec.nbytes for parameter in pointer.parameters)
        rows.append(("(skeleton)", "", "", "", "", *_sizes(pointer.skeleton.stored, literal)))
    rows.append(("total", "", "", "", "", *_sizes(stored, raw)))
    columns = ("parameter", "dtype", "shape", "update", "depth", "stored", "raw", "stored / raw")
    table(columns, rows, right=columns[4:], total=True)
    return DONE


def ls_files(
    paths: Annotated[list[str] | None, typer.Argument(metavar="[PATH]...", help="Only these files.")] = None,
    *,
    ref: Annotated[str | None, typer.Option("--ref", metavar="REV", help="A revision instead of the index.")] = None,
    json: Json = False,
) -> int:
    """List the checkpoints of the index, or of a revision, with their sizes."""
    from theta_daemon.cli import listing
    from theta_daemon.cli.caller import open_history

    git.ask("rev-parse", "--git-dir")
    with open_history() as history:
        found = listing.entries(history, ref, paths or [])
    if json:
        say_json([_entry_json(entry) for entry in found])
    elif found:
        columns = ("path", "format", "parameters", "stored", "raw", "digest")
        table(columns, [_entry_row(entry) for entry in found], right=columns[2:5])
    broken = [entry for entry in found if entry.problem is not None]
    for entry in broken:
        complain(f"{shown(entry.path)}: {entry.problem}")
    return FAILED if broken else DONE


def _row(parameter: Parameter) -> tuple[str, ...]:
    shape = " × ".join(str(length) for length in parameter.shape) or "scalar"
    sizes = _sizes(parameter.stored, parameter.spec.nbytes)
    return shown(parameter.name), parameter.dtype, shape, parameter.update, str(parameter.depth), *sizes


def _sizes(stored: int, raw: int) -> tuple[str, str, str]:
    return size(stored), size(raw), percent(stored, raw)


def _stored(pointer: Pointer) -> int:
    """Bytes of the records that the pointer names, each counted once."""
    records = {parameter.ref: parameter.stored for parameter in pointer.parameters}
    if pointer.skeleton is not None:
        records[pointer.skeleton.ref] = pointer.skeleton.stored
    return sum(records.values())


def _json(pointer: Pointer, blob: str) -> dict[str, Any]:
    return {
        "blob": blob,
        "format": pointer.format,
        "size": pointer.size,
        "digest": pointer.digest,
        "stored": _stored(pointer),
        "objects": dict(pointer.objects),
        "skeleton_stored": 0 if pointer.skeleton is None else pointer.skeleton.stored,
        "parameters": [
            {
                "name": parameter.name,
                "dtype": parameter.dtype,
                "shape": list(parameter.shape),
                "digest": parameter.digest,
                "update": parameter.update,
                "depth": parameter.depth,
                "object": parameter.object,
                "record": parameter.record,
                "stored": parameter.stored,
                "raw": parameter.spec.nbytes,
            }
            for parameter in pointer.parameters
        ],
    }


def _entry_row(entry: Entry) -> tuple[str, ...]:
    if entry.problem is not None:
        return shown(entry.path), "damaged pointer", "", "", "", ""
    pointer = entry.pointer
    if pointer is None:
        return shown(entry.path), "not a pointer", "", "", "", ""
    digest = pointer.digest[:16]
    return (
        shown(entry.path),
        pointer.format,
        str(len(pointer.parameters)),
        size(_stored(pointer)),
        size(pointer.size),
        digest,
    )


def _entry_json(entry: Entry) -> dict[str, Any]:
    common = {"path": entry.path.decode(errors="surrogateescape"), "blob": entry.blob, "problem": entry.problem}
    pointer = entry.pointer
    if pointer is None:
        return {**common, "pointer": False}
    return {
        **common,
        "pointer": True,
        "format": pointer.format,
        "parameters": len(pointer.parameters),
        "stored": _stored(pointer),
        "size": pointer.size,
        "digest": pointer.digest,
    }
