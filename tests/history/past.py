"""Callers, histories and small pointers for the tests of this folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import blake3

from tests.gitrepo import GitRepo
from theta_daemon.counters import Counters
from theta_daemon.history.cache import PointerCache
from theta_daemon.history.history import History
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation
from theta_daemon.pointer import Parameter, Pointer


def caller(cwd: Path, env: Mapping[str, str] | None = None, uid: int | None = None) -> Invocation:
    """A caller who stands in `cwd`, with the test's clean environment and `env` over it."""
    return Invocation(cwd, {**os.environ, **(env or {})}, 0o022, os.getuid() if uid is None else uid)


def past(
    repo: GitRepo | Path,
    env: Mapping[str, str] | None = None,
    cache: PointerCache | None = None,
    counters: Counters | None = None,
) -> History:
    """A history for a caller at the top of `repo`."""
    invocation = caller(repo.path if isinstance(repo, GitRepo) else repo, env)
    return History(
        Repository.discover(invocation),
        invocation,
        PointerCache() if cache is None else cache,
        Counters() if counters is None else counters,
    )


def pointer(seed: int = 0, parameters: int = 1) -> Pointer:
    """A valid pointer; another seed gives another one."""
    oid = hashlib.sha256(b"%d" % seed).hexdigest()
    digest = blake3.blake3(b"%d" % seed).hexdigest()
    entries = tuple(
        Parameter(f"layer.{number}", "F32", (2,), digest, "dense", oid, number, 9) for number in range(parameters)
    )
    return Pointer("opaque", 8 * parameters, digest, None, None, {}, {oid: 100}, entries)


def text(seed: int = 0, parameters: int = 1) -> bytes:
    """What git stores for `pointer(seed, parameters)`."""
    return pointer(seed, parameters).encode()
