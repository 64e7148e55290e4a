"""Records what real git says to a filter, one transcript a situation: `python tests/protocol/transcripts/record.py`.

A transcript is a sequence of `DIRECTION LENGTH\\nBYTES\\n`; ">" is from git to the filter. It holds one filter process,
or several one after the other. Run it again only to record another git: ids and dates are fixed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENV = {
    "PATH": os.environ["PATH"],
    "GIT_CONFIG_NOSYSTEM": "1",
    "HOME": "/nonexistent",
    "LC_ALL": "C",
    **{
        f"GIT_{who}_{what}": text for who in ("AUTHOR", "COMMITTER") for what, text in (("NAME", "a"), ("EMAIL", "a@b"))
    },
    **{f"GIT_{who}_DATE": "2001-02-03T04:05:06Z" for who in ("AUTHOR", "COMMITTER")},
}
ODD = [
    b"new\nline.t",
    b"end in newline.t\n",
    b"a=b=c.t",
    b"caf\xe9.t",
    "ünï.t".encode(),
    b"-leading.t",
    b" blank .t",
    b'quo"te.t',
]


class Repository:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.git("init", "-q", "-b", "main")
        self.write(b".gitattributes", b"*.t filter=trivial\n")
        self.git("config", "filter.trivial.required", "true")
        self.silent()

    def git(self, *args: str, fails: bool = False) -> None:
        done = subprocess.run(["git", *args], cwd=self.path, env=ENV, capture_output=True, check=False)
        assert (done.returncode != 0) == fails, (args, done.stderr)

    def silent(self, delay: str = "") -> None:
        self.record("/dev/null", delay)

    def record(self, name: str, delay: str = "") -> None:
        log = "/dev/null" if name == "/dev/null" else str(HERE / f"{name}.bin")
        if name != "/dev/null":
            Path(log).unlink(missing_ok=True)
        self.git("config", "filter.trivial.process", f"{sys.executable} -P {HERE / 'trivial_filter.py'} {log} {delay}")

    def write(self, name: bytes, data: bytes) -> None:
        (self.path / os.fsdecode(name)).write_bytes(data)

    def commit(self, **files: bytes) -> None:
        for name, data in files.items():
            self.write(name.encode() + b".t", data)
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "c")


def main() -> None:
    root = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    try:
        repo = Repository(root)
        repo.commit(base=b"base")
        repo.record("add")
        repo.write(b"one.t", b"one\n")
        repo.write(b"empty.t", b"")
        repo.write(b"three.t", b"three")
        repo.git("add", "one.t", "empty.t", "three.t")
        repo.silent()
        repo.git("commit", "-q", "-m", "three")
        repo.git("branch", "three")

        repo.record("checkout_delay", "delay")
        repo.git("checkout", "-q", "main~1")
        repo.git("checkout", "-q", "main")
        repo.record("checkout_path")
        (root / "one.t").unlink()
        repo.git("checkout", "--", "one.t")
        repo.record("archive")
        repo.git("archive", "-o", str(root / "out.tar"), "HEAD", "one.t", "empty.t")
        (root / "out.tar").unlink()

        repo.silent()
        repo.commit(one=b"second", two=b"two")
        repo.commit(one=b"third", four=b"four")
        repo.git("checkout", "-q", "--detach", "three")
        repo.record("cherry_pick", "delay")
        repo.git("cherry-pick", "main~1", "main")

        repo.silent()
        repo.git("checkout", "-q", "--orphan", "large")
        repo.git("rm", "-rfq", ".")
        repo.write(b".gitattributes", b"*.t filter=trivial\n")
        repo.git("add", ".gitattributes")
        repo.write(b"large.t", bytes(range(256)) * 260)
        repo.record("large")
        repo.git("add", "large.t")
        repo.silent()
        repo.git("commit", "-q", "-m", "large")

        repo.silent()
        repo.git("checkout", "-q", "--orphan", "odd")
        repo.git("rm", "-rfq", ".")
        repo.write(b".gitattributes", b"* filter=trivial\n.gitattributes -filter\n")
        for name in ODD:
            repo.write(name, name)
        repo.record("odd_add")
        repo.git("add", "-A")
        repo.silent()
        repo.git("commit", "-q", "-m", "odd")
        for name in ODD:
            (root / os.fsdecode(name)).unlink()
        repo.record("odd_checkout", "delay")
        repo.git("reset", "-q", "--hard")

        repo.silent()
        repo.commit(a=b"a", b=b"refuse", c=b"c")
        for letter in "abc":
            (root / f"{letter}.t").unlink()
        repo.record("refused")
        repo.git("checkout", ".", fails=True)
    finally:
        shutil.rmtree(root)


main()
