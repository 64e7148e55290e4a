"""The data of hints: checkpoints whose arrays are named `<parameter>/<key>`, and PEFT adapters.

A PEFT adapter (Hu et al. 2021, as the library `peft` saves it) has `adapter_config.json` and, for each module,
`base_model.model.<module>.lora_A.weight` (rank × in) and `…lora_B.weight` (out × rank), which stand for
`alpha / rank · B A` (rank-stabilised: `alpha / √rank`), transposed where `fan_in_fan_out` is set. In the words of a low-rank
update that is R = B, C = A, scale; transposed R = Aᵀ, C = Bᵀ. IA3 adapters have `…ia3_l`.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from blake3 import blake3
from pydantic import BaseModel, ConfigDict, ValidationError

from theta_daemon.errors import HintError, ThetaError
from theta_daemon.formats.base import Source
from theta_daemon.registry import registry
from theta_daemon.tensor import TensorSpec, as_words
from theta_daemon.updates.floats import Array

Arrays = Mapping[str, Mapping[str, Any]]
"""Arrays by parameter and key."""

WHOLE: Final = "whole"
"""The key of an array that is a parameter's new value itself: what an adapter trained beside its factors."""

CONFIG: Final = "adapter_config.json"
_WEIGHTS: Final = ("adapter_model.safetensors", "adapter_model.bin")
_PREFIX: Final = "base_model.model."
_MAX_BYTES: Final = 8 << 30
_PART: Final = re.compile(r"(.*)\.(lora_A|lora_B|lora_embedding_A|lora_embedding_B|ia3_l)(?:\.weight|\.default)*")


class _Config(BaseModel):
    """What counts of adapter_config.json."""

    model_config = ConfigDict(extra="ignore", defer_build=True)

    peft_type: str
    lora_alpha: float = 1.0
    r: int = 1
    use_rslora: bool = False
    use_dora: bool = False
    lora_bias: bool = False
    target_parameters: list[str] | None = None
    fan_in_fan_out: bool = False
    alpha_pattern: dict[str, float] = {}
    rank_pattern: dict[str, int] = {}
    feedforward_modules: list[str] | str | None = None


class FileSource(Source):
    """A whole file in memory; its bytes are added to `seen`."""

    def __init__(self, path: Path, seen: blake3 | None = None) -> None:
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise HintError(f"{path}: larger than {_MAX_BYTES} bytes")
            self._data = memoryview(path.read_bytes())
            if seen is not None:
                seen.update(self._data)
        except OSError as error:
            raise HintError(f"{path}: {error.strerror}", "give a safetensors, torch or npz file") from error

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> memoryview:
        if offset < 0 or length < 0 or offset + length > len(self._data):
            raise ValueError(f"bytes {offset} to {offset + length} are outside the file")
        return self._data[offset : offset + length]


def read_arrays(path: Path, seen: blake3 | None = None) -> dict[str, Array]:
    """All arrays of a checkpoint in any known format. Raises HintError."""
    source = FileSource(path, seen)
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


def read_data(path: Path, seen: blake3 | None = None) -> Arrays:
    """The arrays for each parameter, from a checkpoint or a PEFT adapter. Raises HintError.

    What is read is added to `seen`.
    """
    if path.is_dir():
        weights = next((path / name for name in _WEIGHTS if (path / name).is_file()), None)
        if weights is None or not (path / CONFIG).is_file():
            raise HintError(f"{path}: no PEFT adapter (needs {CONFIG} and {' or '.join(_WEIGHTS)})")
        return _adapter(path / CONFIG, read_arrays(weights, seen), seen)
    arrays = read_arrays(path, seen)
    if any(_PART.fullmatch(name) for name in arrays):
        if not (path.parent / CONFIG).is_file():
            raise HintError(f"{path}: a PEFT adapter without its {CONFIG}", "keep both files in one folder")
        return _adapter(path.parent / CONFIG, arrays, seen)
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for name, array in arrays.items():
        parameter, separator, key = name.rpartition("/")
        if not separator:
            raise HintError(f"{path}: array {name!r} is not named <parameter>/<key>, for example weight/R")
        found[parameter][key] = array
    return found


def _adapter(config_path: Path, arrays: Mapping[str, Array], seen: blake3 | None) -> Arrays:
    try:
        text = FileSource(config_path, seen)
        config = _Config.model_validate_json(bytes(text.read(0, text.size)))
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise HintError(f"{config_path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from error
    unknown = [name for name in ("use_dora", "lora_bias", "target_parameters") if getattr(config, name)]
    if config.peft_type not in {"LORA", "IA3"} or unknown:
        what = " and ".join(unknown) or f"type {config.peft_type}"
        raise HintError(f"{config_path}: adapters with {what} are not known", "merge it and add the merged checkpoint")
    modules: dict[str, dict[str, Array]] = defaultdict(dict)
    found: dict[str, Mapping[str, Any]] = {}
    for name, array in arrays.items():
        part = _PART.fullmatch(name)
        if part is None:
            # Trained beside the factors: a bias, or a module in `modules_to_save`.
            found[_plain(name)] = {WHOLE: array}
        else:
            modules[part[1].removeprefix(_PREFIX)][part[2]] = array
    for module, parts in modules.items():
        if "ia3_l" in parts:
            found |= _rescaled(config, module, parts["ia3_l"])
        else:
            found[f"{module}.weight"] = _factors(config, config_path, module, parts)
    if not modules:
        raise HintError(f"{config_path}: no factors beside it")
    return found


def _plain(name: str) -> str:
    """A parameter's name without what peft puts around modules."""
    return re.sub(r"\.(base_layer|modules_to_save(\.default)?)\.", ".", name.removeprefix(_PREFIX))


def _factors(config: _Config, path: Path, module: str, parts: Mapping[str, Array]) -> Mapping[str, Any]:
    embedding = "lora_embedding_A" in parts
    a = parts.get("lora_embedding_A" if embedding else "lora_A")
    b = parts.get("lora_embedding_B" if embedding else "lora_B")
    if a is None or b is None:
        raise HintError(f"{path}: module {module} lacks one of its two factors")
    rank = _of_module(config.rank_pattern, module, config.r)
    if a.spec.shape[:1] != (rank,):
        raise HintError(f"{path}: module {module} has factors of shape {list(a.spec.shape)}, but rank {rank}")
    alpha = _of_module(config.alpha_pattern, module, config.lora_alpha)
    scale = np.float64(alpha / (math.sqrt(rank) if config.use_rslora else rank))
    if embedding or config.fan_in_fan_out:
        return {"R": _transpose(a), "C": _transpose(b), "scale": scale}
    return {"R": b, "C": a, "scale": scale}


def _transpose(array: Array) -> Array:
    if len(array.spec.shape) != 2:
        raise HintError(f"a factor of shape {list(array.spec.shape)} where a matrix is needed")
    words = np.ascontiguousarray(array.words.reshape(array.spec.shape).T).reshape(-1)
    return Array(TensorSpec(array.spec.dtype, array.spec.shape[::-1]), words)


def _rescaled(config: _Config, module: str, scale: Array) -> dict[str, Mapping[str, Any]]:
    """The scale of a module's weight, and of its bias where outputs, not inputs, are scaled (they then share it)."""
    shape = scale.spec.shape
    inputs = _is_feedforward(config, module) or (len(shape) == 2 and shape[0] == 1 < shape[1])
    if len(shape) == 2 and config.fan_in_fan_out:
        weight = _transpose(scale)
    elif len(shape) > 2 and not inputs:
        weight = Array(TensorSpec(scale.spec.dtype, (shape[1], shape[0], *shape[2:])), scale.words)
    else:
        weight = scale
    found: dict[str, Mapping[str, Any]] = {f"{module}.weight": {"ia3": weight}}
    if not inputs:
        found[f"{module}.bias"] = {"ia3": Array(TensorSpec(scale.spec.dtype, (scale.spec.elements,)), scale.words)}
    return found


def _is_feedforward(config: _Config, module: str) -> bool:
    named = config.feedforward_modules or []
    if isinstance(named, str):
        return _matches(named, module)
    return any(module == name or module.endswith(f".{name}") for name in named)


def _of_module(patterns: Mapping[str, Any], module: str, otherwise: Any) -> Any:
    """The entry for a module: a key is a regular expression for the end of its name, as PEFT reads it."""
    for pattern, value in patterns.items():
        if _matches(rf"(.*\.)?({pattern})", module):
            return value
    return otherwise


def _matches(pattern: str, module: str) -> bool:
    try:
        return re.fullmatch(pattern, module) is not None
    except re.error as error:
        raise HintError(f"{CONFIG}: pattern {pattern!r}: {error}") from error
