"""Makes a new pointer: lays a checkpoint out, encodes what is new, stores it, composes.

Each parameter is compared with what HEAD has under its name; a value that the repository knows keeps its record, whatever
its name. What the user hints is tried first. Nothing is answered before all objects are durable.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from blake3 import blake3

from theta_daemon.errors import StoreError
from theta_daemon.filters.ahead import Ahead
from theta_daemon.filters.at_hand import AtHand
from theta_daemon.filters.compose import Facts, compose, lineage_of
from theta_daemon.filters.encode import Encoder, Previous
from theta_daemon.filters.forms import Encoded, ReadWords, words_in
from theta_daemon.filters.groups import WHOLE_BYTES, grouped
from theta_daemon.filters.hints import Hints
from theta_daemon.filters.known import Known
from theta_daemon.filters.packing import Packing, Slot, ref
from theta_daemon.filters.plan import Plan, Planner, value_key
from theta_daemon.filters.rebuild import Rebuilder
from theta_daemon.filters.spool import Spool
from theta_daemon.filters.told import Told
from theta_daemon.filters.workspace import Workspace
from theta_daemon.formats.base import Extent
from theta_daemon.pointer import Parameter, Pointer, SkeletonRef
from theta_daemon.store.skeleton import encode_skeleton, skeleton_digest
from theta_daemon.tensor import Buffer
from theta_daemon.updates.base import Hint

_AHEAD_BYTES: Final = 64 << 20
_HEAD: Final = b"HEAD"
_INDEX: Final = b"index"


class Build:
    """One new pointer in the making."""

    def __init__(
        self,
        workspace: Workspace,
        pathname: bytes,
        spool: Spool,
        known: Known,
        format_name: str | None = None,
        *,
        alone: bool = False,
        ahead: Ahead | None = None,
    ) -> None:
        """`alone`: of self-contained records only, for a pointer without previous ones. `ahead`: what is made already."""
        self._workspace = workspace
        self._pathname = pathname
        self._spool = spool
        self._known = known
        self._format_name = format_name
        self._alone = alone
        self._ahead = ahead
        self._pool = workspace.machinery.pool
        self._encoder = Encoder(workspace.registry, self._pool, workspace.settings.max_depth)
        self._planner = Planner(lambda _key, _digest: False)
        self._sizes: dict[str, int] = {}
        self._commits: dict[str, str] = {}

    def pointer(self) -> Pointer:
        """Lay out, encode, store, compose."""
        workspace = self._workspace
        override = self._format_name or workspace.history.attribute(self._pathname, "theta-format")
        format_name, extents = workspace.registry.find_layout(self._spool, override)
        if self._ahead is not None and (format_name, extents) != (self._ahead.format_name, self._ahead.extents):
            self._ahead = None
        specs = {extent.name: extent.spec for extent in extents}
        hints = Hints() if self._alone else workspace.hints()
        told = Told(hints, self._pathname, format_name, self._spool, specs)
        digests = self._digests(extents)
        reusable = self._reusable(extents, digests, told)
        if self._ahead is not None and not self._ahead.has_all_but(reusable, digests):
            self._ahead = None
            self._spool.settle()
        plan = self._planner.plan()
        values = workspace.cached_values(plan)
        rebuilder = Rebuilder(plan, workspace.machinery, AtHand.of(values))
        with self._ahead.packing if self._ahead is not None else Packing(workspace.store) as packing:
            skeleton = self._skeleton(extents, packing)
            parameters = self._parameters(extents, digests, reusable, plan, rebuilder, packing, told)
            keys = {draft.parameter.name: draft.base for draft in parameters if draft.base is not None}
            lineage = lineage_of(keys, plan)
            lineage_slot = packing.add([lineage.encode()]) if keys else None
            packs = packing.finish()
        self._still_there(packs)
        self._sizes.update(packs)
        finished = [p.parameter if p.slot is None else _placed(p.parameter, p.slot, packs) for p in parameters]
        workspace.memo.remember_parameters(finished)
        told.report(workspace.report)
        return compose(
            Facts(format_name, self._spool.size, self._spool.hexdigest()),
            skeleton if not isinstance(skeleton, _NewSkeleton) else skeleton.ref(packs),
            finished,
            None if lineage_slot is None else ref(lineage_slot, packs),
            lineage.objects,
            self._commits,
            self._size_of,
        )

    def _still_there(self, packs: Sequence[tuple[str, int]]) -> None:
        """The first packs may be minutes old, and no pointer has named them yet: a prune may have thought them nobody's."""
        for oid, size in packs:
            if not self._workspace.store.freshen(oid, size):
                raise StoreError(f"object {oid} was removed while the file was added", "add the file again")

    def _digests(self, extents: Sequence[Extent]) -> list[str]:
        """BLAKE3 of every parameter, in order."""
        if self._ahead is not None:
            return self._ahead.digests
        groups = grouped(extents, lambda extent: extent.spec.nbytes)
        return [digest for part in self._pool.map(self._digest_group, groups) for digest in part]

    def _digest_group(self, extents: Sequence[Extent]) -> list[str]:
        digests = []
        for extent in extents:
            hasher = blake3()
            for piece in self._spool.pieces(extent.offset, extent.end):
                hasher.update(piece)
            digests.append(hasher.hexdigest())
        return digests

    def _reusable(self, extents: Sequence[Extent], digests: Sequence[str], told: Told) -> dict[str, Parameter]:
        """The records that the repository has for these values, by key; walks the history they stand on."""
        workspace = self._workspace
        known: set[str] = set()
        for pathname, pointer in ((_HEAD, self._known.head_pointer), (_INDEX, self._known.index_pointer)):
            if pointer is None:
                continue
            self._planner.add(pathname, pointer)
            self._sizes |= pointer.objects
            self._commits |= pointer.history
            known.update(parameter.digest for parameter in pointer.parameters)
        if self._known.head is not None:
            self._commits[self._known.head.blob] = self._known.head.commit
        head = self._known.head_pointer
        heads = set() if head is None else {parameter.digest for parameter in head.parameters}
        remembered = workspace.memo.parameters(digest for digest in digests if digest not in known)
        remembered = {d: p for d, p in remembered.items() if p.previous is None or p.previous in self._commits}
        for parameter in remembered.values():
            self._planner.add_value(parameter)
        self._commits = workspace.resolve(self._planner) | self._commits
        workspace.supply_lineages(self._planner)
        plan = self._planner.plan()
        usable = {}
        for extent, digest in zip(extents, digests, strict=True):
            key = value_key(digest, extent.spec)
            found = self._planner.shortest(key)
            if found is None or not (found.previous is None or found.previous in self._commits):
                continue
            if self._alone and found.previous is not None:
                continue
            if digest not in heads and not told.accepts(extent.name, found):
                continue  # the index or the memo has it in a form that the caller now wants another for
            if digest in known or self._here(plan, key):
                usable[key] = found
        return usable

    def _here(self, plan: Plan, key: str) -> bool:
        """Whether all records on this value's chain are in the store: only the memo says that they ever were."""
        nodes = plan.chain(key, lambda _: False)
        return all(self._workspace.store.freshen(node.ref.object) for node in nodes)

    def _skeleton(self, extents: Sequence[Extent], packing: Packing) -> SkeletonRef | _NewSkeleton | None:
        literals: list[Buffer] = []
        position = 0
        for extent in extents:
            literals.append(self._spool.read(position, extent.offset - position))
            position = extent.end
        literals.append(self._spool.read(position, self._spool.size - position))
        if not any(len(literal) for literal in literals):
            return None
        digest = skeleton_digest(literals)
        for pointer in (self._known.head_pointer, self._known.index_pointer):
            if pointer is not None and pointer.skeleton is not None and pointer.skeleton.digest == digest:
                return pointer.skeleton
        slot = None if self._ahead is None else self._ahead.skeleton
        return _NewSkeleton(packing.add([encode_skeleton(literals)]) if slot is None else slot, digest)

    def _parameters(
        self,
        extents: Sequence[Extent],
        digests: Sequence[str],
        reusable: Mapping[str, Parameter],
        plan: Plan,
        rebuilder: Rebuilder,
        packing: Packing,
        told: Told,
    ) -> list[_Draft]:
        """Every parameter in file order, its record written or found."""
        head = self._known.head_pointer
        made = {} if self._ahead is None else self._ahead.made
        drafts: list[_Draft | None] = [None] * len(extents)
        keys = [value_key(digest, extent.spec) for extent, digest in zip(extents, digests, strict=True)]
        first: dict[str, int] = {}
        jobs: list[_Job] = []
        for index, (extent, key) in enumerate(zip(extents, keys, strict=True)):
            found = reusable.get(key)
            if found is not None:
                drafts[index] = _Draft(_renamed(found, extent.name), None, plan.nodes[key].base)
            elif first.setdefault(key, index) == index:
                before = None if head is None else head.by_name.get(extent.name)
                job = _Job(index, extent, self._previous(before, extent, rebuilder), told.hint(extent.name))
                if index in made:
                    encoded = Encoded(made[index].update, False, [])
                    drafts[index] = self._draft(job, digests[index], encoded, made[index].slot)
                else:
                    jobs.append(job)
        for job, first_encoded in self._encode(jobs):
            encoded, slot = packing.add_value(
                first_encoded, partial(self._encoder.dense, job.extent.spec, self._reader(job.extent))
            )
            drafts[job.index] = self._draft(job, digests[job.index], encoded, slot)
            told.followed(job.extent.name, encoded, new=head is None or job.extent.name not in head.by_name)
        for index, (extent, key) in enumerate(zip(extents, keys, strict=True)):
            twin = drafts[first[key]] if drafts[index] is None else None
            if twin is not None:
                drafts[index] = replace(twin, parameter=_renamed(twin.parameter, extent.name))
        return [draft for draft in drafts if draft is not None]

    def _previous(self, before: Parameter | None, extent: Extent, rebuilder: Rebuilder) -> Previous | None:
        if before is None or self._known.head is None or before.spec != extent.spec or self._alone:
            return None
        key = value_key(before.digest, before.spec)
        if self._planner.gap(key) is not None:
            return None
        return Previous(before, self._known.head.blob, rebuilder.chain(key))

    def _encode(self, jobs: Sequence[_Job]) -> Iterator[tuple[_Job, Encoded]]:
        """Encodes in order: small values ahead in the pool, large ones chunk by chunk when their turn comes."""
        window: deque[tuple[list[_Job], Future[list[Encoded]], int]] = deque()
        waiting = 0

        def drain(limit: int) -> Iterator[tuple[_Job, Encoded]]:
            nonlocal waiting
            while window and waiting > limit:
                group, future, nbytes = window.popleft()
                waiting -= nbytes
                yield from zip(group, future.result(), strict=True)

        try:
            for group in grouped(jobs, lambda job: job.extent.spec.nbytes):
                if group[0].extent.spec.nbytes > WHOLE_BYTES:
                    yield from drain(-1)
                    job = group[0]
                    yield job, self._encoder.large(job.extent.spec, self._reader(job.extent), job.previous, job.hint)
                    continue
                nbytes = sum(job.extent.spec.nbytes for job in group)
                window.append((group, self._pool.submit(self._encode_group, group), nbytes))
                waiting += nbytes
                yield from drain(_AHEAD_BYTES)
            yield from drain(-1)
        finally:
            for _, future, _ in window:
                future.cancel()

    def _encode_group(self, jobs: Sequence[_Job]) -> list[Encoded]:
        return [
            self._encoder.whole(
                job.extent.spec, self._reader(job.extent)(0, job.extent.spec.words), job.previous, job.hint
            )
            for job in jobs
        ]

    def _reader(self, extent: Extent) -> ReadWords:
        return words_in(self._spool, extent.spec, extent.offset)

    def _draft(self, job: _Job, digest: str, encoded: Encoded, slot: Slot) -> _Draft:
        spec = job.extent.spec
        parameter = Parameter(
            name=job.extent.name,
            dtype=spec.dtype.name,
            shape=spec.shape,
            digest=digest,
            update=encoded.update,
            object="0" * 64,
            record=slot.record,
            stored=slot.stored,
        )
        if encoded.incremental and job.previous is not None:
            before = job.previous.parameter
            parameter = replace(
                parameter,
                depth=before.depth + 1,
                chain=before.chain_bytes + slot.stored,
                previous=job.previous.blob,
                base=None if before.name == job.extent.name else before.name,
            )
            return _Draft(parameter, slot, value_key(before.digest, before.spec))
        return _Draft(parameter, slot, None)

    def _size_of(self, oid: str) -> int:
        size = self._sizes.get(oid)
        if size is None:
            reader = self._workspace.store.open(oid)
            size = reader.size
            reader.close()
        return size


@dataclass(frozen=True, slots=True)
class _NewSkeleton:
    slot: Slot
    digest: str

    def ref(self, packs: list[tuple[str, int]]) -> SkeletonRef:
        place = ref(self.slot, packs)
        return SkeletonRef(place.object, place.record, self.digest, self.slot.stored)


@dataclass(frozen=True, slots=True)
class _Job:
    """A value to encode: its place in the file, and what an incremental update may build on."""

    index: int
    extent: Extent
    previous: Previous | None
    hint: Hint | None


@dataclass(frozen=True, slots=True)
class _Draft:
    """A parameter whose record is old (slot None) or will be where `slot` says; `base` is its previous value's key."""

    parameter: Parameter
    slot: Slot | None
    base: str | None


def _placed(parameter: Parameter, slot: Slot, packs: list[tuple[str, int]]) -> Parameter:
    return replace(parameter, object=packs[slot.pack][0])


def _renamed(parameter: Parameter, name: str) -> Parameter:
    """The same value under another name; its previous value keeps its own."""
    base = None if parameter.previous is None or parameter.base_name == name else parameter.base_name
    return replace(parameter, name=name, base=base)
