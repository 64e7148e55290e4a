"""A history written anew in which some files are pointers: trees, commits, tags. Refs are not touched here.

Commits keep everything but their tree, their parents and their signature, which would be wrong. What has no such file
before it keeps its id. The `.gitattributes` at the top says in every commit that has such a file how it is stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from theta_daemon.errors import RepositoryError
from theta_daemon.filters.workspace import Workspace
from theta_daemon.history import trees
from theta_daemon.history.history import HeadEntry
from theta_daemon.upkeep.convert import Converter, write_object

ATTRIBUTES: Final = b".gitattributes"
_HEADER: Final = re.compile(rb"(?:[^\n]+\n(?: [^\n]*\n)*)")
_UNSIGNED: Final = (b"gpgsig", b"gpgsig-sha256", b"mergetag")
_SIGNATURE: Final = re.compile(rb"-----BEGIN [A-Z ]*(?:SIGNATURE|SIGNED MESSAGE)-----\n.*\Z", re.DOTALL)

Progress = Callable[[str, int, int], None]


class Rewriter:
    """Rewrites commits, parents first. `matches`: whether a path is to be a pointer; `attributes`: the top file's new text."""

    def __init__(
        self,
        workspace: Workspace,
        converter: Converter,
        matches: Callable[[bytes], bool],
        attributes: Callable[[bytes], bytes],
    ) -> None:
        self._workspace = workspace
        self._converter = converter
        self._matches = matches
        self._attributes = attributes
        self._trees: dict[tuple[str, bytes], tuple[str, bool]] = {}
        self.renamed: dict[str, str] = {}
        """The new id of each object that was rewritten, by its old one."""

    def commits(self, listed: Sequence[str], progress: Progress) -> None:
        """Rewrite these commits, which stand in topological order, parents first."""
        for count, commit in enumerate(listed, 1):
            self._commit(commit)
            progress("commits", count, len(listed))

    def tag(self, oid: str) -> str:
        """The new id of a tag object, or of what it leads to."""
        kind, data = self._object(oid)
        if kind != "tag":
            return self.renamed.get(oid, oid)
        target = trees.target(data)
        renamed = self.tag(target)
        if renamed != target:
            head, blank, message = data.partition(b"\n\n")
            head = head.replace(b"object " + target.encode(), b"object " + renamed.encode(), 1)
            unsigned = _SIGNATURE.sub(b"", message)
            self.renamed[oid] = write_object(self._workspace, "tag", head + blank + unsigned)
        return self.renamed.get(oid, oid)

    def _commit(self, oid: str) -> None:
        _, data = self._object(oid)
        head, blank, message = data.partition(b"\n\n")
        fields = [line.group() for line in _HEADER.finditer(head + b"\n")]
        old_tree = trees.target(data)
        parents = [field.split()[1].decode() for field in fields if field.startswith(b"parent ")]
        new_parents = [self.renamed.get(parent, parent) for parent in parents]
        tree = self._root(old_tree, new_parents)
        if tree == old_tree and new_parents == parents:
            return
        kept = [field for field in fields[1 + len(parents) :] if field.split(b" ", 1)[0] not in _UNSIGNED]
        lines = [f"tree {tree}\n".encode(), *(f"parent {parent}\n".encode() for parent in new_parents), *kept]
        self.renamed[oid] = write_object(self._workspace, "commit", b"".join(lines)[:-1] + blank + message)

    def _root(self, tree: str, parents: Sequence[str]) -> str:
        new, has_pointers = self._tree(tree, b"", parents)
        if not has_pointers:
            return new
        entries = dict(trees.entries(self._object(new)[1], len(new) // 2))
        entry = entries.get(ATTRIBUTES)
        if entry is not None and not entry.is_file:
            raise RepositoryError("the .gitattributes of a commit is no regular file", "rewrite its history first")
        old_text = b"" if entry is None else self._workspace.history.blob(entry.oid) or b""
        text = self._attributes(old_text)
        if text == old_text:
            return new
        mode = 0o100644 if entry is None else entry.mode
        entries[ATTRIBUTES] = trees.TreeEntry(mode, write_object(self._workspace, "blob", text))
        return self._write_tree(entries)

    def _tree(self, oid: str, prefix: bytes, parents: Sequence[str]) -> tuple[str, bool]:
        """The new tree, and whether it has a file that matches."""
        if (oid, prefix) in self._trees:
            return self._trees[oid, prefix]
        entries = dict(trees.entries(self._object(oid)[1], len(oid) // 2))
        has_pointers = changed = False
        for name, entry in list(entries.items()):
            path = prefix + name
            new: str | None = None
            if entry.is_tree:
                new, inside = self._tree(entry.oid, path + b"/", parents)
                has_pointers |= inside
            elif entry.is_file and self._matches(path):
                has_pointers = True
                new = self._converter.convert(path, entry.oid, self._before(path, parents))
            if new is not None and new != entry.oid:
                entries[name] = trees.TreeEntry(entry.mode, new)
                changed = True
        self._trees[oid, prefix] = (self._write_tree(entries) if changed else oid), has_pointers
        return self._trees[oid, prefix]

    def _before(self, path: bytes, parents: Iterable[str]) -> HeadEntry | None:
        for parent in parents:
            found = self._workspace.history.commit_entry(parent, path)
            if found is not None:
                return found
        return None

    def _write_tree(self, entries: Mapping[bytes, trees.TreeEntry]) -> str:
        # git sorts folders as if their names ended in a slash
        ordered = sorted(entries.items(), key=lambda item: item[0] + (b"/" if item[1].is_tree else b""))
        data = b"".join(b"%o %s\0%s" % (entry.mode, name, bytes.fromhex(entry.oid)) for name, entry in ordered)
        return write_object(self._workspace, "tree", data)

    def _object(self, oid: str) -> tuple[str, bytes]:
        found = self._workspace.history.object(oid)
        if found is None:
            raise RepositoryError(f"git does not have object {oid} here", "fetch the whole history first")
        return found
