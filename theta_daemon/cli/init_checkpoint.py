"""`git theta init-checkpoint`: the first checkpoint of a run from scratch, of which git will store no values."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from theta_daemon.cli.exits import DONE


def init_checkpoint(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A TOML or JSON file, see docs/recipes.md.")],
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The safetensors file to write, whole or not at all.")
    ],
) -> int:
    """Make a checkpoint whose parameters are initialised as RECIPE says: the same bits on every machine.

    It carries the recipe, so that `git add` stores generators and seeds instead of values.
    """
    from concurrent.futures import ThreadPoolExecutor

    from theta_daemon.cli.caller import STDERR
    from theta_daemon.cli.destination import destination
    from theta_daemon.filters.initialise import checkpoint, tensors
    from theta_daemon.filters.recipe import Document
    from theta_daemon.registry import registry
    from theta_daemon.settings import usable_cpus
    from theta_daemon.store.remote.progress import TerminalProgress

    document = Document.read(recipe)
    specs = tensors(document, recipe.absolute().parent, registry())
    nbytes = sum(spec.nbytes for spec in specs.values())
    with (
        ThreadPoolExecutor(usable_cpus()) as pool,
        TerminalProgress(STDERR, "Initialising", {str(output): nbytes}) as progress,
    ):
        pieces = checkpoint(document, specs, registry(), pool)
        first = next(pieces)  # mistakes come to light before the file is made
        with destination(output) as (_, write):
            write(first)
            for piece in pieces:
                write(piece)
                progress(0, len(piece))
    return DONE
