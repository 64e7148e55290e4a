"""Values of settings as git spells them: booleans, integers with k, m or g, paths. Ground layer; no git is asked."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

_MAX_INTEGER: Final = (1 << 63) - 1


def parse_boolean(text: str) -> bool:
    """A boolean as git spells it. Raises ValueError."""
    lower = text.lower()
    if lower in ("true", "yes", "on"):
        return True
    if lower in ("false", "no", "off", ""):
        return False
    try:
        return parse_integer(text) != 0
    except ValueError:
        raise ValueError("is not a boolean") from None


def parse_integer(text: str) -> int:
    """An integer as git spells it: k, m or g at its end multiply by 1024 and its powers. Raises ValueError."""
    number, factor = text.strip(), 1
    if number and number[-1].lower() in "kmg":
        factor = 1024 ** ("kmg".index(number[-1].lower()) + 1)
        number = number[:-1]
    if not number.isascii() or not number.removeprefix("-").isdigit():
        raise ValueError("is not a number, or not one with k, m or g")
    value = int(number) * factor
    if abs(value) > _MAX_INTEGER:
        raise ValueError("is out of range")
    return value


def absolute(text: str, env: Mapping[str, str], base: Path | None) -> Path | None:
    """A path with `~/` expanded by the caller's HOME, a relative one taken from `base`; None for an empty text.

    Raises ValueError when HOME or `base` is needed and not there.
    """
    if not text:
        return None
    if text == "~" or text.startswith("~/"):
        if not env.get("HOME"):
            raise ValueError("needs HOME, which is not set")
        return Path(env["HOME"]) / text[2:]
    path = Path(text)
    if path.is_absolute():
        return path
    if base is None:
        raise ValueError("is a relative path, which means nothing here")
    return base / path
