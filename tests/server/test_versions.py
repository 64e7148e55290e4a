"""Different code never meets: neither another build's client, nor changed files under a living daemon."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.daemons import alive, eventually
from tests.server.site import TOP, Site, launcher_text


@pytest.fixture
def copied(site: Site) -> Path:
    """A copy of the code that a test may change; the site's launcher runs it."""
    top = site.directory / "code"
    for name in ("protocol", "theta_daemon"):
        shutil.copytree(TOP / name, top / name, ignore=shutil.ignore_patterns("__pycache__"))
    (top / "tests" / "server").mkdir(parents=True)
    for name in ("__init__.py", "upper.py", "server/__init__.py", "server/stand_in.py"):
        shutil.copy(TOP / "tests" / name, top / "tests" / name)
    stand_in = top / "tests" / "server" / "stand_in.py"
    site.launcher.write_text(launcher_text(top, stand_in))
    os.environ["PYTHONPATH"] = str(top)
    return top


def listening(site: Site) -> list[str]:
    """Names of the sockets in the runtime directory."""
    return sorted(name for name in os.listdir(site.runtime) if "." not in name)


def started(site: Site, *, than: list[str]) -> None:
    """Run commands until a daemon listens that was not there before."""

    def up() -> bool:
        site.repo.write("a.bin", os.urandom(8))
        site.repo("add", "-A")
        return bool(set(listening(site)) - set(than))

    eventually(up, "a daemon listens")


def test_a_touched_client_does_not_meet_the_old_daemon(site: Site, copied: Path) -> None:
    """A new build has its own socket; the old daemon notices that its code has changed, or idles out."""
    started(site, than=[])
    (old,) = site.daemons()
    old_socket = listening(site)
    client = copied / "theta_daemon" / "client.py"
    client.write_text(client.read_text() + "\n")
    site.repo.write("a.bin", b"NEW")
    site.repo("add", "-A")
    assert site.repo("cat-file", "blob", ":a.bin") == b"new"
    assert old.pid != site.servers()[-1]
    started(site, than=old_socket)
    eventually(lambda: not alive(old), "the old daemon goes")
    eventually(lambda: old_socket[0] not in listening(site), "its socket too")


def test_a_changed_module_is_used_by_the_next_session(site: Site, copied: Path) -> None:
    """Edit a loaded file: the session that comes is declined by the old daemon and runs the new code."""
    started(site, than=[])
    (old,) = site.daemons()
    session = copied / "theta_daemon" / "session.py"
    session.write_text(session.read_text() + "\n\nCHANGED = True\n")
    upper = copied / "tests" / "upper.py"
    upper.write_text(upper.read_text().replace("data.lower() if request", "data.lower() + b'!' if request"))
    site.repo.write("a.bin", b"NEW")
    site.repo("add", "-A")
    assert site.repo("cat-file", "blob", ":a.bin") == b"new!"
    eventually(lambda: not alive(old), "the old daemon goes")


def test_a_plugin_that_is_installed_or_edited_is_noticed(short_dir: Path) -> None:
    """A new distribution, or an edited module of a plug-in that is loaded: the code has changed. Otherwise not."""
    plugins = short_dir / "plugins"
    info = plugins / "plug-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: plug\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[theta_daemon.updates]\nplug = plug:Update\n")
    (plugins / "plug.py").write_text("class Update: ...\n")
    (plugins / "other.py").write_text("")
    code = (
        "import sys; from pathlib import Path\n"
        f"sys.path[:0] = [{str(plugins)!r}]\n"
        "from theta_daemon.server.code import CodeWatch\n"
        "watch = CodeWatch(); print(watch.changed())\n"
        "import plug, other; print(watch.changed())\n"
        f"plugins = Path({str(plugins)!r})\n"
        "(plugins / 'other.py').write_text('# a bystander'); print(watch.changed())\n"
        "(plugins / 'plug.py').write_text('# edited'); print(watch.changed())\n"
        "watch = CodeWatch(); print(watch.changed())\n"
        "(plugins / 'new-1.dist-info').mkdir(); print(watch.changed())\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", code], env={**os.environ, "PYTHONPATH": str(TOP)}, capture_output=True, check=True
    )
    assert done.stdout.decode().split("\n") == [
        "None",
        "None",
        "None",
        str(plugins / "plug.py"),
        "None",
        str(plugins),
        "",
    ]
