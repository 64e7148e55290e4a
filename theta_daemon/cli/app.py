"""The option parser of `git theta`: which command is where. Nothing heavier than typer is imported here."""

from __future__ import annotations

import sys
from typing import Annotated, NoReturn

import typer

from theta_daemon.cli import (
    add,
    cat,
    daemon,
    fetch,
    fsck,
    init_checkpoint,
    inspect,
    install,
    migrate,
    prune,
    push,
    squash,
    status,
    track,
    warm,
)
from theta_daemon.cli.exits import EPILOGUE
from theta_daemon.cli.output import say


def _end(status: int, **_options: object) -> NoReturn:
    """What a command returns is the exit status."""
    sys.stdout.flush()  # here, where the parser still looks after a reader that went away
    raise typer.Exit(status)


app = typer.Typer(
    name="git theta",
    help="Checkpoints of machine-learning models in git: byte for byte, stored as small updates.",
    epilog=EPILOGUE,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    result_callback=_end,
)


def _version(asked: bool) -> None:  # noqa: FBT001 - the parser calls it
    if asked:
        from theta_daemon import __version__

        say(f"git-theta {__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Options before the command."""


for command in (
    install.install,
    install.uninstall,
    track.track,
    track.untrack,
    status.status,
    inspect.show,
    cat.cat,
    fetch.fetch,
    fetch.pull,
    push.push,
    prune.prune,
    fsck.fsck,
    warm.warm,
    init_checkpoint.init_checkpoint,
    squash.squash,
):
    app.command(epilog=EPILOGUE)(command)
app.command(epilog=EPILOGUE, context_settings={"ignore_unknown_options": True, "help_option_names": ["--help"]})(
    add.add
)
app.command("ls-files", epilog=EPILOGUE)(inspect.ls_files)
app.add_typer(daemon.app)
app.add_typer(migrate.app)


def run(arguments: list[str]) -> NoReturn:
    """Run one command line and exit with its status. ThetaErrors are the caller's to print."""
    if arguments[:1] == ["add"] and "--" in arguments:
        # the parser takes one for itself, and git needs it
        arguments = [*arguments[: arguments.index("--")], "--", *arguments[arguments.index("--") :]]
    app(args=arguments, prog_name="git theta")
    raise AssertionError("the option parser exits")
