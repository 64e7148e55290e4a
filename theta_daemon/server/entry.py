"""The daemon's life from its first instruction to its last. An edge: reads the process's environment.

The order matters: detach; lift the starter's limits; become the one daemon of this place or go without a word (losers of the race cost nothing but
their start); note the state of the code; only then import and build what serves; listen when it can, since whoever connects
shall not wait for imports. At the end the process ends at once: a thread that a plug-in forgot must not keep the lock.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from theta_daemon import runtime
from theta_daemon.server import limits, listener, spawn

if TYPE_CHECKING:
    from theta_daemon.server.host import Host
    from theta_daemon.server.lifecycle import Limits

_log = logging.getLogger(__name__)


def serve(make_host: Callable[[], tuple[Host, Limits] | None]) -> None:
    """Be the daemon that `make_host` makes, unless there is one or it makes none; never returns."""
    status = 1
    try:
        _serve(make_host)
        status = 0
    except Exception:  # noqa: BLE001 - the last place that can say so
        _log.exception("the daemon failed")
    finally:
        logging.shutdown()
        os._exit(status)


def _serve(make_host: Callable[[], tuple[Host, Limits] | None]) -> None:
    environ = dict(os.environb)
    activated = listener.activated(environ, os.getpid())
    for name in ("LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"):
        os.environ.pop(name, None)
    given = listener.adopt() if activated else None
    spawn.detach(*([] if given is None else [given.socket.fileno()]))
    if limits.lift() is not None and given is None:
        return
    uid = os.geteuid()
    places = runtime.places(environ, runtime.build_id(sys.executable), uid)
    claim = listener.claim(places, uid)
    if claim is None and given is None:
        return
    # Imported here: the loser of a race needs none of it.
    from theta_daemon.server.code import CodeWatch
    from theta_daemon.server.logs import open_log
    from theta_daemon.server.loop import Resident

    if claim is not None:
        open_log(claim.place)
        listener.sweep(claim)
    code = CodeWatch()
    made = make_host()
    if made is None:
        return
    host, bounds = made
    if given is None and claim is not None:
        given = listener.bind(claim.place)
    if given is not None:
        _log.info("serving at %s", os.fsdecode(given.path))
        reason = Resident(given, host, runtime.build_id(sys.executable), bounds, code).run()
        _log.info("ending: %s", reason)
        given.close()
    with suppress(Exception):
        host.close()
