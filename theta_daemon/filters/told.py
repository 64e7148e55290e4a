"""What is said of one file's parameters: by the caller, or by the checkpoint itself; and what of it could not be followed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from theta_daemon.filters.forms import Encoded
from theta_daemon.filters.hints import Hints, embedded
from theta_daemon.filters.recipe import METADATA_KEY
from theta_daemon.formats.base import Source
from theta_daemon.formats.safetensors import Safetensors, metadata
from theta_daemon.pointer import Parameter
from theta_daemon.tensor import TensorSpec
from theta_daemon.updates.base import Hint

_NAMED: Final = 5


class Told:
    """The hints of a file. The caller's come before those that a checkpoint carries from its beginning."""

    def __init__(
        self, hints: Hints, pathname: bytes, format_name: str, source: Source, specs: Mapping[str, TensorSpec]
    ):
        self._pathname = pathname
        self._asked = hints.for_file(pathname, specs)
        self._carried: dict[str, Hint] = {}
        self._unmet: dict[tuple[str, str, str], list[str]] = {}
        if format_name == Safetensors.name:
            text, order = metadata(source, METADATA_KEY)
            if text is not None:
                self._carried = embedded(text, {name: specs[name] for name in order})

    def hint(self, name: str) -> Hint | None:
        """The hint for a parameter."""
        return self._asked.get(name) or self._carried.get(name)

    def accepts(self, name: str, known: Parameter) -> bool:
        """Whether a record that is there already is of the type that the caller asks for, if any."""
        hint = self._asked.get(name)
        return hint is None or known.update == hint.update

    def followed(self, name: str, encoded: Encoded, *, new: bool) -> None:
        """Take note of how a parameter was stored. `new`: HEAD has none of this name.

        A checkpoint that was trained on still carries the recipe of its beginning: that is no news.
        """
        hint = self.hint(name)
        if hint is not None and hint.update != encoded.update and (new or name in self._asked):
            outcome = (hint.update, encoded.update, encoded.unmet or "it failed")
            self._unmet.setdefault(outcome, []).append(name)

    def report(self, say: Callable[[str], None]) -> None:
        """Say which hints could not be followed, why, and what was done instead."""
        path = self._pathname.decode(errors="backslashreplace")
        for (wanted, update, why), names in self._unmet.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            named = ", ".join(name if name.isprintable() else repr(name) for name in names[:_NAMED])
            say(f"{path}: stored as {update}, not {wanted}, since {why}: {named}{more}")
