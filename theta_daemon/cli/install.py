"""`git theta install` and `uninstall`: tell git about the filter, in one of its configuration files."""

from __future__ import annotations

from typing import Annotated

import typer

from theta_daemon.cli.exits import DONE, USAGE, complain
from theta_daemon.cli.output import say, shown

Local = Annotated[bool, typer.Option("--local", help="Only this repository.")]
Global = Annotated[bool, typer.Option("--global", help="All repositories of this user (the default).")]
System = Annotated[bool, typer.Option("--system", help="All users of this machine.")]


def install(*, local: Local = False, global_: Global = False, system: System = False) -> int:
    """Tell git how checkpoints are stored, read, merged and shown. Doing it again changes nothing.

    In a repository the pre-push hook is written too, beside one that is there; other repositories get it at their first
    `git theta track` or new checkpoint.
    """
    from theta_daemon.cli import setup

    scope = _scope(local=local, global_=global_, system=system)
    if scope is None:
        return USAGE
    outcome = setup.install(setup.Scope(scope))
    hook = "" if outcome.hook is None else f", and the hook {shown(str(outcome.hook))}"
    say(f"{'installed in' if outcome.changed else 'already installed in'} git's {scope} configuration{hook}")
    return DONE


def uninstall(*, local: Local = False, global_: Global = False, system: System = False) -> int:
    """Remove what install wrote, and nothing else. Checkpoints and history stay as they are."""
    from theta_daemon.cli import setup

    scope = _scope(local=local, global_=global_, system=system)
    if scope is None:
        return USAGE
    outcome = setup.uninstall(setup.Scope(scope))
    say(f"{'removed from' if outcome.changed else 'nothing to remove in'} git's {scope} configuration")
    return DONE


def _scope(*, local: bool, global_: bool, system: bool) -> str | None:
    chosen = [name for name, given in (("local", local), ("global", global_), ("system", system)) if given]
    if len(chosen) > 1:
        complain("--local, --global and --system exclude each other")
        return None
    return chosen[0] if chosen else "global"
