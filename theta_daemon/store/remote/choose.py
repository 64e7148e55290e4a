"""Which kind of remote a URL asks for."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from theta_daemon.invocation import Invocation
from theta_daemon.store.remote.base import Remote
from theta_daemon.store.remote.gitlfs import GitLfsRemote
from theta_daemon.store.remote.local import LocalRemote, is_local
from theta_daemon.store.remote.objectstore import ObjectStoreRemote

_GIT_SCHEMES: Final = frozenset({"http", "https", "ssh", "git", "git+ssh", "ssh+git", "ftp", "ftps"})


def open_remote(
    name: str,
    url: str,
    theta_url: str | None,
    invocation: Invocation,
    git_objects: Path,
    *,
    stderr_fd: int | None = None,
    stop: threading.Event | None = None,
) -> Remote:
    """The remote called `name` (or given by URL). `url` is git's own for it, after insteadOf; `theta_url` is
    remote.NAME.thetaUrl or theta.remote, and goes first. Raises RemoteError for a path that is no repository.

    Paths and file:// need nothing; other schemes that git itself does not speak are object stores; the rest is git-lfs's.
    """
    if theta_url is not None:
        if is_local(theta_url):
            return LocalRemote.folder(name, theta_url, invocation)
        scheme, separator, _ = theta_url.partition("://")
        if separator and "::" not in scheme and scheme not in _GIT_SCHEMES:
            return ObjectStoreRemote(name, theta_url, invocation, stderr_fd, stop)
        return GitLfsRemote(theta_url, invocation, git_objects, stderr_fd, stop)
    if is_local(url):
        return LocalRemote.repository(name, url, invocation)
    return GitLfsRemote(name, invocation, git_objects, stderr_fd, stop)
