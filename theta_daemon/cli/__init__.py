"""`git theta …`: the commands people type, and the ones git runs for its diff and merge drivers.

An edge: with the client and the in-process filter the only code that reads the environment, the cwd and argv, and that
prints. One file a command group; everything heavier than the option parser is imported by the command that needs it.
"""

from __future__ import annotations

import sys

DRIVERS = {
    "textconv": "theta_daemon.cli.textconv",
    "merge-driver": "theta_daemon.cli.merge_driver",
    "pre-push": "theta_daemon.cli.pre_push",
}
"""What git runs by itself, often: no option parser, it would cost more than the work."""


def main() -> int:
    """The executable `git-theta`; its exit status."""
    from theta_daemon.cli.exits import guarded

    arguments = sys.argv[1:]
    if arguments and arguments[0] in DRIVERS:
        from importlib import import_module

        driver = import_module(DRIVERS[arguments[0]])
        return guarded(lambda: int(driver.run(arguments[1:])))
    from theta_daemon.cli.app import run

    return guarded(lambda: run(arguments))
