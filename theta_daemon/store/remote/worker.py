"""The child that speaks to object stores: `python -m theta_daemon.store.remote.worker`, an edge of its own.

One job as JSON on stdin: {action: fetch | push | has, url, objects: {id: size}, jobs, store}. One JSON object a line on
stdout: {moved: id} for each object that was moved (or is there, for `has`), {failed: id, reason}, {requests: number} of
calls that were made, and at most one {fatal: store | remote, reason, hint}. Everything that fsspec wants to know it finds in
this process's environment.

Objects are fetched in ranges, each tried again when the connection breaks, and verified by `LfsStore` as they arrive. Stores
that show an object only when it is whole are written under the final name, others under a temporary one and renamed.
"""

from __future__ import annotations

import json
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from theta_daemon.errors import RecordError, RemoteError, StoreError
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.remote.base import each

_HINT: Final = "check the URL, the credentials and the network, then run the command again"
_RANGE_BYTES: Final = 16 << 20
_ATTEMPTS: Final = 3
_WHOLE_AT_ONCE: Final = frozenset(
    {"s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oci", "oss", "r2", "memory"}
)
"""Protocols whose writes become visible whole or not at all."""

Result = TypeVar("Result")


class Bucket:
    """An fsspec file system and the folder in it that holds the objects. `requests` counts the calls of it."""

    def __init__(self, url: str, first_pause_seconds: float) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise RemoteError("object stores need fsspec", "pip install 'theta-daemon[remote]' (or [s3])") from error
        self.url = url
        self.requests = 0
        self._lock = threading.Lock()
        self._first_pause_seconds = first_pause_seconds
        try:
            self.fs, self.root = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except ImportError as error:
            raise RemoteError(
                f"cannot use {url}: {error}", "pip install what it names, or 'theta-daemon[s3]'"
            ) from error
        except ValueError as error:
            raise RemoteError(f"cannot use {url}: {error}", "check theta.remote or remote.NAME.thetaUrl") from error
        protocol = self.fs.protocol
        self.whole = bool(_WHOLE_AT_ONCE & set([protocol] if isinstance(protocol, str) else protocol))

    def path(self, oid: str) -> str:
        return f"{self.root.rstrip('/')}/{oid[:2]}/{oid[2:4]}/{oid}"

    def has(self, oid: str, size: int) -> bool:
        try:
            return bool(self._attempt(lambda: self.fs.info(self.path(oid)))["size"] == size)
        except FileNotFoundError:
            return False

    def fetch(self, oid: str, size: int, store: LfsStore) -> None:
        path = self.path(oid)
        writer = store.writer()
        try:
            for start in range(0, size, _RANGE_BYTES):
                stop = min(start + _RANGE_BYTES, size)
                writer.write(self._attempt(partial(self._range, path, start, stop)))
            writer.commit(expected=oid)
        except FileNotFoundError:
            raise RemoteError(f"{self.url} does not have object {oid}") from None
        finally:
            writer.abort()

    def push(self, oid: str, size: int, store: LfsStore) -> None:
        if self.has(oid, size):
            return
        source, path = store.locate(oid), self.path(oid)
        if source is None:
            raise RemoteError(f"object {oid} has gone from here")
        if self.whole:
            self._attempt(lambda: self.fs.put_file(str(source), path))
        else:
            temporary = f"{path}.{secrets.token_hex(8)}.tmp"
            self._count()
            self.fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._attempt(lambda: self.fs.put_file(str(source), temporary))
            self._count()
            self.fs.mv(temporary, path)
        if not self.has(oid, size):
            raise RemoteError(f"{self.url} took object {oid}, but has it not with {size} bytes")

    def _range(self, path: str, start: int, stop: int) -> bytes:
        data: bytes = self.fs.cat_file(path, start=start, end=stop)
        if len(data) != stop - start:
            raise RecordError(f"{path} gave {len(data)} bytes instead of {stop - start} from {start}")
        return data

    def _count(self) -> None:
        with self._lock:
            self.requests += 1

    def _attempt(self, work: Callable[[], Result]) -> Result:
        # What the store itself refuses is not tried again; each library has its own exceptions for a broken connection.
        pause = self._first_pause_seconds
        for remaining in reversed(range(_ATTEMPTS)):
            self._count()
            try:
                return work()
            except (FileNotFoundError, PermissionError, StoreError):
                raise
            except Exception:
                if not remaining:
                    raise
                time.sleep(pause)
                pause *= 3
        raise AssertionError("unreachable")


def serve(job: Mapping[str, Any], say: Callable[[dict[str, Any]], None]) -> None:
    """Do one job."""
    bucket = Bucket(job["url"], job["first_pause_seconds"])
    store = LfsStore.from_settings(job["store"]) if "store" in job else None

    broken: list[str] = []
    moved: list[str] = []

    def work(oid: str, size: int) -> None:
        if len(broken) >= job["jobs"] and not moved:
            broken.append(broken[0])
            raise RemoteError(broken[0])  # nobody is there: no use in asking for each object four times
        try:
            if job["action"] == "has":
                if not bucket.has(oid, size):
                    return
            elif job["action"] == "fetch":
                bucket.fetch(oid, size, _given(store))
            else:
                bucket.push(oid, size, _given(store))
        except (RecordError, RemoteError, StoreError):
            raise
        except Exception as error:
            broken.append(f"{bucket.url}: {type(error).__name__}: {error}")
            raise RemoteError(broken[-1]) from error
        moved.append(oid)
        say({"moved": oid})

    report = each(job["objects"], work, job["jobs"], None)
    say({"requests": bucket.requests})
    if broken and len(broken) == len(report.failed) == len(job["objects"]):
        raise RemoteError(broken[0], _HINT)
    for oid, reason in report.failed.items():
        say({"failed": oid, "reason": reason})


def _given(store: LfsStore | None) -> LfsStore:
    if store is None:
        raise RemoteError("the job names no store")
    return store


def main() -> int:
    """Read a job, do it, report it."""
    lock = threading.Lock()

    def say(message: dict[str, Any]) -> None:
        with lock:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    try:
        serve(json.loads(sys.stdin.buffer.read()), say)
    except StoreError as error:
        say({"fatal": "store", "reason": error.message, "hint": error.hint})
    except RemoteError as error:
        say({"fatal": "remote", "reason": error.message, "hint": error.hint})
    return 0


if __name__ == "__main__":
    sys.exit(main())
