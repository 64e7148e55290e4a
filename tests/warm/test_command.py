"""`git theta warm`: what it takes, what it does once, what it reports, and how it ends."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import threading
from pathlib import Path

import pytest

from tests.cli.theta import SCRIPTS
from tests.warm.machines import Machine, Origin, history, start_model


@pytest.fixture
def machine(origin: Origin) -> Machine:
    """A whole clone, nothing warmed."""
    return origin.machine("a", whole=True)


def test_each_distinct_value_once(origin: Origin, machine: Machine) -> None:
    """Six revisions that share values: as many values are built as differ; again: none, nothing fetched, nothing decoded."""
    report = machine.warm("--depth", "6")
    values = 3 + 2 * 6 + 1  # unchanged, two that change with each version, one skeleton
    assert (report["commits"], report["files"], report["files_warm"]) == (6, 6, 6)
    assert (report["tensors"], report["tensors_built"], report["tensors_there"]) == (values, values, 0)
    assert report["objects_fetched"] > 0
    assert report["fetch_rounds"] == 1
    assert report["pointers_parsed"] == 6
    assert report["blobs_read"] == 7  # and a text file of a pointer's size
    assert report["status"] == "warm"
    again = machine.warm("--depth", "6")
    assert (again["tensors_built"], again["tensors_there"]) == (0, values)
    assert (again["objects_fetched"], again["updates_decoded"]) == (0, 0)
    assert again["key"] == report["key"]
    assert again["cache_bytes"] == report["cache_bytes"]


def test_a_depth_one_clone_fetches_in_one_round(origin: Origin) -> None:
    """Without history: one round for all objects, and the pointer alone is read."""
    report = origin.machine("b").warm()
    assert (report["fetch_rounds"], report["pointers_parsed"], report["files_warm"]) == (1, 1, 1)


def test_the_budget_takes_the_newest(origin: Origin, machine: Machine) -> None:
    """Room for two revisions: exit status 3, the two newest are warm, the older ones are named as skipped; never more bytes."""
    size = len(origin.versions[0])
    budget = int(1.5 * size) + size
    report = machine.warm("--depth", "6", "--budget", str(budget), status=3)
    assert report["status"] == "partly"
    assert report["files_warm"] == 2
    assert len(report["skipped"]) == 4
    assert report["cache_bytes"] <= budget
    machine.forget()
    origin.hide()
    for version in (-1, -2):
        machine.repo("checkout", "-q", "-f", f"main~{-1 - version}")
        assert machine.checkout().returncode == 0
        assert machine.repo.read("model.st") == origin.versions[version]


def test_revisions(origin: Origin, machine: Machine) -> None:
    """Branches, tags, ranges, all tips and their depth mean what they mean to git; what git does not know is an error."""
    for name, back in (("old", 4), ("older", 5)):
        machine.repo("branch", name, f"main~{back}")
    machine.repo("tag", "-a", "-m", "tag", "marked", "main~3")
    counts = {
        ("old", "older"): 2,
        ("marked",): 1,
        ("main~3..main",): 3,
        ("main", "main~1"): 2,
        ("--all",): 4,
        ("--depth", "2", "old"): 2,
        ("--depth", "2", "main~5..main"): 2,
    }
    for arguments, count in counts.items():
        report = machine.warm(*arguments)
        assert report["files"] == count, arguments
    done = machine.theta("warm", "nowhere")
    assert done.returncode == 1
    assert b"nowhere" in done.stderr


def test_paths(origin: Origin, machine: Machine) -> None:
    """Only the named files: exact, by folder, by pattern; nothing that matches is no error."""
    for name in ("a/one.st", "a/b/two.st", "three.st"):
        machine.repo.write(name, start_model().retrain("norm", hash(name) % 1000).bytes())
    machine.repo("add", "-A")
    machine.repo("commit", "-q", "-m", "more")
    for arguments, count in [
        (["three.st"], 1),
        (["a"], 2),
        (["a/b/"], 1),
        (["*.st"], 4),
        (["a/*.st", "model.st"], 3),
        (["nothing"], 0),
    ]:
        options = [word for argument in arguments for word in ("--paths", argument)]
        assert machine.warm(*options, "--budget", "1g")["files"] == count, arguments


def test_offline_proves(origin: Origin, machine: Machine) -> None:
    """--offline on a cold machine lists what is missing and fetches nothing; on a warm one it succeeds."""
    report = machine.warm("--offline", status=1)
    (why,) = report["failed"].values()
    assert "offline" in why
    assert report["objects_fetched"] == 0
    machine.warm()
    machine.forget()
    assert machine.warm("--offline")["status"] == "warm"


def test_one_that_fails_does_not_keep_the_others(origin: Origin, machine: Machine) -> None:
    """An object that no remote has any more: exit status 1, that version is listed, the others are warm."""
    machine.repo.write("other.st", start_model().retrain("embed", 1).bytes())
    machine.repo("add", "-A")
    machine.repo("commit", "-q", "-m", "other")
    machine.forget()
    report = machine.warm(status=1)
    assert report["files_warm"] == 1
    (name,) = report["failed"]
    assert name.startswith("other.st")
    done = machine.theta("warm")
    assert done.returncode == 1
    assert b"other.st" in done.stderr


def test_pruning_keeps_what_was_asked_for(origin: Origin, machine: Machine) -> None:
    """--prune-to trims the folder to that size; the revisions that were named stay, older ones go."""
    everything = machine.warm("--depth", "6")["cache_bytes"]
    one = len(origin.versions[0])
    report = machine.warm("--prune-to", str(one + 100_000))
    assert report["cache_bytes"] <= one + 100_000 < everything
    machine.forget()
    origin.hide()
    assert machine.checkout().returncode == 0
    assert machine.repo.read("model.st") == origin.versions[-1]


def test_where_the_cache_is(origin: Origin, machine: Machine) -> None:
    """--cache-dir (relative to where one stands), then the setting, then XDG_CACHE_HOME, then HOME; none of them: an error."""
    for arguments, env, place in [
        (["--cache-dir", "here"], {}, machine.repo.path / "here"),
        ([], {"THETA_CACHE_DIR": str(origin.top / "set")}, origin.top / "set"),
        ([], {"XDG_CACHE_HOME": str(origin.top / "xdg")}, origin.top / "xdg" / "theta-daemon"),
        ([], {"THETA_DISK_CACHE": "0"}, machine.cache),
    ]:
        report = machine.warm(*arguments, env=env)
        assert report["cache"] == str(place)
        assert (place / "v1").is_dir()


def test_words_for_people(origin: Origin, machine: Machine) -> None:
    """Elsewhere than on a terminal: plain lines that say what was done, nothing on stderr; a bad amount is a usage error."""
    done = machine.theta("warm")
    assert done.returncode == 0
    assert b"1 of 1 checkpoint versions in 1 commits are warm" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stderr == b""
    assert machine.theta("warm", "--budget", "much").returncode == 2
    assert machine.theta("warm", "--depth", "0").returncode == 2


def test_a_report_in_a_file(origin: Origin, machine: Machine) -> None:
    """--json FILE has the figures, stdout the words."""
    file = origin.top / "report.json"
    done = machine.theta("warm", "--json", str(file))
    assert done.returncode == 0
    assert b"are warm" in done.stdout
    assert json.loads(file.read_text())["files_warm"] == 1


def test_on_a_terminal(origin: Origin, machine: Machine) -> None:
    """With a terminal as stderr it works the same, and leaves no half a bar behind."""
    ours, theirs = pty.openpty()
    shown = bytearray()

    def read() -> None:
        while not shown.endswith(b"end\r\n"):
            shown.extend(os.read(ours, 4096))

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(
        [SCRIPTS / "git-theta", "warm", "--depth", "6"],
        cwd=machine.repo.path,
        env={**os.environ, **machine.repo.env},
        stdout=subprocess.PIPE,
        stderr=theirs,
        check=False,
    )
    os.write(theirs, b"end\n")
    reader.join()
    os.close(theirs)
    os.close(ours)
    assert done.returncode == 0, shown
    assert b"Traceback" not in shown


def test_the_key(origin: Origin, machine: Machine) -> None:
    """Equal on two machines, from depth 1 alone and without objects; another one when a value or an object differs; the
    same again when the content is; nothing is written or fetched for it.
    """
    other = origin.machine("b")
    key = machine.key()
    assert key == other.key()
    assert key.startswith("theta-1-")
    assert not machine.cache.exists()
    assert not (other.repo.path / ".git" / "lfs").exists()
    assert machine.key("HEAD~1") != key
    assert machine.key("HEAD", "HEAD~1") == machine.key("--depth", "2") != key
    newer = start_model().edit("norm", 1, 1).bytes()
    machine.repo.write("model.st", newer)
    machine.repo("commit", "-q", "-am", "edited")
    assert machine.key() != key
    machine.repo("revert", "--no-edit", "HEAD", env={"GIT_THETA_SKIP_SMUDGE": "1"})
    assert machine.key() == key


def test_the_key_names_objects(origin: Origin, machine: Machine) -> None:
    """The same values in other objects are another key: what must be fetched differs."""
    before = machine.key()
    machine.checkout()
    data = machine.repo.read("model.st")
    machine.repo("rm", "-q", "--cached", "model.st")
    machine.repo("commit", "-q", "-m", "without")
    for path in (machine.repo.path / ".git" / "theta").glob("memo*"):
        path.unlink()
    Path(machine.repo.path / "model.st").write_bytes(data)
    machine.repo("add", "model.st")
    machine.repo("commit", "-q", "-m", "dense now")
    assert machine.repo.blob("model.st") != machine.repo.blob("model.st", "HEAD~2")
    assert machine.key() != before


def test_with_the_commit_before_only_the_last_update_is_fetched(origin: Origin) -> None:
    """A near miss: the folder has the revision before. A clone of depth 2 knows what the changed values were, one of depth 1
    does not and needs their whole chains; both get the right file.
    """
    newest = history(len(origin.versions) + 1)[-1]
    origin.repo.commit("next", **{"model.st": newest})
    fetched = {}
    for depth in ("1", "2"):
        machine = origin.machine(f"depth-{depth}", warm=True)
        shutil.rmtree(machine.repo.path)
        origin.clone(machine.repo.path, machine.repo.env, "--depth", depth)
        fetched[depth] = machine.warm()["bytes_fetched"]
        machine.checkout()
        assert machine.repo.read("model.st") == newest
    assert 0 < fetched["2"] < 20_000 < len(newest) // 2 < fetched["1"]
