"""Paths of any bytes, through git, index, history and attributes."""

from __future__ import annotations

import os

import pytest

from tests.git.models import model
from tests.gitrepo import GitRepo

NAMES = [
    b"plain",
    b" with  spaces ",
    b"a=b=c",
    b"new\nline",
    b"end in newline\n",
    "\u00fcn\u00ef\u4e2d\U0001f600".encode(),
    b"not utf-8 caf\xe9\xff",
    b"-leading",
    b"--option=x",
    b"quo\"te'",
    b"back\\slash",
    b"tab\t",
    b"#hash",
    b"!bang",
    b":(top)magic",
    b"%f %s",
    b"*.glob[x]?",
    b"deep/er/and deeper/-x/ y",
    b"not utf-8 \xfe/folder \xff/m",
]


def test_all_names_at_once(repo: GitRepo, road: dict[str, str]) -> None:
    """Every name is added, changed with an incremental update, checked out in one batch and alone; status stays silent."""
    versions = [model(), model().edit("embed.weight", 1)]
    for version in versions:
        for number, name in enumerate(NAMES):
            repo.write(name, version.edit("ids", number).bytes())
        repo("add", "-A", env=road)
        repo.commit("version")
        assert repo.status() == ""
    repo("checkout", "-q", "HEAD~1", env=road)
    assert [repo.read(name) for name in NAMES] == [versions[0].edit("ids", n).bytes() for n in range(len(NAMES))]
    repo("checkout", "-q", "main")
    assert [repo.read(name) for name in NAMES] == [versions[1].edit("ids", n).bytes() for n in range(len(NAMES))]
    assert repo.status() == ""
    assert repo("cat-file", "blob", b"HEAD:" + NAMES[6]).count(b'"sparse"') >= 1


@pytest.mark.parametrize("name", [b"new\nline", b"not utf-8 caf\xe9\xff", b"-leading", b"a=b=c"])
def test_one_name_alone(repo: GitRepo, name: bytes) -> None:
    """One path per command: add, checkout, restore, stash."""
    version = model()
    repo.write(name, version.bytes())
    repo("add", "--", name, env={"GIT_LITERAL_PATHSPECS": "1"})
    repo("commit", "-qm", "one")
    (repo.path / os.fsdecode(name)).unlink()
    repo("checkout", "--", name)
    assert repo.read(name) == version.bytes()
    repo.write(name, version.tune(1).bytes())
    repo("stash", "-q")
    assert repo.read(name) == version.bytes()
    repo("stash", "pop", "-q")
    assert repo.read(name) == version.tune(1).bytes()
    repo("restore", "--", name)
    assert repo.read(name) == version.bytes()
    assert repo.status() == ""


def test_the_format_attribute_of_an_odd_path(repo: GitRepo) -> None:
    """theta-format is asked of git for the very path, whatever its bytes."""
    repo.write(".gitattributes", (repo.path / ".gitattributes").read_bytes() + b"*.raw theta-format=opaque\n")
    for name in (b"a.raw", b"caf\xe9\n.raw", b"-x.raw"):
        repo.write(name, model().edit("ids", len(name)).bytes())
        repo("add", "--", name)
        assert b'"format":"opaque"' in repo("cat-file", "blob", b":" + name)
