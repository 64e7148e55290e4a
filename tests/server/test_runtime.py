"""Where daemons may listen: private directories only, short names, nothing of HOME."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from theta_daemon import runtime
from theta_daemon.server import listener

BUILD = "0123456789abcdef"
UID = os.geteuid()


def test_candidates_in_order() -> None:
    """XDG_RUNTIME_DIR, /run/user/UID, then TMPDIR or /tmp; each with a name of ours."""
    environ = {b"XDG_RUNTIME_DIR": b"/x/", b"TMPDIR": b"/y"}
    assert runtime.candidates(environ, 12345) == [
        b"/x/theta-daemon",
        b"/run/user/12345/theta-daemon",
        b"/y/theta-daemon-12345",
    ]
    assert runtime.candidates({}, 12345)[-1] == b"/tmp/theta-daemon-12345"


def test_a_named_directory_is_the_only_candidate() -> None:
    """THETA_RUNTIME_DIR means it; relative ones (the daemon's cwd is /) are no directories at all."""
    assert runtime.candidates({b"THETA_RUNTIME_DIR": b"/z", b"XDG_RUNTIME_DIR": b"/x"}, 1) == [b"/z"]
    assert runtime.candidates({b"THETA_RUNTIME_DIR": b"z", b"XDG_RUNTIME_DIR": b"/x"}, 1) == []
    assert runtime.candidates({b"XDG_RUNTIME_DIR": b"x", b"TMPDIR": b"y"}, 1) == [b"/run/user/1/theta-daemon"]


def test_a_path_that_is_too_long_is_passed_over() -> None:
    """A TMPDIR of 200 characters leaves the other candidates; nobody changes directory for a shorter name."""
    environ = {b"XDG_RUNTIME_DIR": b"/x", b"TMPDIR": b"/" + b"y" * 200}
    places = runtime.places(environ, BUILD, 1)
    assert [place.directory for place in places] == [b"/x/theta-daemon", b"/run/user/1/theta-daemon"]
    assert all(len(place.socket) <= runtime.MAX_SOCKET_PATH for place in places)
    just = b"/" + b"y" * (runtime.MAX_SOCKET_PATH - len(b"//v1-" + BUILD.encode()))
    assert runtime.places({b"THETA_RUNTIME_DIR": just}, BUILD, 1)
    assert not runtime.places({b"THETA_RUNTIME_DIR": just + b"y"}, BUILD, 1)


@pytest.mark.parametrize("flaw", ["symlink", "open", "group", "file", "foreign", "parentless", "fine"])
def test_only_a_private_directory_of_ours_will_do(short_dir: Path, flaw: str) -> None:
    """A symbolic link, bits for others, a file, another's directory: each falls through to the next candidate."""
    odd, good = short_dir / "odd", short_dir / "good"
    odd.mkdir(mode=0o700)
    if flaw == "symlink":
        odd.rename(short_dir / "real")
        odd.symlink_to(short_dir / "real")
    elif flaw == "open":
        odd.chmod(0o777)
    elif flaw == "group":
        odd.chmod(0o750)
    elif flaw == "file":
        odd.rmdir()
        odd.touch()
    elif flaw == "parentless":
        odd = short_dir / "missing" / "odd"
    elif flaw == "foreign":
        if UID != 0:
            pytest.skip("needs root to give a directory away")
        os.chown(odd, 12345, 12345)
    places = [runtime.Place(os.fsencode(directory), BUILD) for directory in (odd, good)]
    claim = listener.claim(places, UID)
    assert claim is not None
    claim.close()
    assert claim.place.directory == os.fsencode(odd if flaw == "fine" else good)
    assert (good.stat().st_mode & 0o777 == 0o700) if flaw != "fine" else not good.exists()
    if flaw != "fine":
        with pytest.raises(OSError, match="odd"):
            runtime.open_private(os.fsencode(odd), UID)


def test_nothing_usable_is_no_claim(short_dir: Path) -> None:
    """No private directory anywhere: no daemon."""
    missing = runtime.Place(os.fsencode(short_dir / "a" / "b"), BUILD)
    assert listener.claim([missing], UID) is None
    assert listener.claim([], UID) is None


def test_the_build_follows_the_client_file_and_the_environment(
    monkeypatch: pytest.MonkeyPatch, short_dir: Path
) -> None:
    """Touched code and another virtual environment are another build; another name of one interpreter is not."""
    file = short_dir / "client.py"
    file.write_text("")
    monkeypatch.setattr(runtime, "_CLIENT_FILE", str(file))
    first = runtime.build_id("/venv/bin/python")
    assert len(first) == 16
    assert runtime.build_id("/venv/bin/python3") == first
    assert runtime.build_id("/other/bin/python") != first
    os.utime(file, ns=(0, 1))
    assert runtime.build_id("/venv/bin/python") != first


@pytest.mark.skipif(UID != 0, reason="needs root to be somebody without a name")
def test_a_nameless_user_without_a_home(short_dir: Path) -> None:
    """No HOME, no USER, a uid without a passwd entry: a place is found and claimed all the same."""
    short_dir.chmod(0o777)
    code = (
        "import os, sys; sys.path[:0] = eval(sys.argv[1])\n"
        "from theta_daemon import runtime; from theta_daemon.server import listener\n"
        "os.setgroups([]); os.setgid(12345); os.setuid(12345)\n"
        "claim = listener.claim(runtime.places(dict(os.environb), '0' * 16, os.geteuid()), os.geteuid())\n"
        "print(claim.place.directory.decode())\n"
    )
    done = subprocess.run(
        [sys.executable, "-E", "-c", code, repr(sys.path)],
        env={"TMPDIR": str(short_dir)},
        capture_output=True,
        check=False,
    )
    assert done.stdout.decode().strip() == f"{short_dir}/theta-daemon-12345", done.stderr.decode()
