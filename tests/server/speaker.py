"""A client by hand: says to a daemon what the thin client would, or would not."""

from __future__ import annotations

import array
import os
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from protocol import control
from theta_daemon import runtime


class Speaker:
    """One connection to the daemon of a place. `conversation` keeps it in step; `raw` does not."""

    def __init__(self, place: runtime.Place) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(20)
        try:
            self.socket.connect(place.socket)
        except OSError:
            self.socket.close()
            raise
        self.talk = control.Conversation(control.CLIENT)

    def hello(self, folder: Path, env: dict[str, str] | None = None, /, **changes: bytes) -> control.Message:
        """Greet as a client in `folder`, with `changes` to its fields; the answer."""
        here = folder.stat()
        fields = {
            "version": b"%d" % control.VERSION,
            "build": runtime.build_id(sys.executable).encode(),
            "cwd": os.fsencode(folder),
            "dev": b"%d" % here.st_dev,
            "ino": b"%d" % here.st_ino,
            "umask": b"18",
            "pid": b"1",
        }
        pairs = [*{**fields, **changes}.items()]
        pairs += [("env", os.fsencode(f"{name}={value}")) for name, value in (env or {}).items()]
        self.socket.sendall(self.talk.send(control.HELLO, pairs))
        return self.receive()

    def descriptors(self, numbers: Sequence[int]) -> control.Message:
        """Pass these; the answer."""
        self.pass_descriptors(numbers)
        return self.receive()

    def pass_descriptors(self, numbers: Sequence[int]) -> None:
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", numbers))] if numbers else []
        self.socket.sendmsg([self.talk.send(control.DESCRIPTORS)], rights)

    def receive(self) -> control.Message:
        """The daemon's next message. Raises EOFError."""
        while (message := self.talk.next_message()) is None:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError
            self.talk.receive_data(data)
        return message

    def ask(self, kind: str) -> control.Message:
        """An administrator's question; the answer."""
        self.socket.sendall(self.talk.send(kind))
        return self.receive()

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *reason: object) -> None:
        self.close()
