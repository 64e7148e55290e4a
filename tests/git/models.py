"""Small checkpoints whose versions differ as training makes them differ."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Data = bytes

_NAMES = {"f4": "F32", "f8": "F64", "f2": "F16", "u2": "BF16", "i8": "I64", "u1": "U8", "b1": "BOOL"}


def safetensors(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> bytes:
    """The file, in the order of `tensors`. Arrays of uint16 stand for BF16."""
    header: dict[str, Any] = {} if metadata is None else {"__metadata__": dict(metadata)}
    parts = []
    position = 0
    for name, array in tensors.items():
        data = np.ascontiguousarray(array).tobytes()
        dtype = _NAMES[array.dtype.str[1:]]
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [position, position + len(data)]}
        position += len(data)
        parts.append(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return b"".join([len(text).to_bytes(8, "little"), text, *parts])


@dataclass(frozen=True)
class Model:
    """An immutable checkpoint; its methods give the next version, the same one for the same `seed`."""

    tensors: Mapping[str, Array] = field(default_factory=dict)
    metadata: Mapping[str, str] | None = None

    def bytes(self) -> Data:
        return safetensors(self.tensors, self.metadata)

    def npz(self) -> Data:
        """The same tensors as numpy stores them."""
        file = io.BytesIO()
        np.savez(file, **self.tensors)  # type: ignore[arg-type]
        return file.getvalue()

    def put(self, **tensors: Array) -> Model:
        """With these tensors, at the end if they are new."""
        return replace(self, tensors={**self.tensors, **tensors})

    def without(self, *names: str) -> Model:
        return replace(self, tensors={name: array for name, array in self.tensors.items() if name not in names})

    def retrain(self, name: str, seed: int) -> Model:
        """One tensor with values of its own."""
        old = self.tensors[name]
        noise = np.random.default_rng(seed).standard_normal(old.shape)
        return self.put(**{name: noise.astype(old.dtype)})

    def edit(self, name: str, seed: int, count: int = 3) -> Model:
        """A few elements of one tensor changed."""
        rng = np.random.default_rng(seed)
        array = self.tensors[name].copy()
        array.reshape(-1)[rng.choice(array.size, count, replace=False)] = rng.integers(2, 100, count)
        return self.put(**{name: array})

    def tune(self, seed: int, scale: float = 1e-4) -> Model:
        """All float tensors moved a little."""
        rng = np.random.default_rng(seed)
        moved = {
            name: (array + scale * rng.standard_normal(array.shape)).astype(array.dtype)
            for name, array in self.tensors.items()
            if array.dtype.kind == "f"
        }
        return self.put(**moved)

    def step(self, number: int) -> Model:
        """Version after version another kind of change."""
        names = [name for name, array in self.tensors.items() if array.dtype == np.float32 and array.size]
        name = names[number % len(names)]
        match number % 4:
            case 0:
                return self.tune(number)
            case 1:
                return self.edit(name, number)
            case 2:
                return self.retrain(name, number)
            case _:
                return self.put(**{name: np.full_like(self.tensors[name], number)})


def model(seed: int = 0, rows: int = 64) -> Model:
    """Seven tensors: floats of several sizes, integers, one constant, one empty, one scalar."""
    rng = np.random.default_rng(seed)
    return Model(
        {
            "embed.weight": rng.standard_normal((rows, 32)).astype("<f4"),
            "layer.0.weight": rng.standard_normal((32, 32)).astype("<f4"),
            "layer.0.bias": np.zeros(32, "<f4"),
            "norm": np.ones((3, 5), "<f2"),
            "ids": np.arange(rows, dtype="<i8"),
            "empty": np.zeros((0, 4), "<f4"),
            "step": np.array(seed, "<i8"),
        },
        {"format": "pt", "seed": str(seed)},
    )
