"""The table of `git theta show --explain`: what each parameter could have been stored as."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from theta_daemon.cli import git
from theta_daemon.cli.output import shown, size, table
from theta_daemon.cli.revisions import Named

if TYPE_CHECKING:
    from theta_daemon.filters.explain import Explained
    from theta_daemon.pointer import Pointer


def explained(name: str, found: Named, pointer: Pointer) -> list[Explained]:
    """Each parameter of the checkpoint that `name` names. Raises ThetaError."""
    from theta_daemon.cli.filtering import filtering
    from theta_daemon.filters.explain import Version, explain

    with filtering() as one, ExitStack() as contents:

        def version(text: bytes, pointer: Pointer, blob: str) -> Version:
            content = one.spool()
            contents.callback(content.close)
            for piece in one.smudge(found.path, [text], blob):
                content.write(piece)
            content.hexdigest()
            return Version(pointer, content)

        before = None
        blob = _before(name, found)
        past = None if blob is None else one.workspace.pointer(blob)
        if blob is not None and past is not None:
            before = version(git.ask("cat-file", "blob", blob), past, blob)
        now = version(git.ask("cat-file", "blob", found.blob), pointer, found.blob)
        return list(explain(one.workspace, now, before))


def print_table(found: list[Explained]) -> None:
    """For people."""
    columns = ("parameter", "stored as", "bytes", "could be", "why")
    rows = [
        (
            shown(one.parameter.name),
            one.parameter.update,
            size(one.parameter.stored),
            ", ".join(f"{name} {size(nbytes)}" for name, nbytes in sorted(one.sizes.items(), key=lambda item: item[1])),
            one.reason,
        )
        for one in found
    ]
    table(columns, rows, right=columns[2:3])


def as_json(found: list[Explained]) -> list[dict[str, Any]]:
    """For scripts."""
    return [
        {
            "name": one.parameter.name,
            "update": one.parameter.update,
            "stored": one.parameter.stored,
            "candidates": dict(one.sizes),
            "reason": one.reason,
        }
        for one in found
    ]


def _before(name: str, found: Named) -> str | None:
    """The blob that HEAD had under this path when the checkpoint was added, as far as commits tell."""
    path = found.path
    revision = name.partition(":")[0] if found.revision else "HEAD"
    spec = b"%s:%s" % (revision.encode(errors="surrogateescape"), path)
    there = git.try_ask("rev-parse", "--quiet", "--verify", "--end-of-options", spec)
    if there is None or there.decode().strip() != found.blob:
        return None if there is None else there.decode().strip()
    since = git.try_ask("log", "-1", "--format=%H", "--end-of-options", revision, "--", b":(top,literal)" + path)
    commit = b"" if since is None else since.strip()
    parent = git.try_ask("rev-parse", "--quiet", "--verify", b"%s^:%s" % (commit, path)) if commit else None
    return None if parent is None else parent.decode().strip()
