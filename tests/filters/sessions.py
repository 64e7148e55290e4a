"""Sessions without processes: what git asks, asked of an engine in this process.

The repository has no filter configured, so git itself stores the pointers' text as it is, and history is real.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from protocol.events import Command, Request
from tests.gitrepo import GitRepo
from tests.history.past import caller
from theta_daemon.engine import Engine
from theta_daemon.errors import ThetaError
from theta_daemon.filters.clean import clean
from theta_daemon.filters.smudge import Smudger
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.workspace import Workspace
from theta_daemon.settings import Settings


@dataclass
class Sessions:
    """An engine and a repository. `said` is what users were told."""

    repo: GitRepo
    engine: Engine
    said: list[str] = field(default_factory=list)

    @classmethod
    def new(cls, repo: GitRepo, *, tensor_cache: int = 1 << 30, workers: int = 2) -> Sessions:
        return cls(repo, Engine(Settings(tensor_cache=tensor_cache, workers=workers), resident=True))

    @contextmanager
    def workspace(self) -> Iterator[Workspace]:
        with self.engine.workspace(caller(self.repo.path), self.said.append) as workspace:
            yield workspace

    def clean(self, path: str, data: bytes) -> bytes:
        """The pointer of a content."""
        with self.workspace() as workspace, closing(Spool(self.repo.path / ".git")) as spool:
            spool.write(data)
            return clean(workspace, path.encode(), spool)

    def commit(self, **files: bytes) -> str:
        """Clean and commit; the commit."""
        texts = {name: self.clean(name, data) for name, data in files.items()}
        return self.repo.commit("commit", **texts)

    def check_out(self, files: Mapping[str, bytes], *, delay: bool = True) -> dict[str, bytes | ThetaError]:
        """What a checkout of these pointers writes, or why it does not; keys in the order in which they were handed out."""
        found: dict[str, bytes | ThetaError] = {}
        with self.workspace() as workspace, closing(Smudger(workspace)) as smudger:
            for path, text in files.items():
                content = self._ask(smudger, path, text, delay=delay)
                if content is not None:
                    found[path] = content
            while ready := smudger.available():
                for name in sorted(ready):
                    content = self._ask(smudger, name.decode(), b"", delay=False)
                    assert content is not None
                    found[name.decode()] = content
        return found

    def _ask(self, smudger: Smudger, path: str, text: bytes, *, delay: bool) -> bytes | ThetaError | None:
        with closing(Spool(self.repo.path / ".git")) as spool:
            spool.write(text)
            try:
                pieces = smudger.smudge(Request(Command.SMUDGE, path.encode(), can_delay=delay), spool)
                return None if pieces is None else b"".join(bytes(piece) for piece in pieces)
            except ThetaError as error:
                return error

    def forget(self) -> None:
        """As if the process had been started anew."""
        self.engine.close()
        self.engine = Engine(Settings(tensor_cache=0, workers=1), resident=True)

    @property
    def objects(self) -> list[Path]:
        """All objects' files."""
        return sorted(path for path in (self.repo.path / ".git" / "lfs" / "objects").rglob("*") if path.is_file())
