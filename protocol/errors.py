"""What can go wrong between bytes and events, and whose fault it is (h11's distinction)."""

from __future__ import annotations


class ProtocolError(Exception):
    """The conversation left the protocol. Raise one of the two kinds below, never this one."""


class LocalProtocolError(ProtocolError):
    """This program tried to send what the protocol does not allow now. Nothing was sent."""


class RemoteProtocolError(ProtocolError):
    """The other program sent what the protocol does not allow. The connection cannot be used any more."""


class EndedError(RemoteProtocolError):
    """The other program ended in the middle of the conversation: killed, as a rule."""
