"""Names for unfinished writes, and the sweep of those that dead processes left.

A draft is named host-pid-token: the next process on that host to open the storage can tell that its writer is
gone.
Always true: a living process's drafts are not swept from its own host.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import uuid
from itertools import count
from pathlib import Path

from holdfast.storage.os_errors import refusal

_HOST = socket.gethostname().replace("/", "_")


class _Names:
    """The drafts of this process: a token that no other process has, and a number."""

    def __init__(self) -> None:
        self.token, self.numbers = uuid.uuid4().hex, count()


_names = _Names()
# A forked child must not repeat its parent's names.
os.register_at_fork(after_in_child=_names.__init__)  # type: ignore[misc]


def new_name() -> str:
    """A name that no draft had before."""
    return f"{_HOST}-{os.getpid()}-{_names.token}{next(_names.numbers):x}"


def sweep(shed: Path) -> None:
    """Remove the drafts of this host's dead processes from the directory `shed`."""
    try:
        for name in os.listdir(shed):
            if _is_stale(name):
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(shed / name)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as cause:
        # Who may only read need not sweep.
        if cause.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise refusal(cause, "sweep", str(shed)) from cause


def _is_stale(name: str) -> bool:
    writer, _, token = name.rpartition("-")
    host, _, pid = writer.rpartition("-")
    if host != _HOST or not pid.isdigit():
        return False
    if int(pid) == os.getpid():
        return not token.startswith(_names.token)
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        return False
    return False
