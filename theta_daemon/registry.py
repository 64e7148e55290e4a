"""Update types and formats by name: the built-in ones and those of installed packages.

A plug-in is a class under the entry point group `theta_daemon.updates` or `theta_daemon.formats`. Rules:

- entry points are scanned once a process and each class is loaded once, on its first use: scanning is slow;
- plug-ins come from installed packages only, never from a repository or a checkpoint, and never replace a built-in;
- a plug-in that cannot be loaded is an error for what names it and is passed over by what does not.

Knows no path, no git; `find_layout` is the one place that turns whatever a format raises into "opaque".
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, Generic, TypeVar, cast

from theta_daemon.errors import FormatError, HintError, PluginError, PointerError, ThetaError
from theta_daemon.formats.base import Extent, Format, Source, checked
from theta_daemon.tensor import flat_bytes
from theta_daemon.updates.base import Update

FORMATS: Final = {
    "safetensors": "theta_daemon.formats.safetensors:Safetensors",
    "torch-zip": "theta_daemon.formats.torch_zip:TorchZip",
    "npz": "theta_daemon.formats.npz:Npz",
    "npy": "theta_daemon.formats.npz:Npy",
    "opaque": "theta_daemon.formats.opaque:Opaque",
}
"""Built-in formats in the order in which content is tried; `opaque`, which takes everything, after plug-ins."""

OPAQUE: Final = "opaque"

UPDATES: Final = {
    "dense": "theta_daemon.updates.dense:Dense",
    "constant": "theta_daemon.updates.constant:Constant",
    "sparse": "theta_daemon.updates.sparse:Sparse",
    "delta": "theta_daemon.updates.delta:Delta",
    "low-rank": "theta_daemon.updates.low_rank:LowRank",
    "ia3": "theta_daemon.updates.ia3:IA3",
    "random": "theta_daemon.updates.random:Random",
}
"""Built-in update types; the first four in the order in which clean tries them, the others wait for hints."""

_NAME: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,63}")
_log: Final = logging.getLogger(__name__)

Scan = Callable[[str], Iterable[EntryPoint]]
_Plugin = TypeVar("_Plugin", Format, Update)


class Group(Generic[_Plugin]):
    """The classes of one kind: `builtin` (`module:Class` by name) and the entry points of `group`, in that order."""

    def __init__(self, kind: type[Any], group: str, builtin: Mapping[str, str], scan: Scan) -> None:
        self._kind: type[Any] = kind
        self._group = group
        self._builtin = builtin
        self._scan = scan
        self._lock = threading.RLock()
        self._found: dict[str, EntryPoint] | None = None
        self._loaded: dict[str, _Plugin] = {}
        self._broken: dict[str, PluginError] = {}

    def names(self) -> list[str]:
        """All names, the built-in ones first."""
        return [*self._builtin, *self._plugins()]

    def get(self, name: str) -> _Plugin | None:
        """The instance called `name`; None when there is none. Raises PluginError when it cannot be loaded."""
        with self._lock:
            if name in self._broken:
                raise self._broken[name]
            if name not in self._loaded:
                point = self._builtin_point(name) or self._plugins().get(name)
                if point is None:
                    return None
                try:
                    self._loaded[name] = self._load(point)
                except PluginError as error:
                    self._broken[name] = error
                    raise
            return self._loaded[name]

    def usable(self) -> list[_Plugin]:
        """All instances that can be loaded, in order of `names`; the log says which cannot."""
        found = []
        for name in self.names():
            known = name in self._broken
            try:
                plugin = self.get(name)
            except PluginError as error:
                if not known:
                    _log.warning("%s", error.message)
            else:
                if plugin is not None:
                    found.append(plugin)
        return found

    def problems(self) -> list[str]:
        """What could not be loaded so far and why, for a person."""
        with self._lock:
            return [error.message for error in self._broken.values()]

    def _builtin_point(self, name: str) -> EntryPoint | None:
        value = self._builtin.get(name)
        return None if value is None else EntryPoint(name, value, self._group)

    def _plugins(self) -> dict[str, EntryPoint]:
        with self._lock:
            if self._found is None:
                self._found = {}
                for point in sorted(self._scan(self._group), key=lambda point: (point.name, point.value)):
                    if point.name in self._builtin or point.name in self._found or not _NAME.fullmatch(point.name):
                        why = "its name is taken or malformed"
                        self._broken.setdefault(f"{point.name} ({point.value})", self._problem(point, why))
                        _log.warning("%s", self._problem(point, why).message)
                    else:
                        self._found[point.name] = point
            return self._found

    def _load(self, point: EntryPoint) -> _Plugin:
        try:
            plugin = point.load()()
        except Exception as error:  # whatever a stranger's module raises at import is that module's problem alone
            raise self._problem(point, f"{type(error).__name__}: {error}") from error
        if not isinstance(plugin, self._kind):
            raise self._problem(point, f"not a subclass of {self._kind.__name__}")
        if getattr(plugin, "name", None) != point.name:
            raise self._problem(point, f"its class calls itself {getattr(plugin, 'name', None)!r}")
        return cast("_Plugin", plugin)

    def _problem(self, point: EntryPoint, why: str) -> PluginError:
        package = f" of package {point.dist.name}" if point.dist is not None else ""
        return PluginError(
            f"plug-in {point.name!r} ({point.value}){package} in {self._group} cannot be used: {why}",
            "repair or uninstall the package that provides it",
        )


class Registry:
    """Formats and update types. One a process is enough (`registry`); `scan` lists the entry points of a group."""

    def __init__(self, scan: Scan) -> None:
        self.formats: Group[Format] = Group(Format, "theta_daemon.formats", FORMATS, scan)
        self.updates: Group[Update] = Group(Update, "theta_daemon.updates", UPDATES, scan)

    def find_layout(self, source: Source, override: str | None = None) -> tuple[str, list[Extent]]:
        """The name of `source`'s format and its parameters, by content or as `override` says.

        A file that the format cannot lay out is opaque. Raises HintError when `override` names no format, PluginError
        when it names a broken one; content alone never makes it raise.
        """
        for candidate in self._candidates(override):
            extents = _attempt(candidate, source, asked=override is not None)
            if extents is not None:
                return candidate.name, extents
        return OPAQUE, [Extent("data", flat_bytes(source.size), 0)]

    def _candidates(self, override: str | None) -> list[Format]:
        if override is None:
            return [candidate for candidate in self.formats.usable() if candidate.name != OPAQUE]
        chosen = self.formats.get(override)
        if chosen is None:
            known = ", ".join(self.formats.names())
            raise HintError(
                f"attribute theta-format: no format is called {override!r}",
                f"use one of {known}, or install the package that provides it",
            )
        return [chosen]

    def update(self, name: str) -> Update:
        """The update type called `name`. Raises PointerError when there is none, PluginError when it is broken."""
        found = self.updates.get(name)
        if found is None:
            raise PointerError(
                f"update type {name!r} is not known here",
                "install the package that provides it, or update theta-daemon",
            )
        return found

    def automatic_updates(self) -> list[Update]:
        """The update types that clean tries without a hint, in order."""
        return [update for update in self.updates.usable() if update.automatic]


def _attempt(candidate: Format, source: Source, *, asked: bool) -> list[Extent] | None:
    """`candidate`'s layout of `source`, proven; None when it is not of that format, or odd in any way."""
    try:
        if asked or candidate.matches(source):
            return checked(candidate.layout(source), source.size)
    except FormatError as error:
        _log.debug("not %s: %s", candidate.name, error.message)
    except ThetaError:
        raise  # the source's own failure (a spool that cannot be read) says nothing of the format
    except Exception:  # noqa: BLE001 - a format that stumbles over a hostile file must not make `git add` fail
        _log.warning("format %s failed on a file, which is stored as opaque", candidate.name, exc_info=True)
    return None


@cache
def registry() -> Registry:
    """This process's registry."""
    return Registry(lambda group: entry_points(group=group))


def formats() -> list[Format]:
    """All usable formats, in the order in which content is tried."""
    return registry().formats.usable()


def find_layout(source: Source, override: str | None = None) -> tuple[str, list[Extent]]:
    """See `Registry.find_layout`."""
    return registry().find_layout(source, override)


def update(name: str) -> Update:
    """See `Registry.update`."""
    return registry().update(name)


def automatic_updates() -> list[Update]:
    """See `Registry.automatic_updates`."""
    return registry().automatic_updates()
