"""The errors that this package raises on purpose, each with the remedy a person can try.

A message names what went wrong, and where it is known the file, the parameter and the object; the hint says what to do.
Only the edges print them (see `describe`). Ground layer: imports nothing of this package.
"""

from __future__ import annotations

from typing import Final

DAMAGED: Final = "an object is damaged: run `git theta fsck --repair`, or remove the object and fetch it again with `git theta fetch`"
"""The remedy for bytes that are not what they should be, unless who finds them knows a better one."""


_SHOWN_CHARACTERS: Final = 4000


def steady(text: str) -> str:
    """`text` for a terminal: lines without control characters, whatever names from strangers are in it, and not endless."""
    if len(text) > _SHOWN_CHARACTERS:
        text = f"{text[:_SHOWN_CHARACTERS]} …"
    return "".join(char if char.isprintable() or char == "\n" else ascii(char)[1:-1] for char in text)


class ThetaError(Exception):
    """What went wrong, and what to do about it. Every error of this package derives from it."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def within(self, context: str) -> ThetaError:
        """The same kind of error with `context` (a file, a parameter) named in front."""
        return type(self)(f"{context}: {self.message}", self.hint)

    def describe(self) -> str:
        """One or two lines for a person."""
        message = steady(self.message)
        return message if self.hint is None else f"{message}\n  remedy: {steady(self.hint)}"


class PointerError(ThetaError):
    """A pointer that is malformed or contradicts itself; the message names the field."""


class RecordError(ThetaError):
    """A record or an object whose bytes do not say what they should: truncated, out of range, too large."""

    def __init__(self, message: str, hint: str | None = DAMAGED) -> None:
        super().__init__(message, hint)


class MissingObjectError(ThetaError):
    """An object that neither the local store nor a remote could give."""


class MissingHistoryError(ThetaError):
    """A previous value that neither git's history nor the lineage could give."""


class DigestError(ThetaError):
    """Rebuilt bytes whose digest is not the recorded one. They are never handed out."""

    def __init__(self, message: str, hint: str | None = DAMAGED) -> None:
        super().__init__(message, hint)


class FormatError(ThetaError):
    """A file that a format plug-in cannot lay out. Clean treats it as opaque; it never reaches a user."""


class StoreError(ThetaError):
    """The object store could not be read or written: no space, no permission."""


class HintError(ThetaError):
    """A hint of the user that cannot be followed: unknown type, missing file."""


class PluginError(ThetaError):
    """An installed plug-in that cannot be loaded or breaks its promises; the message names it."""


class ConfigError(ThetaError):
    """A setting whose value cannot be understood; the message names the key."""


class RepositoryError(ThetaError):
    """No repository here, or one that cannot be opened."""


class RemoteError(ThetaError):
    """A transfer that did not succeed."""
