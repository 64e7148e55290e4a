"""Random words that are the same everywhere: MT19937, Philox and PCG64, by position.

numpy promises its bit generators' streams for ever (NEP 19), unlike its distributions. Seeds go through numpy's SeedSequence,
except MT19937's, which are those of the reference implementation, of C++ and of torch (the low 32 bits count).
"""

from __future__ import annotations

import threading
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np

from theta_daemon.tensor import CHUNK_WORDS, Words

Generator = Literal["mt19937", "philox", "pcg64"]

_STRIDE: Final = CHUNK_WORDS
_BLOCK_WORDS: Final = 4
"""Words that one step of Philox's counter gives."""


class Stream:
    """Words of a generator from a seed on, `skip` of them passed over. Thread-safe."""

    def __init__(self, generator: Generator, seed: int, skip: int) -> None:
        self.bits = 32 if generator == "mt19937" else 64
        self._generator = generator
        self._seed = seed
        self._skip = skip

    def words(self, start: int, count: int) -> Words:
        """`count` words from `start` on, as `<u8`."""
        start += self._skip
        if self._generator == "pcg64":
            return np.random.PCG64(self._seed).advance(start).random_raw(count)
        if self._generator == "philox":
            block, rest = divmod(start, _BLOCK_WORDS)
            return np.random.Philox(self._seed).advance(block).random_raw(rest + count)[rest:]
        return _twister(self._seed & 0xFFFFFFFF).words(start, count)


class _Twister:
    """MT19937 cannot jump: its states at all multiples of a stride that was passed are kept, for all who share the seed."""

    def __init__(self, seed: int) -> None:
        self._lock = threading.Lock()
        self._states: list[Any] = [_mersenne_state(seed)]

    def words(self, start: int, count: int) -> Words:
        twister = np.random.MT19937(0)
        twister.state = self._state(start // _STRIDE)
        twister.random_raw(start % _STRIDE, output=False)
        words: Words = twister.random_raw(count)
        return words

    def _state(self, index: int) -> Any:
        with self._lock:
            if index >= len(self._states):
                twister = np.random.MT19937(0)
                twister.state = self._states[-1]
                while index >= len(self._states):
                    twister.random_raw(_STRIDE, output=False)
                    self._states.append(twister.state)
            return self._states[index]


@lru_cache(maxsize=8)
def _twister(seed: int) -> _Twister:
    """Parameters that were drawn one after the other from one seed pass over its words together, not each from the start."""
    return _Twister(seed)


def _mersenne_state(seed: int) -> dict[str, Any]:
    """The state that the reference implementation's `init_genrand` makes (Matsumoto and Nishimura, 2002)."""
    key = np.empty(624, np.uint32)
    word = seed & 0xFFFFFFFF
    for i in range(624):
        key[i] = word
        word = (1812433253 * (word ^ (word >> 30)) + i + 1) & 0xFFFFFFFF
    return {"bit_generator": "MT19937", "state": {"key": key, "pos": 624}}
