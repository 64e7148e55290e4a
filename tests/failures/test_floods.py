"""Text that costs its parser a thousand times its length is refused before it is parsed, or at the first error."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import resource, sys
from theta_daemon.errors import ThetaError
from theta_daemon.pointer import parse
text = eval(sys.argv[1])
resource.setrlimit(resource.RLIMIT_CPU, (30, 30))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    parse(text)
except ThetaError as error:
    print(error.message)
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) << 10)
"""

HEAD = (
    '{"theta-pointer":1,"format":"x","size":0,"digest":"0","skeleton":null,"lineage":null,"history":{},'
    '"objects":{},"parameters":['
)
START = f"b'{HEAD}' + "
FLOODS = {
    "numbers": START + 'b"1," * 2_000_000 + b"1]}"',
    "brackets": START + 'b"[]," * 500_000 + b"1]}"',
    "objects": START + 'b"{}," * 500_000 + b"1]}"',
    "nested": START + 'b"[[[[" * 120_000',
    "extra fields": START + 'b"]," + b",".join(b"\\"%d\\":1" % n for n in range(500_000)) + b"}"',
    "many numbers": START + 'b"1," * 30_000_000 + b"1]}"',
    "shapes": START + 'b"{\\"shape\\":[" + b"-1," * 2_000_000 + b"1]}]}"',
}


@pytest.mark.parametrize("flood", FLOODS)
def test_a_flood_is_stopped(flood: str) -> None:
    """Some seconds of a processor and some hundred megabytes at most, whatever the text is."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, FLOODS[flood]], capture_output=True, check=False, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    *message, grown = done.stdout.splitlines()
    assert int(grown) < 900 << 20
    assert message or flood == "nested"
