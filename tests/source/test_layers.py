"""The architecture as tests: what may import what, and who may touch the process."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

TOP = Path(__file__).resolve().parents[2]

LAYERS = [
    {
        "errors",
        "complaint",
        "handler",
        "tensor",
        "pointer",
        "invocation",
        "counters",
        "runtime",
        "gitvalues",
        "heap",
        "hooks",
        "jsonbounds",
        "_planes",
        "_vmsplice",
        "lending",
        "pipes",
    },
    {"codec", "session"},
    {"settings", "store", "updates", "formats", "registry", "testing"},
    {"history"},
    {"transfer"},
    {"depot"},
    {"filters"},
    {"upkeep"},
    {"engine"},
]
"""Bottom first; a module imports from its own layer and those below. `session` knows handlers by interface only."""

EDGES = {"cli", "client", "inprocess", "launcher", "server"}
"""Import anything; only they are asked who and where this process is."""

ENTRIES = {"cli", "client", "inprocess", "server/__main__", "server/entry", "launcher", "store/remote/worker"}
"""The edges that are entered from outside, so that the process is the caller's."""


def sources(package: str) -> list[Path]:
    return sorted((TOP / package).rglob("*.py"))


@cache
def tree(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file."""
    return tuple(ast.walk(ast.parse(path.read_text())))


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of all that a file imports, wherever in it, but for type checkers' eyes."""
    for node in tree(path):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            yield node.lineno, node.module or ""
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def module(path: Path) -> str:
    """`server/spawn` for theta_daemon/server/spawn.py."""
    return str(path.relative_to(TOP / "theta_daemon").with_suffix(""))


def layer(name: str) -> int | None:
    """The layer of `theta_daemon.<name>…`, None for edges."""
    top = name.partition("/")[0].partition(".")[0]
    for number, members in enumerate(LAYERS):
        if top in members:
            return number
    assert top in EDGES | {"__init__"}, f"{top} has no layer"
    return None


def allowed(path: Path, names: set[str]) -> bool:
    return module(path) in names or module(path).partition("/")[0] in names


def attributes(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each `name.attribute`, for modules os and posix."""
    for node in tree(path):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield node.lineno, f"{node.value.id}.{node.attr}"


@pytest.mark.parametrize("path", sources("protocol"), ids=lambda path: path.name)
def test_the_protocol_stands_on_the_standard_library(path: Path) -> None:
    """protocol/ imports the standard library and itself."""
    for line, name in imports(path):
        top = name.partition(".")[0]
        assert top == "protocol" or top in sys.stdlib_module_names, f"{path.name}:{line} imports {name}"


@pytest.mark.parametrize("path", sources("protocol"), ids=lambda path: path.name)
def test_the_protocol_does_no_input_or_output(path: Path) -> None:
    """Sans-IO: bytes in, events out."""
    forbidden = {"os", "io", "socket", "select", "selectors", "subprocess", "threading", "pathlib", "posix", "tempfile"}
    for line, name in imports(path):
        assert name.partition(".")[0] not in forbidden, f"{path.name}:{line} imports {name}"


@pytest.mark.parametrize("path", sources("theta_daemon"), ids=module)
def test_imports_go_downward(path: Path) -> None:
    """A module imports its own layer and lower ones."""
    own = layer(module(path))
    for line, name in imports(path):
        if own is None or not name.startswith("theta_daemon.") or name.startswith("theta_daemon.__version__"):
            continue
        other = layer(name.removeprefix("theta_daemon."))
        assert other is not None, f"{module(path)}:{line} imports {name}, an edge"
        assert other <= own, f"{module(path)}:{line} imports {name}"


@pytest.mark.parametrize("path", sources("theta_daemon"), ids=module)
def test_only_edges_know_the_process(path: Path) -> None:
    """Environment, arguments and standard streams of this process are read by the entries alone (the daemon's mean
    nothing to a session)."""
    banned = {"os.environ", "os.environb", "os.getenv", "os.getcwd", "os.getcwdb", "os.umask", "Path.cwd", "Path.home"}
    banned |= {"os.getlogin", "os.expanduser", "getpass.getuser", "sys.argv", "sys.stdin", "sys.stdout"}
    banned |= {"posix.environ", "posix.umask", "posix.getcwdb"}
    for line, name in attributes(path):
        assert name not in banned or allowed(path, ENTRIES), f"{module(path)}:{line} uses {name}"


@pytest.mark.parametrize("path", [*sources("theta_daemon"), *sources("protocol")], ids=str)
def test_nobody_forks_or_moves(path: Path) -> None:
    """No fork (there are threads), no change of directory (there are other sessions), no process-wide umask."""
    banned = {"os.fork", "os.forkpty", "posix.fork", "os.chdir", "os.fchdir", "contextlib.chdir", "pty.fork"}
    for line, name in attributes(path):
        assert name not in banned, f"{path}:{line} uses {name}"
        if name == "posix.chdir":
            assert path.name == "spawn.py", f"{path}:{line} uses {name}"
        if name in ("os.umask", "posix.umask"):
            assert path.name in ("client.py", "inprocess.py") or path.parent.name == "cli", f"{path}:{line} uses {name}"
    for line, name in imports(path):
        assert name.partition(".")[0] != "multiprocessing", f"{path}:{line} imports {name}"


@pytest.mark.parametrize("path", [*sources("theta_daemon"), *sources("protocol")], ids=str)
def test_only_edges_print(path: Path) -> None:
    """`print` and the standard streams belong to the command line."""
    for node in tree(path):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print":
            assert path.is_relative_to(TOP / "theta_daemon" / "cli"), f"{path}:{node.lineno} prints"


@pytest.mark.parametrize("path", [*sources("theta_daemon"), *sources("protocol")], ids=str)
def test_sockets_are_not_looked_for_at_home(path: Path) -> None:
    """Sockets and locks live in runtime directories only: HOME may be on a network file system, or nowhere."""
    if path.parent.name in ("server",) or path.name in ("runtime.py", "client.py"):
        text = path.read_text()
        for word in ('"HOME"', "expanduser", ".home()", "getpwuid", "getuser"):
            assert word not in text, f"{path} speaks of {word}"


def test_what_the_thin_client_imports() -> None:
    """Built-in modules, `_socket`, and the two light modules; and no `__future__`, which is a file to find and read."""
    light = {
        "_signal",
        "_socket",
        "posix",
        "sys",
        "protocol",
        "protocol.control",
        "theta_daemon",
        "theta_daemon.runtime",
    }
    for name in (
        "theta_daemon/client.py",
        "theta_daemon/runtime.py",
        "protocol/control.py",
        "theta_daemon/server/spawn.py",
    ):
        path = TOP / name
        top_level = ast.parse(path.read_text())
        for node in top_level.body:
            if isinstance(node, ast.Import):
                assert {alias.name for alias in node.names} <= light, f"{name}:{node.lineno}"
            elif isinstance(node, ast.ImportFrom):
                assert node.module in light, f"{name}:{node.lineno}"
