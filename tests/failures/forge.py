"""Forged objects and pointers: what a stranger may put into a repository that others clone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from blake3 import blake3

from tests.gitrepo import GitRepo
from theta_daemon.pointer import Parameter, Pointer, RecordRef, SkeletonRef, parse
from theta_daemon.store.lfs import LfsStore
from theta_daemon.store.pack import PackWriter
from theta_daemon.tensor import Buffer


def store(repo: GitRepo) -> LfsStore:
    """The objects of the repository."""
    return LfsStore(repo.path / ".git" / "lfs" / "objects", umask=0o022, fsync=False)


def pack(repo: GitRepo, *records: Buffer) -> str:
    """A pack of these records in the repository's store; its id."""
    writer = PackWriter(store(repo).writer())
    for record in records:
        writer.add([record])
    return writer.finish()[0]


def parameter(oid: str, data: bytes, shape: Sequence[int], value: bytes, /, **fields: object) -> Parameter:
    """A parameter called `p`, whose record `data` is the first of pack `oid`, with the digest of `value`."""
    made = Parameter("p", "U8", tuple(shape), blake3(value).hexdigest(), "dense", oid, 0, len(data))
    return replace(made, **fields)  # type: ignore[arg-type]


def pointer(
    *parameters: Parameter,
    size: int | None = None,
    digest: str | None = None,
    skeleton: SkeletonRef | None = None,
    lineage: RecordRef | None = None,
    history: dict[str, str] | None = None,
    objects: dict[str, int] | None = None,
) -> Pointer:
    """A pointer of these parameters, as well-formed as they allow."""
    named = {parameter.object for parameter in parameters}
    named |= {ref.object for ref in (skeleton, lineage) if ref is not None}
    return Pointer(
        format="opaque",
        size=sum(parameter.spec.nbytes for parameter in parameters) if size is None else size,
        digest="0" * 64 if digest is None else digest,
        skeleton=skeleton,
        lineage=lineage,
        history=history or {},
        objects=dict.fromkeys(sorted(named), 100) | (objects or {}),
        parameters=tuple(parameters),
    )


def blob(repo: GitRepo, text: bytes) -> str:
    """`text` as a blob of git, past all filters; its id."""
    return repo("hash-object", "-w", "--stdin", data=text).decode().strip()


def plant(repo: GitRepo, **texts: bytes) -> str:
    """Commit these texts as the blobs of files, past all filters, and leave the work tree without the files."""
    for name, text in texts.items():
        repo("update-index", "--add", "--cacheinfo", f"100644,{blob(repo, text)},{name}")
    repo("commit", "-q", "-m", "planted")
    return repo.head()


def real_pointer(repo: GitRepo, name: str) -> Pointer:
    """The pointer of a file at HEAD."""
    found = parse(repo.blob(name))
    assert found is not None
    return found


def object_path(repo: GitRepo, oid: str) -> Path:
    return store(repo).path(oid)
