"""A BERT encoder on plain tensors by name, LoRA on it, and real text to train with: no framework but torch.

Forward pass as Devlin et al. 2019 (post-norm, GELU), mean pooling as sentence-transformers does it; LoRA as Hu et al. 2021, on
query and value; the loss is in-batch contrastive between neighbouring sentences of the Python reference.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm, linear, normalize

Weights = Mapping[str, Tensor]
ADAPTED = ("attention.self.query", "attention.self.value")
_LENGTH = 24


@dataclass(frozen=True)
class Lora:
    """Factors by module name: A (rank × in), B (out × rank)."""

    factors: Mapping[str, tuple[Tensor, Tensor]]
    rank: int
    alpha: int

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    @classmethod
    def fresh(cls, weights: Weights, rank: int, alpha: int, seed: int) -> Lora:
        """A small and random, B zero: the adapted model is the base."""
        generator = torch.Generator().manual_seed(seed)
        factors = {}
        for name, weight in weights.items():
            if name.endswith(tuple(f"{module}.weight" for module in ADAPTED)):
                a = torch.empty(rank, weight.shape[1]).normal_(0, 1 / rank, generator=generator)
                factors[name.removesuffix(".weight")] = (a, torch.zeros(weight.shape[0], rank))
        return cls(factors, rank, alpha)

    def merged(self, weights: Weights) -> dict[str, Tensor]:
        """The weights with the adapter in them, as peft merges: weight + (B A) · scale, in the weight's own dtype."""
        merged = dict(weights)
        with torch.no_grad():
            for module, (a, b) in self.factors.items():
                weight = weights[f"{module}.weight"]
                merged[f"{module}.weight"] = weight + (b.to(weight.dtype) @ a.to(weight.dtype)) * self.scale
        return merged

    def save(self, folder: Path) -> Path:
        """As peft's `save_pretrained` writes it."""
        folder.mkdir()
        config = {
            "peft_type": "LORA",
            "r": self.rank,
            "lora_alpha": self.alpha,
            "fan_in_fan_out": False,
            "bias": "none",
        }
        (folder / "adapter_config.json").write_text(json.dumps(config))
        tensors = {}
        for module, (a, b) in self.factors.items():
            tensors[f"base_model.model.{module}.lora_A.weight"] = a.detach().contiguous()
            tensors[f"base_model.model.{module}.lora_B.weight"] = b.detach().contiguous()
        save_file(tensors, folder / "adapter_model.safetensors")
        return folder


def encode(weights: Weights, lora: Lora, tokens: Tensor, mask: Tensor, heads: int = 12) -> Tensor:
    """Sentence vectors (batch × hidden) for token ids (batch × length) and their mask."""

    def norm(name: str, x: Tensor) -> Tensor:
        return layer_norm(
            x, x.shape[-1:], weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"], 1e-12
        )

    def project(name: str, x: Tensor) -> Tensor:
        y = linear(x, weights[f"{name}.weight"], weights[f"{name}.bias"])
        if name in lora.factors:
            a, b = lora.factors[name]
            y = y + linear(linear(x, a), b) * lora.scale
        return y

    batch, length = tokens.shape
    x = weights["embeddings.word_embeddings.weight"][tokens]
    x = x + weights["embeddings.position_embeddings.weight"][:length]
    x = norm("embeddings", x + weights["embeddings.token_type_embeddings.weight"][0])
    hidden = x.shape[-1]
    hide = (mask[:, None, None, :] - 1) * 1e9
    layer = 0
    while f"encoder.layer.{layer}.output.dense.weight" in weights:
        at = f"encoder.layer.{layer}"

        def heads_of(name: str, x: Tensor = x, at: str = at) -> Tensor:
            return project(f"{at}.attention.self.{name}", x).view(batch, length, heads, -1).transpose(1, 2)

        query, key, value = heads_of("query"), heads_of("key"), heads_of("value")
        scores = query @ key.transpose(-1, -2) / math.sqrt(hidden / heads) + hide
        seen = (scores.softmax(-1) @ value).transpose(1, 2).reshape(batch, length, hidden)
        x = norm(f"{at}.attention.output", project(f"{at}.attention.output.dense", seen) + x)
        inner = gelu(project(f"{at}.intermediate.dense", x))
        x = norm(f"{at}.output", project(f"{at}.output.dense", inner) + x)
        layer += 1
    weighted = (x * mask[:, :, None]).sum(1) / mask.sum(1, keepdim=True)
    return normalize(weighted, dim=-1)


def train(
    weights: Weights, batches: Sequence[tuple[Tensor, Tensor]], *, rank: int, alpha: int, rate: float, heads: int = 12
) -> tuple[Lora, list[float]]:
    """The adapter after a step of AdamW a batch, and the losses. A batch: token ids and mask, pairs one after the other."""
    lora = Lora.fresh(weights, rank, alpha, seed=0)
    trained = [factor.requires_grad_() for pair in lora.factors.values() for factor in pair]
    optimizer = torch.optim.AdamW(trained, lr=rate)
    losses = []
    for tokens, mask in batches:
        vectors = encode(weights, lora, tokens, mask, heads)
        left, right = vectors[::2], vectors[1::2]
        loss = cross_entropy(left @ right.T / 0.05, torch.arange(len(left)))
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        losses.append(float(loss.detach()))
    return lora, losses


def sentences() -> list[str]:
    """English that every Python carries: its language reference."""
    from pydoc_data.topics import topics

    text = " ".join(str(topics[name]) for name in sorted(topics))
    found = re.findall(r"[A-Z][^.\n*|=_]*(?:\n[^.\n*|=_]+)*\.", text)
    return [" ".join(sentence.split()) for sentence in found if len(sentence.split()) > 5]


def batches(vocabulary: Sequence[str], count: int, pairs: int) -> list[tuple[Tensor, Tensor]]:
    """Token ids and masks of neighbouring sentences, by BERT's greedy word pieces."""
    numbers = {piece: number for number, piece in enumerate(vocabulary)}
    lines = sentences()
    made = []
    for number in range(count):
        some = [lines[(number * pairs * 2 + at) % len(lines)] for at in range(2 * pairs)]
        ids = [_pieces(line, numbers) for line in some]
        length = max(map(len, ids))
        tokens = torch.tensor([line + [0] * (length - len(line)) for line in ids])
        made.append((tokens, (tokens != 0).float()))
    return made


def _pieces(text: str, numbers: Mapping[str, int]) -> list[int]:
    unknown = numbers["[UNK]"]
    ids = [numbers["[CLS]"]]
    for word in re.findall(r"\w+|[^\w\s]", text.lower()):
        start = 0
        while start < len(word):
            starts = range(len(word), start, -1)
            piece = next((p for end in starts if (p := ("##" if start else "") + word[start:end]) in numbers), None)
            ids.append(unknown if piece is None else numbers[piece])
            start = len(word) if piece is None else start + len(piece.removeprefix("##"))
    return [*ids[: _LENGTH - 1], numbers["[SEP]"]]
