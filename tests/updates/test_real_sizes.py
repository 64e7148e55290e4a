"""What real checkpoints cost, held against measured figures: a codec that got worse fails here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from scripts import inputs
from theta_daemon.formats.base import Extent, Format, Source
from theta_daemon.formats.safetensors import Safetensors
from theta_daemon.formats.torch_zip import TorchZip
from theta_daemon.tensor import TensorSpec, Words, as_words
from theta_daemon.testing.updates import BytesRecord
from theta_daemon.updates.choose import encode_forms, smallest, totals
from theta_daemon.updates.delta import Delta
from theta_daemon.updates.dense import Dense


class Loaded(Source):
    """A checkpoint in memory."""

    def __init__(self, file: Path) -> None:
        self._data = file.read_bytes()

    @property
    def size(self) -> int:
        return len(self._data)

    def read(self, offset: int, length: int) -> bytes:
        if offset < 0 or length < 0 or offset + length > self.size:
            raise ValueError((offset, length))
        return self._data[offset : offset + length]


def parameters(name: str, form: Format) -> Iterator[tuple[str, TensorSpec, Words]]:
    source = Loaded(inputs.path(name))
    for extent in form.layout(source):
        assert isinstance(extent, Extent)
        yield extent.name, extent.spec, as_words(source.read(extent.offset, extent.spec.nbytes), extent.spec.dtype)


@pytest.mark.parametrize(
    ("name", "percent"), [("minilm", 81.9), ("minilm-bf16", 66.6), ("wordllama", 85.4), ("silero", 78.2)]
)
def test_dense(name: str, percent: float) -> None:
    """Bytes stored against raw, and back, bit for bit."""
    raw = stored = 0
    for _, spec, words in parameters(name, Safetensors()):
        record = Dense().encode(spec, words, None, None)
        assert record is not None
        raw += spec.nbytes
        stored += len(record)
        out = np.empty_like(words)
        Dense().open(spec, BytesRecord(record)).apply(0, spec.words, out)
        assert np.array_equal(out, words)
    assert 100 * stored / raw < percent


def test_a_real_fine_tune() -> None:
    """chgnet 0.3.0 to r2scan, the model's changed tensors: differences where they win, 78 % of raw, dense is 84 %."""
    before = {name: (spec, words) for name, spec, words in parameters("chgnet-0.3.0", TorchZip())}
    raw = stored = dense = 0
    chosen: set[str] = set()
    for name, spec, words in parameters("chgnet-r2scan", TorchZip()):
        if ".state_dict." not in name or before.get(name, (None,))[0] != spec:
            continue
        previous = before[name][1]
        if np.array_equal(previous, words):
            continue
        parts = [encode_forms(spec, words[start:stop], previous[start:stop]) for start, stop in spec.spans()]
        sizes = [{form: len(part) for form, part in chunk.items()} for chunk in parts]
        chosen.add(smallest(sizes))
        raw += spec.nbytes
        stored += totals(sizes)[smallest(sizes)]
        dense += len(Dense().encode(spec, words, None, None) or b"")
        record = Delta().encode(spec, words, previous, None)
        assert record is not None
        out = previous.copy()
        Delta().open(spec, BytesRecord(record)).apply(0, spec.words, out)
        assert np.array_equal(out, words)
    assert raw > 1_400_000
    assert "delta" in chosen
    assert 100 * stored / raw < 78
    assert 100 * dense / raw < 84
