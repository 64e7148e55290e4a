"""New values that a caller's hints define: what a checkpoint on disk that is still HEAD's shall become."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from theta_daemon.errors import HintError
from theta_daemon.filters.hints import Hints
from theta_daemon.filters.workspace import Workspace
from theta_daemon.formats.base import Extent, Source
from theta_daemon.tensor import TensorSpec, Words, as_words
from theta_daemon.updates.base import Hint
from theta_daemon.updates.defined import Definable


def parameters(workspace: Workspace, pathname: bytes, source: Source) -> list[Extent]:
    """The parameters of a file as clean will find them."""
    return workspace.registry.find_layout(source, workspace.history.attribute(pathname, "theta-format"))[1]


def definitions(
    workspace: Workspace, pathname: bytes, source: Source, extents: list[Extent]
) -> Iterator[tuple[Extent, Words]]:
    """The parameters whose values the hints define, with their new words; those that stay the same are left out.

    Raises HintError when a hint brings data that does not fit.
    """
    hints: Hints = workspace.hints()
    specs = {extent.name: extent.spec for extent in extents}
    told, whole = hints.for_file(pathname, specs), hints.whole_values(pathname, specs)
    for extent in extents:
        before = as_words(source.read(extent.offset, extent.spec.nbytes), extent.spec.dtype)
        after: Words | None = None
        if extent.name in whole:
            after = whole[extent.name].words if whole[extent.name].spec == extent.spec else None
            if after is None:
                raise HintError(f"the data's value for parameter {extent.name!r} has another dtype or shape")
        elif extent.name in told and hints.defines(pathname, extent.name):
            after = _define(workspace, extent.name, extent.spec, before, told[extent.name])
        if after is not None and not np.array_equal(after, before):
            yield extent, after


def _define(workspace: Workspace, name: str, spec: TensorSpec, before: Words, hint: Hint) -> Words | None:
    update = workspace.registry.update(hint.update)
    after = update.define(spec, before, hint) if isinstance(update, Definable) else None
    if after is None and hint.data:
        raise HintError(
            f"{hint.update} data ({', '.join(sorted(hint.data))}) does not fit parameter {name!r} "
            f"of dtype {spec.dtype.name} and shape {list(spec.shape)}",
            "see docs/updates.md for what each type takes",
        )
    return after
