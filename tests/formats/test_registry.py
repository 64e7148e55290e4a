"""Formats and update types by name: built-in first, plug-ins from installed packages, broken ones named and contained."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import ClassVar

import pytest

from scripts import inputs
from theta_daemon import registry
from theta_daemon.errors import FormatError, HintError, PluginError, PointerError, StoreError
from theta_daemon.formats.base import Extent, Format, Source
from theta_daemon.formats.opaque import Opaque
from theta_daemon.registry import FORMATS, UPDATES, Registry
from theta_daemon.tensor import flat_bytes
from theta_daemon.testing.formats import BytesSource, FormatContract

HERE = __name__
FORMAT_GROUP = "theta_daemon.formats"


class Marked(Format):
    """A plug-in's format: the bytes behind `MARK`."""

    name: ClassVar[str] = "marked"
    made: ClassVar[int] = 0

    def __init__(self) -> None:
        type(self).made += 1

    def matches(self, source: Source) -> bool:
        return bytes(source.read(0, min(4, source.size))) == b"MARK"

    def layout(self, source: Source) -> list[Extent]:
        return [Extent("rest", flat_bytes(source.size - 4), 4)]


class Zebra(Marked):
    """Comes after the failing ones."""

    name: ClassVar[str] = "zebra"


class Overlapping(Marked):
    name: ClassVar[str] = "overlapping"

    def layout(self, source: Source) -> list[Extent]:
        return [Extent("a", flat_bytes(3), 0), Extent("b", flat_bytes(3), 2)]


class Exploding(Marked):
    name: ClassVar[str] = "exploding"

    def matches(self, source: Source) -> bool:
        raise RecursionError("odd")


class Refusing(Marked):
    name: ClassVar[str] = "refusing"

    def layout(self, source: Source) -> list[Extent]:
        raise FormatError("not mine")


class Impostor(Marked):
    name: ClassVar[str] = "opaque"


class NoFormat:
    name = "no-format"


def with_plugins(**classes: str) -> Registry:
    """A registry that finds these entry points: name (`_` for `-`) to class of this module, or to a whole target."""

    def scan(group: str) -> Iterable[EntryPoint]:
        if group != FORMAT_GROUP:
            return []
        return [
            EntryPoint(name.replace("_", "-"), target if ":" in target else f"{HERE}:{target}", group)
            for name, target in classes.items()
        ]

    return Registry(scan)


class TestOpaque(FormatContract):
    format: ClassVar[Format] = Opaque()
    damaged: ClassVar[int] = 20

    @pytest.fixture
    def sample(self) -> bytes:
        return bytes(range(256)) * 3


EXPECTED = {
    "minilm": ("safetensors", 104),
    "minilm-bf16": ("safetensors", 104),
    "wordllama": ("safetensors", 1),
    "silero": ("safetensors", 15),
    "silero-jit": ("torch-zip", 33),
    "silero-jit-5": ("torch-zip", 33),
    "chgnet-0.2.0": ("torch-zip", 287),
    "chgnet-0.3.0": ("torch-zip", 517),
    "chgnet-r2scan": ("torch-zip", 517),
    "g2p": ("npz", 12),
    "resemblyzer": ("opaque", 1),
    "lpips-alex": ("opaque", 1),
}


def test_every_input_is_expected() -> None:
    """No real file is forgotten here."""
    assert EXPECTED.keys() == inputs.INPUTS.keys() - {"minilm-vocab"}


@pytest.mark.parametrize("name", EXPECTED)
def test_real_files_by_content(name: str) -> None:
    """Each real file's format is found by its content, and its parameters are nearly all of it."""
    data = inputs.path(name).read_bytes()
    found, extents = registry.find_layout(BytesSource(data))
    assert (found, len(extents)) == EXPECTED[name]
    assert sum(extent.spec.nbytes for extent in extents) > 0.95 * len(data)


@pytest.mark.parametrize(
    "data",
    [
        b"x",
        b"PK\x03\x04" + bytes(100),
        (1 << 63).to_bytes(8, "little") + b"{}",
        b"\x93NUMPY" + bytes(20),
        bytes(10_000),
    ],
)
def test_oddities_are_opaque(data: bytes) -> None:
    """Whatever no format can lay out is one parameter, the whole file."""
    assert registry.find_layout(BytesSource(data)) == ("opaque", [Extent("data", flat_bytes(len(data)), 0)])


def test_override() -> None:
    """The attribute's format is used whatever the content says; a file that it cannot lay out is opaque."""
    data = inputs.path("silero").read_bytes()
    assert registry.find_layout(BytesSource(data), "safetensors")[0] == "safetensors"
    assert registry.find_layout(BytesSource(data), "opaque")[0] == "opaque"
    assert registry.find_layout(BytesSource(data), "torch-zip")[0] == "opaque"
    assert with_plugins(marked="Marked").find_layout(BytesSource(data), "marked")[0] == "marked"


def test_unknown_override() -> None:
    """A format that nobody provides is an error that names it, the known ones and the remedy."""
    with pytest.raises(HintError, match="'kera'") as caught:
        registry.find_layout(BytesSource(b"x"), "kera")
    assert "safetensors" in (caught.value.hint or "")


def test_plugin_format_by_content() -> None:
    """A plug-in's format is tried after the built-in ones, before opaque."""
    assert with_plugins(marked="Marked").find_layout(BytesSource(b"MARKabc")) == (
        "marked",
        [Extent("rest", flat_bytes(3), 4)],
    )


@pytest.mark.parametrize("plugin", ["Overlapping", "Exploding", "Refusing"])
def test_failing_plugin_formats_are_passed_over(plugin: str) -> None:
    """A format that raises, refuses or lays out nonsense costs nobody the file: the next one takes it."""
    found = with_plugins(**{plugin.lower(): plugin}, zebra="Zebra")
    assert found.find_layout(BytesSource(b"MARKabc"))[0] == "zebra"
    assert found.find_layout(BytesSource(b"other"))[0] == "opaque"
    assert not found.formats.problems()


def test_failures_of_the_source_are_not_hidden() -> None:
    """A checkpoint that cannot be read is an error, not an oddity."""

    class Unreadable(BytesSource):
        def read(self, offset: int, length: int) -> bytes:
            raise StoreError("the spool cannot be read")

    with pytest.raises(StoreError):
        registry.find_layout(Unreadable(bytes(100)))


@pytest.mark.parametrize("target", ["no_such_module:X", f"{HERE}:Missing", f"{HERE}:NoFormat", f"{HERE}:Marked"])
def test_broken_plugins_name_themselves(target: str) -> None:
    """A plug-in that cannot be loaded, or is not what it says, fails by name and only for who asks for it."""
    found = with_plugins(broken=target)
    assert found.find_layout(BytesSource(inputs.path("g2p").read_bytes()))[0] == "npz"
    assert any("'broken'" in problem and target in problem for problem in found.formats.problems())
    with pytest.raises(PluginError, match="'broken'"):
        found.find_layout(BytesSource(b"x"), "broken")


def test_plugins_cannot_shadow() -> None:
    """A plug-in with a built-in's name is never loaded; the log and `problems` say so."""
    found = with_plugins(opaque="Impostor", safetensors="Marked")
    assert type(found.formats.get("opaque")) is Opaque
    assert [plugin.name for plugin in found.formats.usable()] == list(FORMATS)
    assert len(found.formats.problems()) == 2


def test_scanned_and_loaded_once() -> None:
    """However many ask, from however many threads, entry points are scanned once and a plug-in is made once."""
    scans = []

    def scan(group: str) -> Iterable[EntryPoint]:
        scans.append(group)
        return [EntryPoint("marked", f"{HERE}:Marked", group)]

    found = Registry(scan)
    before = Marked.made
    threads = [threading.Thread(target=found.find_layout, args=(BytesSource(b"MARKx"),)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert scans == [FORMAT_GROUP]
    assert Marked.made == before + 1


def test_unknown_update() -> None:
    """An update type that nobody provides is an error that names it and the remedy."""
    with pytest.raises(PointerError, match="'quantum'") as caught:
        registry.update("quantum")
    assert "install" in (caught.value.hint or "")


def test_builtin_updates() -> None:
    """Every built-in update type can be had by its name, and clean tries the automatic ones in order."""
    for name in UPDATES:
        assert registry.update(name).name == name
    automatic = [update.name for update in registry.automatic_updates()]
    assert automatic == [name for name in UPDATES if registry.update(name).automatic]
    assert "dense" in automatic


def test_installed_package(tmp_path: Path) -> None:
    """A package on the path that declares the entry point is found by its metadata alone."""
    (tmp_path / "their_format.py").write_text(
        textwrap.dedent(
            """
            from theta_daemon.formats.base import Extent, Format
            from theta_daemon.tensor import flat_bytes

            class Theirs(Format):
                name = "theirs"
                def matches(self, source): return bytes(source.read(0, 4)) == b"THEY"
                def layout(self, source): return [Extent("x", flat_bytes(source.size - 4), 4)]
            """
        )
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[theta_daemon.formats]\ntheirs = their_format:Theirs\nbad = gone:Gone\n")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from theta_daemon.registry import find_layout, registry\n"
        "from theta_daemon.testing.formats import BytesSource\n"
        "print(find_layout(BytesSource(b'THEYabc'))[0], *registry().formats.problems())\n"
    )
    out = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout
    assert out.startswith("theirs ")
    assert "'bad' (gone:Gone) of package their-package" in out
