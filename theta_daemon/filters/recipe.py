"""How parameters are initialised: rules from name patterns to generators, seeds and distributions.

A recipe is a TOML or JSON document: `seed`, `streams`, `[[rule]]`s (the first that matches a name counts) and the tensors to
make, `[[tensor]]` with name, shape and dtype, or those of a `template` checkpoint. The same rules serve as hints for a
checkpoint that was made elsewhere, and travel inside the checkpoints that are made here (`METADATA_KEY`).

Options of a `random` rule are those of `updates.random.Recipe`, and in place of bounds or deviation a `gain` with `fan`
(in, out or mean), as torch's `kaiming` and `xavier` mean it; `bounds` of a `trunc-normal` are in deviations. Without a seed of
its own a rule takes the document's:

- `streams = "per-tensor"`: each tensor has a seed derived from the document's and its name;
- `streams = "consecutive"`: one stream for all tensors in their order, as after one `torch.manual_seed`.
"""

from __future__ import annotations

import json
import math
import tomllib
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeVar

from blake3 import blake3
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from theta_daemon.errors import HintError
from theta_daemon.tensor import TensorSpec
from theta_daemon.updates.base import Hint
from theta_daemon.updates.random import read_recipe

Streams = Literal["per-tensor", "consecutive"]

METADATA_KEY: Final = "theta.recipe"
"""Where a safetensors checkpoint carries its recipe."""

MAX_DOCUMENT_BYTES: Final = 4 << 20
_MAX_EMBEDDED_BYTES: Final = 64 << 10
_MAX_EMBEDDED_MATCHES: Final = 1 << 20
"""Rules times parameters: what a stranger's recipe may cost."""

_Model = TypeVar("_Model", bound=BaseModel)


class InitRule(BaseModel):
    """A rule of a recipe; what is not named here is an option of the type."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True, defer_build=True)

    pattern: str = Field(default="*", max_length=1024)
    type: Literal["random", "constant"]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the update type, in the form that travels."""
        return self.normal_options(self.type, dict(self.model_extra or {}))

    @staticmethod
    def normal_options(kind: str, options: dict[str, Any]) -> dict[str, Any]:
        """Bounds in deviations become probabilities, once: the error function is the C library's. Raises HintError."""
        if kind == "random" and "bounds" in options:
            bounds = options.pop("bounds")
            if not isinstance(bounds, list | tuple) or [type(bound) in (int, float) for bound in bounds] != [
                True,
                True,
            ]:
                raise HintError(f"recipe: bounds are two numbers, not {bounds!r}")
            low, high = bounds
            options |= {"below": 0.5 * math.erfc(-low / math.sqrt(2)), "above": 0.5 * math.erfc(-high / math.sqrt(2))}
        return options


class Embedded(BaseModel):
    """The part of a recipe that a checkpoint carries: its tensors are there already."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    seed: int | None = None
    streams: Streams = "per-tensor"
    rule: tuple[InitRule, ...] = Field(min_length=1, max_length=256)

    def text(self) -> str:
        """As it travels."""
        rules = [{"pattern": rule.pattern, "type": rule.type, **rule.options} for rule in self.rule]
        return json.dumps({"seed": self.seed, "streams": self.streams, "rule": rules}, separators=(",", ":"))


class TensorEntry(BaseModel):
    """A tensor to make."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, defer_build=True)

    name: str
    shape: tuple[int, ...] = Field(max_length=64)
    dtype: str | None = None


class Document(Embedded):
    """A whole recipe. `dtype` is that of tensors that name none."""

    template: str | None = None
    dtype: str = "F32"
    metadata: dict[str, str] = {}
    tensor: tuple[TensorEntry, ...] = ()

    @classmethod
    def read(cls, path: Path) -> Self:
        """Raises HintError."""
        return read_document(path, cls, "recipe")

    @property
    def embedded(self) -> Embedded:
        """What the checkpoint will carry."""
        return Embedded(seed=self.seed, streams=self.streams, rule=self.rule)


def read_document(path: Path, model: type[_Model], what: str, seen: blake3 | None = None) -> _Model:
    """The TOML or JSON document in a file; its bytes are added to `seen`. Raises HintError."""
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise HintError(f"{what} {path}: larger than {MAX_DOCUMENT_BYTES} bytes")
        data = path.read_bytes()
        if seen is not None:
            seen.update(data)
        document = json.loads(data) if path.suffix == ".json" else tomllib.loads(data.decode())
        return model.model_validate_json(json.dumps(document))
    except OSError as error:
        raise HintError(f"{what} {path}: {error.strerror}") from error
    except ValidationError as error:
        raise HintError(f"{what} {path}: {_first(error)}") from error
    except (ValueError, TypeError, RecursionError) as error:
        raise HintError(f"{what} {path}: {error}") from error


def validated(text: str | None, parameters: int) -> Embedded | None:
    """The recipe in a checkpoint's metadata; None if it is none, or one that would cost too much."""
    if text is None or len(text) > _MAX_EMBEDDED_BYTES:
        return None
    try:
        document = Embedded.model_validate_json(text)
    except (ValidationError, RecursionError):
        return None
    return document if len(document.rule) * parameters <= _MAX_EMBEDDED_MATCHES else None


def expand(
    hints: Mapping[str, Hint], specs: Mapping[str, TensorSpec], seed: int | None, streams: Streams
) -> dict[str, Hint]:
    """`hints` with what random ones leave open filled in; `specs` in the order in which streams are used up.

    Raises HintError for options that are no recipe.
    """
    found = dict(hints)
    used: Counter[str] = Counter()
    for name, spec in specs.items():
        hint = found.get(name)
        if hint is None or hint.update != "random":
            continue
        options = _scaled(dict(hint.options), spec)
        if seed is not None and "seed" not in options:
            if streams == "per-tensor":
                options["seed"] = int.from_bytes(blake3(f"theta {seed} {name}".encode()).digest(8), "little")
            else:
                generator = str(options.get("generator"))
                options |= {"seed": seed, "skip": used[generator]}
                doubles = options.get("distribution") == "torch-uniform" and spec.dtype.name == "F64"
                used[generator] += spec.elements * (2 if doubles else 1)
        read_recipe(options)
        found[name] = Hint("random", hint.data, options)
    return found


def _scaled(options: dict[str, Any], spec: TensorSpec) -> dict[str, Any]:
    """`gain` and `fan` as the deviation or the bounds that they mean for a tensor, in torch's order of operations."""
    if "gain" not in options and "fan" not in options:
        return options
    gain, fan = options.pop("gain", 1.0), options.pop("fan", "in")
    if type(gain) not in (int, float) or fan not in ("in", "out", "mean"):
        raise HintError(f"recipe: gain {gain!r} is no number, or fan {fan!r} none of in, out, mean")
    if len(spec.shape) < 2 or not spec.elements:
        raise HintError(f"recipe: a tensor of shape {list(spec.shape)} has no fan, which gain needs")
    around = spec.elements // (spec.shape[0] * spec.shape[1])
    fans = {"in": spec.shape[1] * around, "out": spec.shape[0] * around}
    deviation = gain / math.sqrt(fans[fan] if fan in fans else (fans["in"] + fans["out"]) / 2)
    if "normal" in str(options.get("distribution")):
        return options | {"std": deviation}
    bound = math.sqrt(3.0) * deviation
    return options | {"low": -bound, "high": bound}


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc'])) or 'all of it'}: {first['msg']}"
