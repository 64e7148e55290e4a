"""What do two versions of a real fine-tuned model cost, against ZipNN on the same files?

chgnet 0.3.0 and its r2SCAN fine-tune (training checkpoints with optimizer state) as two commits of one file: bytes of all objects
after each commit, and how the second version's parameters are stored. ZipNN compresses each tensor by itself, as its users do,
and has no deltas; `--zipnn PYTHON` names an interpreter that has it (`pip install zipnn`), if this one has not.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter

from benchmarks.sites import Site
from scripts import inputs

VERSIONS = ("chgnet-0.3.0", "chgnet-r2scan")

_ZIPNN = """
import json, sys
import torch, zipnn
total = tensors = raw = 0
def walk(value):
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from walk(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from walk(item)
seen = set()
for tensor in walk(torch.load(sys.argv[1], map_location="cpu", weights_only=True)):
    tensor = tensor.detach().contiguous()
    if tensor.untyped_storage().data_ptr() in seen or not tensor.numel():
        continue
    seen.add(tensor.untyped_storage().data_ptr())
    size = tensor.numel() * tensor.element_size()
    best = size
    if tensor.dtype == torch.float32:
        packed = zipnn.ZipNN(bytearray_dtype="float32", input_format="byte").compress(bytearray(tensor.numpy().tobytes()))
        best = min(best, len(packed))
    total, tensors, raw = total + best, tensors + 1, raw + size
print(json.dumps([tensors, raw, total]))
"""


def main() -> None:
    """Commit both, add up, compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="without ZipNN")
    parser.add_argument("--zipnn", default=sys.executable, metavar="PYTHON", help="an interpreter that has zipnn")
    options = parser.parse_args()
    sizes = [inputs.path(name).stat().st_size for name in VERSIONS]
    totals = []
    with Site() as site:
        repository = site.repository("pair", attributes="*.tar")
        target = repository.path / "chgnet.pth.tar"
        commits = []
        for name in VERSIONS:
            target.write_bytes(inputs.path(name).read_bytes())
            commits.append(repository.commit(name))
            totals.append(repository.object_bytes())
        for name, commit in zip(VERSIONS, commits, strict=True):
            repository.git("checkout", "-q", commit)
            assert target.read_bytes() == inputs.path(name).read_bytes(), f"{name} did not come back"
        shown = json.loads(repository.git("theta", "show", f"{commits[1]}:chgnet.pth.tar", "--json"))
    updates: Counter[str] = Counter()
    stored: Counter[str] = Counter()
    raw: Counter[str] = Counter()
    for parameter in shown["parameters"]:
        updates[parameter["update"]] += 1
        stored[parameter["update"]] += parameter["stored"]
        raw[parameter["update"]] += parameter["raw"]
    print(f"{'':16}{'file':>12}{'all objects':>14}")
    for name, size, total in zip(VERSIONS, sizes, totals, strict=True):
        print(f"{name:16}{size:>12,}{total:>14,}")
    print(f"\nthe second version's parameters, by type:\n{'':10}{'number':>8}{'raw':>12}{'stored':>12}")
    for update, count in updates.most_common():
        print(f"{update:10}{count:>8}{raw[update]:>12,}{stored[update]:>12,}")
    if not options.quick:
        _print_zipnn(options.zipnn, totals[-1], sum(sizes))


def _print_zipnn(python: str, ours: int, files: int) -> None:
    found = []
    for name in VERSIONS:
        command = [python, "-c", _ZIPNN, str(inputs.path(name))]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            print(f"\nZipNN could not be asked: {(done.stderr.strip().splitlines() or ['it failed'])[-1]}")
            return
        found.append(json.loads(done.stdout.splitlines()[-1]))
    raw, zipped = sum(one[1] for one in found), sum(one[2] for one in found)
    print(
        f"\nboth versions: files {files:,}; tensors {raw:,}; ZipNN on each tensor {zipped:,}; here, everything: {ours:,}"
    )
    print(f"here is {100 * ours / zipped:.1f} % of ZipNN")


if __name__ == "__main__":
    main()
