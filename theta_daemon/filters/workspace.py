"""Everything one session works with: its caller, its repository, and its share of the process's machinery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from theta_daemon.errors import PointerError, ThetaError
from theta_daemon.filters.machinery import Machinery
from theta_daemon.filters.plan import Plan, Planner
from theta_daemon.filters.proven import Proven
from theta_daemon.history.history import History
from theta_daemon.history.lineage import MAX_BYTES, Lineage, decode
from theta_daemon.history.memo import Memo
from theta_daemon.history.repository import Repository
from theta_daemon.invocation import Invocation
from theta_daemon.pointer import Pointer, RecordRef
from theta_daemon.registry import Registry
from theta_daemon.settings import Settings
from theta_daemon.store.lfs import LfsStore

if TYPE_CHECKING:
    from theta_daemon.filters.hints import Hints


@dataclass(frozen=True, slots=True)
class Workspace:
    """A session's means. `report` shows one message to the person who runs git."""

    invocation: Invocation
    settings: Settings
    repository: Repository
    history: History
    store: LfsStore
    memo: Memo
    registry: Registry
    machinery: Machinery
    proven: Proven
    report: Callable[[str], None]
    fetch: Callable[[Mapping[str, int]], Mapping[str, ThetaError]]
    """Brings these objects (sizes by id) into the store in one go; says why for those that could not be had."""

    hints: Callable[[], Hints]
    """What the caller says of updates, read when it is first asked for. Raises HintError."""

    def pointers(self, blob_ids: Iterable[str], *, fetch: bool = False) -> dict[str, Pointer | None]:
        """Previous pointers by blob id; None for what cannot be had or breaks a rule."""
        return {blob: self.pointer(blob, fetch=fetch) for blob in blob_ids}

    def pointer(self, blob_id: str, *, fetch: bool = True) -> Pointer | None:
        """One pointer, or None. Without `fetch` a partial clone does not ask its remote, one blob at a time, for it."""
        try:
            return self.history.pointer(blob_id, fetch=fetch)
        except PointerError:
            return None

    def resolve(self, planner: Planner, *, fetch: bool = False) -> dict[str, str]:
        """Walk back through git's history until nothing is wanted. The commits of the previous pointers met, by blob id.

        In a partial clone the lineage, which comes in one round, goes before what only its remote has: without `fetch`.
        """
        commits: dict[str, str] = {}
        while wanted := planner.wanted():
            for blob, pointer in self.pointers(wanted, fetch=fetch).items():
                if pointer is not None:
                    commits |= pointer.history
                planner.supply(blob, pointer)
        return commits

    def supply_lineages(self, planner: Planner) -> None:
        """Give `planner` the lineages it wants, as far as their objects are here."""
        for pathname, ref in planner.wanted_lineages().items():
            planner.supply_lineage(pathname, self.lineage(ref))

    def cached_values(self, plan: Plan) -> dict[str, memoryview]:
        """The values of `plan` that the tensor cache has, by key."""
        values = {}
        for key, node in plan.nodes.items():
            if node.digest is not None and node.digest in self.machinery.tensors:
                value = self.machinery.tensors.get(node.digest)
                if value is not None and value.nbytes == node.spec.nbytes:
                    values[key] = value
        return values

    def lineage(self, ref: RecordRef) -> Lineage | None:
        """A lineage record; None where it is not here or breaks a rule."""
        try:
            record = self.machinery.records.record(ref)
            if record.length > MAX_BYTES:
                return None
            found = decode(record.read(0, record.length))
        except ThetaError:
            return None
        self.machinery.counters.add("lineages_read")
        return found
