"""What a person is shown."""

from __future__ import annotations

import pytest

from theta_daemon.complaint import explain, printable
from theta_daemon.errors import MissingObjectError


@pytest.mark.parametrize(
    ("pathname", "shown"),
    [
        (b"models/a b.pt", "models/a b.pt"),
        ("modèle.pt".encode(), "modèle.pt"),
        (b"new\nline", r"new\nline"),
        (b"caf\xe9", r"caf\xe9"),
        (b"\x1b]0;title\x07", r"\x1b]0;title\x07"),
        ("\u202egnp.exe".encode(), r"\u202egnp.exe"),
    ],
)
def test_a_pathname_cannot_play_tricks_on_a_terminal(pathname: bytes, shown: str) -> None:
    """Letters of any script stay; what moves cursors or turns text around is spelled out."""
    assert printable(pathname) == shown


def test_errors_are_told_by_whose_they_are() -> None:
    """Ours on purpose with the remedy, the machine's by their own words, the rest as faults with type and place."""
    assert explain(MissingObjectError("object abc is missing", "git theta fetch")) == (
        "object abc is missing\n  remedy: git theta fetch"
    )
    assert explain(PermissionError(13, "Permission denied", "/store")) == "[Errno 13] Permission denied: '/store'"
    assert explain(MemoryError()).startswith("out of memory\n  remedy:")
    assert explain(KeyError("w")) == "internal error: KeyError: 'w'"
    with pytest.raises(KeyError) as raised:
        raise KeyError("w")
    assert explain(raised.value).startswith("internal error: KeyError: 'w' (test_complaint.py:")
