"""Automatic plug-ins beside the built-in types: taken where they are smallest, passed over where they fail."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from tests.filters.test_encode import floats, joined, previous, spec_of
from tests.plugin_example.theta_example.updates import Negated
from theta_daemon import registry
from theta_daemon.filters import encode
from theta_daemon.filters.encode import Encoder
from theta_daemon.store.base import BytesRecord
from theta_daemon.tensor import CHUNK_WORDS, TensorSpec, Words
from theta_daemon.updates.base import Hint, Update

SIGN = np.uint32(1 << 31)


class Fails(Negated):
    """Begins well, and raises at the chunk that holds `at`."""

    name = "fails"
    at = 0

    def encode_chunk(self, spec: TensorSpec, value: Words, previous: Words | None) -> bytes | None:
        if self.at in value:
            raise ZeroDivisionError("plug-in")
        return super().encode_chunk(spec, value, previous)


class Both:
    """The registry with one more update type."""

    def __init__(self, extra: Update) -> None:
        self._extra = extra

    def update(self, name: str) -> Update:
        return self._extra if name == self._extra.name else registry.registry().update(name)

    def automatic_updates(self) -> list[Update]:
        return [*registry.registry().automatic_updates(), self._extra]


@pytest.fixture(scope="module")
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as executor:
        yield executor


@pytest.mark.parametrize("kept", [encode.KEPT_BYTES, 1], ids=["all chunks compared", "a sample compared"])
def test_large_values_too(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, kept: int) -> None:
    """A value of many chunks whose signs changed: written chunk by chunk by the plug-in, and it comes back."""
    monkeypatch.setattr(encode, "KEPT_BYTES", kept)
    before = floats(3 * CHUNK_WORDS + 5)
    value = before ^ SIGN
    spec = spec_of(value)
    found = Encoder(Both(Negated()), pool, 16).large(spec, lambda a, b: value[a:b], previous(before, spec))
    record = joined(found.parts)
    assert (found.update, found.failed) == ("negated", False)
    assert len(record) < 30
    words = before.copy()
    Negated().open(spec, BytesRecord(record)).apply(0, spec.words, words)
    assert np.array_equal(words, value)


@pytest.mark.parametrize("place", [0, 3 * CHUNK_WORDS])
def test_a_failing_one_is_passed_over(pool: ThreadPoolExecutor, place: int) -> None:
    """It raises on the first or on the last chunk: another form holds the value."""
    before = floats(3 * CHUNK_WORDS + 5)
    value = before ^ SIGN
    spec = spec_of(value)
    plugin = Fails()
    plugin.at = int(value[place])
    found = Encoder(Both(plugin), pool, 16).large(spec, lambda a, b: value[a:b], previous(before, spec))
    assert found.update in {"dense", "delta", "sparse"}
    small = value[:100] if not place else value[-100:]
    found = Encoder(Both(plugin), pool, 16).whole(spec_of(small), small, None)
    assert found.update == "dense"


def test_a_failure_after_the_sample_is_told(pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk beyond the sample fails while the record is written: whoever writes it sees `failed`, no exception."""
    monkeypatch.setattr(encode, "KEPT_BYTES", 1)
    monkeypatch.setattr(encode, "_SAMPLE_CHUNKS", 1)
    before = floats(3 * CHUNK_WORDS + 5)
    value = before ^ SIGN
    spec = spec_of(value)
    plugin = Fails()
    plugin.at = int(value[0])
    found = Encoder(Both(plugin), pool, 16).large(spec, lambda a, b: value[a:b], previous(before, spec))
    assert found.update == "fails"
    joined(found.parts)
    assert found.failed


def test_a_hint_for_a_failing_one(pool: ThreadPoolExecutor) -> None:
    """Another form, and the reason."""
    before = floats(100)
    value = before ^ SIGN
    plugin = Fails()
    plugin.at = int(value[0])
    spec = spec_of(value)
    found = Encoder(Both(plugin), pool, 16).whole(spec, value, previous(before, spec), Hint("fails"))
    assert found.update in {"dense", "delta", "sparse"}
    assert found.unmet == "it failed (ZeroDivisionError: plug-in)"
