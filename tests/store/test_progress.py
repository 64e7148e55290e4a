"""Progress: on a real terminal after a second, elsewhere silence."""

from __future__ import annotations

import os
import pty
import time

import pytest

from theta_daemon.store.remote.progress import TerminalProgress, human


def test_a_terminal_sees_progress_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing for a short transfer; a line that is redrawn, and ended, for a long one."""
    primary, secondary = pty.openpty()
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    with TerminalProgress(secondary, "Fetching", {"a": 600, "b": 400}) as quick:
        quick(1, 600)
        clock[0] += 0.5
        quick(1, 400)
    with TerminalProgress(secondary, "Fetching", {"a": 3 << 20, "b": 1 << 20}) as slow:
        clock[0] += 2
        slow(1, 3 << 20)
        slow(1, 1 << 20)  # too soon to redraw
    shown = ""
    while not shown.endswith("\n"):  # a terminal gives what it has, in any pieces
        shown += os.read(primary, 4096).decode()
    os.close(primary)
    os.close(secondary)
    assert shown == (
        "\rFetching:  75 % (1/2 objects, 3 MiB of 4 MiB)\x1b[K\rFetching: 100 % (2/2 objects, 4 MiB of 4 MiB)\x1b[K\r\n"
    )


def test_what_is_no_terminal_sees_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pipes and nobody at all get no progress."""
    reader, writer = os.pipe()
    clock = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    for fd in (writer, None):
        with TerminalProgress(fd, "Fetching", {"a": 10}) as progress:
            clock[0] += 5
            progress(1, 10)
    os.close(writer)
    assert os.read(reader, 100) == b""
    os.close(reader)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "0.977 KiB"),
        (90 << 20, "90 MiB"),
        (5 << 30, "5 GiB"),
        (1 << 60, "1.05e+06 TiB"),
    ],
)
def test_bytes_for_people(nbytes: int, text: str) -> None:
    """Sizes have three digits and a unit."""
    assert human(nbytes) == text
