"""Directories with names that others can guess, in places where others may write.

Always true: what is made or accepted here is a directory of this user's, which no other user can look into or
change. Working state is read without suspicion of who wrote it, so it lies in no other place unless the user
chose one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path

from holdfast.errors import MachineError

PRIVATE = 0o700


def default_working_dir() -> Path:
    """Where working state goes that nobody chose a place for, once `private_directory` has seen to it."""
    return Path(tempfile.gettempdir()) / f"holdfast-{os.geteuid()}"


def private_directory(path: Path) -> Path:
    """Make the directory, or see that it is this user's alone. MachineError: another user or a link has its
    place, or it cannot be made.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(PRIVATE)
        # Not followed: a link may point to where somebody wants this user's files to be.
        found = os.lstat(path)
        if not stat.S_ISDIR(found.st_mode):
            raise MachineError(f"{path} is no directory, where working state was to go; {_REMEDY}")
        if found.st_uid != os.geteuid():
            raise MachineError(
                f"{path} belongs to user {found.st_uid}, not to user {os.geteuid()}, whose working state was "
                f"to go there; {_REMEDY}"
            )
        if stat.S_IMODE(found.st_mode) & ~PRIVATE:
            path.chmod(PRIVATE)
    except OSError as cause:
        raise MachineError(f"working state cannot be kept in {path} ({cause}); {_REMEDY}") from cause
    return path


_REMEDY = "remove it, or choose a place with --working-dir or HOLDFAST_WORKING_DIR"
