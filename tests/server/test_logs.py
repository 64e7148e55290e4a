"""The log stays small, keeps secrets, and tells of crashes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.daemons import alive, eventually
from tests.server.site import Site
from theta_daemon.runtime import Place
from theta_daemon.server import logs


def test_ten_mebibytes_of_logging_stay_under_four(short_dir: Path) -> None:
    """Rotation by size while the process runs, however long it does; what was said last is kept."""
    code = (
        "import logging, sys, os; from theta_daemon.runtime import Place; from theta_daemon.server import logs\n"
        "logs.open_log(Place(os.fsencode(sys.argv[1]), 'b'))\n"
        "for number in range(11_000): logging.getLogger('x').info('%01000d', number)\n"
    )
    subprocess.run([sys.executable, "-c", code, str(short_dir)], check=True)
    sizes = [file.stat().st_size for file in short_dir.iterdir()]
    assert sum(sizes) < 4 << 20
    kept = logs.read_log(Place(os.fsencode(short_dir), "b"))
    assert kept.endswith(f"{10_999:01000d}\n")
    assert len(kept) > 1 << 20


def test_values_of_the_environment_are_not_logged(site: Site) -> None:
    """Whatever happens in sessions, what callers have in their environment stays theirs."""
    site.start()
    secret = {"MY_TOKEN": "s3cr3t-v4lue"}
    for number, extra in enumerate([{}, {"EXPLODE": "1"}, {"DECLINE": "no"}]):
        site.repo.write("a.bin", b"ONE%d" % number)
        site.repo.run("add", "-A", env={**secret, **extra})
    text = logs.read_log(site.place())
    assert "declined" in text
    assert "as asked" in text
    assert "s3cr3t" not in text


def test_a_crash_in_native_code_is_told_by_the_next_daemon(site: Site) -> None:
    """faulthandler's trace goes to a file; the next daemon takes it into the log, once. git saw the end of its filter."""
    daemon = site.start()
    site.repo.write("a.bin", b"this is my fault")
    done = site.repo.run("add", "-A")
    assert done.returncode == 128
    assert b"run the command again" in done.stderr
    eventually(lambda: not alive(daemon), "it crashed")
    site.start()
    text = logs.read_log(site.place())
    assert "the daemon before this one crashed" in text
    assert "in answer" in text
    assert Path(os.fsdecode(site.place().crash)).stat().st_size == 0


def test_no_room_for_a_log_is_no_reason_not_to_serve(short_dir: Path) -> None:
    """A log that cannot be written is done without."""
    code = (
        "import logging, sys, os; from theta_daemon.runtime import Place; from theta_daemon.server import logs\n"
        "logs.open_log(Place(os.fsencode(sys.argv[1]), 'b')); logging.getLogger('x').info('hello')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(short_dir / "missing")], capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
