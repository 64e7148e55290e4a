"""`git theta track` and `untrack`: which files are checkpoints, in .gitattributes.

The line is written here; what it does is asked of git, which alone knows macros, folders' own files, later lines and
the attributes outside the work tree. To learn which files a pattern means, git is given the pattern in an attributes file of
our own with a name that nobody else uses.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from theta_daemon.cli import attributes, git
from theta_daemon.cli.exits import DONE, FAILED, complain
from theta_daemon.cli.output import say, say_json, shown
from theta_daemon.errors import ThetaError

FILE = ".gitattributes"

Patterns = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[PATTERN]...", help="As in .gitattributes, for this folder and those below. Quote it for the shell."
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")]


@dataclass(frozen=True, slots=True)
class WorkTree:
    """Where the command was given: the work tree's top, the folder below it, and every file git may know of."""

    top: Path
    folder: bytes
    tracked: tuple[bytes, ...]
    untracked: tuple[bytes, ...]

    @classmethod
    def here(cls) -> WorkTree:
        top, folder = git.top_level(), git.prefix()
        tracked = git.fields(git.ask("-C", top, "ls-files", "-z", "--cached"))
        untracked = git.fields(git.ask("-C", top, "ls-files", "-z", "--others", "--exclude-standard"))
        return cls(top, folder, tuple(dict.fromkeys(tracked)), tuple(untracked))

    @property
    def file(self) -> Path:
        """The .gitattributes file of the folder."""
        return self.top / os.fsdecode(self.folder) / FILE

    def filters(self, paths: Iterable[bytes]) -> dict[bytes, str]:
        """The filter that git uses for each of `paths`."""
        return {path: value for path, _, value in git.attributes(paths, "filter")}

    def matches(self, pattern: bytes) -> list[bytes]:
        """The files that `pattern` means in this folder; a made-up path where there is none, for asking about it."""
        at_top = attributes.below(self.folder, attributes.normalised(pattern))
        made_up = attributes.example(at_top)
        candidates = [*self.tracked, *self.untracked, *([] if made_up is None else [made_up])]
        with _probe(at_top) as option:
            found = git.attributes(dict.fromkeys(candidates), _PROBE, options=option)
            matching = [path for path, _, value in found if value == "set"]
        real = [path for path in matching if path != made_up or path in self.tracked or path in self.untracked]
        return real or matching


@dataclass(slots=True)
class Effect:
    """What became of one pattern."""

    pattern: str
    file: str
    changed: bool
    matches: int = 0
    elsewhere: dict[str, str] = field(default_factory=dict)
    """Paths of the pattern for which git uses another filter than the command wants, and that filter."""
    renormalize: list[str] = field(default_factory=list)
    """Committed paths whose filter changed: git sees no change in them until they are added with --renormalize."""

    def json(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def track(patterns: Patterns = None, *, json: Json = False) -> int:
    """Treat files as checkpoints; without a PATTERN, list what is tracked.

    Writes one line a pattern to the .gitattributes of this folder and asks git whether it takes effect.
    """
    if not patterns:
        return _list(json=json)
    effects = [_change(os.fsencode(pattern), wanted=True) for pattern in patterns]
    _ensure_hook()
    if json:
        say_json([effect.json() for effect in effects])
    for effect in effects:
        if not json:
            verb = "tracking" if effect.changed else "already tracked:"
            say(f"{verb} {shown(effect.pattern)} in {shown(effect.file)}")
        if effect.elsewhere:
            path, other = next(iter(effect.elsewhere.items()))
            complain(
                f"warning: {shown(effect.pattern)} has no effect on {len(effect.elsewhere)} of its files: git uses "
                f"{_filter_name(other)} for {shown(path)}\n  remedy: another line overrides it; put the line of git theta after that one"
            )
        if effect.renormalize:
            complain(
                f"{len(effect.renormalize)} committed file(s) match {shown(effect.pattern)}; to store them as checkpoints: "
                "git add --renormalize ."
            )
    return DONE


def _ensure_hook() -> None:
    from theta_daemon.cli.caller import caller
    from theta_daemon.history.repository import Repository
    from theta_daemon.upkeep.hook import ensure

    ensure(Repository.discover(caller()), complain)


def untrack(
    patterns: Annotated[list[str], typer.Argument(metavar="PATTERN...", help="As it was tracked.")],
    *,
    json: Json = False,
) -> int:
    """Remove the lines that `git theta track` wrote for PATTERN in this folder. Files and history stay as they are."""
    effects = [_change(os.fsencode(pattern), wanted=False) for pattern in patterns]
    if json:
        say_json([effect.json() for effect in effects])
    for effect in effects:
        if not effect.changed:
            complain(
                f"{shown(effect.file)} has no line of git theta for {shown(effect.pattern)}\n  remedy: git theta track lists them"
            )
        elif not json:
            say(f"no longer tracking {shown(effect.pattern)} in {shown(effect.file)}")
        if effect.changed and effect.elsewhere:
            complain(
                f"warning: another line still makes checkpoints of {len(effect.elsewhere)} file(s) of {shown(effect.pattern)}: "
                f"{shown(next(iter(effect.elsewhere)))}"
            )
        if effect.renormalize:
            complain(
                f"{len(effect.renormalize)} committed file(s) match {shown(effect.pattern)}; to store them in git itself: "
                "git add --renormalize ."
            )
    return DONE if all(effect.changed for effect in effects) else FAILED


def _change(pattern: bytes, *, wanted: bool) -> Effect:
    """Add or remove one pattern's line and ask git what came of it."""
    text = attributes.line(pattern)
    tree = WorkTree.here()
    matching = tree.matches(pattern)
    before = tree.filters(matching)
    old = _read(tree.file)
    new = attributes.with_line(old, text) if wanted else attributes.without_line(old, text)
    if new != old:
        _write(tree.file, new)
    after = tree.filters(matching)
    committed = set(tree.tracked)
    turned = [path for path in matching if path in committed and (before[path] == "theta") != (after[path] == "theta")]
    elsewhere = {os.fsdecode(path): value for path, value in after.items() if (value == "theta") != wanted}
    file = os.fsdecode(tree.folder) + FILE
    return Effect(
        os.fsdecode(pattern), file, new != old, len(matching), elsewhere, [os.fsdecode(path) for path in turned]
    )


def _list(*, json: bool) -> int:
    tree = WorkTree.here()
    known = [*tree.tracked, *tree.untracked]
    lines = [
        (os.fsdecode(pattern), os.fsdecode(path))
        for path in known
        if path == FILE.encode() or path.endswith(b"/" + FILE.encode())
        for pattern in attributes.tracked_patterns(_read(tree.top / os.fsdecode(path)))
    ]
    files = [os.fsdecode(path) for path, value in tree.filters(known).items() if value == "theta"]
    if json:
        say_json({"patterns": [{"pattern": pattern, "file": file} for pattern, file in lines], "files": files})
        return DONE
    for pattern, file in lines:
        say(f"{shown(pattern)} ({shown(file)})")
    if not lines:
        say("no pattern is tracked")
    if files:
        say(f"files: {len(files)}")
    return DONE


_PROBE = "theta-track-probe"


@contextmanager
def _probe(pattern: bytes) -> Iterator[tuple[str, ...]]:
    """Options for git under which just the files of `pattern` have the attribute `_PROBE`."""
    with tempfile.NamedTemporaryFile(prefix="theta-track-") as file:
        file.write(attributes.quoted(pattern) + b" " + _PROBE.encode() + b"\n")
        file.flush()
        yield "-c", f"core.attributesFile={file.name}"


def _filter_name(value: str) -> str:
    return "no filter" if value in {"unspecified", "unset"} else f"the filter {value}"


def _read(file: Path) -> bytes:
    if file.is_symlink():
        raise ThetaError(f"{shown(str(file))} is a symbolic link, which git does not follow", "replace it by a file")
    try:
        return file.read_bytes()
    except FileNotFoundError:
        return b""
    except OSError as error:
        raise ThetaError(f"{shown(str(file))} cannot be read: {error.strerror}") from error


def _write(file: Path, content: bytes) -> None:
    """Replace `file` at once and whole, with the mode it had; a file that became empty goes."""
    try:
        if not content:
            file.unlink()
            return
        mode = file.stat().st_mode & 0o777 if file.exists() else None
        scratch = file.with_name(f"{FILE}.theta-{os.getpid()}")
        try:
            scratch.write_bytes(content)
            if mode is not None:
                scratch.chmod(mode)
            scratch.replace(file)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise ThetaError(f"{shown(str(file))} cannot be written: {error.strerror}") from error
