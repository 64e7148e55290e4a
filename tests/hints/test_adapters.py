"""Adapters as the library peft writes them, against what it computes when it merges them (spelled out in torch)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from tests.hints.adapted import write_adapter
from theta_daemon.errors import HintError
from theta_daemon.filters.adapters import WHOLE, read_data
from theta_daemon.tensor import DTYPES, TensorSpec
from theta_daemon.updates.base import Hint
from theta_daemon.updates.ia3 import IA3
from theta_daemon.updates.low_rank import LowRank


def merged(folder: Path, name: str, weight: torch.Tensor, update: LowRank | IA3) -> torch.Tensor:
    """What the adapter in `folder` makes of a weight."""
    spec = TensorSpec(DTYPES["F32"], tuple(weight.shape))
    value = update.define(spec, weight.numpy().reshape(-1).view("<u4"), Hint("x", read_data(folder)[name]))
    assert value is not None
    return torch.from_numpy(value.view("<f4").reshape(weight.shape).copy())


def close(found: torch.Tensor, expected: torch.Tensor) -> bool:
    return torch.allclose(found, expected, rtol=0, atol=2e-6)


def pair(seed: int, out: int = 12, into: int = 9, rank: int = 3) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = ((out, into), (rank, into), (out, rank))
    weight, a, b = (torch.randn(*shape, generator=generator) for shape in shapes)
    return weight, a, b


@pytest.mark.parametrize(("rslora", "scale"), [(False, 7 / 3), (True, 7 / 3**0.5)])
def test_linear(short_dir: Path, rslora: bool, scale: float) -> None:
    """alpha / r · B A, or alpha / √r with rank stabilisation."""
    weight, a, b = pair(1)
    arrays = {"m.lora_A.weight": a.numpy(), "m.lora_B.weight": b.numpy()}
    folder = write_adapter(short_dir / "f", arrays, r=3, lora_alpha=7, use_rslora=rslora)
    assert close(merged(folder, "m.weight", weight, LowRank()), weight + scale * (b @ a))


def test_fan_in_fan_out(short_dir: Path) -> None:
    """A weight stored as in × out (GPT-2's Conv1D) takes the transposed product."""
    weight, a, b = pair(2)
    folder = write_adapter(
        short_dir / "f",
        {"m.lora_A.weight": a.numpy(), "m.lora_B.weight": b.numpy()},
        r=3,
        lora_alpha=3,
        fan_in_fan_out=True,
    )
    assert close(merged(folder, "m.weight", weight.T.contiguous(), LowRank()), weight.T + (b @ a).T)


def test_embedding(short_dir: Path) -> None:
    """Embeddings keep their factors transposed, under other names."""
    weight = torch.randn(20, 6, generator=torch.Generator().manual_seed(3))
    a, b = torch.ones(2, 20) * torch.arange(20), torch.randn(6, 2, generator=torch.Generator().manual_seed(4))
    arrays = {"e.lora_embedding_A": a.numpy(), "e.lora_embedding_B": b.numpy()}
    folder = write_adapter(short_dir / "f", arrays, lora_alpha=1)
    assert close(merged(folder, "e.weight", weight, LowRank()), weight + 0.5 * (b @ a).T)


def test_convolution(short_dir: Path) -> None:
    """A convolution's factors are a convolution of rank channels and one of 1 × 1."""
    generator = torch.Generator().manual_seed(5)
    weight = torch.randn(8, 5, 3, 3, generator=generator)
    a, b = torch.randn(2, 5, 3, 3, generator=generator), torch.randn(8, 2, 1, 1, generator=generator)
    folder = write_adapter(short_dir / "f", {"c.lora_A.weight": a.numpy(), "c.lora_B.weight": b.numpy()}, lora_alpha=2)
    delta = torch.nn.functional.conv2d(a.permute(1, 0, 2, 3), b).permute(1, 0, 2, 3)
    assert close(merged(folder, "c.weight", weight, LowRank()), weight + delta)


def test_patterns_of_rank_and_alpha(short_dir: Path) -> None:
    """`rank_pattern` and `alpha_pattern` are regular expressions for the ends of module names."""
    weight, a, b = pair(6)
    arrays = {"x.1.q.lora_A.weight": a.numpy(), "x.1.q.lora_B.weight": b.numpy()}
    config: dict[str, Any] = {"r": 8, "lora_alpha": 8, "rank_pattern": {"q": 3}, "alpha_pattern": {r"x\.\d\.q": 12}}
    folder = write_adapter(short_dir / "f", arrays, **config)
    assert close(merged(folder, "x.1.q.weight", weight, LowRank()), weight + 4 * (b @ a))


@pytest.mark.parametrize("feedforward", [True, False])
def test_ia3(short_dir: Path, feedforward: bool) -> None:
    """Scales of inputs multiply columns; scales of outputs multiply rows, and the bias."""
    weight, _, _ = pair(7)
    scale = torch.linspace(0.5, 2, 9)[None] if feedforward else torch.linspace(0.5, 2, 12)[:, None]
    config = {"peft_type": "IA3", "feedforward_modules": ["m"] if feedforward else []}
    folder = write_adapter(short_dir / "f", {"m.ia3_l": scale.numpy()}, **config)
    assert close(merged(folder, "m.weight", weight, IA3()), weight * scale)
    if feedforward:
        assert "m.bias" not in read_data(folder)
    else:
        assert close(merged(folder, "m.bias", torch.ones(12), IA3()), scale.reshape(-1))


def test_torch_file_and_saved_modules(short_dir: Path) -> None:
    """adapter_model.bin is read without running it; what was trained whole comes as values."""
    _, a, b = pair(8)
    folder = write_adapter(short_dir / "f", {}, r=3)
    (folder / "adapter_model.safetensors").unlink()
    prefix = "base_model.model."
    state = {"m.lora_A.weight": a, "m.lora_B.weight": b, "head.weight": torch.ones(2, 2)}
    state["m.base_layer.bias"] = torch.ones(12)
    torch.save({prefix + name: tensor for name, tensor in state.items()}, folder / "adapter_model.bin")
    found = read_data(folder)
    assert set(found) == {"m.weight", "m.bias", "head.weight"}
    assert set(found["head.weight"]) == set(found["m.bias"]) == {WHOLE}


@pytest.mark.parametrize(
    ("config", "arrays", "words"),
    [
        ({"peft_type": "PREFIX_TUNING"}, None, "type PREFIX_TUNING"),
        ({"use_dora": True}, None, "use_dora"),
        ({"lora_bias": True}, None, "lora_bias"),
        ({"r": "x"}, None, "r"),
        ({"r": 4}, None, "rank 4"),
        ({"rank_pattern": {"(": 3}}, None, "pattern"),
        ({}, {"m.lora_A.weight": np.ones((3, 2), "<f4")}, "lacks one of its two factors"),
        ({}, {"m.other": np.ones(3, "<f4")}, "no factors"),
    ],
)
def test_unknown_adapters_are_errors(short_dir: Path, config: dict[str, Any], arrays: Any, words: str) -> None:
    """An adapter that would be merged in another way is refused, never approximated."""
    _, a, b = pair(9)
    folder = write_adapter(
        short_dir / "f",
        {"m.lora_A.weight": a.numpy(), "m.lora_B.weight": b.numpy()} if arrays is None else arrays,
        **({"r": 3} | config),
    )
    with pytest.raises(HintError, match=words):
        read_data(folder)


def test_incomplete_folders(short_dir: Path) -> None:
    """No configuration, no weights, no names: each says what is missing."""
    with pytest.raises(HintError, match="no PEFT adapter"):
        read_data(short_dir)
    save_file({"m.lora_A.weight": torch.ones(2, 2)}, short_dir / "a")
    with pytest.raises(HintError, match="without its adapter_config"):
        read_data(short_dir / "a")
    save_file({"plain": torch.ones(2, 2)}, short_dir / "b")
    with pytest.raises(HintError, match="<parameter>/<key>"):
        read_data(short_dir / "b")
