"""`git theta migrate import`: files that git or git-lfs stores become checkpoints, from now on or in all of history."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from theta_daemon.cli import attributes, git
from theta_daemon.cli.caller import STDERR
from theta_daemon.cli.exits import DONE, EPILOGUE
from theta_daemon.cli.output import percent, say, say_json, shown, size
from theta_daemon.cli.progress import Counted
from theta_daemon.errors import RepositoryError, ThetaError

if TYPE_CHECKING:
    from theta_daemon.filters.workspace import Workspace

BACKUP: Final = "refs/theta-backup"
_PROBE: Final = "theta-migrate-probe"
_LFS_LINES: Final = (b" filter=lfs diff=lfs merge=lfs -text", b" filter=lfs diff=lfs merge=lfs")

app = typer.Typer(name="migrate", help="Turn files of git or git-lfs into checkpoints.", no_args_is_help=True)


@app.callback()
def migrate() -> None:
    """Turn files of git or git-lfs into checkpoints."""


@app.command("import", epilog=EPILOGUE)
def import_(
    patterns: Annotated[list[str], typer.Argument(metavar="PATTERN...", help="As in .gitattributes at the top.")],
    *,
    history: Annotated[
        bool, typer.Option("--history", help="Rewrite all branches and tags; the old ones are kept as backups.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", "-n", help="Only tell the sizes before and after.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON for scripts.")] = False,
) -> int:
    """Store the files of PATTERN as checkpoints: in the index and the work tree, or with --history in every commit.

    Raw files and git-lfs pointers are converted, whose objects are fetched first. Your edits stay as they are. With
    --history commits get new ids; what the refs were is kept in refs/theta-backup, and nothing is deleted.
    """
    wanted = [os.fsencode(pattern) for pattern in patterns]
    lines = [attributes.line(pattern) for pattern in wanted]  # what is no pattern is said before anything is done
    git.ask("rev-parse", "--git-dir")
    with _workspace(dry_run=dry_run) as workspace, Counted(STDERR, "Rewriting") as progress:
        before_ids = set(workspace.store.ids())
        if history:
            told = _rewrite(workspace, wanted, lines, progress, dry_run=dry_run)
        else:
            told = _index(workspace, wanted, lines, dry_run=dry_run)
        packs = [oid for oid in workspace.store.ids() if oid not in before_ids]
        told["after"] += sum(workspace.store.path(oid).stat().st_size for oid in packs)
    if json:
        say_json(told | {"dry_run": dry_run})
        return DONE
    verb = "would become" if dry_run else "became"
    say(
        f"{told['files']} file versions {verb} checkpoints: {size(told['before'])} before, {size(told['after'])} after "
        f"({percent(told['after'], told['before'])})"
    )
    if history:
        say(
            f"{told['commits']} commits {'would be ' if dry_run else ''}rewritten"
            + ("" if dry_run or not told["backup"] else f"; the old refs are in {told['backup']}")
        )
    return DONE


@contextmanager
def _workspace(*, dry_run: bool) -> Iterator[Workspace]:
    """The means; in a dry run all that is made, git's objects and ours, goes to a folder that is deleted afterwards."""
    from theta_daemon.cli.filtering import filtering
    from theta_daemon.store.lfs import LfsStore
    from theta_daemon.store.pack import Packs

    if not dry_run:
        with filtering() as one:
            yield one.workspace
        return
    common = Path.cwd() / os.fsdecode(git.ask("rev-parse", "--git-common-dir").removesuffix(b"\n"))
    folder = Path(tempfile.mkdtemp(prefix="theta-migrate-", dir=common))
    (folder / "objects").mkdir()
    own = os.environ.get("GIT_OBJECT_DIRECTORY") or str(common / "objects")
    others = [own, os.environ.get("GIT_ALTERNATE_OBJECT_DIRECTORIES", "")]
    env = {
        "GIT_OBJECT_DIRECTORY": str(folder / "objects"),
        "GIT_ALTERNATE_OBJECT_DIRECTORIES": os.pathsep.join(filter(None, others)),
    }
    try:
        with filtering(env=env) as one:
            real = one.workspace.store.settings()
            made = {"root": str(folder / "lfs" / "objects"), "alternates": [real["root"], *real["alternates"]]}
            store = LfsStore.from_settings(real | made)
            packs = Packs(store)
            try:
                machinery = replace(one.workspace.machinery, records=packs)
                yield replace(one.workspace, store=store, machinery=machinery)
            finally:
                packs.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _matching(patterns: Sequence[bytes], paths: Sequence[bytes]) -> set[bytes]:
    """Those of `paths` that the patterns mean, as git says."""
    with tempfile.NamedTemporaryFile(prefix="theta-migrate-") as file:
        for pattern in patterns:
            file.write(attributes.quoted(attributes.normalised(pattern)) + b" " + _PROBE.encode() + b"\n")
        file.flush()
        found = git.attributes(paths, _PROBE, options=("-c", f"core.attributesFile={file.name}"))
        return {path for path, _, value in found if value == "set"}


def _with_lines(text: bytes, patterns: Sequence[bytes], lines: Sequence[bytes]) -> bytes:
    """The attributes file with our lines, and without git-lfs's for the same patterns."""
    for pattern in patterns:
        for ending in _LFS_LINES:
            text = attributes.without_line(text, attributes.quoted(attributes.normalised(pattern)) + ending)
    for line in lines:
        text = attributes.with_line(text, line)
    return text


def _index(workspace: Workspace, patterns: Sequence[bytes], lines: Sequence[bytes], *, dry_run: bool) -> dict[str, Any]:
    from theta_daemon.upkeep.convert import Converter

    top = git.top_level()
    entries: dict[bytes, tuple[bytes, str]] = {}
    for item in git.fields(git.ask("-C", top, "ls-files", "-s", "-z")):
        head, _, path = item.partition(b"\t")
        mode, blob, stage = head.split()
        if mode.startswith(b"100") and stage == b"0":
            entries[path] = mode, blob.decode()
    paths = sorted(_matching(patterns, list(entries)))
    converter = Converter(workspace)
    converter.fetch_lfs({entries[path][1]: path for path in paths})
    made: dict[bytes, str] = {}
    for path in paths:
        new = converter.convert(path, entries[path][1], workspace.history.head_entry(path))
        if new is not None:
            made[path] = new
    if not dry_run:
        file = top / ".gitattributes"
        old = file.read_bytes() if file.is_file() else b""
        text = _with_lines(old, patterns, lines)
        if text != old:
            file.write_bytes(text)
        _check_filter(paths)
        listing = b"".join(entries[path][0] + f" {blob}\t".encode() + path + b"\0" for path, blob in made.items())
        git.ask("-C", top, "update-index", "-z", "--index-info", data=listing)
        git.ask("-C", top, "add", "--", ".gitattributes")
        _replace_lfs_texts(top, made)
        git.ask("-C", top, "update-index", "-q", "--refresh", statuses=(0, 1))
    return {"files": len(made), "before": converter.before, "after": converter.pointers}


def _replace_lfs_texts(top: Path, paths: Mapping[bytes, str] | set[bytes]) -> None:
    """Check out the files that stand in the work tree as git-lfs's pointers: what they stood for is ours now."""
    from theta_daemon.upkeep.convert import lfs_pointer

    texts = []
    for path in paths:
        file = top / os.fsdecode(path)
        if file.is_file() and not file.is_symlink() and file.stat().st_size <= 1024 and lfs_pointer(file.read_bytes()):
            texts.append(path)
    if texts:
        listing = b"".join(path + b"\0" for path in texts)
        git.ask("-C", top, "checkout", "--pathspec-from-file=-", "--pathspec-file-nul", data=listing, env={**os.environ, "GIT_LITERAL_PATHSPECS": "1"})  # fmt: skip


def _check_filter(paths: Sequence[bytes]) -> None:
    for path, _, value in git.attributes(paths, "filter"):
        if value != "theta":
            raise ThetaError(
                f"git uses the filter {value} for {shown(path)}: another line in a .gitattributes overrides ours",
                "remove that line, then do it again",
            )


def _rewrite(
    workspace: Workspace, patterns: Sequence[bytes], lines: Sequence[bytes], progress: Counted, *, dry_run: bool
) -> dict[str, Any]:
    from theta_daemon.upkeep.convert import Converter
    from theta_daemon.upkeep.rewrite import Rewriter

    inside = git.try_ask("rev-parse", "--is-inside-work-tree") == b"true\n"
    if not dry_run:
        _check_clean(inside=inside)
    refs = _refs()
    tips = b"".join(f"{oid}\n".encode() for oid in refs.values())
    commits = git.ask("rev-list", "--topo-order", "--reverse", "--stdin", data=tips).decode().split()
    if git.ask("rev-parse", "--is-shallow-repository") == b"true\n":
        raise RepositoryError("a shallow clone does not have the whole history", "git fetch --unshallow")
    names = git.ask("log", "-z", "-m", "--root", "--format=", "--name-only", "--no-renames", "--stdin", data=tips)
    paths = list(dict.fromkeys(path.lstrip(b"\n") for path in names.split(b"\0") if path.strip(b"\n")))
    matching = _matching(patterns, paths)
    converter = Converter(workspace)
    blobs = {}
    for line in git.ask("rev-list", "--objects", "--stdin", data=tips).splitlines():
        oid, _, path = line.partition(b" ")
        if path in matching:
            blobs[oid.decode()] = path
    converter.fetch_lfs(blobs)
    rewriter = Rewriter(workspace, converter, matching.__contains__, lambda text: _with_lines(text, patterns, lines))
    rewriter.commits(commits, progress)
    changed = {name: (oid, new) for name, oid in refs.items() if (new := rewriter.tag(oid)) != oid}
    backup = ""
    if changed and not dry_run:
        backup = _move_refs(changed)
        if inside:
            _renew_work_tree(matching)
    rewritten = sum(commit in rewriter.renamed for commit in commits)
    return {
        "files": converter.files,
        "before": converter.before,
        "after": converter.pointers,
        "commits": rewritten,
        "backup": backup,
    }


def _refs() -> dict[str, str]:
    listing = git.ask("for-each-ref", "--format=%(objectname) %(refname)", "refs/heads", "refs/tags").decode(
        errors="surrogateescape"
    )
    pairs = [line.partition(" ") for line in listing.splitlines()]
    kinds = git.ask("cat-file", "--batch-check=%(objecttype)", data="".join(f"{p[0]}^{{}}\n" for p in pairs).encode())
    return {name: oid for (oid, _, name), kind in zip(pairs, kinds.split(), strict=True) if kind == b"commit"}


def _check_clean(*, inside: bool) -> None:
    worktrees = git.ask("worktree", "list", "--porcelain").count(b"worktree ")
    if worktrees > 1:
        raise ThetaError(
            "other work trees have branches of this repository checked out", "remove them first: git worktree remove"
        )
    if inside and git.ask("status", "--porcelain", "--untracked-files=no"):
        raise ThetaError("there are changes that are not committed", "commit or stash them first")
    if inside and git.try_ask("symbolic-ref", "-q", "HEAD") is None:
        raise ThetaError("HEAD is detached: no branch would carry it along", "switch to a branch first")


def _move_refs(changed: Mapping[str, tuple[str, str]]) -> str:
    """All refs at once, or none; the place of the backups."""
    taken = git.ask("for-each-ref", "--format=%(refname)", BACKUP).decode(errors="surrogateescape").split()
    number = 1 + max((int(name.split("/")[2]) for name in taken if name.split("/")[2].isdigit()), default=0)
    place = f"{BACKUP}/{number}"
    commands = ["start"]
    for name, (old, new) in changed.items():
        commands += [f"create {place}/{name.removeprefix('refs/')} {old}", f"update {name} {new} {old}"]
    commands += ["prepare", "commit", ""]
    git.ask(
        "update-ref", "-m", "git theta migrate", "--stdin", data="\n".join(commands).encode(errors="surrogateescape")
    )
    return place


def _renew_work_tree(paths: set[bytes]) -> None:
    """The index is the new HEAD's; files stay, for they are what the new pointers stand for."""
    top = git.top_level()
    git.ask("-C", top, "reset", "-q", statuses=(0, 1))
    git.ask("-C", top, "checkout", "-q", "--", ".gitattributes")
    tracked = set(git.fields(git.ask("-C", top, "ls-files", "-z")))
    _check_filter(sorted(paths & tracked))
    _replace_lfs_texts(top, paths & tracked)
    git.ask("-C", top, "update-index", "-q", "--refresh", statuses=(0, 1))
