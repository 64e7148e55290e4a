"""Checkpoints of any size with real statistics, and what training does to them.

all-MiniLM-L6-v2's tensors, as often as it takes. Each copy is scaled by a factor of its own, so that no two tensors are
equal while exponents and mantissas stay those of a trained network. Edits are in place, by words of the file, and the same
for the same seed.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from scripts import inputs

Array = npt.NDArray[Any]
_STEP = 0.013
"""Copies differ by this factor."""

_PIECE = 1 << 20


def build(target: Path, nbytes: int, dtype: str = "F32", first: int = 0) -> None:
    """A safetensors file of some `nbytes`, F32 or BF16; copies are counted from `first`, so that shards differ."""
    source = inputs.path("minilm")
    with tensors(source) as originals:
        width = 4 if dtype == "F32" else 2
        names = _names(originals, nbytes, width)
        known = shapes(source)
        header: dict[str, Any] = {}
        position = 0
        for copy, name in names:
            size = originals[name].size * width
            header[f"{copy}.{name}"] = {
                "dtype": dtype,
                "shape": known[name],
                "data_offsets": [position, position + size],
            }
            position += size
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        with target.open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for copy, name in names:
                values = originals[name].view("<f4") * np.float32(1 + _STEP * (first + copy))
                file.write(from_floats(values, dtype).tobytes())


def _names(originals: Mapping[str, Array], nbytes: int, width: int) -> list[tuple[int, str]]:
    """Tensors, copy by copy, until there are enough bytes; one that alone would be most of it is left out."""
    chosen: list[tuple[int, str]] = []
    left, copy = nbytes, 0
    while left > 0:
        before = left
        for name, words in originals.items():
            if words.dtype == "<u4" and words.size * width <= max(nbytes // 2, left) and left > 0:
                chosen.append((copy, name))
                left -= words.size * width
        copy += 1
        if left == before:
            raise ValueError(f"{nbytes} bytes are too few for any tensor")
    return chosen


def to_floats(words: Array) -> Array:
    """F32 values of words (`<u4`: F32, `<u2`: BF16)."""
    if words.dtype.itemsize == 4:
        return words.view("<f4")
    return (words.astype("<u4") << np.uint32(16)).view("<f4")


def from_floats(values: Array, dtype: str) -> Array:
    """Words of F32 values; BF16 by rounding to nearest even."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    if dtype == "F32":
        return bits
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype("<u2")


@contextmanager
def tensors(path: Path, *, write: bool = False) -> Iterator[dict[str, Array]]:
    """The tensors of a safetensors file as flat words (`<u4`, `<u2`, …); with `write` they write through."""
    data = np.memmap(path, mode="r+" if write else "r")
    header, start = _header(path)
    found = {}
    for name, entry in header.items():
        begin, end = (start + offset for offset in entry["data_offsets"])
        width = {"F32": 4, "BF16": 2, "F16": 2, "I64": 8}[entry["dtype"]]
        found[name] = data[begin:end].view(f"<u{width}")
    yield found
    if write:
        data.flush()


def _header(path: Path) -> tuple[dict[str, Any], int]:
    with path.open("rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    return header, 8 + length


def shapes(path: Path) -> dict[str, list[int]]:
    """The shapes of a safetensors file's tensors by name."""
    return {name: entry["shape"] for name, entry in _header(path)[0].items()}


def edit_sparsely(path: Path, seed: int, share: float = 0.001) -> None:
    """Add 1 % to a share of each tensor's values."""
    generator = np.random.default_rng([seed, 1])
    with tensors(path, write=True) as found:
        for words in found.values():
            places = generator.integers(0, words.size, max(1, int(words.size * share)))
            words[places] = from_floats(to_floats(words[places]) * np.float32(1.01), _dtype(words))


def tune(path: Path, seed: int, scale: float = 1e-5) -> None:
    """Add N(0, scale) to every value, as a step of fine-tuning does."""
    generator = np.random.default_rng([seed, 2])
    with tensors(path, write=True) as found:
        for words in found.values():
            for start in range(0, words.size, _PIECE):
                piece = words[start : start + _PIECE]
                noise = generator.standard_normal(piece.size, dtype=np.float32) * np.float32(scale)
                piece[:] = from_floats(to_floats(piece) + noise, _dtype(words))


def retrain(path: Path, seed: int, share: float = 1.0) -> None:
    """New values for a share of the tensors: one value rolled on, and scaled."""
    with tensors(path, write=True) as found:
        names = sorted(found)
        count = max(1, round(len(names) * share))
        for name in np.random.default_rng([seed, 3]).choice(names, count, replace=False):
            words = found[str(name)]
            for start in range(0, words.size, _PIECE):
                piece = words[start : start + _PIECE]
                values = np.roll(to_floats(piece), 1) * np.float32(1 + 0.01 * (seed + 1))
                piece[:] = from_floats(values, _dtype(words))


def write_small(path: Path, parameters: int, elements: int, seed: int = 0) -> None:
    """`parameters` F32 tensors of a few `elements` each, as bytes of a normal distribution."""
    values = np.random.default_rng([seed, 4]).standard_normal(parameters * elements, dtype=np.float32) * np.float32(
        0.05
    )
    step = elements * 4
    header = {
        f"layer.{number}.weight": {
            "dtype": "F32",
            "shape": [elements],
            "data_offsets": [number * step, (number + 1) * step],
        }
        for number in range(parameters)
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + values.tobytes())


def _dtype(words: Array) -> str:
    return "F32" if words.dtype.itemsize == 4 else "BF16"
