"""The filter inside this process, one file at a time: what git asks over its protocol, asked by a command.

The engine does what it does for a session, so that a command gets the very bytes that a checkout would write and the very
pointer that an add would store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from protocol.events import Command, Request
from theta_daemon.cli.caller import STDERR, caller
from theta_daemon.cli.exits import complain
from theta_daemon.engine import Engine
from theta_daemon.filters.clean import clean
from theta_daemon.filters.smudge import Smudger
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.history.git import read_config
from theta_daemon.settings import Settings
from theta_daemon.tensor import Buffer

_NEVER_SKIP: Final = {"GIT_THETA_SKIP_SMUDGE": "false"}
"""Who asks for a file's bytes by a command wants them, whatever checkouts do."""


class Filter:
    """Clean and smudge as functions. Paths are relative to the top of the work tree."""

    def __init__(self, workspace: Workspace) -> None:
        self._workspace = workspace
        self._smudger = Smudger(workspace)

    @property
    def workspace(self) -> Workspace:
        """What the layers below work with."""
        return self._workspace

    def spool(self) -> Spool:
        """An empty place for content, to be closed by the caller."""
        return Spool(self._workspace.history.repository.spool_dir)

    def clean(self, path: bytes, content: Spool) -> bytes:
        """What git stores for the content. Raises ThetaError."""
        return clean(self._workspace, path, content)

    def smudge(self, path: bytes, pieces: Iterable[Buffer], blob: str | None = None) -> Iterator[Buffer]:
        """What a checkout writes for a blob's content, piece by piece; a piece is good until the next one is asked for.

        Raises ThetaError, also after some pieces: they are worth nothing then.
        """
        spool = self.spool()
        try:
            for piece in pieces:
                spool.write(piece)
            content = self._smudger.smudge(Request(Command.SMUDGE, path, blob=blob), spool)
            if content is None:
                raise AssertionError("delayed, though nobody offered to wait")
            yield from content
        finally:
            spool.close()

    def close(self) -> None:
        """Give up work that was begun."""
        self._smudger.close()


@contextmanager
def filtering(*, skip_allowed: bool = False, env: Mapping[str, str] | None = None) -> Iterator[Filter]:
    """The filter for the repository of the cwd. With `skip_allowed` the caller's theta.skipSmudge counts.

    `env` is laid over the environment.
    """
    invocation = caller()
    invocation = replace(invocation, env={**invocation.env, **(env or {})})
    if not skip_allowed:
        invocation = replace(invocation, env={**invocation.env, **_NEVER_SKIP})
    engine = Engine(Settings.load(read_config(invocation), invocation.env, invocation.cwd))
    try:
        with engine.workspace(invocation, complain, STDERR) as workspace:
            one = Filter(workspace)
            try:
                yield one
            finally:
                one.close()
    finally:
        engine.close()
