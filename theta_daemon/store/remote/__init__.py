"""Where objects come from and go to: other repositories on this disk, git-lfs servers, object stores."""

from theta_daemon.store.remote.base import Progress, Remote, TransferReport
from theta_daemon.store.remote.choose import open_remote

__all__ = ["Progress", "Remote", "TransferReport", "open_remote"]
