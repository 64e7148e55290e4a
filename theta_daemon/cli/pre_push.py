"""`git theta pre-push REMOTE URL`: what the hook runs, with git's lines on stdin. Objects first, then git pushes the refs.

Nothing is said when nothing is to be done: the hook may be in every repository of its user.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from theta_daemon.cli.caller import STDERR, caller
from theta_daemon.cli.exits import DONE, USAGE, complain
from theta_daemon.cli.output import shown
from theta_daemon.errors import ThetaError


def run(arguments: list[str]) -> int:
    """Push the objects; the exit status, on which git goes on or not."""
    if not 1 <= len(arguments) <= 2:
        complain("usage: git theta pre-push REMOTE [URL] < lines that git gives the pre-push hook")
        return USAGE
    tips, there = _lines(sys.stdin.buffer.read())
    if not tips:
        return DONE
    from theta_daemon.depot import Depot
    from theta_daemon.upkeep import push

    who = caller()
    # git runs hooks with its own view of the repository, and children must not be told about refs that are not there yet.
    who = replace(who, env={name: value for name, value in who.env.items() if name != "GIT_QUARANTINE_PATH"})
    name, url = arguments[0], arguments[1] if len(arguments) == 2 else None
    with Depot.open(who, STDERR) as depot:
        try:
            done = push.run(depot, push.Push(name, tips, there, url))
        except ThetaError as error:
            raise error.within("pre-push") from error
    for path, problem in done.needs.damaged.items():
        complain(f"warning: {shown(path)} looks like a pointer, but is damaged: {problem}")
    if done.left_out:
        complain(f"warning: {len(done.left_out)} objects are left out: {done.needs.named(done.left_out)}")
    return DONE


def _lines(given: bytes) -> tuple[list[str], list[str]]:
    """What is pushed, and what the remote has in its place: lines `<local ref> <local id> <remote ref> <remote id>`."""
    tips, there = [], []
    for line in given.splitlines():
        fields = line.decode(errors="surrogateescape").split(" ")
        if len(fields) < 4:
            raise ThetaError(f"pre-push: this is no line of git's: {line!r}")
        tips.append(fields[-3])
        there.append(fields[-1])
    return [tip for tip in tips if tip.strip("0")], [old for old in there if old.strip("0")]
