"""How much JSON from a stranger may hold, counted before it is parsed.

A parser makes an object of every two bytes and an error of each of them: a megabyte of text can cost gigabytes and minutes.
Counting brackets, commas and colons costs nothing, and bounds both. Those inside strings are counted too, so who writes such text
must stay below the same bounds.

Ground layer: knows nothing of what the text means.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

MAX_BRACKETS: Final = 512 << 10
MAX_COMMAS: Final = 2 << 20
MAX_FIELDS: Final = 1 << 20

_FEW_ERRORS: Final = 64
"""So many are worth making a list of to tell the first."""


def too_much(text: bytes, *, brackets: int = MAX_BRACKETS, commas: int = MAX_COMMAS) -> bool:
    """Whether `text` holds more than any that is meant well."""
    return any(
        len(text) > limit and sum(map(text.count, marks)) > limit  # what is shorter needs no count
        for marks, limit in (((b"[", b"{"), brackets), ((b",",), commas), ((b":",), MAX_FIELDS))
    )


def first_error(error: ValidationError) -> tuple[str, str, str]:
    """Where the first thing that is wrong stands, what it is in words, and its kind."""
    if error.error_count() > _FEW_ERRORS:
        return "the whole", f"{error.error_count()} errors", "many"
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(ascii(part)[1:-1] if isinstance(part, str) else str(part) for part in first["loc"])
    return where or "the whole", first["msg"], first["type"]
