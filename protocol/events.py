"""What is said in git's filter protocol, as values. Both roles use the same ones: what one sends, the other receives.

Pathnames are raw bytes, relative to the top of the work tree, with any byte but NUL in them: blanks, "=", newlines,
bytes that are not UTF-8. The views in `Data` live only until the next `receive_data`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from protocol.pktline import Buffer


class Role(Enum):
    """Who speaks. The value is the name in the greeting."""

    GIT = b"git-filter-client"
    FILTER = b"git-filter-server"


class Command(Enum):
    """What git can ask of a file. The value is the word on the wire and the capability's name."""

    CLEAN = b"clean"
    SMUDGE = b"smudge"


DELAY = b"delay"
"""The capability to answer `delayed` and to be asked for the list of available blobs."""

EVERYTHING = frozenset({Command.CLEAN.value, Command.SMUDGE.value, DELAY})
"""Every capability that this package knows."""


class Status(Enum):
    """How a filter judges. The value is the word on the wire."""

    SUCCESS = b"success"
    ERROR = b"error"
    ABORT = b"abort"
    DELAYED = b"delayed"


@dataclass(frozen=True, slots=True)
class Greeting:
    """First words: the role of the speaker and the protocol versions it speaks (only 2 exists)."""

    role: Role
    versions: frozenset[int] = frozenset({2})


@dataclass(frozen=True, slots=True)
class Capabilities:
    """git's offer, then the filter's choice among what was offered."""

    names: frozenset[bytes] = EVERYTHING


@dataclass(frozen=True, slots=True)
class Request:
    """git wants `pathname` filtered; the content follows as Data and EndOfContent.

    `ref`, `treeish` and `blob` are what git cared to tell (for most commands nothing but `blob`, for clean nothing at
    all); ids are lower-case hex. `can_delay` allows the answer `delayed`.
    """

    command: Command
    pathname: bytes
    ref: bytes | None = None
    treeish: str | None = None
    blob: str | None = None
    can_delay: bool = False


@dataclass(frozen=True, slots=True)
class ListAvailable:
    """git has sent all its requests and waits for delayed ones to be ready."""


@dataclass(frozen=True, slots=True)
class Data:
    """A piece of content, of any size: pieces are not packets."""

    data: Buffer


@dataclass(frozen=True, slots=True)
class EndOfContent:
    """The content is complete."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The filter's judgement of a request, where content follows after SUCCESS only, or of a list it just gave."""

    status: Status


@dataclass(frozen=True, slots=True)
class Verdict:
    """The filter's last judgement, after content. None is the empty list: the first one stands."""

    status: Status | None = None


@dataclass(frozen=True, slots=True)
class Available:
    """Delayed pathnames that git may ask for now; none at all means that every one was given back."""

    pathnames: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Closed:
    """git has nothing more to ask. Only git says this, by closing its pipe."""


Event = Greeting | Capabilities | Request | ListAvailable | Data | EndOfContent | Answer | Verdict | Available | Closed
