"""Object stores (s3://, gs://, …) by fsspec, in a child: see `worker`, which does the work.

A child, because fsspec and the clouds' libraries take credentials from the environment and from HOME of the process they
run in, and keep threads and connections for ever: a resident serves many callers and is none of them.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Mapping
from typing import Any, Final

from theta_daemon.errors import RemoteError, StoreError
from theta_daemon.invocation import Invocation
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.remote.base import Progress, Remote, TransferReport, lacking, require, total
from theta_daemon.store.remote.child import run

_JOBS: Final = 8
_ENVIRONMENT: Final = {
    # Checksums of Amazon's own that many other servers cannot do, or send for the whole where a range was asked for.
    "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
    "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
}
_HINT: Final = "check the URL, the credentials and the network, then run the command again"


class ObjectStoreRemote(Remote):
    """The objects under `url`, in the layout of a store (`aa/bb/<id>`). Credentials come from the caller's environment.

    What breaks is tried again, the first time after `first_pause_seconds`, then after three times as long, and so on.
    """

    def __init__(
        self,
        name: str,
        url: str,
        invocation: Invocation,
        stderr_fd: int | None = None,
        stop: threading.Event | None = None,
        first_pause_seconds: float = 0.2,
    ) -> None:
        self.name = name
        self._first_pause_seconds = first_pause_seconds
        self._url = url
        self._invocation = invocation
        self._stderr_fd = stderr_fd
        self._stop = stop

    def fetch(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        return self._transfer("fetch", lacking(objects, store), store, progress)

    def push(self, objects: Mapping[str, int], store: LfsStore, progress: Progress | None = None) -> TransferReport:
        require(objects, store)
        return self._transfer("push", objects, store, progress)

    def has(self, objects: Mapping[str, int]) -> frozenset[str]:
        report = self._transfer("has", objects, None, None)
        if report.failed:
            raise RemoteError(f"cannot ask {self._url}: {next(iter(report.failed.values()))}", _HINT)
        return report.moved

    def _transfer(
        self, action: str, objects: Mapping[str, int], store: LfsStore | None, progress: Progress | None
    ) -> TransferReport:
        if not objects:
            return TransferReport(rounds=0)
        job: dict[str, Any] = {"action": action, "url": self._url, "objects": dict(objects), "jobs": _JOBS}
        job["first_pause_seconds"] = self._first_pause_seconds
        if store is not None:
            job["store"] = store.settings()
        moved: set[str] = set()
        failed: dict[str, str] = {}
        fatal: list[tuple[str, str, str | None]] = []
        requests: list[int] = []

        def on_line(line: str) -> None:
            message = json.loads(line)
            if "moved" in message:
                moved.add(message["moved"])
                if progress is not None:
                    progress(1, objects[message["moved"]])
            elif "failed" in message:
                failed[message["failed"]] = message["reason"]
            elif "requests" in message:
                requests.append(message["requests"])
            elif "fatal" in message:
                fatal.append((message["fatal"], message["reason"], message["hint"]))

        command = [sys.executable, "-P", "-m", "theta_daemon.store.remote.worker"]
        ended = run(
            command,
            self._invocation,
            stdin=json.dumps(job).encode(),
            env={name: value for name, value in _ENVIRONMENT.items() if name not in self._invocation.env},
            stderr_fd=self._stderr_fd,
            stop=self._stop,
            on_line=on_line,
        )
        if fatal:
            kind, reason, hint = fatal[0]
            raise (StoreError if kind == "store" else RemoteError)(reason, hint)
        if ended.status != 0:
            raise RemoteError(f"cannot {action} with {self._url}: {ended.last}", _HINT)
        return TransferReport(frozenset(moved), total(objects, moved), failed, requests=sum(requests))
