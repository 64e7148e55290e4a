"""What may follow what in git's filter protocol: one table for both roles.

The protocol is a strict alternation, so one state serves the whole conversation, and each state belongs to one role:
the one whose turn it is. Content may be followed by an empty verdict, a list of pathnames may not: git asks for an explicit `success` there.
Either end keeps its own copy; both move through the same table, one by what it sends and the
other by what it receives.

    GREETING  git's greeting            ─► GREETED   filter's greeting
    OFFERING  git's capabilities        ─► OFFERED   filter's capabilities ─► IDLE
    IDLE      Request                   ─► PAYLOAD   Data…, EndOfContent
                                        ─► ANSWERING Answer: error, abort, delayed ─► IDLE
                                                     Answer: success ─► CONTENT Data…, EndOfContent
                                                                     ─► JUDGING Verdict ─► IDLE
              ListAvailable             ─► LISTING   Available ─► LISTED Answer: success, error, abort ─► IDLE
              Closed                    ─► CLOSED

What depends on more than the state (a capability nobody offered, `delayed` where git cannot wait) is the connection's
to check. An error leaves the table: the connection is FAILED and stays it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Final

from protocol.events import (
    Answer,
    Available,
    Capabilities,
    Closed,
    Data,
    EndOfContent,
    Event,
    Greeting,
    ListAvailable,
    Request,
    Role,
    Status,
    Verdict,
)


class State(Enum):
    """Where the conversation is; named after what is due."""

    GREETING = "git's greeting"
    GREETED = "the filter's greeting"
    OFFERING = "git's capabilities"
    OFFERED = "the filter's capabilities"
    IDLE = "a request"
    PAYLOAD = "a request's content"
    ANSWERING = "an answer"
    CONTENT = "an answer's content"
    LISTING = "the available pathnames"
    JUDGING = "a verdict"
    LISTED = "an answer after the pathnames"
    CLOSED = "nothing, it is over"
    FAILED = "nothing, it failed"


Step = type[Event] | Status
"""What moves the conversation: a kind of event, or the status of an Answer."""

TABLE: Final[Mapping[State, Mapping[Step, State]]] = {
    State.GREETING: {Greeting: State.GREETED},
    State.GREETED: {Greeting: State.OFFERING},
    State.OFFERING: {Capabilities: State.OFFERED},
    State.OFFERED: {Capabilities: State.IDLE},
    State.IDLE: {Request: State.PAYLOAD, ListAvailable: State.LISTING, Closed: State.CLOSED},
    State.PAYLOAD: {Data: State.PAYLOAD, EndOfContent: State.ANSWERING},
    State.ANSWERING: {
        Status.SUCCESS: State.CONTENT,
        Status.ERROR: State.IDLE,
        Status.ABORT: State.IDLE,
        Status.DELAYED: State.IDLE,
    },
    State.CONTENT: {Data: State.CONTENT, EndOfContent: State.JUDGING},
    State.JUDGING: {Verdict: State.IDLE},
    State.LISTING: {Available: State.LISTED},
    State.LISTED: {Status.SUCCESS: State.IDLE, Status.ERROR: State.IDLE, Status.ABORT: State.IDLE},
    State.CLOSED: {},
    State.FAILED: {},
}

TURN: Final[Mapping[State, Role | None]] = {
    State.GREETING: Role.GIT,
    State.GREETED: Role.FILTER,
    State.OFFERING: Role.GIT,
    State.OFFERED: Role.FILTER,
    State.IDLE: Role.GIT,
    State.PAYLOAD: Role.GIT,
    State.ANSWERING: Role.FILTER,
    State.CONTENT: Role.FILTER,
    State.JUDGING: Role.FILTER,
    State.LISTING: Role.FILTER,
    State.LISTED: Role.FILTER,
    State.CLOSED: None,
    State.FAILED: None,
}


def step(event: Event) -> Step:
    """The table's column for `event`."""
    return event.status if isinstance(event, Answer) else type(event)


def follow(state: State, event: Event) -> State | None:
    """The state after `event`; None when the protocol does not allow it there."""
    return TABLE[state].get(step(event))
