"""`python -m theta_daemon.server`: the daemon. The resident's own budgets come from its user's git configuration."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from theta_daemon.server import entry

if TYPE_CHECKING:
    from theta_daemon.server.host import Host
    from theta_daemon.server.lifecycle import Limits

HEADROOM_BYTES = 4 << 30
"""What sessions may need beyond the tensor cache before the daemon makes room for a fresh one."""


def make_engine() -> tuple[Host, Limits] | None:
    """The engine, or None when the user wants no daemon. Imported step by step: who is not wanted ends soon."""
    import logging
    from pathlib import Path

    from theta_daemon.history.git import read_config
    from theta_daemon.invocation import Invocation
    from theta_daemon.server.lifecycle import Limits
    from theta_daemon.settings import DaemonMode, Settings

    here = Invocation(cwd=Path("/"), env=dict(os.environ), umask=0o077, uid=os.geteuid())
    settings = Settings.load(read_config(here), here.env)
    if settings.daemon is DaemonMode.NEVER:
        logging.getLogger(__name__).info("theta.daemon is never")
        return None

    from theta_daemon import heap
    from theta_daemon.engine import Engine, import_everything

    import_everything()
    heap.settle()
    limits = Limits(idle_seconds=settings.idle_seconds, memory_bytes=settings.tensor_cache + HEADROOM_BYTES)
    return Engine(settings, resident=True), limits


if __name__ == "__main__":
    entry.serve(make_engine)
