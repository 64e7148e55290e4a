"""Other programs that store models, for comparison: what they need, and what they make of the same bytes.

git-theta 0.2.0 gets a virtual environment of its own under .cache/rivals, since its packages and its commands have the names
of ours. git-lfs is the system's. ZipNN, zstd and content-defined chunking work on files in this process.
"""

from __future__ import annotations

import fcntl
import shutil
import struct
import subprocess
import sys
from functools import cache
from hashlib import sha256
from pathlib import Path

import zstandard

from benchmarks.sites import Repository, Site

_FOLDER = Path(__file__).resolve().parent.parent / ".cache" / "rivals"
_GIT_THETA = ("git-theta==0.2.0", "safetensors")
_CHUNK_BYTES = 64 << 10
"""The average of content-defined chunks, as in Hugging Face's Xet."""

ZSTD_LEVEL = 3


class UnavailableError(Exception):
    """A rival that cannot be had here, and why."""


@cache
def git_theta_binaries() -> Path:
    """The folder of git-theta's programs, installed from PyPI the first time. Raises UnavailableError."""
    home = _FOLDER / _GIT_THETA[0].replace("==", "-")
    _FOLDER.mkdir(parents=True, exist_ok=True)
    with (_FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (home / "complete").exists():
            shutil.rmtree(home, ignore_errors=True)
            print(f"installing {_GIT_THETA[0]} in {home}, once", file=sys.stderr, flush=True)
            try:
                subprocess.run([sys.executable, "-m", "venv", str(home)], check=True, capture_output=True, text=True)
                pip = [str(home / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
                subprocess.run([*pip, *_GIT_THETA], check=True, capture_output=True, text=True)
            except (OSError, subprocess.CalledProcessError) as error:
                said = str(getattr(error, "stderr", "") or error).strip().splitlines()
                raise UnavailableError(f"{_GIT_THETA[0]} cannot be installed: {said[-1] if said else error}") from error
            (home / "complete").touch()
    return home / "bin"


def git_theta_repository(place: Site, name: str = "git-theta") -> Repository:
    """A repository whose safetensors files git-theta filters. Raises UnavailableError."""
    if not place.has_lfs:
        raise UnavailableError("git-theta needs git-lfs")
    programs = git_theta_binaries()
    repository = place.repository(name, "rival")
    # Its incremental updates insist on a file of data, also where they are to find the change by themselves: one without any.
    nothing = place.top / "nothing.safetensors"
    nothing.write_bytes(struct.pack("<Q", 2) + b"{}")
    extra = {
        "GIT_THETA_UPDATE_DATA_PATH": str(nothing),
        "PATH": f"{programs}:{place.environment['PATH']}",
        "TMPDIR": str(place.top),  # where it logs, too
        "GIT_THETA_CHECKPOINT_TYPE": "safetensors",
        "NUMBA_CACHE_DIR": str(place.top / "numba"),
    }
    for key in ("clean", "smudge"):
        repository.git("config", f"filter.rival.{key}", f"{programs / 'git-theta-filter'} {key} %f")
    repository.git("config", "filter.rival.required", "true")
    return Repository(repository.path, repository.environment, extra)


def zipnn_bytes(path: Path, dtype: str) -> int:
    """What ZipNN makes of a file, with the element type said to it."""
    from zipnn import ZipNN

    kinds = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
    compressor = ZipNN(bytearray_dtype=kinds[dtype], input_format="byte")
    return len(compressor.compress(path.read_bytes()))


def zstd_bytes(path: Path) -> int:
    """What zstd makes of a whole file."""
    return len(zstandard.ZstdCompressor(level=ZSTD_LEVEL, threads=-1).compress(path.read_bytes()))


class ChunkStore:
    """Content-defined chunks, each stored once, each compressed by zstd."""

    def __init__(self) -> None:
        self._known: set[bytes] = set()
        self._compressor = zstandard.ZstdCompressor(level=ZSTD_LEVEL)

    def add(self, path: Path) -> int:
        """The bytes that a file's new chunks take."""
        from fastcdc import fastcdc

        stored = 0
        data = path.read_bytes()
        for chunk in fastcdc(data, avg_size=_CHUNK_BYTES):
            piece = data[chunk.offset : chunk.offset + chunk.length]
            name = sha256(piece).digest()
            if name not in self._known:
                self._known.add(name)
                stored += min(len(piece), len(self._compressor.compress(piece)))
        return stored
