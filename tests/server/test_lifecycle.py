"""Idle, draining, gone: when a daemon ends, and that nobody is hurt by it."""

from __future__ import annotations

import os
import signal
import time
from contextlib import ExitStack
from pathlib import Path

from protocol import control
from tests.daemons import alive, eventually
from tests.server.site import Site
from tests.server.speaker import Speaker
from theta_daemon.server.lifecycle import Lifecycle, Limits, State


def test_idle_is_neither_session_nor_work() -> None:
    """The clock runs from the end of the last session or work, and not while one goes on."""
    life = Lifecycle(Limits(idle_seconds=10), now=100)
    assert not life.idle(109)
    assert life.idle(110)
    life.opened()
    assert not life.idle(1000)
    life.closed(1000, served=True)
    assert not life.idle(1009)
    life.worked(1009)
    assert not life.idle(1018)
    assert life.idle(1019)
    life.opened()
    life.closed(1020, served=False)
    assert life.idle(1020), "a look at the status keeps nobody awake"


def test_rest_comes_once_after_each_session() -> None:
    """Ten seconds after the last session, once, and not while there is one: then free memory is given back."""
    life = Lifecycle(Limits(rest_seconds=10), now=0)
    assert not life.rests(100), "nothing has been served yet"
    life.opened()
    assert not life.rests(200)
    life.closed(200, served=True)
    assert not life.rests(209)
    assert life.rests(210)
    assert not life.rests(300)
    life.opened()
    life.closed(300, served=False)
    assert not life.rests(400), "looking at the status takes no memory"


def test_leaving_serves_the_backlog_and_draining_does_not() -> None:
    """Who idled out still takes who had knocked; who drains sends them away; both go when nobody is left."""
    life = Lifecycle(Limits(), now=0)
    life.leave("idle")
    assert life.over
    life.opened()
    assert life.declines() is None
    assert not life.over
    life.drain("memory")
    life.leave("idle")
    assert life.state is State.DRAINING
    assert life.declines() == "draining: memory"
    life.closed(1, served=True)
    assert life.over


def test_too_many_are_declined() -> None:
    """A bounded number of sessions; the next serves itself."""
    life = Lifecycle(Limits(sessions=2), now=0)
    life.opened()
    life.opened()
    assert life.declines() is None
    life.opened()
    assert life.declines() == "full"


def test_a_long_session_is_not_idle(site: Site) -> None:
    """A session three times as long as the idle limit is served to its end, and only then the clock starts."""
    daemon = site.start(THETA_IDLE_SECONDS="0.5")
    null = os.open("/dev/null", os.O_RDWR)
    reader, writer = os.pipe()
    with Speaker(site.place()) as speaker:
        speaker.hello(site.repo.path)
        assert speaker.descriptors([reader, null, null]).kind == control.ADOPTED
        time.sleep(1.5)
        assert alive(daemon)
        os.close(writer)
        assert speaker.receive().kind == control.FINISHED
    eventually(lambda: not alive(daemon), "idle at last", 30)
    assert not os.path.exists(site.place().socket)
    os.close(reader)
    os.close(null)


def test_knocking_at_daemons_that_keep_leaving(site: Site) -> None:
    """An idle limit of a millisecond: whoever connects is served, or turned away before anything was read."""
    null = os.open("/dev/null", os.O_RDWR)
    reader, writer = os.pipe()
    os.close(writer)  # a session over these ends at once
    outcomes = {"served": 0, "refused": 0, "left": 0}
    for _ in range(5):
        daemon = site.launch(THETA_IDLE_SECONDS="0.001")
        while daemon.poll() is None:
            said = ""
            try:
                with Speaker(site.place()) as speaker:
                    said = speaker.hello(site.repo.path, {"TRACE": "/dev/null"}).kind
                    said = speaker.descriptors([reader, null, null]).kind
                    assert said == control.ADOPTED
                    assert speaker.receive().kind == control.FINISHED
                    outcomes["served"] += 1
            except (FileNotFoundError, ConnectionRefusedError):
                outcomes["refused"] += 1
            except (EOFError, ConnectionResetError, BrokenPipeError):
                outcomes["left"] += 1
                assert said != control.ADOPTED, "a session was adopted and dropped"
            if sum(outcomes.values()) % 50 == 0:
                time.sleep(0.002)
        assert daemon.returncode == 0
    os.close(reader)
    os.close(null)
    assert outcomes["refused"] > 0, outcomes


def test_sigterm_drains(site: Site) -> None:
    """SIGTERM: newcomers are declined, the running session ends as it likes, then the name goes, then the process."""
    daemon = site.start()
    null = os.open("/dev/null", os.O_RDWR)
    reader, writer = os.pipe()
    with Speaker(site.place()) as speaker:
        speaker.hello(site.repo.path)
        speaker.descriptors([reader, null, null])
        daemon.send_signal(signal.SIGTERM)
        eventually(lambda: _declined(site, b"draining"), "newcomers are declined")
        assert alive(daemon)
        site.repo.commit("one", **{"a.bin": b"ONE"})
        assert site.servers()[-1] != daemon.pid
        os.close(writer)
        assert speaker.receive().kind == control.FINISHED
    eventually(lambda: not alive(daemon), "drained")
    assert not os.path.exists(site.place().socket)
    os.close(reader)
    os.close(null)


def _declined(site: Site, reason: bytes) -> bool:
    with Speaker(site.place()) as speaker:
        return reason in (speaker.hello(site.repo.path).get("reason") or b"")


def test_a_second_sigterm_ends_the_sessions_too(site: Site) -> None:
    """Asked twice, the daemon waits for nobody."""
    daemon = site.start()
    null = os.open("/dev/null", os.O_RDWR)
    reader, writer = os.pipe()
    with Speaker(site.place()) as speaker:
        speaker.hello(site.repo.path)
        speaker.descriptors([reader, null, null])
        daemon.send_signal(signal.SIGTERM)
        eventually(lambda: _declined(site, b"draining"), "newcomers are declined")
        daemon.send_signal(signal.SIGTERM)
        eventually(lambda: not alive(daemon), "gone", 30)
    for number in (null, reader, writer):
        os.close(number)


def test_too_much_memory_drains(site: Site) -> None:
    """Above its ceiling a daemon makes room for a fresh one; who comes meanwhile is served all the same."""
    site.launch(MEMORY_LIMIT="1000000")
    eventually(lambda: os.path.exists(site.place().lock), "it started")
    os.environ["CI"] = "1"
    site.repo.commit("one", **{"a.bin": b"ONE"})
    eventually(lambda: site.daemons() == [], "it has gone")
    assert "memory" in Path(os.fsdecode(site.place().log)).read_text()


def test_full_is_declined(site: Site) -> None:
    """Room for 64 at once: one of those who come later is told that there is none, and serves itself."""
    site.start()
    with ExitStack() as stack:
        answers = []
        for _ in range(66):
            speaker = stack.enter_context(Speaker(site.place()))
            answers.append(speaker.hello(site.repo.path))
        assert {answer.kind for answer in answers[:60]} == {control.WELCOME}
        assert answers[-1].get("reason") == b"full"
