"""Makes a checkpoint from a recipe: a safetensors file whose values are written as they are computed.

The file carries the recipe, so that clean finds out what made its values and stores that instead of them.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np

from theta_daemon.errors import HintError
from theta_daemon.filters.adapters import FileSource
from theta_daemon.filters.hints import initial
from theta_daemon.filters.recipe import METADATA_KEY, Document
from theta_daemon.formats.base import MAX_DIMENSIONS
from theta_daemon.formats.safetensors import MAX_HEADER_BYTES
from theta_daemon.registry import Registry
from theta_daemon.store.base import BytesRecord
from theta_daemon.tensor import DTYPES, MAX_BYTES, Buffer, TensorSpec, Words
from theta_daemon.updates.base import Decoder, Hint
from theta_daemon.updates.constant import Constant
from theta_daemon.updates.defined import Definable, Described

_AHEAD: Final = 8


def tensors(document: Document, folder: Path, registry: Registry) -> dict[str, TensorSpec]:
    """The tensors to make, in the recipe's order: the template's (a path from `folder`), then its own. Raises HintError."""
    found: dict[str, TensorSpec] = {}
    if document.template is not None:
        path = folder / document.template
        name, extents = registry.find_layout(FileSource(path))
        if name == "opaque":
            raise HintError(f"template {path}: not a checkpoint of a known format")
        found = {extent.name: extent.spec for extent in extents}
    for entry in document.tensor:
        dtype = DTYPES.get(entry.dtype or document.dtype)
        if dtype is None or dtype.name.startswith("C"):
            raise HintError(f"recipe: tensor {entry.name!r}: dtype {entry.dtype or document.dtype!r} is not known")
        spec = TensorSpec(dtype, entry.shape)
        if len(entry.shape) > MAX_DIMENSIONS or any(side < 0 for side in entry.shape) or spec.nbytes >= MAX_BYTES:
            raise HintError(f"recipe: tensor {entry.name!r}: shape {list(entry.shape)} is impossible")
        if entry.name in found or entry.name == "__metadata__":
            raise HintError(f"recipe: tensor {entry.name!r} stands there twice, or has a reserved name")
        found[entry.name] = spec
    if not found:
        raise HintError("recipe: no tensors", "name a `template` checkpoint or list [[tensor]] entries")
    return found


def checkpoint(
    document: Document, specs: dict[str, TensorSpec], registry: Registry, pool: ThreadPoolExecutor
) -> Iterator[Buffer]:
    """The bytes of the file, in order. Raises HintError before the first of them where a tensor cannot be made."""
    recipe = document.embedded
    hints = initial(recipe, specs)
    # Larger elements first, so that every tensor is aligned; the header keeps the recipe's order, which streams follow.
    order = sorted(specs, key=lambda name: -specs[name].dtype.word_bytes)
    makers = {name: _maker(registry, name, specs[name], hints.get(name)) for name in order if specs[name].elements}
    offsets: dict[str, int] = {}
    position = 0
    for name in order:
        offsets[name] = position
        position += specs[name].nbytes
    header: dict[str, object] = {"__metadata__": {"format": "pt", **document.metadata, METADATA_KEY: recipe.text()}}
    for name, spec in specs.items():
        ends = [offsets[name], offsets[name] + spec.nbytes]
        header[name] = {"dtype": spec.dtype.name, "shape": list(spec.shape), "data_offsets": ends}
    encoded = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    encoded += b" " * (-len(encoded) % 8)
    if len(encoded) > MAX_HEADER_BYTES:
        raise HintError("recipe: too many tensors for one file")
    yield len(encoded).to_bytes(8, "little") + encoded
    yield from _values([(specs[name], makers[name]) for name in makers], pool)


def _maker(registry: Registry, name: str, spec: TensorSpec, hint: Hint | None) -> Decoder:
    """What makes the value of one tensor, chunk by chunk."""
    if hint is None:
        raise HintError(f"recipe: no rule initialises tensor {name!r}", 'end with a rule of pattern "*"')
    update = registry.update(hint.update)
    if isinstance(update, Described):
        records = update.records(spec, hint)
        if records:
            return update.open(spec, BytesRecord(records[0]))
    elif isinstance(update, Constant) and isinstance(update, Definable):
        element = update.define(TensorSpec(spec.dtype, ()), None, hint)
        if element is not None:
            return update.open(spec, BytesRecord(update.record(spec, element.tobytes())))
    raise HintError(
        f"recipe: tensor {name!r} of dtype {spec.dtype.name} and shape {list(spec.shape)} "
        f"cannot be made by {hint.update} {dict(hint.options)}"
    )


def _values(made: list[tuple[TensorSpec, Decoder]], pool: ThreadPoolExecutor) -> Iterator[Buffer]:
    def compute(spec: TensorSpec, maker: Decoder, start: int, stop: int) -> Buffer:
        words: Words = np.empty(stop - start, spec.dtype.word_dtype)
        maker.apply(start, stop, words)
        return words.view(np.uint8).data

    window: deque[Future[Buffer]] = deque()
    try:
        for spec, maker in made:
            for start, stop in spec.spans():
                window.append(pool.submit(compute, spec, maker, start, stop))
                if len(window) > _AHEAD:
                    yield window.popleft().result()
        while window:
            yield window.popleft().result()
    finally:
        for future in window:
            future.cancel()
