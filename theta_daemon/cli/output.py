"""What commands print on stdout: plain lines, tables for people, JSON for scripts.

Names come from strangers: control characters and bytes that are no UTF-8 are shown as git shows them, in C quotes, so that
no file name can steer a terminal.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

_UNITS: Final = ("B", "kB", "MB", "GB", "TB", "PB")
_PIPE_COLUMNS: Final = 1 << 14
"""Width of a table that no terminal shows: nothing is folded or cut in a pipe."""


def shown(name: bytes | str) -> str:
    """`name` for a person: as it is where it is printable, else in quotes with C escapes."""
    raw = os.fsencode(name) if isinstance(name, str) else name
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None and text.isprintable() and not text.startswith('"'):
        return text
    escaped = "".join(
        f"\\{chr(byte)}" if byte in b'"\\' else chr(byte) if 0x20 <= byte < 0x7F else f"\\{byte:03o}" for byte in raw
    )
    return f'"{escaped}"'


def size(nbytes: int) -> str:
    """`nbytes` in decimal units with three significant digits."""
    amount, unit = float(nbytes), 0
    while amount >= 999.5 and unit < len(_UNITS) - 1:
        amount /= 1000
        unit += 1
    return f"{nbytes} B" if unit == 0 else f"{amount:.3g} {_UNITS[unit]}"


def percent(part: int, whole: int) -> str:
    """`part` of `whole`; a dash when there is no whole."""
    return f"{100 * part / whole:.1f} %" if whole else "-"


def say(*lines: str) -> None:
    """Plain lines on stdout."""
    for text in lines:
        sys.stdout.buffer.write(text.encode("utf-8", "surrogateescape") + b"\n")


def say_json(value: Any) -> None:
    """One JSON document on stdout, ASCII only, so that any bytes of a name survive."""
    say(json.dumps(value, indent=2))


def table(
    columns: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[str] = (), total: bool = False
) -> None:
    """A table on stdout; columns named in `right` are numbers. With `total` the last row is a sum."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=_PIPE_COLUMNS)
    drawn = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    numbers = set(right)
    for column in columns:
        drawn.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    listed = list(rows)
    for at, row in enumerate(listed):
        drawn.add_row(*(Text(cell) for cell in row), end_section=total and at == len(listed) - 2)
    sys.stdout.flush()
    console.print(drawn)
