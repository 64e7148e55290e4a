"""Re-bases a checkpoint: the same bytes under a pointer whose records all stand on their own."""

from __future__ import annotations

from theta_daemon.errors import DigestError
from theta_daemon.filters.build import Build
from theta_daemon.filters.known import Known
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.pointer import Pointer


def squash(workspace: Workspace, pathname: bytes, pointer: Pointer, content: Spool) -> Pointer:
    """The new pointer for `pointer`, whose rebuilt bytes are `content`. Its objects are durable when it is returned."""
    if (content.size, content.hexdigest()) != (pointer.size, pointer.digest):
        raise DigestError("the rebuilt checkpoint is not the one that was added")
    known = Known.find(workspace, pathname)
    usable = {candidate.name for candidate in workspace.registry.formats.usable()}
    format_name = pointer.format if pointer.format in usable else None
    found = Build(workspace, pathname, content, known, format_name, alone=True).pointer()
    workspace.memo.remember(found.digest, found.encode())
    return found
