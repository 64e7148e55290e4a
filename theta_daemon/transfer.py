"""Which remotes a session asks for objects, in which order, and what it says when none has them.

`theta.remote` (a URL or a remote's name) stands alone where it is set; otherwise the upstream of the current branch, then
`origin`, then the other remotes. Each is asked once, for everything that is still missing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from theta_daemon.counters import Counters
from theta_daemon.errors import MissingObjectError, RemoteError, ThetaError
from theta_daemon.history.git import git_child
from theta_daemon.history.repository import Repository
from theta_daemon.settings import Settings
from theta_daemon.store.lfs import LfsStore

if TYPE_CHECKING:
    from theta_daemon.store.remote import Remote


@dataclass(frozen=True, slots=True)
class Transfer:
    """A session's access to remotes. `counters`: `fetch.rounds` that a remote answered, and their `fetch.requests` (see
    `TransferReport`), `fetch.objects`, `fetch.bytes`.
    """

    repository: Repository
    settings: Settings
    store: LfsStore
    counters: Counters
    stderr_fd: int | None
    stop: threading.Event

    def fetch(self, objects: Mapping[str, int]) -> Mapping[str, ThetaError]:
        """Bring `objects` into the store; why not, for those that could not be had. Raises StoreError."""
        from theta_daemon.store.remote.progress import TerminalProgress

        missing = dict(objects)
        reasons: dict[str, str] = {}
        tried = []
        for name in self.names():
            try:
                with TerminalProgress(self.stderr_fd, f"Fetching from {name}", missing) as progress:
                    report = self.remote(name).fetch(missing, self.store, progress)
            except RemoteError as error:
                reasons |= dict.fromkeys(missing, f"{name}: {error.message}")
                tried.append(name)
                continue
            tried.append(name)
            self.counters.add("fetch.rounds", report.rounds)
            self.counters.add("fetch.requests", report.requests)
            self.counters.add("fetch.objects", len(report.moved))
            self.counters.add("fetch.bytes", report.moved_bytes)
            reasons |= {oid: f"{name}: {reason}" for oid, reason in report.failed.items()}
            missing = {oid: size for oid, size in missing.items() if not self.store.holds(oid, size)}
            if not missing:
                return {}
        hint = "push them from a clone that has them with `git theta push`" if tried else "add a remote that has them"
        nowhere = f"asked {', '.join(tried)}" if tried else "no remote is configured"
        return {oid: MissingObjectError(reasons.get(oid, nowhere), hint) for oid in missing}

    def names(self) -> list[str]:
        """The remotes to ask, each once."""
        if self.settings.remote is not None:
            return [self.settings.remote]
        return list(dict.fromkeys(self._preferred()))

    def remote(self, name: str) -> Remote:
        """The remote of this name or URL. Raises RemoteError."""
        settings, invocation = self.settings, self.repository.invocation
        theta_url = settings.theta_urls.get(name)
        url = name
        if theta_url is None and name in self._configured():
            done = git_child(["ls-remote", "--get-url", name], invocation, stderr_fd=self.stderr_fd)
            url = done.out.decode(errors="surrogateescape").removesuffix("\n") or name
        elif theta_url is None and name == settings.remote:
            theta_url = name
        from theta_daemon.store.remote import open_remote

        return open_remote(
            name, url, theta_url, invocation, self.repository.git_objects_dir, stderr_fd=self.stderr_fd, stop=self.stop
        )

    def push_name(self) -> str:
        """The git remote that a push without a name goes to, as `git push` chooses. Raises RemoteError."""
        branch = self._branch()
        for key in (f"branch.{branch}.pushremote", "remote.pushdefault", f"branch.{branch}.remote"):
            name = self.repository.setting(key)
            if name:
                return name
        configured = self._configured()
        if "origin" in configured or len(configured) != 1:
            return "origin"
        return configured[0]

    def push_remote(self, name: str, url: str | None = None) -> Remote:
        """Where the objects of what is pushed to the git remote `name` (or URL) go. `url`: git's own word for where it
        pushes. Raises RemoteError.
        """
        settings, invocation = self.settings, self.repository.invocation
        if settings.remote is not None:
            return self.remote(settings.remote)
        theta_url = settings.theta_urls.get(name)
        if url is None and theta_url is None and name in self._configured():
            done = git_child(["remote", "get-url", "--push", name], invocation, stderr_fd=self.stderr_fd)
            url = done.out.decode(errors="surrogateescape").removesuffix("\n") or None
        from theta_daemon.store.remote import open_remote

        return open_remote(
            name,
            url or name,
            theta_url,
            invocation,
            self.repository.git_objects_dir,
            stderr_fd=self.stderr_fd,
            stop=self.stop,
        )

    def _preferred(self) -> Iterator[str]:
        configured = self._configured()
        upstream = self._upstream()
        if upstream in configured:
            yield upstream
        if "origin" in configured:
            yield "origin"
        yield from configured

    def _configured(self) -> list[str]:
        """The remotes that have a URL, in the order of the configuration."""
        return list(dict.fromkeys(_remote_names(self.repository.config)))

    def _upstream(self) -> str:
        return self.repository.setting(f"branch.{self._branch()}.remote") or ""

    def _branch(self) -> str:
        try:
            head = (self.repository.git_dir / "HEAD").read_text().strip()
        except (OSError, UnicodeError):
            return ""
        return head.removeprefix("ref: refs/heads/")


def _remote_names(keys: Iterable[str]) -> Iterator[str]:
    for key in keys:
        if key.startswith("remote.") and key.lower().endswith((".url", ".thetaurl")):
            yield key[len("remote.") : key.rindex(".")]
