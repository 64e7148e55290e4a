"""What a plan need not rebuild: values in memory, and values and skeletons in the disk cache.

The planner only asks whether something is there. What is on disk is looked at when it is read; if it then turns out to be
damaged or gone (`LostValueError`), the file it was for is planned anew without it.
"""

from __future__ import annotations

from collections.abc import Mapping

from theta_daemon.errors import ThetaError
from theta_daemon.store.cached_value import CachedValue
from theta_daemon.store.disk_cache import DiskCache
from theta_daemon.store.tensor_cache import TensorCache
from theta_daemon.tensor import TensorSpec


class LostValueError(ThetaError):
    """What the disk cache was to give is not there any more, or never was what it was called."""

    def __init__(self, message: str = "the disk cache has lost a value", hint: str | None = None) -> None:
        super().__init__(message, hint)


class AtHand:
    """The planner's `at_hand`, and where the rebuilder finds what it said yes to. None: no values from there."""

    def __init__(self, tensors: TensorCache | None, disk: DiskCache | None) -> None:
        self.values: dict[str, memoryview] = {}
        self._tensors = tensors
        self._in_memory = frozenset() if tensors is None else tensors.digests()
        self._disk = disk
        self._stored: dict[str, str] = {}

    @classmethod
    def of(cls, values: dict[str, memoryview]) -> AtHand:
        """These values, by key, and nothing else."""
        at_hand = cls(None, None)
        at_hand.values = values
        return at_hand

    def __call__(self, key: str, digest: str) -> bool:
        """Whether the value need not be rebuilt."""
        if key in self.values or key in self._stored:
            return True
        if digest in self._in_memory and self._tensors is not None:
            value = self._tensors.get(digest)
            if value is not None:
                self.values[key] = value
                return True
        if self._disk is None or not self._disk.has(digest):
            return False
        self._stored[key] = digest
        return True

    def stored(self, key: str) -> bool:
        """Whether the value is to be read from disk."""
        return key in self._stored

    def moved(self, key: str, digest: str) -> bool:
        """Whether a value that was just rebuilt is on disk now; from here on it is read from there."""
        if self._disk is None or not self._disk.has(digest):
            return False
        self._stored[key] = digest
        return True

    def recheck(self, specs: Mapping[str, TensorSpec]) -> None:
        """Look through these values on disk, so that the next plan counts on none that is damaged."""
        for key, spec in specs.items():
            if self._disk is not None and key in self._stored:
                value = self._disk.open(self._stored[key], spec.nbytes)
                if value is not None:
                    value.close()

    def read(self, key: str, spec: TensorSpec) -> memoryview:
        """A whole value from disk. Raises LostValueError."""
        value = None if self._disk is None else self._disk.get(self._stored[key], spec.nbytes)
        if value is None:
            raise LostValueError
        return value

    def open(self, key: str, spec: TensorSpec) -> CachedValue:
        """A value on disk, verified, to be read in pieces. Raises LostValueError."""
        value = None if self._disk is None else self._disk.open(self._stored[key], spec.nbytes)
        if value is None:
            raise LostValueError
        return value
