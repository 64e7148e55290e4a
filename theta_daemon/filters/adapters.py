"""The data of hints: checkpoints whose arrays are named `<parameter>/<key>`, and PEFT adapters.

A PEFT adapter (Hu et al. 2021, as the library `peft` saves it) has `adapter_config.json` and, for each module,
`base_model.model.<module>.lora_A.weight` (rank × in) and `…lora_B.weight` (out × rank), which stand for
`alpha / rank · B A` (rank-stabilised: `alpha / √rank`), transposed where `fan_in_fan_out` is set. In the words of a low-rank
update that is R = B, C = A, scale; transposed R = Aᵀ, C = Bᵀ. IA3 adapters have `…ia3_l`.
"""

from __future__ import annotations

import json
import math
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from re import search
from typing import Any, Final

import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from theta_daemon.errors import HintError, ThetaError
from theta_daemon.formats.base import Source
from theta_daemon.registry import registry
from theta_daemon.tensor import TensorSpec, as_words
from theta_daemon.updates.floats import Array

Arrays = Mapping[str, Mapping[str, Any]]
"""Arrays by parameter and key."""

CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX: Final = "base_model.model."
_MAX_BYTES: Final = 8 << 30
_FACTORS: Final = {"lora_A": "A", "lora_B": "B", "lora_embedding_A": "A", "lora_embedding_B": "B", "ia3_l": "ia3"}


class _Config(BaseModel):
    """What counts of adapter_config.json."""

    model_config = ConfigDict(extra="ignore")

    peft_type: str
    lora_alpha: float = 1.0
    r: int = 1
    use_rslora: bool = False
    use_dora: bool = False
    fan_in_fan_out: bool = False
    alpha_pattern: dict[str, float] = {}
    rank_pattern: dict[str, int] = {}
    feedforward_modules: list[str] | str | None = None


class FileSource(Source):
    """A whole file in memory."""

    def __init__(self, path: Path) -> None:
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise HintError(f"{path}: larger than {_MAX_BYTES} bytes")
            self._data = memoryview(path.read_bytes())
        except OSError as error:
            raise HintError(f"{path}: {error.strerror}", "give a safetensors, torch or npz file") from error

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset + length > len(self._data):
            raise ValueError(f"bytes {offset} to {offset + length} are outside the file")
        return self._data[offset : offset + length]


def read_arrays(path: Path) -> dict[str, Array]:
    """All arrays of a checkpoint in any known format. Raises HintError."""
    source = FileSource(path)
    try:
        name, extents = registry().find_layout(source)
    except ThetaError as error:
        raise HintError(f"{path}: {error.message}", error.hint) from error
    if name == "opaque":
        raise HintError(f"{path}: not a checkpoint of a known format", "give a safetensors, torch or npz file")
    return {
        extent.name: Array(
            extent.spec, as_words(source.read(extent.offset, extent.spec.nbytes), extent.spec.dtype).copy()
        )
        for extent in extents
    }


def read_data(path: Path) -> Arrays:
    """The arrays for each parameter, from a checkpoint or a PEFT adapter. Raises HintError."""
    if path.is_dir():
        weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
        if weights is None or not (path / CONFIG).is_file():
            raise HintError(f"{path}: no PEFT adapter (needs {CONFIG} and {' or '.join(_WEIGHTS)})")
        return _adapter(path / CONFIG, read_arrays(weights))
    arrays = read_arrays(path)
    if any(".lora_" in name or ".ia3_l" in name for name in arrays):
        if not (path.parent / CONFIG).is_file():
            raise HintError(f"{path}: a PEFT adapter without its {CONFIG}", "keep both files in one folder")
        return _adapter(path.parent / CONFIG, arrays)
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, array in arrays.items():
        parameter, separator, key = name.rpartition("/")
        if not separator:
            raise HintError(f"{path}: array {name!r} is not named <parameter>/<key>, for example weight/R")
        found[parameter][key] = array
    return found


def _adapter(config_path: Path, arrays: Mapping[str, Array]) -> Arrays:
    try:
        config = _Config.model_validate(json.loads(config_path.read_text(encoding="utf-8")))
    except OSError as error:
        raise HintError(f"{config_path}: {error.strerror}") from error
    except (ValidationError, ValueError) as error:
        raise HintError(f"{config_path}: {error}") from error
    if config.peft_type not in {"LORA", "IA3"} or config.use_dora:
        raise HintError(
            f"{config_path}: adapters of type {config.peft_type} with DoRA or others than LORA, IA3 are not known"
        )
    modules: dict[str, dict[str, Array]] = defaultdict(dict)
    for name, array in arrays.items():
        match = search(r"^(.*)\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B|ia3_l)(?:\.weight|\.default)*$", name)
        if match is not None:
            modules[match[1].removeprefix(_PREFIX)][match[2]] = array
    found: dict[str, Mapping[str, Any]] = {}
    for module, parts in modules.items():
        if "ia3_l" in parts:
            found[f"{module}.weight"] = {"ia3": _ia3(parts["ia3_l"])}
            continue
        embedding = "lora_embedding_A" in parts
        a = parts.get("lora_embedding_A") if embedding else parts.get("lora_A")
        b = parts.get("lora_embedding_B") if embedding else parts.get("lora_B")
        if a is None or b is None:
            raise HintError(f"{config_path}: module {module} lacks one of its two factors")
        found[f"{module}.weight"] = {
            **_factors(a, b, embedding or config.fan_in_fan_out),
            "scale": _scale(config, module),
        }
    if not found:
        raise HintError(f"{config_path}: no factors beside it")
    return found


def _factors(a: Array, b: Array, transposed: bool) -> dict[str, Array]:  # noqa: FBT001
    return {"R": _transpose(a), "C": _transpose(b)} if transposed else {"R": b, "C": a}


def _transpose(array: Array) -> Array:
    if len(array.spec.shape) != 2:
        raise HintError(f"a factor of shape {list(array.spec.shape)} where a matrix is needed")
    words = np.ascontiguousarray(array.words.reshape(array.spec.shape).T).reshape(-1)
    return Array(TensorSpec(array.spec.dtype, array.spec.shape[::-1]), words)


def _ia3(scale: Array) -> Array:
    return scale


def _scale(config: _Config, module: str) -> np.float64:
    rank = _of_module(config.rank_pattern, module, config.r)
    alpha = _of_module(config.alpha_pattern, module, config.lora_alpha)
    return np.float64(alpha / (math.sqrt(rank) if config.use_rslora else rank))


def _of_module(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """The entry for a module: patterns are suffixes or regular expressions, as PEFT reads them."""
    for pattern, value in patterns.items():
        if module == pattern or module.endswith(f".{pattern}"):
            return value
    return otherwise
