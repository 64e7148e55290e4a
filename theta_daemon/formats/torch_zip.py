"""PyTorch's zip files: `torch.save` since 1.6, and TorchScript archives.

A parameter is a *storage*, one stored zip member: views and tied weights share it. Its name is the path of the first
tensor that uses it in `data.pkl` (dict keys, list indices and attributes joined by dots, as in a state dict); a storage
that no tensor names is called after its member, without the archive's own name, which changes with the file's. Where two
would have the same name, the member's is added to the later. dtype and shape are those of the tensor where it covers the
storage, else flat; they only help compression, the bytes are what counts.

The pickles are read by `pickle_reader`: no code in a checkpoint is ever run.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from theta_daemon.errors import FormatError
from theta_daemon.formats import pickle_reader, zipfile_layout
from theta_daemon.formats.base import Extent, Format, Source, checked
from theta_daemon.formats.pickle_reader import Call, Global, Mapping, Persistent, Sequence
from theta_daemon.formats.zipfile_layout import Member
from theta_daemon.tensor import DTYPES, MAX_BYTES, DType, TensorSpec, flat_bytes

MAX_PICKLE_BYTES: Final = 128 << 20
MAX_NAME: Final = 512
"""Longer paths (in characters) are no names; the storage is called after its member."""

_MAX_PATH: Final = 64
_STORAGES: Final = {
    "DoubleStorage": "F64",
    "FloatStorage": "F32",
    "HalfStorage": "F16",
    "BFloat16Storage": "BF16",
    "LongStorage": "I64",
    "IntStorage": "I32",
    "ShortStorage": "I16",
    "CharStorage": "I8",
    "ByteStorage": "U8",
    "BoolStorage": "BOOL",
    "ComplexFloatStorage": "C64",
    "ComplexDoubleStorage": "C128",
    "QInt8Storage": "I8",
    "QUInt8Storage": "U8",
    "QInt32Storage": "I32",
}
_TENSORS: Final = {
    "torch uint16": "U16",
    "torch uint32": "U32",
    "torch uint64": "U64",
    "torch float8_e4m3fn": "F8_E4M3",
    "torch float8_e5m2": "F8_E5M2",
    "torch float8_e8m0fnu": "F8_E8M0",
    "torch float8_e4m3fnuz": "F8_E4M3FNUZ",
    "torch float8_e5m2fnuz": "F8_E5M2FNUZ",
}
"""dtypes without a storage class of their own (`_rebuild_tensor_v3`)."""

_MODULE_TABLES: Final = frozenset({"_parameters", "_buffers", "_modules"})
"""Attributes of a pickled `nn.Module` that its state dict's names do not show."""


@dataclass(frozen=True, slots=True, eq=False)
class _Path:
    """One step down from `parent`; shared, so that deep or wide pickles cost one object a node."""

    parent: _Path | None
    label: Any


_PLACEHOLDERS: Final = (Call, Sequence, Mapping, Persistent)
_HERE: Final = object()
_PICKLES: Final = {"data": None, "constants": _Path(None, "constants")}
"""Where the names in each pickle start; the storages of `x.pkl` lie in `x/`. TorchScript keeps constants apart."""


class TorchZip(Format):
    """Files of `torch.save` and `torch.jit.save`."""

    name: ClassVar[str] = "torch-zip"

    def matches(self, source: Source) -> bool:
        return source.size >= 22 and bytes(source.read(0, 4)) == zipfile_layout.MAGIC

    def layout(self, source: Source) -> list[Extent]:
        members = {member.name: member for member in zipfile_layout.members(source)}
        prefix = _prefix(members)
        order = members.get(f"{prefix}byteorder")
        little = order is None or (order.plain and order.size <= 16 and _read(source, order) == b"little")
        extents: list[Extent] = []
        names: set[str] = set()
        for kind in _PICKLES:
            folder = f"{prefix}{kind}/"
            storages = [member for name, member in members.items() if name.startswith(folder) and member.plain]
            uses = _uses(source, members.get(f"{prefix}{kind}.pkl"), _PICKLES[kind])
            for member in storages:
                use = uses.get(member.name.removeprefix(folder))
                short = member.name.removeprefix(prefix)
                name = short if use is None or use.name is None else use.name
                if name in names:
                    name = f"{name} ({short})"
                names.add(name)
                spec = use.spec(member.size) if use is not None and little else flat_bytes(member.size)
                extents.append(Extent(name, spec, member.offset))
        return checked(extents, source.size)


def _prefix(members: Iterable[str]) -> str:
    """The archive's folder: where its `data.pkl` lies, with the slash."""
    found = [name for name in members if name == "data.pkl" or (name.endswith("/data.pkl") and name.count("/") == 1)]
    if len(found) != 1:
        raise FormatError("a zip file without PyTorch's data.pkl")
    return found[0].removesuffix("data.pkl")


def _read(source: Source, member: Member) -> bytes:
    return bytes(source.read(member.offset, member.size))


@dataclass(frozen=True, slots=True)
class _Use:
    """What the pickle says of one storage: the name and shape of its first tensor, its dtype."""

    name: str | None
    dtype: DType | None
    shape: tuple[int, ...] | None

    def spec(self, nbytes: int) -> TensorSpec:
        """The best spec that `nbytes` bytes can have."""
        if self.dtype is None or nbytes % self.dtype.itemsize:
            return flat_bytes(nbytes)
        elements = nbytes // self.dtype.itemsize
        fits = self.shape is not None and math.prod(self.shape) == elements
        return TensorSpec(self.dtype, self.shape if fits and self.shape is not None else (elements,))


def _uses(source: Source, pickle: Member | None, start: _Path | None) -> dict[str, _Use]:
    """What the pickle says of each storage, by the storage's key."""
    if pickle is None:
        return {}
    if not pickle.plain or pickle.size > MAX_PICKLE_BYTES:
        raise FormatError(f"{pickle.name} is compressed or too large")
    uses: dict[str, _Use] = {}
    for path, node in _walk(start, pickle_reader.read(_read(source, pickle))):
        tensor = node if isinstance(node, Call) else None
        arguments = tensor.arguments.items if tensor is not None and isinstance(tensor.arguments, Sequence) else ()
        storage = arguments[0] if arguments else node
        key, dtype = _storage(storage)
        if key is None or (key in uses and uses[key].name is not None):
            continue
        if tensor is None:
            uses.setdefault(key, _Use(None, dtype, None))
            continue
        stated = next((item.name for item in arguments if isinstance(item, Global) and item.name in _TENSORS), None)
        if stated is not None:
            dtype = DTYPES[_TENSORS[stated]]
        uses[key] = _Use(_name(path), dtype, _covering(arguments))
    return uses


def _storage(node: Any) -> tuple[str | None, DType | None]:
    """Key and dtype of a storage: the persistent id `('storage', class, key, location, elements)`."""
    if not isinstance(node, Persistent) or not isinstance(node.id, Sequence):
        return None, None
    match node.id.items:
        case ["storage", Global(name=kind), str(key), _, *_]:
            dtype = _STORAGES.get(kind.rpartition(" ")[2])
            return key, None if dtype is None else DTYPES[dtype]
    return None, None


def _covering(arguments: Collection[Any]) -> tuple[int, ...] | None:
    """The shape in `(storage, offset, size, stride, …)` of a tensor that lies in its storage in row order from its start."""
    match arguments:
        case [_, 0, Sequence(items=sizes), Sequence(items=strides), *_] if _sizes(sizes) and len(strides) == len(sizes):
            expected = 1
            for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
                if size != 1 and stride != expected:
                    return None
                expected *= size
            return tuple(sizes)
    return None


def _sizes(items: Collection[Any]) -> bool:
    return len(items) <= _MAX_PATH and all(type(item) is int and 0 <= item < MAX_BYTES for item in items)


def _name(path: _Path | None) -> str | None:
    """The path as text; None when it is too deep, too long, or has no step."""
    labels: list[str] = []
    length = 0
    while path is not None:
        text = path.label if isinstance(path.label, str) else _label(path.label)
        labels.append(text)
        length += len(text) + 1
        if len(labels) > _MAX_PATH or length > MAX_NAME:
            return None
        path = path.parent
    return ".".join(reversed(labels)) or None


def _label(key: Any) -> str:
    if isinstance(key, bool | float | bytes) or key is None:
        return str(key)
    if isinstance(key, int):
        return str(key) if key.bit_length() < 128 else "large"
    return "key"


def _walk(start: _Path | None, root: Any) -> Iterator[tuple[_Path | None, Any]]:
    """Every call and storage once, with the first path that leads to it, in the order of the pickle."""
    seen: set[int] = set()
    todo: list[tuple[_Path | None, Any]] = [(start, root)]
    while todo:
        path, node = todo.pop()
        if id(node) in seen or not isinstance(node, _PLACEHOLDERS):
            continue
        seen.add(id(node))
        if isinstance(node, Call | Persistent):
            yield path, node
        below = [
            (path if label is _HERE else _Path(path, label), value)
            for label, value in _children(node)
            if isinstance(value, _PLACEHOLDERS)
        ]
        todo.extend(reversed(below))


def _children(node: Any) -> Iterable[tuple[Any, Any]]:
    """What `node` holds, each under its label; under `_HERE` what has no name of its own."""
    if isinstance(node, Sequence):
        return enumerate(node.items)
    if isinstance(node, Mapping):
        return node.pairs
    if isinstance(node, Call):
        return _made(node)
    return ()


def _made(call: Call) -> Iterator[tuple[Any, Any]]:
    # What an object was made from stands under the object's own path: a Parameter is its first argument.
    given = call.arguments.items if isinstance(call.arguments, Sequence) else (call.arguments,)
    yield from ((index or _HERE, value) for index, value in enumerate(given))
    if isinstance(call.state, Mapping):
        for key, value in call.state.pairs:
            yield _HERE if isinstance(key, str) and key in _MODULE_TABLES else key, value
    else:
        yield _HERE, call.state
    yield from enumerate(call.items)
    yield from call.pairs
